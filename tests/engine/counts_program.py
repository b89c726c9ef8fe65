"""Print the counts of a step, of a checkpoint and of a resume as JSON, each also with a planted extra cost.

A process of its own: what other tests import or patch changes how many Python functions torch calls.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import json
import os
import shutil
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from trainbus import Callback, Trainer, TrainingArguments
from trainbus.engine.checkpoint.format import manifest
from trainbus.events import timeline
from trainbus.events.bus import EventBus

FIRST, LAST = 50, 150
"""The steps between which a count runs. No log, evaluation or checkpoint is due there."""

READS = ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__", "__array__")
"""The methods of a tensor that wait for the device."""

WIDTH = 256
"""Of the model that a checkpoint holds: its tensors are large, compared with the JSON files beside them."""


def samples(width: int = 20) -> TensorDataset:
    points = torch.randn(LAST * 8 + 80, width)
    return TensorDataset(points, (points.sum(dim=1) > 0).long())


def network(width: int = 20, hidden: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 2))


class Between(Callback):
    """Counts between two steps: it calls `start` after step FIRST, and `stop` after step LAST."""

    def __init__(self, start: Callable[[], None], stop: Callable[[], None]) -> None:
        self.start, self.stop = start, stop

    def on_step_end(self, state: Any) -> None:
        if state.global_step == FIRST:
            self.start()
        elif state.global_step == LAST:
            self.stop()


class Planted(Callback):
    """Does something in each step."""

    def __init__(self, act: Callable[[Any], Any]) -> None:
        self.act = act

    def on_step_begin(self, run: Any) -> None:
        self.act(run)


def trained(folder: Path, counter: Callback, planted: list[Callback], steps: int = LAST + 5) -> None:
    options = {"logging_steps": 10_000, "save_strategy": "no", "report_to": "none", "use_cpu": True}
    args = TrainingArguments(str(folder), max_steps=steps, **options)
    criterion = nn.functional.cross_entropy
    Trainer(network(), args, train_dataset=samples(), criterion=criterion, callbacks=[counter, *planted]).train()


class Calls:
    """Counts the functions that are called between `start` and `stop`: `call` of Python, `c_call` of C."""

    def __init__(self, kind: str) -> None:
        self.kind, self.count = kind, 0

    def start(self) -> None:
        def called(frame: Any, event: str, argument: Any) -> None:
            self.count += event == self.kind

        sys.setprofile(called)

    def stop(self) -> None:
        sys.setprofile(None)

    @property
    def per_step(self) -> float:
        return self.count / (LAST - FIRST)


def calls(kind: str, folder: Path, *planted: Callback) -> float:
    counted = Calls(kind)
    trained(folder, Between(counted.start, counted.stop), list(planted))
    return counted.per_step


def calls_of_plain_loop(kind: str) -> float:
    counted, data, model = Calls(kind), samples(), network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / LAST)
    losses = torch.tensor(0.0)
    for step, (points, labels) in enumerate(DataLoader(data, batch_size=8, sampler=RandomSampler(data)), 1):
        loss = nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses += loss.detach()
        if step == FIRST:
            counted.start()
        elif step == LAST:
            counted.stop()
            break
    return counted.per_step


@contextlib.contextmanager
def patched(owner: Any, *names: str) -> Iterator[dict[str, int]]:
    """Count the calls of methods of a class, or of functions of a module, in the dict that it yields."""
    counts, real = dict.fromkeys(names, 0), {name: getattr(owner, name) for name in names}
    inherited = {name for name in names if name not in vars(owner)}

    def counting(name: str) -> Callable[..., Any]:
        @functools.wraps(real[name])
        def call(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return real[name](*args, **options)

        return call

    for name in names:
        setattr(owner, name, counting(name))
    try:
        yield counts
    finally:
        for name in names:
            delattr(owner, name) if name in inherited else setattr(owner, name, real[name])


def counted_calls(owner: Any, names: tuple[str, ...], folder: Path, *planted: Callback) -> float:
    """Return how often a step calls these methods of a class."""
    with patched(owner, *names) as counts:
        at: list[int] = []
        note = lambda: at.append(sum(counts.values()))  # noqa: E731
        trained(folder, Between(note, note), list(planted))
    return (at[1] - at[0]) / (LAST - FIRST)


def blocks_that_stay(folder: Path, *planted: Callback) -> int:
    """Return the blocks of memory that an epoch of 160 steps allocates and keeps: the least of five epochs.

    A leak shows in every epoch. Free lists and caches of Python and torch grow in the first epochs, and in single later
    ones. The samples of an epoch are freed at its end, so each look is at the same step of its epoch.
    """
    kept: list[int] = []

    class Note(Callback):
        def on_step_end(self, run: Any) -> None:
            if run.state.global_step % 160 != 10 or run.state.epoch < 1:
                return
            if not tracemalloc.is_tracing():  # not earlier: modules that the first steps import are a million blocks
                tracemalloc.start()
            run.bus.timeline.fold()  # the times of the last steps are in a buffer until then
            gc.collect()
            taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)])
            kept.append(len(taken.traces))

    former, timeline.KEPT = timeline.KEPT, 8  # its steps are a bounded list, which must be full before the first window
    try:
        trained(folder, Note(), list(planted), steps=975)
    finally:
        tracemalloc.stop()
        timeline.KEPT = former
    assert len(kept) == 6
    return min(after - before for before, after in itertools.pairwise(kept))


def saving_trainer(folder: Path, steps: int, *planted: Callback) -> Trainer:
    options = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none", "use_cpu": True}
    args = TrainingArguments(str(folder), max_steps=steps, **options)
    criterion = nn.functional.cross_entropy
    model = network(WIDTH, WIDTH)
    return Trainer(model, args, train_dataset=samples(WIDTH), criterion=criterion, callbacks=list(planted))


def written() -> int:
    """Return the bytes that this process wrote so far."""
    return int(Path("/proc/self/io").read_text().split("wchar:")[1].split()[0])


def write_ratio(folder: Path, extra: Callable[[Trainer], Any] = lambda trainer: None) -> float:
    """Return the bytes that a checkpoint writes, per byte of its tensors."""
    found: list[float] = []

    class Save(Callback):
        def on_step_end(self, run: Any, control: Any) -> None:
            if run.state.global_step == 2:
                control.request("save", reason="the test measures a checkpoint")
                extra(trainer)

    shutil.rmtree(folder, ignore_errors=True)
    trainer = saving_trainer(folder, 3, Save())
    before = written()
    trainer.train()
    found = [written() - before]
    tensors = list(trainer.model.parameters())
    for state in trainer.optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return found[0] / sum(tensor.nbytes for tensor in tensors)


OPENED: list[str] = []
"""The files that Python opened while `WATCHED` is not empty, below the folders in it."""
WATCHED: list[str] = []


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if WATCHED and event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        path = os.fsdecode(arguments[0])
        if path.startswith(WATCHED[0]):
            OPENED.append(path)


def resumed(folder: Path, act: Callable[[Path], Any] = lambda checkpoint: None) -> tuple[int, int]:
    """Return the files that a resume opens below the output folder, and how often it reads a manifest."""
    checkpoint = folder / "checkpoint-2"

    class First(Callback):
        def on_step_begin(self, state: Any) -> None:
            if state.global_step == 2:
                act(checkpoint)
                WATCHED.clear()

    trainer = saving_trainer(folder, 3, First())
    OPENED.clear()
    WATCHED.append(str(folder))
    trainer.train(resume_from_checkpoint=str(checkpoint))
    return len(OPENED), sum(path.endswith(manifest.MANIFEST) for path in OPENED)


def read_twice(checkpoint: Path) -> None:
    for _ in range(2):
        manifest.read_manifest(checkpoint)


def keep(run: Any) -> None:
    KEPT.append(object())


KEPT: list[Any] = []


def extra_calls(run: Any) -> None:
    for _ in range(40):
        (lambda: None)()


def extra_c_calls(run: Any) -> None:
    for _ in range(60):
        len(KEPT)


def extra_events(run: Any) -> None:
    run.announce("on_batch", batch=None)


def read_device(run: Any) -> None:
    float(torch.zeros(()))


def wasteful_checkpoint(trainer: Trainer) -> None:
    torch.save(trainer.model.state_dict(), Path(trainer.args.output_dir) / "again.pt")


def main(folder: Path) -> None:
    counts: dict[str, list[float]] = {
        "python calls a step": [calls("call", folder), calls("call", folder, Planted(extra_calls))],
        "C calls a step": [calls("c_call", folder), calls("c_call", folder, Planted(extra_c_calls))],
        "events a step": [
            counted_calls(EventBus, ("announce",), folder),
            counted_calls(EventBus, ("announce",), folder, Planted(extra_events)),
        ],
        "device reads a step": [
            counted_calls(torch.Tensor, READS, folder),
            counted_calls(torch.Tensor, READS, folder, Planted(read_device)),
        ],
        "blocks that an epoch keeps": [blocks_that_stay(folder), blocks_that_stay(folder, Planted(keep))],
        "bytes of a checkpoint per byte of its tensors": [
            write_ratio(folder / "twice", wasteful_checkpoint),
            write_ratio(folder / "saved"),
        ][::-1],
    }
    sys.addaudithook(watch)
    (opened, manifests), (more, twice) = resumed(folder / "saved"), resumed(folder / "saved", read_twice)
    counts["files opened at a resume"] = [opened, more]
    counts["manifests read at a resume"] = [manifests, twice]
    plain = {"python": calls_of_plain_loop("call"), "C": calls_of_plain_loop("c_call")}
    print(json.dumps({"counts": counts, "plain": plain}))


main(Path(sys.argv[1]))
