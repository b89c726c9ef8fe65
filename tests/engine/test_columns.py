"""Batches from columns equal those from samples, in every bit, and so do the errors."""

from __future__ import annotations

import contextlib
import gc
import pickle
import sys
import warnings
from typing import Any
from unittest import mock

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset, TensorDataset
from transformers.trainer_pt_utils import get_length_grouped_indices

from support.tables import reordered, tables, tokenizer
from trainbus.engine.data.collators import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    DefaultDataCollator,
    default_data_collator,
)
from trainbus.engine.data.collators.default import ColumnFilter
from trainbus.engine.data.columns import rows as rows_module
from trainbus.engine.data.columns.choosing import columnar
from trainbus.engine.data.columns.lengths import column_lengths
from trainbus.engine.data.columns.rows import BatchRows, NotColumnar
from trainbus.engine.data.length_sampler import grouped_by_length
from trainbus.engine.data.loader import Loader
from trainbus.engine.data.samplers import BatchedSampler, ShuffledSampler

OPTIONS: Any = {
    "suppress_health_check": [*HealthCheck],
    "max_examples": 60,
    "phases": [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
}


def layout(batch: Any) -> Any:
    """Return everything about a batch that a program can see."""
    if isinstance(batch, torch.Tensor):
        numbers = batch.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
        return type(batch), batch.dtype, batch.shape, batch.stride(), batch.requires_grad, batch.device, numbers
    if isinstance(batch, np.ndarray):
        return type(batch), batch.dtype, batch.shape, batch.strides, repr(batch.tolist())
    if hasattr(batch, "keys"):
        return type(batch), [(key, layout(batch[key])) for key in batch]
    if isinstance(batch, (list, tuple)):
        return type(batch), [layout(each) for each in batch]
    return type(batch), batch


def outcome(dataset: Any, collator: Any, indices: list[int]) -> Any:
    """Return the batch that torch's DataLoader makes, or its error."""
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return layout(next(iter(DataLoader(dataset, batch_sampler=[indices], collate_fn=collator))))
        except Exception as error:
            return type(error), str(error)


def unproved(rows: Any, what: Any, fast: Any, slow: Any) -> Any:
    """Return the batch of the columns, without the comparison that replaces a wrong one."""
    return fast()


def assert_same(dataset: Any, collator: Any, indices: list[int]) -> None:
    found = columnar(dataset, collator)
    if found is None:
        return
    expected = outcome(dataset, collator, indices)
    before = torch.get_rng_state()
    with mock.patch.object(BatchRows, "proved", unproved):
        plain = mock.patch.object(BatchRows, "plain", side_effect=NotColumnar)
        with plain:
            fast = outcome(*found, indices)[0] is not NotColumnar
        event(f"fast={fast} fails={isinstance(expected[0], type) and issubclass(expected[0], Exception)}")
        assert outcome(*found, indices) == expected
        assert torch.equal(torch.get_rng_state(), before)
        assert outcome(*pickle.loads(pickle.dumps(found)), indices) == expected  # as for a spawned worker


class Decoder:
    """A model that makes the inputs of its decoder."""

    @staticmethod
    def prepare_decoder_input_ids_from_labels(labels: torch.Tensor) -> torch.Tensor:
        return labels.clamp(min=0).roll(1, -1)


@st.composite
def padding_collators(draw: Any) -> Any:
    side = draw(st.sampled_from(("right", "left")))
    names = [["input_ids", "attention_mask"], ["input_ids", "token_type_ids", "attention_mask"], ["input_ids"]]
    limit = draw(st.sampled_from((None, 4, 8)))
    padder = tokenizer(
        padding_side=side,
        model_input_names=draw(st.sampled_from(names)),
        pad_token=draw(st.sampled_from(("[PAD]", "[MASK]", "[PAD]", None))),
        **({} if limit is None else {"model_max_length": limit}),
    )
    multiple = draw(st.sampled_from((None, None, 4)))
    if draw(st.booleans()) and padder.pad_token is not None:
        mlm = draw(st.booleans())
        return DataCollatorForLanguageModeling(padder, mlm=mlm, pad_to_multiple_of=multiple)
    cls = draw(st.sampled_from((DataCollatorWithPadding, DataCollatorForTokenClassification, DataCollatorForSeq2Seq)))
    model = {"model": Decoder()} if cls is DataCollatorForSeq2Seq and draw(st.booleans()) else {}
    return cls(
        padder,
        padding=draw(st.sampled_from((True, "longest", "max_length", False, "do_not_pad"))),
        max_length=draw(st.sampled_from((None, None, 5, 8))),
        pad_to_multiple_of=multiple,
        return_tensors=draw(st.sampled_from(("pt", "pt", "pt", "np"))),
        **model,
    )


def indices_of(dataset: Any) -> st.SearchStrategy[list[int]]:
    usual = st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=6)
    return st.one_of(usual, usual, usual, st.lists(st.integers(-1, len(dataset)), min_size=1, max_size=3))


