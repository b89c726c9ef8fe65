"""The same run in both trainers: equal weights, logs, losses, metrics and predictions, in every bit."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from engine_toys import same_weights
from parity_cases import CASES, SUBJECTS
from parity_differences import DIFFERENCES
from parity_outcome import Outcome, run_both, spelt

import trainbus

DIFFERING = [name for name, case in CASES.items() if case.differs]


class Runs(NamedTuple):
    """A case, run by both."""

    differs: str
    theirs: Outcome
    ours: Outcome

    def compared(self) -> tuple[Outcome, Outcome]:
        """Both outcomes without the difference that the case names."""
        return DIFFERENCES[self.differs].left_out(self.theirs, self.ours) if self.differs else (self.theirs, self.ours)


@pytest.fixture(scope="module", params=CASES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """One case, run once by each trainer; the tests of a case share it."""
    case = CASES[request.param]
    return Runs(case.differs, *run_both(case, tmp_path_factory.mktemp("case")))


def test_weights_are_equal_in_every_bit(runs: Runs):
    theirs, ours = runs.compared()
    assert same_weights(theirs.weights, ours.weights)


def test_steps_and_training_loss_are_equal(runs: Runs):
    theirs, ours = runs.compared()
    assert spelt(ours.steps) == spelt(theirs.steps)


def test_the_logs_are_equal(runs: Runs):
    theirs, ours = runs.compared()
    assert spelt(ours.history) == spelt(theirs.history)


def test_the_best_model_and_the_checkpoints_are_the_same(runs: Runs):
    theirs, ours = runs.compared()
    assert spelt(ours.best) == spelt(theirs.best)
    assert ours.checkpoints == theirs.checkpoints


def test_evaluate_returns_equal_metrics(runs: Runs):
    theirs, ours = runs.compared()
    assert spelt(ours.evaluated) == spelt(theirs.evaluated)


def test_predict_returns_equal_arrays(runs: Runs):
    theirs, ours = runs.compared()
    for mine, other in zip(ours.predicted[:2], theirs.predicted[:2]):
        assert_equal_arrays(mine, other)
    assert spelt(ours.predicted[2]) == spelt(theirs.predicted[2])


def assert_equal_arrays(mine: Any, other: Any) -> None:
    """Equal nested arrays, of equal types."""
    assert type(mine) is type(other)
    if isinstance(mine, (list, tuple)):
        assert len(mine) == len(other)
        for left, right in zip(mine, other):
            assert_equal_arrays(left, right)
    elif isinstance(mine, dict):
        assert mine.keys() == other.keys()
        for key in mine:
            assert_equal_arrays(mine[key], other[key])
    elif mine is not None:
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)


# The differences.


@pytest.mark.parametrize("runs", DIFFERING, indirect=True)
def test_a_difference_that_is_named_occurs_and_is_the_only_one(runs: Runs):
    theirs, ours = runs.compared()
    changed = {
        field.name
        for field in dataclasses.fields(Outcome)
        for before, after in ((runs.theirs, theirs), (runs.ours, ours))
        if getattr(before, field.name) is not getattr(after, field.name)
    }
    assert changed
    for name in {"steps", "history", "best", "checkpoints", "evaluated"} - changed:
        assert spelt(getattr(ours, name)) == spelt(getattr(theirs, name)), name


def test_every_difference_is_met_by_a_case_and_told_in_the_docs(root: Path):
    told = (root / "docs" / "differences.md").read_text(encoding="utf-8")
    first_cells = [line.removeprefix("| ") for line in told.splitlines() if line.startswith("| ")]
    for name, difference in DIFFERENCES.items():
        assert sum(cell.startswith(difference.row) for cell in first_cells) == 1, name
    assert {CASES[name].differs for name in DIFFERING} == DIFFERENCES.keys()


# The table.


def test_names_are_said_once_and_explained():
    assert sum(map(len, SUBJECTS.values())) == len(CASES) >= 80
    for name, case in CASES.items():
        assert case.about.endswith("."), name


def test_the_table_is_read_without_what_it_compares_with():
    """The page that lists the cases is written where transformers may not be installed."""
    program = (
        "import sys; import parity_cases, parity_differences; print({'transformers', 'datasets'} & {*sys.modules})"
    )
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent / "engine"), os.environ.get("PYTHONPATH", "")])
    told = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert told.stdout.strip() == "set()", told.stderr


def test_every_schedule_and_optimizer_has_a_case():
    from trainbus.engine.arguments import SCHEDULES
    from trainbus.engine.optim.build import OPTIMIZERS

    used = {name: {case.args.get(name) for case in CASES.values()} for name in ("lr_scheduler_type", "optim")}
    assert used["lr_scheduler_type"] - {None} == set(SCHEDULES)
    of_torch = {name for name, recipe in OPTIMIZERS.items() if not recipe.package}
    assert of_torch - used["optim"] == {"adamw", "adamw_hf"}  # which transformers does not call so any more
    assert trainbus.TrainingArguments("out").optim in used["optim"]
