"""The same run in both trainers has bitwise equal weights, logs, losses, metrics and predictions."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from parity_cases import CASES, SUBJECTS
from parity_differences import DIFFERENCES
from parity_outcome import Outcome, as_text, run_both

import trainbus
from support.outcomes import same_weights
from support.pages import differences_text
from support.processes import environment

DIFFERING = [name for name, case in CASES.items() if case.differs]


class Runs(NamedTuple):
    """The outcomes of a case in both trainers."""

    differs: str
    theirs: Outcome
    ours: Outcome

    def compared(self) -> tuple[Outcome, Outcome]:
        """Return both outcomes without the difference that the case names."""
        return DIFFERENCES[self.differs].exclude(self.theirs, self.ours) if self.differs else (self.theirs, self.ours)


@pytest.fixture(scope="module", params=CASES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """One case, run once by each trainer. The tests of a case share it."""
    case = CASES[request.param]
    return Runs(case.differs, *run_both(case, tmp_path_factory.mktemp("case")))


def test_weights_are_bitwise_equal(runs: Runs):
    theirs, ours = runs.compared()
    assert same_weights(theirs.weights, ours.weights)


def test_steps_and_training_loss_are_equal(runs: Runs):
    theirs, ours = runs.compared()
    assert as_text(ours.steps) == as_text(theirs.steps)


def test_logs_are_equal(runs: Runs):
    theirs, ours = runs.compared()
    assert as_text(ours.history) == as_text(theirs.history)


def test_best_model_and_checkpoints_are_equal(runs: Runs):
    theirs, ours = runs.compared()
    assert as_text(ours.best) == as_text(theirs.best)
    assert ours.checkpoints == theirs.checkpoints


def test_evaluate_returns_equal_metrics(runs: Runs):
    theirs, ours = runs.compared()
    assert as_text(ours.evaluated) == as_text(theirs.evaluated)


def test_predict_returns_equal_arrays(runs: Runs):
    theirs, ours = runs.compared()
    for mine, other in zip(ours.predicted[:2], theirs.predicted[:2]):
        assert_equal_arrays(mine, other)
    assert as_text(ours.predicted[2]) == as_text(theirs.predicted[2])


def assert_equal_arrays(mine: Any, other: Any) -> None:
    """Assert that nested arrays are equal and have equal types."""
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


# Deliberate differences.


@pytest.mark.parametrize("runs", DIFFERING, indirect=True)
def test_a_named_difference_occurs_and_is_the_only_one(runs: Runs):
    theirs, ours = runs.compared()
    changed = {
        field.name
        for field in dataclasses.fields(Outcome)
        for before, after in ((runs.theirs, theirs), (runs.ours, ours))
        if getattr(before, field.name) is not getattr(after, field.name)
    }
    assert changed
    for name in {"steps", "history", "best", "checkpoints", "evaluated"} - changed:
        assert as_text(getattr(ours, name)) == as_text(getattr(theirs, name)), name


def test_every_difference_has_a_case_and_a_row_in_the_docs():
    page = differences_text()
    first_cells = [line.removeprefix("| ") for line in page.splitlines() if line.startswith("| ")]
    for name, difference in DIFFERENCES.items():
        assert sum(cell.startswith(difference.row) for cell in first_cells) == 1, name
    assert {CASES[name].differs for name in DIFFERING} == DIFFERENCES.keys()


# The table of cases.


def test_case_names_are_unique_and_explained():
    assert sum(map(len, SUBJECTS.values())) == len(CASES) >= 80
    for name, case in CASES.items():
        assert case.about.endswith("."), name


def test_the_table_is_read_without_transformers():
    """The page that lists the cases is also generated where transformers is not installed."""
    program = (
        "import sys; import parity_cases, parity_differences; print({'transformers', 'datasets'} & {*sys.modules})"
    )
    variables = environment(PYTHONPATH=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_every_schedule_and_optimizer_has_a_case():
    from trainbus.engine.arguments import SCHEDULES
    from trainbus.engine.optim.build import OPTIMIZERS

    used = {name: {case.args.get(name) for case in CASES.values()} for name in ("lr_scheduler_type", "optim")}
    assert used["lr_scheduler_type"] - {None} == set(SCHEDULES)
    of_torch = {name for name, recipe in OPTIMIZERS.items() if not recipe.package}
    assert of_torch - used["optim"] == {"adamw", "adamw_hf"}  # names that transformers has removed
    assert trainbus.TrainingArguments("out").optim in used["optim"]
