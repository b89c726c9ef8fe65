"""Costs grow at most linearly with callbacks, steps, rows and ranks. The tests count calls and bytes, not seconds."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import SequentialSampler, TensorDataset

import trainbus
from trainbus.engine.data.samplers import BatchedSampler, ShuffledSampler
from trainbus.engine.distributed.consistency import compare_training, format_ranks
from trainbus.engine.distributed.ranks import Ranks
from trainbus.events.errors import RankDivergence


class Silent(trainbus.Callback):
    """Handles no event of a step."""

    def on_train_begin(self) -> None: ...


class Listening(trainbus.Callback):
    """Has one handler in a step."""

    def on_step_end(self) -> None: ...


class Counts(trainbus.Callback):
    """Counts the Python calls from step 3 to step 6."""

    def __init__(self) -> None:
        self.calls = 0

    def on_step_end(self, state: Any) -> None:
        if state.global_step == 3:
            gc.disable()  # a collection calls the functions of `gc.callbacks`
            sys.setprofile(self.called)
        elif state.global_step == 6:
            sys.setprofile(None)
            gc.enable()

    def called(self, frame: Any, event: str, argument: Any) -> None:
        self.calls += event == "call"


def calls_of(work: Callable[[], Any]) -> int:
    counted = 0

    def called(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return counted


def trainer_with(folder: Path, *callbacks: Any, count: int = 64, **options: Any) -> trainbus.Trainer:
    rows = TensorDataset(torch.zeros(count, 4), torch.zeros(count).long())
    options = {"max_steps": 7, "save_strategy": "no", "report_to": "none", "use_cpu": True, **options}
    args = trainbus.TrainingArguments(str(folder), **options)
    criterion = nn.CrossEntropyLoss()
    return trainbus.Trainer(nn.Linear(4, 2), args, train_dataset=rows, criterion=criterion, callbacks=list(callbacks))


def calls_in_three_steps(folder: Path, kind: type[trainbus.Callback], count: int) -> int:
    counter = Counts()
    trainer_with(folder, counter, *(kind() for _ in range(count))).train()
    return counter.calls


def test_a_callback_that_handles_no_event_of_a_step_adds_no_call(tmp_path: Path) -> None:
    assert calls_in_three_steps(tmp_path, Silent, 60) == calls_in_three_steps(tmp_path, Silent, 0) > 300


def test_a_callback_with_one_handler_adds_two_calls_to_a_step(tmp_path: Path) -> None:
    none, some = (calls_in_three_steps(tmp_path, Listening, count) for count in (0, 60))
    assert 3 * 60 <= some - none <= 2 * 3 * 60, "a call of the handler, and one for its parameters"


def test_the_cost_of_building_and_starting_grows_linearly_with_callbacks(tmp_path: Path) -> None:
    def build(count: int) -> None:
        trainer_with(tmp_path, *(Listening() for _ in range(count)), max_steps=1).train()

    build(2)  # imports
    few, some, many = (calls_of(lambda count=count: build(count)) for count in (20, 60, 140))
    assert many - some <= 2.1 * (some - few)


def test_a_preview_keeps_nothing_for_each_step(tmp_path: Path) -> None:
    def peak(steps: int) -> int:
        trainer = trainer_with(tmp_path, count=8 * steps, max_steps=steps, logging_steps=steps)  # one epoch
        tracemalloc.start()
        try:
            assert trainer.preview().steps == steps
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    assert peak(4000) - peak(1000) < 3 * 3000  # a float of each step takes 32 bytes


@pytest.mark.parametrize("make", [lambda rows: ShuffledSampler(rows, 0), SequentialSampler])
@pytest.mark.parametrize("world_size", [1, 2])
def test_an_epoch_of_many_rows_starts_without_an_object_for_each_row(make: Any, world_size: int) -> None:
    rows = range(300_000)
    sampler = BatchedSampler(make(rows), 8, world_size=world_size)
    expected = list(make(rows))[: 8 * 2 * world_size]
    tracemalloc.start()
    try:
        batches = iter(sampler)
        taken = [next(batches), next(batches)]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert taken == [expected[:8], expected[8 * world_size : 8 * world_size + 8]]
    assert {type(row) for batch in taken for row in batch} == {int}
    assert most < 100_000, "a list of the rows has 12 MB"


def test_the_order_of_no_row_is_empty() -> None:
    assert list(BatchedSampler(ShuffledSampler([], 0), 4)) == list(ShuffledSampler([], 0)) == []


def test_ranks_are_listed_briefly() -> None:
    assert format_ranks([3]) == "rank 3"
    assert format_ranks([0, 1, 2]) == "ranks 0, 1 and 2"
    assert format_ranks(range(8)) == "ranks 0, 1, 2, 3, 4, 5, 6 and 7"
    assert format_ranks(range(1023)) == "ranks 0 to 1022"
    assert format_ranks([*range(500), 700, *range(900, 1024)]) == "ranks 0 to 499, 700 and 900 to 1023"
    assert format_ranks(range(0, 1024, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 504 more"


class Simulated(Ranks):
    """Rank 0 of several, whose last rank has another learning rate."""

    def gather_objects(self, value: Any) -> list[Any]:
        if isinstance(value[0], str):  # the digest
            return [value] * (self.world_size - 1) + [("another", value[1])]
        order, settings = value
        return [value] * (self.world_size - 1) + [(order, {**settings, "`learning_rate`": "1.0"})]


def test_the_comparison_of_many_ranks_is_linear_and_its_error_is_short(tmp_path: Path) -> None:
    run: Any = trainer_with(tmp_path).run

    def compare(world_size: int) -> str:
        run.ranks = Simulated(0, world_size)
        with pytest.raises(RankDivergence) as error:
            compare_training(run, {})
        return str(error.value)

    assert "`learning_rate`: 5e-05 on ranks 0 to 1022, 1.0 on rank 1023" in compare(1024)
    few, some, many = (calls_of(lambda size=size: compare(size)) for size in (64, 192, 448))
    assert many - some <= 2.1 * (some - few)
