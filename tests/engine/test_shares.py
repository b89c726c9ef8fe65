"""Streams shared out among processes: every row once, as many batches on each, and places that can be returned to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from resume_points import Stateful
from torch.utils.data import IterableDataset

from trainbus.engine.arguments import TrainingArguments
from trainbus.engine.data.build import build_loader
from trainbus.engine.data.collators.default import default_data_collator
from trainbus.engine.data.streaming_shards import CountingExtras, EvenEnds, Extra, Filled, SharedStream, own_part
from trainbus.engine.distributed.ranks import Ranks
from trainbus.engine.evaluation.loop import Gathered
from trainbus.events.errors import ArgumentError


class Rows(IterableDataset[int]):
    """The first numbers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


class SizedRows(Rows):
    def __len__(self) -> int:
        return self.count


def shares(rows: Any, size: int, world: int, drop_last: bool = False) -> list[list[Any]]:
    return [[*SharedStream(rows, size, Ranks(rank, world), drop_last)] for rank in range(world)]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 11, 12, 13, 24, 25])
def test_each_row_goes_to_one_process_and_all_get_equally_many(rows: int, world: int):
    for size in (1, 3, 4):
        given = shares(Rows(rows), size, world)
        assert len({*map(len, given)}) == 1
        own = [row for share in given for row in share if not isinstance(row, Extra)]
        assert sorted(own) == [*range(rows)]
        extra = [row.row for share in given for row in share if isinstance(row, Extra)]
        assert len(extra) < world
        assert set(extra) <= {*range(min(rows, world))}


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("rows", [0, 5, 12, 13, 25])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_number_of_batches_is_known_beforehand(rows: int, world: int, drop_last: bool):
    for size in (1, 4):
        stream = SharedStream(SizedRows(rows), size, Ranks(0, world), drop_last)
        assert stream.batches() == math.ceil(len([*stream]) / size)
        assert len(stream) == rows


def test_a_stream_that_does_not_know_its_length_says_so():
    with pytest.raises(TypeError):
        SharedStream(Rows(3), 1, Ranks(0, 2)).batches()


def test_what_is_not_full_everywhere_can_be_left_out():
    assert shares(Rows(13), 3, 2, drop_last=True) == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]


def test_rows_can_be_left_out_once_and_the_first_ones_still_fill_up():
    stream = SharedStream(Rows(9), 2, Ranks(1, 2))
    stream.first_rows = {0: 4}
    assert [*stream] == [6, 7, Extra(0)]
    assert [*stream] == [2, 3, 6, 7, Extra(0)]


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_a_stream_with_a_state_goes_on_from_it_and_knows_its_first_rows(batches: int):
    rows = [{"x": float(row)} for row in range(15)]
    stream = SharedStream(Stateful(rows), 3, Ranks(1, 2))
    whole = [*stream]
    begun = iter(stream)
    for _ in range(batches * 3):
        next(begun, None)
    other = SharedStream(Stateful(rows), 3, Ranks(1, 2))
    other.load_state_dict(stream.state_dict())
    assert [*other] == whole[batches * 3 :]
    assert other.rows.read == 15 - 6 * batches


def test_without_a_state_there_is_none():
    assert SharedStream(Rows(3), 1, Ranks(0, 2)).state_dict() is None


def test_a_stream_of_one_process_has_the_state_of_its_rows():
    stream = SharedStream(Stateful([1, 2, 3]), 1, Ranks())
    next(iter(stream))
    assert stream.state_dict() == {"position": 1}


def test_epochs_are_passed_on():
    told = []
    rows = Rows(2)
    rows.set_epoch = told.append  # type: ignore[attr-defined]
    SharedStream(rows, 1, Ranks(0, 2)).set_epoch(3)
    SharedStream(Rows(2), 1, Ranks(0, 2)).set_epoch(4)
    assert told == [3]


