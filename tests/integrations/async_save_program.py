"""Trainings on two ranks whose checkpoints are written on threads. Each rank saves what it saw.

`python async_save_program.py FOLDER CASE...` runs the cases one after the other, in the same process group.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Imported later, some of these would find the process group as a default of their functions, and hold it.
from ddp_program import no_thread_of_gloo_is_left

import trainbus.callbacks.parallel.fully_shard
import trainbus.integrations.fairscale.sharded_ddp  # noqa: F401
from support.ranks import weight_values, write_json
from support.sharding import WAYS, build
from trainbus import Stage
from trainbus.engine.checkpoint.read.verify import problems
from trainbus.engine.checkpoint.write import commit as committing

FOLDER = Path(sys.argv[1])
RANK = int(os.environ["RANK"])
PATIENCE = 30.0
FULL = OSError(errno.ENOSPC, "No space left on device")


class Disk:
    """The disk of one rank: it holds up and fails the writes of chosen steps."""

    def __init__(self) -> None:
        self.clear()
        really = committing.Staging.flush

        def flush(staging: committing.Staging) -> None:
            self.threads.append(threading.current_thread().name)
            step = staging.name.step
            if step in self.slow:
                assert self.opened.wait(PATIENCE), "the training did not continue"
            self.sleep()
            if step in self.broken:
                raise FULL
            really(staging)

        committing.Staging.flush = flush  # type: ignore[method-assign]

    def clear(self) -> None:
        self.slow: set[int] = set()
        self.broken: set[int] = set()
        self.sleep: Callable[[], None] = lambda: None
        self.threads: list[str] = []
        self.opened = threading.Event()


DISK = Disk()


class Messages(logging.Handler):
    """Keeps the warnings of a training."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def trained(name: str, saves: tuple[int, ...] = (2, 5), *, opens: int = 4, **options: Any) -> dict[str, Any]:
    """Train 8 steps with saves after chosen steps and at the end. Return what this rank saw.

    Args:
        name: the name of the folder.
        saves: the steps that are saved.
        opens: the step at whose end the disk lets slow writes continue.
        options: training arguments. `handlers` has functions by event, and `ends` is the step that stops the run.
    """
    handlers, ends = options.pop("handlers", {}), options.pop("ends", 99)
    base = {"save_steps": 1000, "eval_strategy": "no", "logging_steps": 1}
    trainer = build(FOLDER / name, **{**base, **options})
    commits: list[list[Any]] = []

    def commit(state: Any, checkpoint: Any) -> None:
        commits.append([state.global_step, checkpoint.step, problems(checkpoint.path, full=True)])

    def ask(state: Any, control: Any) -> None:
        if state.global_step in saves:
            control.request("save", "for the test")
        if state.global_step == ends:
            control.request("training_stop", "for the test")

    trainer.on("on_commit", commit)
    trainer.on("on_step_end", ask)
    trainer.on("on_step_end", DISK.opened.set, once=opens, stage=Stage.PREPARE, id="opens")
    trainer.on("on_train_end", DISK.opened.set, stage=Stage.PREPARE, before="Checkpoint", id="opens at the end")
    trainer.on("on_exception", DISK.opened.set, id="opens too")
    for event, handler in handlers.items():
        trainer.on(event, handler, id=f"test {event}")
    messages, error = Messages(), ""
    logging.getLogger("trainbus").addHandler(messages)
    try:
        trainer.train()
    except (Exception, SystemExit) as raised:
        error = f"{type(raised).__name__}: {raised}"
    finally:
        logging.getLogger("trainbus").removeHandler(messages)
    seen = {
        "commits": commits,
        "threads": DISK.threads,
        "step": trainer.state.global_step,
        "error": error,
        "warnings": messages.texts,
        "left": [thread.name for thread in threading.enumerate() if thread.name.startswith("checkpoint")],
        "log": [{key: value for key, value in row.items() if "_runtime" not in key and "_per_second" not in key}
                for row in trainer.state.log_history],
    }  # fmt: skip
    DISK.clear()
    return seen


