"""Retention: a pure function of the facts of checkpoints."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainbus import Keep
from trainbus.engine.checkpoint.format.files import Checkpoint
from trainbus.events import ArgumentError


def on_disk(*steps: int, metrics: dict[int, float] | None = None) -> list[Checkpoint]:
    """Checkpoints of these steps, with the metric `eval_score` where one is given."""
    measured = metrics or {}
    return [
        Checkpoint(Path(f"checkpoint-{step}"), step, {"eval_score": measured[step]} if step in measured else {})
        for step in steps
    ]


def deleted(
    keep: Keep, checkpoints: list[Checkpoint], pinned: set[int] = frozenset(), greater: bool = True
) -> list[int]:  # type: ignore[assignment]
    """The steps that a rule deletes."""
    gone = keep.superfluous(checkpoints, pinned=set(pinned), metric="eval_score", greater_is_better=greater)
    return [checkpoint.step for checkpoint in gone]


@pytest.mark.parametrize(
    ("keep", "pinned", "expected"),
    [
        (Keep(), set(), []),
        (Keep(last=2), set(), [10, 20, 30]),
        (Keep(last=9), set(), []),
        (Keep(last=1), {20}, [10, 30, 40]),
        (Keep(multiples=20), set(), [10, 30]),
        (Keep(best=1), set(), [10, 30, 40]),
        (Keep(best=2), set(), [10, 40]),
        (Keep(last=2, best=1), set(), [10, 30]),
        (Keep(last=2, best=1, multiples=30), set(), [10]),
        (Keep(total=3), set(), [10, 20]),
        (Keep(total=3), {10}, [20, 30]),
        (Keep(total=1), set(), [10, 20, 30, 40]),
        (Keep(total=1), {20}, [10, 30, 40]),
        (Keep(total=2), {50}, [10, 20, 30]),
        (Keep(total=5), {10}, []),
    ],
    ids=repr,
)
def test_each_retention_policy_deletes_the_expected_checkpoints(keep, pinned, expected):
    checkpoints = on_disk(10, 20, 30, 40, 50, metrics={10: 0.1, 20: 0.9, 30: 0.5, 50: 0.2})
    assert deleted(keep, checkpoints, pinned) == expected


def test_best_uses_the_direction():
    checkpoints = on_disk(1, 2, 3, metrics={1: 0.1, 2: 0.9, 3: 0.5})
    assert deleted(Keep(best=1), checkpoints, greater=True) == [1]
    assert deleted(Keep(best=1), checkpoints, greater=False) == [2]


@pytest.mark.parametrize("greater", [True, False])
def test_nan_is_never_the_best(greater):
    checkpoints = on_disk(1, 2, 3, 4, metrics={1: math.nan, 2: 0.5, 3: math.nan})
    assert deleted(Keep(best=1), checkpoints, greater=greater) == [1, 3]


def timed(**seconds: float) -> list[Checkpoint]:
    """Checkpoints of these steps, as `s10=60.0`, after so many seconds of training."""
    return [Checkpoint(Path(name), int(name[1:]), seconds=passed) for name, passed in seconds.items()]


def test_minutes_are_those_of_training_and_the_first_of_each_stays():
    checkpoints = timed(s1=20, s2=59.9, s3=60, s4=100, s5=119, s6=250, s7=290, s8=310)
    assert deleted(Keep(minutes=1), checkpoints) == [1, 2, 4, 5, 7]
    assert deleted(Keep(minutes=2), checkpoints) == [1, 2, 3, 4, 5, 7]
    assert deleted(Keep(minutes=0.5), checkpoints) == [1, 5]
    assert deleted(Keep(minutes=2, last=2), checkpoints, {2}) == [1, 3, 4, 5]


def test_minutes_do_not_depend_on_the_number_of_trigger_calls():
    rule, there = Keep(minutes=1), []
    for step in range(1, 60):
        there.append(Checkpoint(Path(f"checkpoint-{step}"), step, seconds=17.0 * step))
        gone = rule.superfluous(there, pinned=set())
        there = [checkpoint for checkpoint in there if checkpoint not in gone]
    minutes = [int(checkpoint.seconds // 60) for checkpoint in there[:-1]]
    assert minutes == [*range(1, 17)][: len(minutes)]
    assert len(minutes) >= 15


def test_a_metric_that_is_no_number_is_not_compared():
    checkpoints = [Checkpoint(Path(str(step)), step, {"eval_score": value}) for step, value in enumerate("a1", 1)]
    assert deleted(Keep(best=1), checkpoints) == [1]


@pytest.mark.parametrize("wrong", [{"last": 0}, {"total": 0}, {"multiples": -2}, {"best": -1}, {"minutes": 0}])
def test_a_limit_below_one_is_refused(wrong):
    [(name, value)] = wrong.items()
    with pytest.raises(ArgumentError, match=rf"Keep\({name}={value}\)"):
        Keep(**wrong)


limits = st.none() | st.integers(1, 6)
scores = st.floats(0, 1) | st.just(math.nan)


@st.composite
def cases(draw):
    """Draw a rule, the checkpoints of a folder, and the steps that are pinned, of which some may be gone."""
    keep = Keep(last=draw(limits), best=draw(st.integers(0, 4)), multiples=draw(limits), total=draw(limits))
    steps = sorted(draw(st.sets(st.integers(1, 40), max_size=12)))
    metrics = {step: draw(scores) for step in steps if draw(st.booleans())}
    pinned = draw(st.sets(st.sampled_from([*steps, 99]), max_size=3))
    return keep, on_disk(*steps, metrics=metrics), pinned


@given(cases(), st.booleans())
def test_never_deletes_pinned_checkpoints(case, greater):
    keep, checkpoints, pinned = case
    gone = deleted(keep, checkpoints, pinned, greater)
    steps = [checkpoint.step for checkpoint in checkpoints]
    assert gone == [step for step in steps if step in set(gone)], "oldest first, and of those that are there"
    wanted = wanted_by(keep, checkpoints, pinned, greater)
    assert not wanted & set(gone)


def wanted_by(keep: Keep, checkpoints: list[Checkpoint], pinned: set[int], greater: bool) -> set[int]:
    """The steps that must stay, said in another way than the code says it."""
    steps = [checkpoint.step for checkpoint in checkpoints]
    wanted = {step for step in steps if step in pinned} | set(steps[-1:])
    if keep.last is not None:
        wanted |= set(steps[-keep.last :])
    if keep.multiples is not None:
        wanted |= {step for step in steps if not step % keep.multiples}
    measured = {
        checkpoint.step: value if greater else -value
        for checkpoint in checkpoints
        if not math.isnan(value := checkpoint.metrics.get("eval_score", math.nan))
    }
    for step, value in measured.items():
        better = [other for other, theirs in measured.items() if theirs > value or (theirs == value and other < step)]
        if len(better) < keep.best:
            wanted.add(step)
    return wanted


@given(cases(), st.booleans())
def test_limits_hold(case, greater):
    keep, checkpoints, pinned = case
    kept = [checkpoint.step for checkpoint in checkpoints]
    kept = [step for step in kept if step not in deleted(keep, checkpoints, pinned, greater)]
    wanted = wanted_by(keep, checkpoints, pinned, greater)
    if keep == Keep():
        assert len(kept) == len(checkpoints)
    elif keep.total is None:
        assert set(kept) == wanted, "nothing stays that nobody wants"
    else:
        # A pinned step that is not on disk takes up a place: it is a checkpoint that is about to be there.
        absent = len(pinned - set(kept))
        assert len(kept) <= max(keep.total, len(wanted))
        assert len(kept) >= min(len(checkpoints), keep.total - absent)


@given(cases())
def test_a_second_check_finds_no_further_problem(case):
    keep, checkpoints, pinned = case
    gone = deleted(keep, checkpoints, pinned)
    left = [checkpoint for checkpoint in checkpoints if checkpoint.step not in gone]
    assert deleted(keep, left, pinned) == []


def test_total_is_the_limit_of_transformers(tmp_path):
    """For each number of checkpoints, limit and best one: what transformers' own rotation leaves on disk."""
    rotate = pytest.importorskip("transformers.trainer_utils").rotate_checkpoints
    for count in range(1, 6):
        for limit in range(1, 6):
            for best in (None, *range(1, count + 1)):
                folder = tmp_path / f"{count}-{limit}-{best}"
                for step in range(1, count + 1):
                    (folder / f"checkpoint-{step}").mkdir(parents=True)
                rotate(str(folder), limit, best_model_checkpoint=best and str(folder / f"checkpoint-{best}"))
                left = {int(path.name.partition("-")[2]) for path in folder.iterdir()}
                gone = deleted(Keep(total=limit), on_disk(*range(1, count + 1)), {best} if best else set())
                assert set(range(1, count + 1)) - set(gone) == left, (count, limit, best)