@settings(**OPTIONS)
@given(st.data())
def test_stacked_batches_equal_those_of_samples(data: Any):
    dataset = data.draw(tables(tokens=False).flatmap(reordered))
    collator = data.draw(st.sampled_from((default_data_collator, DefaultDataCollator(), DefaultDataCollator("np"))))
    if data.draw(st.booleans()):
        collator = ColumnFilter(collator, frozenset({"label", "values", "labels"}))
    with default_dtype(data.draw(st.sampled_from((torch.float32, torch.float32, torch.float64, torch.bfloat16)))):
        assert_same(dataset, collator, data.draw(indices_of(dataset)))


@pytest.mark.parametrize("style", [None, "numpy", "torch"])
@pytest.mark.parametrize("column", ["label", "label_ids", "values"])
@pytest.mark.parametrize("shape", ["number", "two numbers", "one number in a list"])
def test_each_type_of_numbers_is_stacked_as_from_samples(style: str | None, column: str, shape: str):
    whole = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    for name in (*whole, "float32", "float64", "bool"):
        one, zero = np.array([1, 0], dtype=name).tolist()
        value = {"number": one, "two numbers": [one, zero], "one number in a list": [one]}[shape]
        kind = {"float32": pa.float32(), "float64": pa.float64(), "bool": pa.bool_()}.get(name) or getattr(pa, name)()
        cells = pa.array([value, value], pa.list_(kind) if isinstance(value, list) else kind)
        dataset = datasets.Dataset(pa.table({column: cells, "other": pa.array([1.0, 2.0], pa.float32())}))
        dataset = dataset.with_format(style)
        with mock.patch.object(BatchRows, "proved", unproved):
            found = outcome(*columnar(dataset, default_data_collator), [0, 1])
        assert found == outcome(dataset, default_data_collator, [0, 1]), name


@settings(**OPTIONS)
@given(st.data())
def test_padded_batches_equal_those_of_samples(data: Any):
    dataset = data.draw(tables(tokens=True).flatmap(reordered))
    collator = data.draw(padding_collators())
    with default_dtype(data.draw(st.sampled_from((torch.float32, torch.float64)))):
        assert_same(dataset, collator, data.draw(indices_of(dataset)))


LAYOUTS: dict[str, Any] = {
    "contiguous": lambda each: each,
    "transposed": lambda each: each.transpose(1, 2),
    "sliced": lambda each: each[:, ::2],
    "strided rows": lambda each: each.repeat_interleave(2, 0)[::2],
    "expanded": lambda each: each[:1].expand(6, -1, -1, -1),
    "channels last": lambda each: each.to(memory_format=torch.channels_last),
    "with gradients": lambda each: each.detach().clone().requires_grad_(each.is_floating_point()),
    "subclass": lambda each: each.as_subclass(Marked),
    "conjugate": lambda each: each.to(torch.complex64).conj(),
    "negative": lambda each: each.to(torch.complex64).conj().imag,
    "numbers": lambda each: each[:, 0, 0, 0].contiguous(),
    "offset": lambda each: torch.cat([each, each])[3:9],
    "empty": lambda each: each[:, :0],
}
"""Tensors made of one of shape (6, 3, 4, 4)."""