def test_a_batch_says_how_many_of_its_rows_fill_it_up():
    collate = CountingExtras(default_data_collator)
    rows = [{"x": 1.0}, {"x": 2.0}]
    assert collate(rows)["x"].tolist() == [1.0, 2.0]
    filled = collate([rows[0], Extra(rows[1])])
    assert isinstance(filled, Filled)
    assert filled.batch["x"].tolist() == [1.0, 2.0]
    assert filled.extra == 1


class Pair(Ranks):
    """One of two processes, the other of which is made up."""

    other: tuple[int, Any] = (1, None)

    def gather_numbers(self, *numbers: int) -> list[list[int]]:
        return [[*numbers], [self.other[0]]]

    def gather_objects(self, value: Any) -> list[Any]:
        return [value, self.other[1]]


def test_a_process_that_has_no_batch_left_takes_one_to_fill_up_with():
    end, pair = object(), Pair(0, 2)
    batch = {"x": torch.ones(3)}
    object.__setattr__(pair, "other", (1, batch))
    ends = EvenEnds(pair)
    assert ends.agreed(batch, end) is batch
    given = ends.agreed(end, end)
    assert (given.batch, given.extra) == (batch, 3)
    object.__setattr__(pair, "other", (1, Filled(batch, 1)))
    assert ends.agreed(end, end).batch is batch
    object.__setattr__(pair, "other", (0, None))
    assert ends.agreed(end, end) is end
    assert ends.agreed(batch, end) is batch


def test_shards_are_dealt_out_where_that_is_wanted_and_there_are_enough():
    import datasets
    from datasets.distributed import split_dataset_by_node

    rows = datasets.Dataset.from_dict({"x": [*range(10)]})
    pair = Ranks(1, 2)
    stream = rows.to_iterable_dataset(num_shards=2)
    assert [row["x"] for row in own_part(stream, pair, True)] == [5, 6, 7, 8, 9]
    assert own_part(stream, pair, False) is None
    assert own_part(rows.to_iterable_dataset(num_shards=1), pair, True) is None
    assert own_part(Rows(3), pair, True) is None
    split = split_dataset_by_node(stream, 1, 2)
    assert own_part(split, pair, False) is split


def test_the_loader_of_a_stream_counts_the_batches_of_its_process():
    args = TrainingArguments(use_cpu=True)
    loaders = [
        build_loader(
            *(rows, args, default_data_collator, Ranks(1, 2)), batch_size=4, training=True, accepted=None, seed=1
        )
        for rows in (SizedRows(33), Rows(33))
    ]
    assert len(loaders[0]) == 5
    assert len(loaders[0].dataset) == 33
    with pytest.raises(TypeError):
        len(loaders[1])


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("split_batches", "divide `per_device_train_batch_size`"),
        ("dispatch_batches", "every process reads the data"),
        ("even_batches", "would block the others"),
        ("use_seedable_sampler", "follows from the seed"),
    ],
)
def test_what_accelerate_does_otherwise_is_refused_with_what_to_do(key: str, remedy: str):
    value = key in ("split_batches", "dispatch_batches")
    with pytest.raises(ArgumentError, match=f"has {key}={value}, which is not supported; .*{remedy}"):
        TrainingArguments(accelerator_config={key: value})


def test_own_shards_are_asked_for_as_with_accelerate():
    assert TrainingArguments(accelerator_config={"dispatch_batches": False}).reads_own_shards
    assert not TrainingArguments(accelerator_config={"dispatch_batches": None}).reads_own_shards
    assert not TrainingArguments().reads_own_shards


def test_batches_that_are_kept_apart_lose_what_filled_the_last_one_up():
    kept = Gathered(concat=False)
    for batch in (torch.arange(4), torch.arange(4, 8)):
        kept.add((batch, {"a": batch}))
    whole = kept.whole(5, None, 3)
    assert [len(part[0]) for part in whole] == [4, 1]
    assert whole[1][1]["a"].tolist() == [4]
