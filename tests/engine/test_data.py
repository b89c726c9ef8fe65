"""From a dataset to windows of batches: order, ranks, positions, collators and errors."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import transformers
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler, TensorDataset
from transformers.trainer_pt_utils import nested_concat

from support.data import CountedRows, points
from support.models import Regression
from support.outcomes import same_weights, weights
from support.trainers import regression_trainer
from trainbus.engine.arguments import TrainingArguments
from trainbus.engine.data import batches as batches_module
from trainbus.engine.data.batches import join, rows_of, to_device
from trainbus.engine.data.build import build_loader, is_iterable, length_of
from trainbus.engine.data.collators.default import ColumnFilter, default_data_collator
from trainbus.engine.data.collators.padding import DataCollatorWithPadding
from trainbus.engine.data.feed import Feed, Window
from trainbus.engine.data.samplers import BatchedSampler, ShuffledSampler
from trainbus.engine.distributed.ranks import Ranks
from trainbus.events.errors import DataError

CPU = torch.device("cpu")

# The feed.


def windows(feed: Feed) -> list[Window]:
    return list(iter(feed.take, None))


def batches_of(rows: int, size: int = 4) -> list[dict[str, torch.Tensor]]:
    return [{"x": torch.arange(start, min(start + size, rows))} for start in range(0, rows, size)]


@pytest.mark.parametrize(
    ("rows", "accumulate", "shapes"),
    [
        (12, 1, [[4], [4], [4]]),
        (12, 3, [[4, 4, 4]]),
        (18, 2, [[4, 4], [4, 4], [2]]),
        (18, 3, [[4, 4, 4], [4, 2]]),
        (3, 5, [[3]]),
        (0, 2, []),
    ],
)
def test_window_holds_the_batches_of_a_step_and_the_last_may_be_shorter(
    rows: int, accumulate: int, shapes: list[list[int]]
):
    for loader in (batches_of(rows), _Unsized(batches_of(rows))):  # nobody need say beforehand how many there are
        feed = Feed(loader, accumulate, CPU)
        feed.begin(0, 0)
        taken = windows(feed)
        assert [[len(batch["x"]) for batch in window.items] for window in taken] == shapes
        assert [(window.batches, window.rows) for window in taken] == [(len(shape), sum(shape)) for shape in shapes]
        assert feed.take() is None


def test_window_counts_samples_over_all_ranks():
    feed = Feed(batches_of(12), 2, CPU, world_size=3)
    feed.begin(0, 0)
    assert [window.rows for window in windows(feed)] == [24, 12]


def test_loader_that_cannot_skip_is_read_up_to_the_position():
    feed = Feed(_Unsized(batches_of(20)), 2, CPU)
    feed.begin(0, 3)
    assert [window.items[0]["x"][0].item() for window in windows(feed)] == [12]
    feed.begin(1, 0)
    assert len(windows(feed)) == 3


def test_position_after_the_end_yields_no_window():
    feed = Feed(_Unsized(batches_of(20)), 2, CPU)
    feed.begin(0, 99)
    assert feed.take() is None


def test_rng_states_are_restored_once_where_training_resumes():
    """Before anything new is fetched, and after what was done is read again."""
    for batches_done, read in ((0, []), (2, [0, 1])):
        called: list[list[int]] = []
        loader = _Unsized(batches_of(20))
        feed = Feed(loader, 2, CPU)
        feed.resume({}, lambda: called.append(list(loader.read)))  # noqa: B023 - called in this very turn
        feed.begin(0, batches_done)
        feed.take()
        feed.take()
        feed.begin(1, 0)
        assert called == [read]


class _Unsized:
    """Batches that can only be read from the first on."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches
        self.read: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.batches):
            self.read.append(number)
            yield batch


# Samplers.


@pytest.mark.parametrize(("rows", "seed"), [(1, 0), (17, 42), (100, 2**31)])
def test_shuffled_sampler_matches_accelerate(rows: int, seed: int):
    theirs = SeedableRandomSampler(range(rows), data_seed=seed, generator=torch.Generator())
    ours = ShuffledSampler(range(rows), seed)
    orders = []
    for epoch in range(4):
        theirs.set_epoch(epoch)
        ours.set_epoch(epoch)
        orders.append(list(ours))
        assert orders[-1] == list(theirs)
        assert list(ours) == orders[-1]  # asking again changes nothing: the order is a function of seed and epoch
    assert rows == 1 or orders[0] != orders[1]
    assert len(ours) == rows