class Marked(torch.Tensor):
    """A tensor of another type."""


@settings(**OPTIONS)
@given(st.data())
def test_batches_of_tensors_equal_those_of_samples(data: Any):
    dtypes = st.sampled_from((torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool))
    whole = torch.arange(288).reshape(6, 3, 4, 4)
    kinds = data.draw(st.lists(st.tuples(dtypes, st.sampled_from([*LAYOUTS, "contiguous"])), min_size=1, max_size=3))
    dataset: Any = TensorDataset(*(LAYOUTS[kind](whole.to(dtype)) for dtype, kind in kinds))
    for _ in range(data.draw(st.integers(0, 2))):
        dataset = Subset(dataset, data.draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=8)))
    collator = data.draw(
        st.sampled_from((default_data_collator, ColumnFilter(default_data_collator, frozenset({"labels"}))))
    )
    assert_same(dataset, collator, data.draw(indices_of(dataset)))


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# Which datasets and collators are known.


def words(rows: int = 40) -> Any:
    """Return a tokenized dataset whose samples have different lengths."""
    lengths = [row % 7 + 1 for row in range(rows)]
    return datasets.Dataset.from_dict(
        {
            "input_ids": [[*range(length)] for length in lengths],
            "attention_mask": [[1] * length for length in lengths],
            "label": [row % 2 for row in range(rows)],
        }
    )


def arrays() -> Any:
    return datasets.Dataset.from_dict({"x": np.arange(120.0).reshape(40, 3), "label": np.arange(40)})


PADDER = tokenizer()
KNOWN = {
    "ragged rows": lambda: (words(), DataCollatorWithPadding(PADDER)),
    "shuffled rows": lambda: (words().shuffle(seed=0), DataCollatorWithPadding(PADDER)),
    "subset of ragged rows": lambda: (Subset(words(), range(3, 30)), DataCollatorWithPadding(PADDER)),
    "padding of transformers": lambda: (words(), transformers.DataCollatorWithPadding(PADDER)),
    "token labels": lambda: (
        words().add_column("labels", words()["input_ids"]).remove_columns("label"),
        DataCollatorForTokenClassification(PADDER),
    ),
    "sequence labels": lambda: (
        words().add_column("labels", words()["input_ids"]).remove_columns("label"),
        DataCollatorForSeq2Seq(PADDER, model=Decoder()),
    ),
    "masked words": lambda: (words().remove_columns("label"), DataCollatorForLanguageModeling(PADDER)),
    "numbers": lambda: (arrays(), default_data_collator),
    "numbers of numpy": lambda: (arrays().with_format("numpy"), default_data_collator),
    "numbers of torch": lambda: (arrays().with_format("torch"), DefaultDataCollator()),
    "two tables": lambda: (datasets.concatenate_datasets([arrays(), arrays()]), default_data_collator),
    "filtered columns": lambda: (Subset(arrays(), range(20)), ColumnFilter(default_data_collator, frozenset({"x"}))),
    "tensors": lambda: (TensorDataset(torch.randn(40, 3), torch.arange(40)), default_data_collator),
    "subset of tensors": lambda: (Subset(TensorDataset(torch.randn(40, 3)), range(20)), default_data_collator),
}
"""Datasets and collators whose batches come from columns."""


def loader(dataset: Any, collator: Any, cls: Any = Loader, **options: Any) -> Any:
    batches = BatchedSampler(ShuffledSampler(dataset, 0), 8)
    return cls(dataset, batch_sampler=batches, collate_fn=collator, **options)


