"""Golden traces: what whole runs announce, as text files that are reviewed as diffs.

`UPDATE_GOLDEN=1 pytest tests/engine/test_golden.py` rewrites them; git shows what changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.data import points
from support.trainers import regression_trainer
from trainbus import Checkpoint, EarlyStopping, Evaluate, Keep, KeepBest, Log, at_end, every
from trainbus.events import Callback, Trace, record

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


def traced(run: Any, do: Callable[[Any], Any]) -> Trace:
    with record(run.bus) as trace:
        do(run)
    return trace


def a_plain_run(folder: Path) -> Trace:
    """Two epochs of five batches, in windows of two; logged every second step, and at the end."""
    args = {"gradient_accumulation_steps": 2, "logging_strategy": "steps", "logging_steps": 4}
    return traced(regression_trainer(folder, args=args), lambda run: run.train())


class StopAtFour(Callback):
    """Ends the epoch at step 2, skips the update of step 3, and the training at step 4, whose checkpoint it vetoes."""

    def on_step_end(self, state: Any, control: Any) -> None:
        if state.global_step == 2:
            control.request("epoch_stop", "seen enough of it")
        if state.global_step == 4:
            control.request("training_stop", "seen enough")

    def on_gradients(self, state: Any, control: Any) -> None:
        if state.global_step == 2:
            control.request("skip_update", "of no use")

    def on_save_begin(self, state: Any, control: Any) -> None:
        if state.global_step == 4:
            control.veto("save", "not this one")


def a_run_that_is_steered(folder: Path) -> Trace:
    """What requests and vetoes do, and an evaluation and a prediction after it, by themselves."""
    args = {"logging_strategy": "steps", "logging_steps": 2, "save_strategy": "steps", "save_steps": 2}
    run = regression_trainer(folder, args=args, eval_dataset=points(5, 1), callbacks=[StopAtFour()])
    return traced(run, lambda run: (run.train(), run.evaluate(), run.predict(points(5, 2))))


def a_composed_run_resumed(folder: Path) -> Trace:
    """Two datasets, the best model, early stopping; resumed from the middle of the first epoch."""
    args = {"logging_strategy": "steps", "logging_steps": 500, "save_steps": 500, "save_strategy": "steps"}

    def make() -> Any:
        return regression_trainer(
            folder,
            args={**args, "num_train_epochs": 4, "learning_rate": 1e-9, "optim": "sgd"},
            eval_dataset={"easy": points(3, 1), "hard": points(6, 2)},
            callbacks=[
                Log(every(2)),
                Evaluate(every(1, "epoch")),
                Checkpoint(every(3) | at_end(), keep=Keep(last=1)),
                KeepBest("hard_loss", save=False),
                EarlyStopping("easy_loss", patience=1, threshold=1.0),
            ],
        )

    first = make()
    first.on("on_step_end", lambda control: control.request("training_stop", "enough for today"), once=3)
    first.train()
    return traced(make(), lambda run: run.train(resume_from_checkpoint=True))


RUNS = {function.__name__: function for function in (a_plain_run, a_run_that_is_steered, a_composed_run_resumed)}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_announces_the_events_of_the_golden_trace(name: str, tmp_path: Path):
    path = GOLDEN / f"{name}.trace"
    trace = str(RUNS[name](tmp_path))
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(trace, encoding="utf-8")
    assert trace == path.read_text(encoding="utf-8"), "If this is meant, run with UPDATE_GOLDEN=1 and review the diff."


def test_every_golden_file_belongs_to_a_run():
    assert {path.name for path in GOLDEN.iterdir()} == {f"{name}.trace" for name in RUNS}
