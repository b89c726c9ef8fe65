"""`trainer.accelerator` on two ranks: gathered results, gradient norms and backward without a reduction."""

import json
from pathlib import Path

import pytest

from support.processes import run_on_two

PROGRAM = Path(__file__).with_name("accelerator_program.py")
ROWS = [float(row) for row in range(11)]


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """What each rank has written."""
    folder = tmp_path_factory.mktemp("accelerator")
    run_on_two(PROGRAM, folder, timeout=200)
    return [json.loads((folder / f"end-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("loader", ["evaluation", "prepared"])
def test_gathered_results_have_each_sample_once(ends, loader):
    for of_rank in ends:
        assert of_rank[loader] == ROWS
        assert of_rank["means"] == [2, 2, 2]  # one per rank, and not one per sample


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
def test_gathered_results_of_an_epoch_have_each_sample_once(ends):
    for of_rank in ends:
        assert [len(rows) for rows in of_rank["training"]] == [4, 4, 3]
        assert sorted(row for rows in of_rank["training"] for row in rows) == ROWS


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
def test_norm_in_a_training_step_is_the_norm_over_all_ranks(ends):
    for of_rank in ends:
        assert len(of_rank["ddp"]) == 4
        assert of_rank["fsdp"] == pytest.approx(of_rank["ddp"], rel=1e-5)
    assert ends[0]["ddp"] == ends[1]["ddp"]


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
def test_norm_that_a_training_step_cannot_know_is_refused(ends):
    assert all("averages the gradients after `training_step`" in of_rank["sharded"] for of_rank in ends)
