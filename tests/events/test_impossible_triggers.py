"""Triggers that can never be due, and unreadable ones, are refused when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from trainbus import TrainingArguments, at, at_end, every, log_spaced
from trainbus.events import ArgumentError


@pytest.mark.parametrize("after", ["x", -1, None, True, float("nan"), float("inf")])
def test_after_must_be_a_number(after: Any) -> None:
    with pytest.raises(ArgumentError, match="after is not a number from 0"):
        every(5, after=after)


@pytest.mark.parametrize("steps", [every(5), every(0.1), at(3), log_spaced(4), every("10s"), every(2) | at(3)])
def test_the_end_of_a_step_is_never_the_end_of_an_epoch(steps: Any) -> None:
    with pytest.raises(ArgumentError, match="can never be due"):
        steps & every(1, "epoch")
    assert (steps | every(1, "epoch")).places == {"step", "epoch"}


def test_an_end_of_the_run_may_be_either() -> None:
    assert (at_end() & every(1, "epoch")).places == {"epoch"}
    assert (at_end() & every(1)).places == {"step"}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("batch_size", "per_device_train_batch_size"),
        ("epochs", "num_train_epochs"),
        ("lr", "learning_rate"),
        ("patience", "EarlyStopping"),
    ],
)
def test_errors_know_the_names_of_other_libraries(name: str, meant: str) -> None:
    with pytest.raises(ArgumentError, match=f"`{name}` is not an argument.*{meant}"):
        TrainingArguments(**{name: 1})
