"""Trainings on two processes, equal to those of transformers' trainer in every bit."""

import json
from pathlib import Path

import pytest

from support.processes import HUGGING_FACE, run_on_two

HERE = Path(__file__).parent
PARTS = ("weights", "steps", "loss", "logs", "evaluated", "predictions", "labels", "metrics")

pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(900)]

EVALUATION = ("logs", "evaluated", "predictions", "metrics")
DIFFERENT = {
    **{("running means", part): "buffers in evaluations are those of the first process" for part in EVALUATION},
    ("running means", "weights"): "the other process ends with the first one's buffers",
    **{("rows of similar length", part): "predictions are put back in order" for part in ("predictions", "labels")},
}
"""What differs on purpose: the case, the part of its outcome, and why."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """In what each case came out otherwise, in words, on each process; empty where it did not."""
    folder = tmp_path_factory.mktemp("both")
    parity = str(HERE.parent / "parity")
    run_on_two(HERE / "hf_ddp_program.py", folder, timeout=280, imported=HUGGING_FACE, PYTHONPATH=parity)
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("part", PARTS)
def test_results_equal_transformers_in_every_bit(found, part):
    wrong = {
        f"{name}, process {rank}": of_one[name][part]
        for rank, of_one in enumerate(found)
        for name in of_one
        if of_one[name][part] and (name, part) not in DIFFERENT
    }
    assert wrong == {}


def test_there_are_enough_cases(found):
    assert len(found[0]) >= 20
    assert all(set(parts) == set(PARTS) for of_one in found for parts in of_one.values())


@pytest.mark.parametrize(("name", "part"), DIFFERENT)
def test_deliberate_differences_do_differ(found, name, part):
    assert any(of_one[name][part] for of_one in found)
