"""Measure how costs grow with the number of callbacks, steps, rows and ranks.

    python benchmarks/growth.py
    python benchmarks/growth.py --only rows ranks
    python benchmarks/growth.py --callback-limit 0.5 --rank-limit 2

- Callbacks: the CPU time of a step with 1 to 500 further callbacks, and the time to build a Trainer with them. One
  series has callbacks that handle no event of a step, the other has callbacks that handle one.
- Steps: the CPU time per step and the memory, for two programs: the loop with steps that do nothing, and
  `Trainer.preview`, which runs the loop and the callbacks that decide, without a model.
- Rows: the time to the first shuffled batch, and the memory. The dataset makes each row when it is read. Each
  measurement is in a process of its own.
- Ranks: the time that one rank needs for the checks between ranks. The answers of the other ranks are simulated. The
  rank unpickles each answer, as after a real collective.

`--callback-limit` is in microseconds per callback with one handler, and `--rank-limit` in seconds of a check.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import pickle
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import HF, OURS, RAW, Benchmark, Curve, hushed, interleave
from contenders import TASKS, hf_style, periods
from places import Places
from torch.utils.data import DataLoader, Dataset

import trainbus
from trainbus.engine.data.position import Position
from trainbus.engine.distributed.consensus import Consensus
from trainbus.engine.distributed.consistency import compare_training
from trainbus.engine.distributed.ranks import Ranks
from trainbus.engine.loop import Loop
from trainbus.events import EventBus, TrainerControl, TrainerState
from trainbus.events.errors import RankDivergence

MANY = 500
"""The largest number of further callbacks."""
STEP = TASKS["step of a perceptron"]


# Callbacks


def silent(library: Any) -> Any:
    """Return a callback that handles no event of a step."""

    class Silent(library.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...

    return Silent()


def listening(library: Any) -> Any:
    """Return a callback that handles `on_step_end` and does nothing."""
    if library is trainbus:

        class Listening(trainbus.Callback):
            def on_step_end(self, state: Any) -> None: ...

        return Listening()

    class ListeningHF(library.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...

    return ListeningHF()


def step_with(name: str, make: Callable[[Any], Any], count: int, steps: int, folder: Path) -> float:
    """Return the median CPU time of a step with `count` further callbacks."""
    callbacks = [make(importlib.import_module(name)) for _ in range(count)]
    taken = periods(partial(hf_style, name, callbacks=callbacks), STEP, steps, folder, 20)
    return statistics.median(taken)


def build_with(name: str, count: int, folder: Path) -> float:
    """Return the CPU time to build a Trainer with `count` further callbacks."""
    library: Any = importlib.import_module(name)
    callbacks = [listening(library) for _ in range(count)]
    with hushed():
        args = library.TrainingArguments(str(folder), report_to="none", use_cpu=True, disable_tqdm=True)
        model = STEP.model()
        began = time.process_time()
        library.Trainer(model, args, train_dataset=STEP.data(32), callbacks=callbacks)
    return time.process_time() - began


def of_callbacks(benchmark: Benchmark) -> None:
    """Measure the cost of callbacks."""
    options = benchmark.options
    sizes = [1, MANY] if options.quick else [1, 10, 100, 250, MANY]
    steps = 50 if options.quick else 150
    names = Places(benchmark, OURS, HF).names
    with tempfile.TemporaryDirectory() as folder:
        for make, kind in ((silent, "that handle no event of a step"), (listening, "with one handler")):
            runs = {
                (name, count): partial(step_with, name, make, count, steps, Path(folder))
                for name in names
                for count in sizes
            }
            found = interleave(runs, options.rounds)  # type: ignore[arg-type]
            each: dict[str, list[float]] = {}
            for name in names:
                values = [statistics.median(found[name, count]) for count in sizes]  # type: ignore[index]
                benchmark.curve(Curve(f"step with callbacks {kind}", name, sizes, values, "s", "callbacks"))
                pairs = zip(found[name, MANY], found[name, 1])  # type: ignore[index]
                each[name] = [(many - one) / (MANY - 1) for many, one in pairs]
            task = f"one of {MANY} callbacks {kind}, per step"
            benchmark.add(task, "s", each, base=HF)
            if make is listening and options.callback_limit is not None:
                cost = statistics.median(each[OURS]) * 1e6
                benchmark.limit(cost, options.callback_limit, f"{task}, in microseconds")
        builds = {(name, count): partial(build_with, name, count, Path(folder)) for name in names for count in sizes}
        found = interleave(builds, options.rounds)  # type: ignore[arg-type]
        for name in names:
            values = [statistics.median(found[name, count]) for count in sizes]  # type: ignore[index]
            benchmark.curve(Curve("building a Trainer with callbacks", name, sizes, values, "s", "callbacks"))


# Steps


class NoFeed:
    """A source of steps without data."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.window = SimpleNamespace(batches=1, rows=1)

    def begin(self, epoch: int, batches_done: int) -> None: ...

    def take(self) -> Any:
        self.left -= 1
        return self.window if self.left >= 0 else None


