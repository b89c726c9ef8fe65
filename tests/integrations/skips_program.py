"""Runs on two ranks without the default exchange of flags, in which one rank skips an update."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.outcomes import saved_steps
from support.ranks import NOTHING, trainer_of, weight_values, write_json
from trainbus import Callback

RANK = int(os.environ["RANK"])
FOLDER = Path(sys.argv[1])
SAVES = {**NOTHING, "save_strategy": "steps", "save_steps": 4}
EXCHANGES = ("StopOnSignal", "ControlFile")
"""The default callbacks with `local = True`."""


class Skips(Callback):
    """Skips the update of a step on one rank, or on all."""

    def __init__(self, step: int = 3, ranks: tuple[int, ...] = (0,)) -> None:
        self.step, self.ranks = step, ranks

    def on_gradients(self, state: Any, control: Any) -> None:
        if state.global_step + 1 == self.step and RANK in self.ranks:
            control.request("skip_update", "I want to")


def outcome(name: str, *callbacks: Any) -> dict[str, Any]:
    """Train, and return what this rank knows: the error, the number of exchanges of flags, and the weights."""
    trainer = trainer_of(FOLDER / name, *callbacks, often=SAVES)
    for default in EXCHANGES:
        trainer.remove_callback(default)
    ranks, calls = trainer.run.ranks, []
    count: Callable[[Any], Any] = ranks.sum_numbers
    object.__setattr__(ranks, "sum_numbers", lambda numbers: calls.append(len(numbers)) or count(numbers))
    error = ""
    try:
        trainer.train()
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return {
        "error": error,
        "step": trainer.state.global_step,
        "skipped": trainer.state.steps_skipped,
        "exchanges": calls,
        "saved": saved_steps(trainer.args.output_dir),
        "weights": weight_values(trainer.model),
    }


def main() -> None:
    ends = {
        "one": outcome("one", Skips()),
        "all": outcome("all", Skips(ranks=(0, 1))),
    }
    write_json(FOLDER / f"end-{RANK}.json", ends)


if __name__ == "__main__":
    main()
