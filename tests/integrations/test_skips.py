"""Replicas that differ are not saved: an update that one of two ranks skips ends the run at the next checkpoint.

These runs have no callback with `local = True`, so the ranks exchange no flags.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.processes import ends_on_two, of_both

PROGRAM = Path(__file__).with_name("skips_program.py")

pytestmark = pytest.mark.world_size(2)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank wrote of all the runs, in order of rank."""
    return ends_on_two(PROGRAM, tmp_path_factory.mktemp("skips"), timeout=200)


def test_different_replicas_are_not_saved(ends: list[dict[str, Any]]) -> None:
    error = of_both(ends, "one", "error")
    assert error.startswith("RankDivergence: The update of step 3 was skipped on rank 0 and not on rank 1, by Skips")
    assert of_both(ends, "one", "step") == 4
    assert of_both(ends, "one", "saved") == []


def test_a_skip_on_both_ranks_is_saved(ends: list[dict[str, Any]]) -> None:
    assert of_both(ends, "all", "error") == ""
    assert of_both(ends, "all", "skipped") == 1
    assert of_both(ends, "all", "saved") == [4, 8]
    of_both(ends, "all", "weights")


def test_the_ranks_exchange_no_flags(ends: list[dict[str, Any]]) -> None:
    assert of_both(ends, "one", "exchanges") == []
    assert of_both(ends, "all", "exchanges") == []