class NoStep:
    """A step that does nothing."""

    def step(self, window: Any) -> None: ...


class NoRun:
    """A run with only the attributes that the bus needs."""

    def __init__(self) -> None:
        self.run = self
        self.args, self.state, self.control = None, TrainerState(), TrainerControl(0)
        self.bus = EventBus(self, self.control)


def bare_loop(steps: int) -> None:
    """Run the loop without callbacks, with steps that do nothing."""
    run = NoRun()
    Loop(
        run.bus,
        run.state,
        run.control,
        NoFeed(steps),
        NoStep(),
        epochs=1,
        batches_per_epoch=steps,
        position=Position(),
        agree=lambda control: None,
    ).run()
    assert run.state.global_step == steps


def preview(steps: int, folder: Path) -> None:
    """Preview a run with the default callbacks."""
    args = trainbus.TrainingArguments(
        str(folder),
        max_steps=steps,
        logging_steps=max(500, steps // 20),
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = trainbus.Trainer(STEP.model(), args, train_dataset=Virtual(steps * 8))
    assert trainer.preview().steps == steps


def of_steps(benchmark: Benchmark) -> None:
    """Measure the loop and the preview."""
    powers = range(3, 6) if benchmark.options.quick else range(3, 8)
    with tempfile.TemporaryDirectory() as folder:
        preview(100, Path(folder))  # imports
        loops: dict[str, tuple[Callable[[int], None], list[int]]] = {
            "the loop": (bare_loop, [10**power for power in powers]),
            "preview": (partial(preview, folder=Path(folder)), [10**power for power in powers if power <= 6]),
        }
        for name, (work, sizes) in loops.items():
            measured = [in_process(timed_work, work, size) for size in sizes]
            costs = [seconds / size for (seconds, _), size in zip(measured, sizes)]
            benchmark.curve(Curve(f"{name}, per step", OURS, sizes, costs, "s", "steps"))
            benchmark.curve(Curve(f"{name}, memory", OURS, sizes, [used for _, used in measured], "bytes", "steps"))


# Rows


class Virtual(Dataset[dict[str, torch.Tensor]]):
    """A dataset of any length that makes a row when it is read."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"points": torch.full((32,), float(index)), "labels": torch.tensor(index % 2)}


def first_batch(name: str, rows: int) -> None:
    """Make the loader of a contender and take its first shuffled batch."""
    data = Virtual(rows)
    if name == RAW:
        next(iter(DataLoader(data, 32, shuffle=True)))
        return
    library: Any = importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder, hushed():
        args = library.TrainingArguments(folder, per_device_train_batch_size=32, report_to="none", use_cpu=True)
        next(iter(library.Trainer(STEP.model(), args, train_dataset=data).get_train_dataloader()))


def of_rows(benchmark: Benchmark) -> None:
    """Measure the start of datasets of all lengths."""
    highest = 6 if benchmark.options.quick else 8
    for name in Places(benchmark, RAW, OURS, HF).names:
        # torch and transformers make a list of all indices, which has 4 GB at 10^8 rows.
        sizes = [10**power for power in range(4, (highest if name == OURS else min(highest, 7)) + 1)]
        first_batch(name, 64)  # imports
        measured = [in_process(timed_work, partial(first_batch, name), size) for size in sizes]
        benchmark.curve(Curve("time to the first batch", name, sizes, [each for each, _ in measured], "s", "rows"))
        memory = [used for _, used in measured]
        benchmark.curve(Curve("memory at the first batch", name, sizes, memory, "bytes", "rows"))


def timed_work(work: Callable[[int], None], size: int) -> tuple[float, float]:
    """Return the CPU time of the work, and the bytes by which the work raised the peak memory of this process."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at the present memory
    before, began = memory_line("VmRSS"), time.process_time()
    work(size)
    return time.process_time() - began, float(max(0, memory_line("VmHWM") - before))


def memory_line(name: str) -> int:
    """Return a value of `/proc/self/status`, such as `VmHWM`, in bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def in_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function that runs in a forked process, so that memory of earlier work does not count."""
    context = multiprocessing.get_context("fork")
    mine, others = context.Pipe(duplex=False)
    process = context.Process(target=lambda: others.send(work(*arguments)))
    process.start()
    others.close()
    try:
        return mine.recv()
    finally:
        process.join()


# Ranks


class Simulated(Ranks):
    """Rank 0 of several ranks. The other ranks are simulated: each sends the same as rank 0. The last rank may send
    another value, which `other` makes."""

    other: Callable[[Any], Any] | None = None
    """A function that receives the value of rank 0 and returns the value of the last rank."""

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * self.world_size if self.other is None else tensor * (self.world_size - 1)

    def gather_objects(self, value: Any) -> list[Any]:
        data = pickle.dumps(value)
        values = [pickle.loads(data) for _ in range(self.world_size)]
        if self.other is not None:
            values[-1] = self.other(values[-1])
        return values

    @property
    def _device(self) -> torch.device:
        return torch.device("cpu")


def simulated(world_size: int, other: Callable[[Any], Any] | None = None) -> Simulated:
    """Return rank 0 of `world_size`."""
    ranks = Simulated(0, world_size, 0)
    object.__setattr__(ranks, "other", other)
    return ranks


def checks(folder: Path) -> dict[str, Callable[[int], None]]:
    """Return the checks between ranks: name -> a function of the number of ranks."""
    args = trainbus.TrainingArguments(str(folder), report_to="none", use_cpu=True, disable_tqdm=True)
    trainer = trainbus.Trainer(STEP.model(), args, train_dataset=Virtual(64))
    trainer.create_optimizer_and_scheduler(10)
    run: Any = trainer.run

    def compare(world_size: int, other: Callable[[Any], Any] | None = None) -> None:
        run.ranks = simulated(world_size, other)
        if other is None:
            compare_training(run, {})
            return
        with contextlib.suppress(RankDivergence):
            compare_training(run, {})
            raise AssertionError("the difference was not found")

    def other_arguments(sent: Any) -> Any:
        if isinstance(sent[0], str):  # the digest and the settings of the training
            return "another", sent[1]
        order, settings = sent
        return order, {**settings, "`learning_rate`": "1.0"}

    def agree(world_size: int, requested: bool) -> None:
        run.ranks = simulated(world_size, (lambda sent: ({flag: {} for flag in sent[0]},) * 2) if requested else None)
        control = run.control
        if requested:
            control.request("log", "the benchmark requests it")
        Consensus(run, run.bus.subscribers)(control)
        control.begin("log")
        control.finish("log")

    return {
        "comparison of settings, all equal": compare,
        "comparison of settings, one rank differs": partial(compare, other=other_arguments),
        "agreement on flags, no request": partial(agree, requested=False),
        "agreement on flags, a request of one rank": partial(agree, requested=True),
    }


def of_ranks(benchmark: Benchmark) -> None:
    """Measure the checks between ranks."""
    sizes = [2, 1024] if benchmark.options.quick else [2, 16, 128, 1024]
    with tempfile.TemporaryDirectory() as folder:
        for name, check in checks(Path(folder)).items():
            check(2)
            values = [statistics.median(_seconds(check, size) for _ in range(3)) for size in sizes]
            benchmark.curve(Curve(name, OURS, sizes, values, "s", "ranks"))
            benchmark.limit(values[-1], benchmark.options.rank_limit, f"{name}, seconds at {sizes[-1]:,} ranks")


def _seconds(check: Callable[[int], None], size: int) -> float:
    began = time.process_time()
    check(size)
    return time.process_time() - began


SUBJECTS: dict[str, Callable[[Benchmark], None]] = {
    "callbacks": of_callbacks,
    "steps": of_steps,
    "rows": of_rows,
    "ranks": of_ranks,
}


def main() -> int:
    """Measure, print, and return 1 if a limit is exceeded."""
    benchmark = Benchmark(__doc__, rounds=5)
    benchmark.option("--only", nargs="+", choices=list(SUBJECTS), default=list(SUBJECTS), help="what grows")
    benchmark.option("--callback-limit", type=float, help="microseconds per callback with one handler, in a step")
    benchmark.option("--rank-limit", type=float, help="seconds of a check on 1,024 ranks")
    options = benchmark.begin()
    for name in options.only:
        SUBJECTS[name](benchmark)
    return benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())
