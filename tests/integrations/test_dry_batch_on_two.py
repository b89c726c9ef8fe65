"""The dry batch on two ranks: all ranks make it, or none, and the training is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.processes import run_on_two

PROGRAM = Path(__file__).parent / "dry_batch_program.py"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("dry")
    run_on_two(PROGRAM, folder, timeout=60)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("way", ["DDP", "DDP accumulated", "DDP static"])
def test_the_training_is_the_same_and_both_ranks_look(ranks: list[dict[str, Any]], way: str) -> None:
    assert [rank[way]["equal"] for rank in ranks] == [True, True]
    assert ranks[0][way]["loss"] == pytest.approx(ranks[1][way]["loss"], rel=0.5)
    assert ranks[0][way]["skipped"] == []


def test_sharded_weights_are_not_run(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["FSDP"]["equal"]
        assert rank["FSDP"]["loss"] is None
        assert "the weights are sharded" in rank["FSDP"]["skipped"][0]


def test_no_rank_looks_if_one_cannot(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["unreadable"]["loss"] is None
        assert "is an iterator" in rank["unreadable"]["skipped"][0]
        assert rank["unreadable"]["steps"] == 3


def test_an_error_on_one_rank_ends_both(ranks: list[dict[str, Any]]) -> None:
    assert "labels 7 are out of range in the dry batch" in ranks[1]["broken"]["error"]
    assert "Rank 1 failed in DryBatch.on_train_begin" in ranks[0]["broken"]["error"]