def equal(way: str) -> None:
    """Train once with saves on threads, whose disks are slow on both ranks, and once with saves in step."""
    ends = {}
    for later in (True, False):
        DISK.slow = {2} if later else set()
        ends[f"{way}-{later}"] = trained(f"{way}-{later}", async_save=later, **WAYS[way])
    for name, end in ends.items():
        write_json(FOLDER / f"{name}-{RANK}.json", end)


def tell(name: str, **options: Any) -> None:
    write_json(FOLDER / f"{name}-{RANK}.json", trained(name, **options))


def filtered(step: int, does: Callable[[], None]) -> Callable[[Any], None]:
    """Return a handler that calls a function when a step begins."""

    def handler(state: Any) -> None:
        if state.global_step + 1 == step:
            does()

    return handler


def raises() -> None:
    raise ValueError("boom")


def resumes() -> None:
    """Continue from a checkpoint that was written on threads, and compare with the uninterrupted run."""
    trainer = build(FOLDER / "resumed", save_strategy="no", eval_strategy="no", logging_steps=1)
    trainer.train(resume_from_checkpoint=str(FOLDER / "ddp-True" / "checkpoint-2"))
    other = build(FOLDER / "whole", save_strategy="no", eval_strategy="no", logging_steps=1)
    other.train()
    write_json(FOLDER / f"resumed-{RANK}.json", [weight_values(each.model) for each in (trainer, other)])


def machines() -> None:
    """Train on what seem to be two machines that share no disk: each rank saves all files of its machine."""
    os.environ["LOCAL_RANK"] = "0"
    DISK.slow = {2}
    seen = trained(f"apart-{RANK}", save_on_each_node=True, save_total_limit=1)
    os.environ["LOCAL_RANK"] = str(RANK)
    write_json(FOLDER / f"apart-{RANK}.json", seen)


def random_speeds(seed: int) -> None:
    """Save often, with steps and disks of random speed on both ranks."""
    chance = random.Random(f"{seed}-{RANK}")
    DISK.sleep = lambda: time.sleep(chance.choice([0, 0.001, 0.01, 0.03]))
    sleep = lambda: time.sleep(chance.choice([0, 0, 0.002, 0.01]))  # noqa: E731
    name = f"random-{seed}"
    tell(name, saves=tuple(range(3, 40, 3)), max_steps=40, save_total_limit=2, handlers={"on_step_begin": sleep})


def main() -> None:
    """Run the cases."""
    sys.modules.setdefault("deepspeed", None)  # type: ignore[arg-type] # transformers would import it later
    for case in sys.argv[2:]:
        kind, _, detail = case.partition("=")
        match kind:
            case "equal":
                equal(detail)
            case "resumes":
                resumes()
            case "machines":
                machines()
            case "random":
                random_speeds(int(detail))
            case "full":  # the disk of one rank is full when step 2 is written
                rank, policy = detail.split(",")
                DISK.slow, DISK.broken = {2}, {2} if int(rank) == RANK else set()
                tell(f"full-{rank}-{policy}", on_save_error=policy)
            case "stopped":  # the training ends while a checkpoint is written
                DISK.slow = {2}
                tell("stopped", opens=99, save_strategy="no", ends=3)
            case "signal":  # one rank gets a signal while a checkpoint is written
                DISK.slow = {2}
                sends = lambda: os.kill(os.getpid(), signal.SIGTERM) if RANK else None  # noqa: E731
                tell("signal", opens=3, handlers={"on_step_begin": filtered(3, sends)})
            case "raised":  # all ranks fail while a checkpoint is written
                DISK.slow = {2}
                tell("raised", opens=99, handlers={"on_step_begin": filtered(4, raises)})


if __name__ == "__main__":
    atexit.register(no_thread_of_gloo_is_left)  # The first to be registered is the last to run.
    main()
