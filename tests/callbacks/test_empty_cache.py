"""Giving unused GPU memory back: when it is due, and through torch."""

from __future__ import annotations

import pytest
import torch

from support.trainers import net_trainer
from trainbus import EmptyCache, at, at_end, every
from trainbus.events import ArgumentError
from trainbus.events.triggers import EverySeconds


@pytest.fixture
def emptied(monkeypatch):
    """Count, by a list, how often the cache was emptied."""
    calls = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(None))
    return calls


@pytest.mark.parametrize(
    ("trigger", "times"),
    [
        (every(2), 3),
        (at(1, 5), 2),
        (every(100), 0),
        (every(1, "epoch"), 2),
        (every(4) | every(1, "epoch"), 2),
        (at_end(), 1),
    ],
    ids=str,
)
def test_the_cache_is_emptied_when_the_trigger_is_due(tmp_path, emptied, trigger, times):
    built = net_trainer(tmp_path, EmptyCache(trigger))
    built.train()
    assert len(emptied) == times
    built.train()
    assert len(emptied) == 2 * times


def test_counts_time_from_the_last_time(tmp_path, emptied):
    built = net_trainer(tmp_path, EmptyCache(EverySeconds(3600)))
    built.on("on_train_begin", lambda state: setattr(state, "seconds", 3600.0))
    built.train()
    assert len(emptied) == 1


def test_arguments_build_the_callback(tmp_path):
    assert net_trainer(tmp_path, torch_empty_cache_steps=5).callbacks["EmptyCache"] == EmptyCache(every(5))
    assert "EmptyCache" not in net_trainer(tmp_path).callbacks


def test_a_wrong_number_is_named(tmp_path):
    with pytest.raises(ArgumentError, match="`torch_empty_cache_steps` is 0"):
        net_trainer(tmp_path, torch_empty_cache_steps=0)