def test_shuffling_does_not_change_the_global_generator():
    before = torch.get_rng_state()
    list(ShuffledSampler(range(10), 1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 11, 12, 16, 23, 24, 25, 40])
def test_batches_are_divided_over_ranks_as_in_accelerate(rows: int, world_size: int, drop_last: bool):
    for size in (1, 3, 4):
        for rank in range(world_size):
            whole = BatchSampler(SequentialSampler(range(rows)), size, drop_last)
            theirs: Any = BatchSamplerShard(whole, world_size, rank) if world_size > 1 else whole
            ours = BatchedSampler(
                SequentialSampler(range(rows)), size, drop_last=drop_last, rank=rank, world_size=world_size
            )
            expected = list(theirs)
            assert list(ours) == expected, (size, rank)
            assert len(ours) == len(expected), (size, rank)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 2, 7, 12, 23, 25])
def test_uneven_batches_contain_each_sample_exactly_once(rows: int, world_size: int):
    for size in (1, 3, 4):
        shares = [
            BatchedSampler(SequentialSampler(range(rows)), size, rank=rank, world_size=world_size, even=False)
            for rank in range(world_size)
        ]
        given = [[row for batch in share for row in batch] for share in shares]
        assert sorted(row for rows_of_one in given for row in rows_of_one) == list(range(rows))
        assert [len(share) for share in shares] == [len(list(share)) for share in shares]


@pytest.mark.parametrize("first", [0, 1, 3, 5, 9])
def test_skip_holds_for_one_iteration_and_yields_the_later_batches(first: int):
    for world_size in (1, 2):
        for even in (True, False):
            sampler = BatchedSampler(
                ShuffledSampler(range(19), 3), 4, rank=world_size - 1, world_size=world_size, even=even
            )
            whole = list(sampler)
            sampler.first = first
            assert list(sampler) == whole[first:]
            assert list(sampler) == whole


# Loaders.


def loader_of(dataset: Any, args: dict[str, Any] | None = None, **options: Any) -> Any:
    options = {"batch_size": 4, "training": True, "accepted": None, "seed": 42, **options}
    collator: Callable[..., Any] = options.pop("collator", default_data_collator)
    return build_loader(dataset, TrainingArguments(use_cpu=True, **(args or {})), collator, Ranks(), **options)


def test_skipping_reads_no_sample_of_the_skipped_batches():
    rows = CountedRows([{"x": float(row)} for row in range(22)])
    loader = loader_of(rows)
    loader.set_epoch(3)
    whole = [batch["x"].tolist() for batch in loader]
    rows.read.clear()
    assert loader.skip(3) is True
    rest = [batch["x"].tolist() for batch in loader]
    assert rest == whole[3:]
    assert [float(row) for row in rows.read] == [row for batch in whole[3:] for row in batch]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # where there is one processor only
def test_skipping_with_workers_gives_the_same_batches():
    loader = loader_of([{"x": float(row)} for row in range(22)], {"dataloader_num_workers": 2})
    whole = [batch["x"].tolist() for batch in loader]
    loader.skip(2)
    assert [batch["x"].tolist() for batch in loader] == whole[2:]


def test_stream_cannot_skip():
    assert loader_of(_Stream([{"x": 1.0}])).skip(1) is False


def test_loader_prefetches_one_batch():
    """So that what a collator draws at random is drawn before the step on the batch before, as in transformers."""
    rows = CountedRows([{"x": float(row)} for row in range(8)])
    batches = iter(loader_of(rows, training=False))
    next(batches)
    assert len(rows.read) == 8


def test_evaluation_reads_in_dataset_order_and_training_shuffles():
    rows = [{"x": float(row)} for row in range(10)]
    in_order = [row["x"] for row in rows]
    assert [value for batch in loader_of(rows, training=False) for value in batch["x"].tolist()] == in_order
    shuffled = [value for batch in loader_of(rows) for value in batch["x"].tolist()]
    assert shuffled != in_order
    assert sorted(shuffled) == in_order


def test_dataset_with_set_epoch_receives_the_epoch():
    rows = CountedRows(points(4))
    rows.set_epoch = lambda epoch: rows.read.append(epoch)  # type: ignore[attr-defined]
    loader_of(rows).set_epoch(7)
    assert rows.read == [7]


def test_drop_last_drops_an_incomplete_batch():
    rows = [{"x": float(row)} for row in range(10)]
    for data in (rows, _Stream(rows)):
        assert [len(batch["x"]) for batch in loader_of(data)] == [4, 4, 2]
        assert [len(batch["x"]) for batch in loader_of(data, {"dataloader_drop_last": True})] == [4, 4]


