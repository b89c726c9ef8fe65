"""A callback that fails on one rank has the same consequences on both: no rank waits for the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.processes import ends_on_two, of_both

PROGRAM = Path(__file__).with_name("isolation_program.py")

pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process wrote of all the runs, in order of rank. A pair that waits for each other times out."""
    return ends_on_two(PROGRAM, tmp_path_factory.mktemp("isolation"), timeout=120)


def test_the_default_callbacks_need_no_exchange(ends):
    assert [of_rank["default"] for of_rank in ends] == [[], []]


@pytest.mark.parametrize("run", ["warn", "warn after"])
def test_a_request_of_a_callback_that_failed_on_one_rank_is_dropped_on_both(ends, run):
    assert of_both(ends, run, "saved") == [1, 2, 4, 5, 6, 7, 8]
    assert of_both(ends, run, "heard") == list(range(1, 9))
    assert of_both(ends, run, "weights")
    [taken_back] = [line for line in ends[0][run]["ledger"] if "withdraw" in line]
    assert taken_back.endswith("taken back, because it failed on rank 1 with OSError: no such file")
    assert [of_rank[run]["count"] for of_rank in ends] == [0, 1]


def test_a_quarantine_begins_on_both_at_the_same_step(ends):
    assert of_both(ends, "quarantine", "quarantined") == 5
    assert of_both(ends, "quarantine", "heard") == [1, 2, 3, 4, 5]
    assert of_both(ends, "quarantine", "saved") == [1, 2, 4]
    for of_rank in ends:
        assert of_rank["quarantine"]["ledger"][-1].endswith(
            "quarantine callback: on_step_end failed for the 2. time: OSError: no such file, on rank 1"
        )


def test_an_update_is_skipped_on_both_or_on_none(ends):
    assert of_both(ends, "skip", "skipped") == 2
    assert of_both(ends, "skip", "quarantined") == 2
    assert of_both(ends, "skip", "weights")


def test_a_reporter_with_collectives_leaves_both_at_once(ends):
    assert of_both(ends, "gathers", "heard") == [2, 2, 2]
    assert of_both(ends, "gathers", "quarantined") == 3


def test_a_reporter_that_is_slow_on_one_rank_is_thinned_on_both(ends):
    assert of_both(ends, "thin", "every") > 1
    heard = of_both(ends, "thin", "heard")
    assert len(heard) < 60
    assert all(step % every == 0 for step, every in heard)
    assert heard[-1][1] > 1


def test_a_callback_that_on_train_begin_attaches_is_quarantined_on_both(ends):
    assert of_both(ends, "late isolated", "quarantined") == 3
    assert of_both(ends, "late isolated", "saved") == [1, 2]


def test_a_request_of_a_callback_that_one_rank_attaches_at_on_train_begin_counts_on_both(ends):
    assert of_both(ends, "late local", "saved") == [3]
    assert of_both(ends, "late local", "error") == ""


@pytest.mark.parametrize(("run", "name"), [("too late isolated", "Saves"), ("too late local", "SavesOnce")])
def test_a_callback_that_needs_a_new_exchange_is_refused_during_the_training(ends, run, name):
    """The other ranks could wait for an exchange that they do not know."""
    error = of_both(ends, run, "error")
    assert error.startswith(f"SubscriptionError: {name} was attached during the training and sets ")
    assert "attach such a callback before the training, or in a handler of `on_train_begin`" in error


def test_a_callback_that_is_attached_later_is_quarantined_on_both_if_the_ranks_exchange_failures(ends):
    assert of_both(ends, "exchanged", "quarantined") == 3
    assert of_both(ends, "exchanged", "saved") == [2]
