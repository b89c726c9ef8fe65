"""Streams divided over ranks: every sample once, equally many batches on each rank, and resumable positions."""

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
from trainbus.engine.data.streaming_shards import (
    PaddedBatch,
    PaddingRow,
    PaddingRowCollator,
    StreamEndSync,
    StreamShard,
    own_part,
)
from trainbus.engine.distributed.ranks import Ranks
from trainbus.engine.evaluation.gathering import Gathered
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
    return [[*StreamShard(rows, size, Ranks(rank, world), drop_last)] for rank in range(world)]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 11, 12, 13, 24, 25])
def test_each_sample_goes_to_one_rank_and_all_ranks_get_equally_many(rows: int, world: int):
    for size in (1, 3, 4):
        given = shares(Rows(rows), size, world)
        assert len({*map(len, given)}) == 1
        own = [row for share in given for row in share if not isinstance(row, PaddingRow)]
        assert sorted(own) == [*range(rows)]
        extra = [row.row for share in given for row in share if isinstance(row, PaddingRow)]
        assert len(extra) < world
        assert set(extra) <= {*range(min(rows, world))}


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("rows", [0, 5, 12, 13, 25])
@pytest.mark.parametrize("drop_last", [False, True])
def test_number_of_batches_is_known_in_advance(rows: int, world: int, drop_last: bool):
    for size in (1, 4):
        stream = StreamShard(SizedRows(rows), size, Ranks(0, world), drop_last)
        assert stream.batches() == math.ceil(len([*stream]) / size)
        assert len(stream) == rows


def test_stream_without_a_length_raises():
    with pytest.raises(TypeError):
        StreamShard(Rows(3), 1, Ranks(0, 2)).batches()


def test_drop_last_drops_batches_that_are_incomplete_on_a_rank():
    assert shares(Rows(13), 3, 2, drop_last=True) == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]


def test_skipped_samples_still_serve_as_padding():
    stream = StreamShard(Rows(9), 2, Ranks(1, 2))
    stream.first_rows = {0: 4}
    assert [*stream] == [6, 7, PaddingRow(0)]
    assert [*stream] == [2, 3, 6, 7, PaddingRow(0)]


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_stream_with_a_state_resumes_and_keeps_its_first_samples(batches: int):
    rows = [{"x": float(row)} for row in range(15)]
    stream = StreamShard(Stateful(rows), 3, Ranks(1, 2))
    whole = [*stream]
    begun = iter(stream)
    for _ in range(batches * 3):
        next(begun, None)
    other = StreamShard(Stateful(rows), 3, Ranks(1, 2))
    other.load_state_dict(stream.state_dict())
    assert [*other] == whole[batches * 3 :]
    assert other.rows.read == 15 - 6 * batches


def test_stream_without_a_state_returns_none():
    assert StreamShard(Rows(3), 1, Ranks(0, 2)).state_dict() is None


def test_single_process_stream_has_the_state_of_its_dataset():
    stream = StreamShard(Stateful([1, 2, 3]), 1, Ranks())
    next(iter(stream))
    assert stream.state_dict() == {"position": 1}


def test_set_epoch_reaches_the_dataset():
    told = []
    rows = Rows(2)
    rows.set_epoch = told.append  # type: ignore[attr-defined]
    StreamShard(rows, 1, Ranks(0, 2)).set_epoch(3)
    StreamShard(Rows(2), 1, Ranks(0, 2)).set_epoch(4)
    assert told == [3]


def test_batch_counts_its_padding_rows():
    collate = PaddingRowCollator(default_data_collator)
    rows = [{"x": 1.0}, {"x": 2.0}]
    assert collate(rows)["x"].tolist() == [1.0, 2.0]
    filled = collate([rows[0], PaddingRow(rows[1])])
    assert isinstance(filled, PaddedBatch)
    assert filled.batch["x"].tolist() == [1.0, 2.0]
    assert filled.padding_rows == 1


class Pair(Ranks):
    """One of two processes, the other of which is made up."""

    other: tuple[int, Any] = (1, None)

    def gather_numbers(self, *numbers: int) -> list[list[int]]:
        return [[*numbers], [self.other[0]]]

    def gather_objects(self, value: Any) -> list[Any]:
        return [value, self.other[1]]


def test_rank_without_a_batch_gets_a_padding_batch():
    end, pair = object(), Pair(0, 2)
    batch = {"x": torch.ones(3)}
    object.__setattr__(pair, "other", (1, batch))
    ends = StreamEndSync(pair)
    assert ends.align(batch, end) is batch
    given = ends.align(end, end)
    assert (given.batch, given.padding_rows) == (batch, 3)
    object.__setattr__(pair, "other", (1, PaddedBatch(batch, 1)))
    assert ends.align(end, end).batch is batch
    object.__setattr__(pair, "other", (0, None))
    assert ends.align(end, end) is end
    assert ends.align(batch, end) is batch


def test_shards_are_divided_if_wanted_and_sufficient():
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


def test_stream_loader_counts_the_batches_of_its_rank():
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
def test_unsupported_accelerator_options_raise_with_a_remedy(key: str, remedy: str, monkeypatch: pytest.MonkeyPatch):
    for name, number in (("WORLD_SIZE", "2"), ("RANK", "0"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, number)
    value = key in ("split_batches", "dispatch_batches")
    with pytest.raises(ArgumentError, match=f"has {key}={value}, which is not supported; .*{remedy}"):
        TrainingArguments(accelerator_config={key: value})


def test_dispatch_batches_false_reads_own_shards():
    assert TrainingArguments(accelerator_config={"dispatch_batches": False}).reads_own_shards
    assert not TrainingArguments(accelerator_config={"dispatch_batches": None}).reads_own_shards
    assert not TrainingArguments().reads_own_shards


def test_unjoined_batches_lose_the_padding_of_the_last_one():
    kept = Gathered(concat=False)
    for batch in (torch.arange(4), torch.arange(4, 8)):
        kept.add((batch, {"a": batch}))
    whole = kept.whole(5, None, 3)
    assert [len(part[0]) for part in whole] == [4, 1]
    assert whole[1][1]["a"].tolist() == [4]