class _Stream(IterableDataset):
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


class _Rows:
    """An object of no library that gives out rows, over and over."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        yield from self.rows


# Every kind of dataset trains, and those with the same rows in the same order train alike.

ROWS = points(20)
COLUMNS = {"x": [row["x"].tolist() for row in ROWS], "labels": [row["labels"].item() for row in ROWS]}
TEXT = {"text": [f"row {number}" for number in range(20)], "id": [str(number) for number in range(20)]}


def in_torch(dataset: Any) -> Any:
    return dataset.with_format("torch")


SIZED: dict[str, Callable[[], Any]] = {
    "a list of dicts": lambda: ROWS,
    "a torch dataset": lambda: CountedRows(ROWS),
    "a list of objects": lambda: [SimpleNamespace(**row) for row in ROWS],
    "a datasets.Dataset": lambda: datasets.Dataset.from_dict(COLUMNS),
    "a datasets.Dataset of tensors": lambda: in_torch(datasets.Dataset.from_dict(COLUMNS)),
    "a datasets.Dataset with texts": lambda: datasets.Dataset.from_dict({**TEXT, **COLUMNS}),
    "a list of dicts with texts": lambda: [{**row, "text": "a", "id": "b"} for row in ROWS],
    "tuples": lambda: TensorDataset(*(torch.stack([row[key] for row in ROWS]) for key in ("x", "labels"))),
}
STREAMS: dict[str, Callable[[], Any]] = {
    "a torch stream": lambda: _Stream(ROWS),
    "a torch stream with texts": lambda: _Stream([{**row, "text": "a"} for row in ROWS]),
    "a datasets.IterableDataset": lambda: datasets.Dataset.from_dict({**TEXT, **COLUMNS}).to_iterable_dataset(),
    "a datasets.IterableDataset made by a function": lambda: datasets.IterableDataset.from_generator(_generate),
    "any object with __iter__": lambda: _Rows(ROWS),
}


def _generate() -> Iterator[dict[str, Any]]:
    for row in ROWS:
        yield {"x": row["x"].tolist(), "labels": row["labels"].item()}


def trained_on(folder: Any, data: Any, **args: Any) -> dict[str, torch.Tensor]:
    run = regression_trainer(folder, train_dataset=data, args={"max_steps": 8, "dataloader_num_workers": 0, **args})
    run.train()
    assert run.state.global_step == 8
    return weights(run.model)


@pytest.mark.parametrize("name", SIZED)
def test_every_type_of_sized_dataset_trains_the_same_weights(name: str, tmp_path: Any):
    assert same_weights(trained_on(tmp_path, SIZED[name]()), trained_on(tmp_path, ROWS))


@pytest.mark.parametrize("name", STREAMS)
def test_every_type_of_stream_trains_the_same_weights(name: str, tmp_path: Any):
    assert same_weights(trained_on(tmp_path, STREAMS[name]()), trained_on(tmp_path, _Stream(ROWS)))


def test_stream_is_read_from_its_start_in_each_epoch(tmp_path: Any):
    run = regression_trainer(tmp_path, train_dataset=_Stream(ROWS), args={"max_steps": 8})
    run.train()
    assert run.state.samples_seen == 20 + 12  # five batches of four, and three more of the second time
    assert run.state.epoch == 1 + 3 / 8  # an epoch of a stream is as long as the run, until it turns out shorter


def test_stream_that_ends_inside_a_step_completes_the_step(tmp_path: Any):
    run = regression_trainer(
        tmp_path, train_dataset=_Stream(ROWS), args={"max_steps": 4, "gradient_accumulation_steps": 3}
    )
    run.train()
    assert run.state.samples_seen == 12 + 8 + 12 + 8


def test_predictions_have_the_order_of_the_stream(tmp_path: Any):
    run = regression_trainer(tmp_path, args={"per_device_eval_batch_size": 3})
    predicted = run.predict(_Stream(ROWS))
    np.testing.assert_array_equal(predicted.label_ids, [row["labels"] for row in ROWS])
    np.testing.assert_array_equal(predicted.predictions, run.predict(ROWS).predictions)


# Collators.

Named = namedtuple("Named", ["x", "label"])
KINDS: dict[str, Callable[[], list[Any]]] = {
    "numbers": lambda: [{"x": 1, "y": 2.5, "label": 3}, {"x": 4, "y": 5.5, "label": 6}],
    "float labels": lambda: [{"x": [1, 2], "label": 0.5}, {"x": [3, 4], "label": 1.5}],
    "lists": lambda: [{"x": [[1, 2], [3, 4]]}, {"x": [[5, 6], [7, 8]]}],
    "tensors": lambda: [{"x": torch.tensor([1.0, 2.0]), "label": torch.tensor(1)} for _ in range(3)],
    "float tensor labels": lambda: [{"x": torch.tensor([1.0]), "label": torch.tensor(1.5)} for _ in range(2)],
    "arrays": lambda: [{"x": np.arange(3), "y": np.ones((2, 2), np.float32)} for _ in range(3)],
    "numpy numbers": lambda: [{"x": np.float32(0.5), "label": np.int64(2)} for _ in range(2)],
    "booleans": lambda: [{"x": True, "label": False}, {"x": False, "label": True}],
    "label_ids as lists": lambda: [{"x": 1, "label_ids": [1, 2]}, {"x": 2, "label_ids": [3, 4]}],
    "label_ids as floats": lambda: [{"x": 1, "label_ids": [1.0, 2.0]}, {"x": 2, "label_ids": [3.0, 4.0]}],
    "label_ids as tensors": lambda: [{"x": 1, "label_ids": torch.tensor([1, 2])} for _ in range(2)],
    "labels under their name": lambda: [{"x": [1], "labels": 1}, {"x": [2], "labels": 0}],
    "texts and nothing": lambda: [{"x": 1, "text": "a", "z": None}, {"x": 2, "text": "b", "z": None}],
    "objects": lambda: [SimpleNamespace(x=1, label=2), SimpleNamespace(x=3, label=4)],
}


def assert_same_batch(ours: Any, theirs: Any) -> None:
    assert ours.keys() == theirs.keys()
    for key in theirs:
        assert ours[key].dtype == theirs[key].dtype, key
        assert torch.equal(ours[key], theirs[key]), key


@pytest.mark.parametrize("name", KINDS)
def test_default_collator_matches_transformers(name: str):
    assert_same_batch(default_data_collator(KINDS[name]()), transformers.default_data_collator(KINDS[name]()))


def test_default_collator_accepts_samples_that_transformers_cannot_collate():
    rows = [Named(1.0, 2), Named(3.0, 4)]
    assert_same_batch(default_data_collator(rows), {"labels": torch.tensor([2, 4]), "x": torch.tensor([1.0, 3.0])})
    x, y = default_data_collator([(torch.ones(2), 1), (torch.zeros(2), 0)])
    assert torch.equal(x, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    assert torch.equal(y, torch.tensor([1, 0]))
    assert torch.equal(default_data_collator([torch.ones(2)] * 3), torch.ones(3, 2))
    assert torch.equal(default_data_collator([np.ones(2)] * 3), torch.ones(3, 2, dtype=torch.float64))


def test_tokenizer_pads_texts():
    class Tokenizer:
        def pad(self, rows: list[dict[str, Any]], padding: Any, return_tensors: str) -> dict[str, torch.Tensor]:
            assert (padding, return_tensors) == (True, "pt")
            width = max(len(row["input_ids"]) for row in rows)
            ids = [row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows]
            return {"input_ids": torch.tensor(ids), "label": torch.tensor([row["label"] for row in rows])}

    batch = DataCollatorWithPadding(Tokenizer())([{"input_ids": [1], "label": 0}, {"input_ids": [1, 2], "label": 1}])
    assert batch["input_ids"].tolist() == [[1, 0], [1, 2]]
    assert batch["labels"].tolist() == [0, 1]
    assert "label" not in batch


def test_column_filter_removes_columns_before_the_collator():
    seen: list[Any] = []
    keep = ColumnFilter(lambda rows: seen.append(rows), frozenset({"x", "labels"}))
    rows = [{"x": 1, "text": "a"}, {"x": 2, "labels": 3}]
    keep(rows)
    assert seen == [[{"x": 1}, {"x": 2, "labels": 3}]]
    assert rows[0] == {"x": 1, "text": "a"}  # the dataset's own rows are left alone
    keep([(1, 2)])
    assert seen[-1] == [(1, 2)]


# Joining the results of batches.

PARTS: dict[str, list[Any]] = {
    "numbers": [torch.tensor([1.0, 2.0]), torch.tensor([3.0])],
    "one width": [torch.ones(2, 3), torch.zeros(1, 3)],
    "several widths": [torch.ones(2, 3), torch.zeros(1, 5), torch.ones(3, 1)],
    "several widths in three dimensions": [torch.ones(2, 3, 4), torch.zeros(1, 5, 4)],
    "whole numbers": [torch.ones(2, 3, dtype=torch.int64), torch.zeros(1, 4, dtype=torch.int64)],
    "scalars": [torch.tensor(1.0), torch.tensor(2.0)],
    "arrays": [np.ones((2, 3)), np.zeros((1, 2))],
    "tuples": [(torch.ones(2, 3), torch.ones(2)), (torch.ones(1, 4), torch.ones(1))],
    "lists in dicts": [{"a": [torch.ones(2, 3)]}, {"a": [torch.ones(1, 4)]}],
}


@pytest.mark.parametrize("name", PARTS)
def test_join_matches_transformers(name: str):
    theirs = PARTS[name][0]
    for part in PARTS[name][1:]:
        theirs = nested_concat(theirs, part, padding_index=-100)
    assert_same(join(PARTS[name]), theirs)


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        ours, theirs = list(ours.values()), list(theirs.values())
    if isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs):
            assert_same(mine, other)
    else:
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_join_refuses_values_that_are_not_tensors():
    with pytest.raises(TypeError, match=r"type str cannot be joined\. Return tensors"):
        join(["a", "b"])


ONES = torch.ones(2, 1)


@pytest.mark.parametrize(
    "parts",
    [
        [ONES, (ONES, ONES)],
        [(ONES, ONES), ONES],
        [(ONES,), (ONES, ONES)],
        [{"a": ONES}, {"a": ONES, "b": ONES}],
        [{"a": ONES, "b": ONES}, {"a": ONES}],
        [[ONES, {"a": (ONES,)}], [ONES, {"a": ONES}]],
        [(ONES, ONES), (ONES, None)],
        [ONES, ONES.numpy()],
    ],
)
def test_join_refuses_parts_of_different_structures(parts: list):
    with pytest.raises(TypeError, match="results of the batches cannot be joined: one batch has a"):
        join(parts)


def test_join_accepts_lists_and_tuples_of_equal_length():
    assert [*map(len, join([(ONES, ONES), [ONES, ONES]]))] == [4, 4]


def test_rows_of_counts_the_samples_of_any_batch():
    counted = {
        3: (
            torch.ones(3, 2),
            np.ones((3, 1)),
            {"a": "b", "x": torch.ones(3)},
            (torch.ones(3),),
            [{"x": torch.ones(3)}],
        ),
        None: ({"a": torch.tensor(1.0)}, "text", [], torch.tensor(1.0)),
    }
    for rows, batches in counted.items():
        assert [rows_of(batch) for batch in batches] == [rows] * len(batches)


def test_length_of_and_is_iterable():
    assert [length_of(data) for data in ([1, 2], _Stream([1]), _Rows([1]), None)] == [2, None, None, None]
    assert [is_iterable(data) for data in ([1], _Stream([1]), _Rows([1]), CountedRows([]))] == [
        *(False, True, True, False)
    ]


# What is refused.


def test_samples_of_different_lengths_raise_with_lengths_and_remedy():
    with pytest.raises(DataError, match=r"'input_ids' .*lengths \[1, 2\]: pass a `processing_class`"):
        default_data_collator([{"input_ids": [1]}, {"input_ids": [1, 2]}])


def test_values_that_cannot_be_stacked_raise_with_the_column():
    with pytest.raises(DataError, match=r"The column 'x' cannot be stacked .*remove the column"):
        default_data_collator([{"x": {"a": 1}}, {"x": {"a": 2}}])


def test_dataset_without_an_accepted_column_raises(tmp_path: Any):
    run = regression_trainer(tmp_path, Regression(), train_dataset=datasets.Dataset.from_dict(TEXT))
    with pytest.raises(DataError, match=r"none of the dataset's columns \(text, id\): its forward takes x, labels"):
        run.train()


def test_object_that_is_not_a_dataset_raises():
    with pytest.raises(DataError, match="int is not a dataset: it needs __getitem__ and __len__, or __iter__"):
        loader_of(7)


def test_a_batch_moves_to_the_cpu_if_the_process_has_an_accelerator(monkeypatch: pytest.MonkeyPatch):
    cpu, batch, moved = torch.device("cpu"), {"x": torch.ones(2)}, []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device, **_: moved.append(device) or tensor)
    for available in (False, True):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda available=available: available)
        batches_module._only_cpu.cache_clear()
        try:
            assert (to_device(batch, cpu) is batch) == (not available)
        finally:
            batches_module._only_cpu.cache_clear()
    assert moved == [cpu]