@pytest.mark.parametrize("name", KNOWN)
def test_known_datasets_are_read_by_columns(name: str, monkeypatch: pytest.MonkeyPatch):
    dataset, collator = KNOWN[name]()
    torch.manual_seed(0)
    expected = [layout(batch) for batch in loader(dataset, collator, DataLoader)]
    monkeypatch.setattr(BatchRows, "plain", mock.Mock(side_effect=AssertionError("a sample was read")))
    monkeypatch.setattr(BatchRows, "proved", unproved)
    torch.manual_seed(0)
    ours = loader(dataset, collator)
    assert [layout(batch) for batch in ours] == expected
    assert ours.dataset is dataset
    assert ours.collate_fn is collator
    assert ours.reads_columns


class OwnDataset(datasets.Dataset):
    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [{"x": [0.0], "label": key} for key in keys]


class OwnTensors(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        return (torch.tensor(index),)


class OwnSubset(Subset):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [{"x": [0.0], "label": index} for index in indices]


class OwnCollator(DataCollatorWithPadding):
    def __call__(self, features: list[Any]) -> Any:
        return len(features)


class OwnTokenizer(transformers.PreTrainedTokenizerFast):
    def _pad(self, *args: Any, **options: Any) -> Any:
        padded = super()._pad(*args, **options)
        return {**padded, "attention_mask": [7] * len(padded["input_ids"])}


def patched(thing: Any, name: str, value: Any) -> Any:
    setattr(thing, name, value)
    return thing


def patched_tokenizer() -> Any:
    made = tokenizer()
    pad = made.pad
    return patched(made, "pad", lambda rows, **options: {**pad(rows, **options), "more": torch.zeros(1)})


OTHERS = {
    "dataset": lambda: (OwnDataset(arrays().data), default_data_collator),
    "tensors": lambda: (OwnTensors(torch.randn(40, 3)), default_data_collator),
    "subset": lambda: (OwnSubset(arrays(), range(20)), default_data_collator),
    "collator": lambda: (words(), OwnCollator(PADDER)),
    "collating function": lambda: (arrays(), lambda rows: len(rows)),
    "method of the dataset": lambda: (
        patched(arrays(), "__getitems__", lambda keys: [{"x": 0.0} for _ in keys]),
        default_data_collator,
    ),
    "tokenizer": lambda: (words(), DataCollatorWithPadding(OwnTokenizer(**PADDER_FILES))),
    "method of the tokenizer": lambda: (words(), DataCollatorWithPadding(patched_tokenizer())),
    "transform": lambda: (arrays().with_transform(lambda rows: {"x": rows["label"]}), default_data_collator),
    "options of a format": lambda: (arrays().with_format("torch", dtype=torch.float64), default_data_collator),
}
"""Datasets and collators with code of the user, which decides."""
PADDER_FILES = {"tokenizer_object": PADDER.backend_tokenizer, "pad_token": "[PAD]"}


@pytest.mark.parametrize("name", OTHERS)
def test_code_of_the_user_decides(name: str):
    dataset, collator = OTHERS[name]()
    assert columnar(dataset, collator) is None
    expected = [layout(batch) for batch in loader(dataset, collator, DataLoader)]
    assert [layout(batch) for batch in loader(dataset, collator)] == expected


def test_a_collator_that_is_set_later_is_used():
    ours = loader(arrays(), default_data_collator)
    next(iter(ours))
    ours.collate_fn = len
    assert [*ours] == [8] * 5


def test_a_format_that_is_set_later_is_used():
    dataset = words()
    collator = DataCollatorWithPadding(PADDER)
    made, collate = columnar(dataset, collator)  # type: ignore[misc]
    assert [*collate(made.__getitems__([0, 1]))] == ["input_ids", "attention_mask", "labels"]
    dataset.set_format("torch", columns=["input_ids"])
    assert layout(collate(made.__getitems__([0, 1]))) == layout(collator(dataset.__getitems__([0, 1])))


def test_a_batch_shares_no_memory_with_the_table():
    dataset = arrays()
    for format_ in (None, "numpy", "torch"):
        made, collate = columnar(dataset.with_format(format_), default_data_collator)  # type: ignore[misc]
        for value in collate(made.__getitems__([0, 1])).values():
            value.zero_()
    assert dataset[1] == {"x": [3.0, 4.0, 5.0], "label": 1}


def test_a_tokenizer_that_pads_differently_is_noticed(monkeypatch: pytest.MonkeyPatch, caplog: Any):
    monkeypatch.setattr(rows_module, "_PROVED", {})
    base = transformers.PreTrainedTokenizerBase
    pad = base._pad

    def other(self: Any, *args: Any, **options: Any) -> Any:
        padded = pad(self, *args, **options)
        return {**padded, "attention_mask": [1] * len(padded["input_ids"])}

    monkeypatch.setattr(base, "_pad", other)
    dataset, collator = KNOWN["ragged rows"]()
    expected = [layout(batch) for batch in loader(dataset, collator, DataLoader)]
    assert [layout(batch) for batch in loader(dataset, collator)] == expected
    assert [record.message for record in caplog.records if "samples" in record.message]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_read_columns(context: str):
    dataset, collator = KNOWN["ragged rows"]()
    expected = [layout(batch) for batch in loader(dataset, collator)]
    options = {"num_workers": 1, "multiprocessing_context": context, "worker_init_fn": refuse_samples}
    assert [layout(batch) for batch in loader(dataset, collator, **options)] == expected


def refuse_samples(worker: int) -> None:
    """Make this worker fail if it reads a sample after the batch that is compared."""
    read, calls = BatchRows.plain, []

    def once(self: BatchRows) -> list[Any]:
        calls.append(self)
        assert len(calls) < 3, "a sample was read"
        return read(self)

    BatchRows.plain = once  # type: ignore[method-assign]


def test_the_profiler_shows_the_loader_of_torch():
    dataset, collator = KNOWN["tensors"]()
    plain = [layout(batch) for batch in loader(dataset, collator)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        batches = [layout(batch) for batch in loader(dataset, collator)]
    assert batches == plain
    [row] = [each for each in profile.key_averages() if "DataLoaderIter" in each.key]
    assert row.count == len(batches) + 1, "one record of each batch, and one of the end"


CEILINGS = {"ragged rows": 125, "numbers": 56, "tensors": 26}
"""Python calls of a batch of 8 samples. They do not depend on the number of samples."""


@pytest.mark.parametrize("name", CEILINGS)
def test_a_batch_makes_no_more_python_calls_than_recorded(name: str):
    dataset, collator = KNOWN[name]()
    counts: list[int] = []
    for size in (8, 16):
        made, collate = columnar(dataset, collator)  # type: ignore[misc]
        collate(made.__getitems__([*range(size)]))
        collate(made.__getitems__([*range(20, 20 + size)]))
        counts.append(calls_of(lambda: collate(made.__getitems__([*range(5, 5 + size)]))))  # noqa: B023
    assert counts[0] == counts[1], "the calls grow with the samples"
    assert 5 < counts[0] <= CEILINGS[name]


def calls_of(work: Any) -> int:
    """Return the Python functions that `work` calls."""
    count = 0

    def called(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    gc.disable()  # hypothesis is called at each collection
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


@settings(**OPTIONS)
@given(st.data())
def test_lengths_from_columns_equal_those_of_samples(data: Any):
    dataset = data.draw(tables(tokens=True).flatmap(reordered))
    name = data.draw(st.sampled_from(("input_ids", "labels", "values")))
    lengths = column_lengths(dataset, name, False)
    if lengths is not None:
        assert lengths == [len(dataset[row][name]) for row in range(len(dataset))]
    measured = column_lengths(dataset, name, True)
    if measured is not None:
        assert measured == [int(dataset[row][name]) for row in range(len(dataset))]


@given(st.lists(st.integers(0, 6), max_size=90), st.integers(1, 4), st.integers(0, 5))
def test_groups_of_one_length_are_those_of_transformers(lengths: list[int], size: int, seed: int):
    expected = []
    if lengths:
        generator = torch.Generator().manual_seed(seed)
        expected = get_length_grouped_indices(lengths, size, generator=generator)
    assert grouped_by_length(lengths, size, torch.Generator().manual_seed(seed)) == expected
