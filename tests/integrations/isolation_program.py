"""Runs on two ranks in which a callback fails, or is slow, on one of them. Each rank writes its results."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from support.outcomes import saved_steps
from support.ranks import NOTHING, trainer_of, weight_values, write_json
from trainbus import Callback, Stage
from trainbus.engine.distributed.isolation import shared_callbacks
from trainbus.events.policies import quarantine

RANK = int(os.environ["RANK"])
FOLDER = Path(sys.argv[1])


class Saves(Callback):
    """Requests a checkpoint at each step. On rank 1 it fails at some steps, before or after the request."""

    def __init__(self, fails_at: set[int], on_error: str, early: bool = True) -> None:
        self.fails_at, self.on_error, self.early, self.heard = fails_at, on_error, early, []

    def on_step_end(self, state: Any, control: Any) -> None:
        self.heard.append(state.global_step)
        fails = RANK == 1 and state.global_step in self.fails_at
        if fails and self.early:
            raise OSError("no such file")
        control.request("save", "always")
        if fails:
            raise OSError("no such file")


class Skips(Callback):
    """Skips every update, and fails on rank 1 in the third step."""

    on_error = "quarantine"

    def on_pre_optimizer_step(self, state: Any, control: Any) -> None:
        if RANK == 1 and state.global_step == 2:
            raise ValueError("third")
        control.request("skip_update", "always")


class Gathers(Callback):
    """A reporter that needs all ranks in each step. On rank 1 it fails after that."""

    stage = Stage.REPORT
    on_error = "quarantine"

    def __init__(self) -> None:
        self.sums: list[int] = []

    def on_step_end(self, run: Any) -> None:
        self.sums.append(run.ranks.sum_numbers([1])[0])
        if RANK == 1 and run.state.global_step == 3:
            raise ValueError("after the sum")


class Slow(Callback):
    """A reporter that needs all ranks, and is slow on rank 1 only."""

    stage = Stage.REPORT
    budget = "1ms"
    over_budget = "thin"

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []  # each with the interval at that time

    def on_step_end(self, run: Any) -> None:
        record = run.bus.isolation.failures.get("Slow")
        self.steps.append((run.state.global_step, record.every if record else 1))
        if RANK == 1:
            time.sleep(0.004)
        run.ranks.sum_numbers([1])


def outcome(name: str, callback: Any, heard: str, **options: Any) -> dict[str, Any]:
    trainer = trainer_of(FOLDER / name, callback, often={**NOTHING, **options})
    trainer.train()
    record = trainer.failures.get(type(callback).__name__)
    return {
        "step": trainer.state.global_step,
        "heard": getattr(callback, heard) if heard else [],
        "saved": saved_steps(trainer.args.output_dir),
        "skipped": trainer.state.steps_skipped,
        "weights": weight_values(trainer.model),
        "quarantined": record.quarantined if record else None,
        "count": record.count if record else 0,
        "every": record.every if record else 1,
        "ledger": [str(entry) for entry in trainer.control.ledger if entry.author == type(callback).__name__],
    }


class Attaches(Callback):
    """Attaches a callback at an event, on some ranks, after a number of steps."""

    def __init__(self, made: Any, event: str, step: int = 0, ranks: tuple[int, ...] = (0, 1)) -> None:
        self.made, self.event, self.step, self.ranks = made, event, step, ranks

    def on_train_begin(self, run: Any) -> None:
        self._attach("on_train_begin", run)

    def on_step_begin(self, run: Any) -> None:
        self._attach("on_step_begin", run)

    def _attach(self, event: str, run: Any) -> None:
        if event == self.event and run.state.global_step == self.step and RANK in self.ranks:
            run.bus.attach(self.made)


class SavesOnce(Callback):
    """Requests a checkpoint at the third step, from a value of its own rank."""

    local = True

    def on_step_end(self, state: Any, control: Any) -> None:
        if state.global_step == 3:
            control.request("save", "a clock")


class Isolated(Callback):
    """Has a policy for failures, so the ranks exchange failures."""

    stage = Stage.REPORT
    on_error = "quarantine"

    def on_log(self) -> None:
        """Do nothing."""


def late(name: str, made: Any, event: str, *others: Any, step: int = 0, ranks: tuple[int, ...] = (0, 1)) -> Any:
    """Train with a callback that another callback attaches. Return steps of saves and of the quarantine, and errors."""
    trainer = trainer_of(FOLDER / name, Attaches(made, event, step, ranks), *others, often=NOTHING)
    for default in ("StopOnSignal", "ControlFile") if step and not others else ():  # the default exchange of flags
        trainer.bus.detach(default)
    error = ""
    try:
        trainer.train()
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    record = trainer.failures.get(type(made).__name__)
    saved = saved_steps(trainer.args.output_dir)
    return {"saved": saved, "quarantined": record.quarantined if record else None, "error": error}


plain = trainer_of(FOLDER / "plain")
ends = {
    "default": sorted(shared_callbacks(plain.bus)),
    "warn": outcome("warn", Saves({3}, "warn"), "heard"),
    "warn after": outcome("warn-after", Saves({3}, "warn", early=False), "heard"),
    "quarantine": outcome("quarantine", Saves({3, 5}, quarantine(after=2)), "heard"),
    "skip": outcome("skip", Skips(), ""),
    "gathers": outcome("gathers", Gathers(), "sums"),
    "thin": outcome("thin", Slow(), "steps", max_steps=80),
    "late isolated": late("late-isolated", Saves({3}, "quarantine"), "on_train_begin"),
    "late local": late("late-local", SavesOnce(), "on_train_begin", ranks=(0,)),
    "too late isolated": late("too-late-isolated", Saves({3}, "quarantine"), "on_step_begin", step=1),
    "too late local": late("too-late-local", SavesOnce(), "on_step_begin", step=1),
    "exchanged": late("exchanged", Saves({3}, "quarantine"), "on_step_begin", Isolated(), step=1),
}
write_json(FOLDER / f"end-{RANK}.json", ends)
