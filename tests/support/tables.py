"""Datasets of the library `datasets` with drawn columns, and a tokenizer that pads their samples."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
from hypothesis import strategies as st

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
USUAL = ("int64", "int32", "int8", "float32", "float64", "bool", "string")
SCALARS = (*USUAL, *USUAL, *INTEGERS, "float16", "large_string", "binary", "timestamp[s]", "null")
COLUMNS = ("label", "label_ids", "labels", "values", "extra")
TOKENS = ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask")


def number(dtype: str) -> st.SearchStrategy[Any]:
    """Return values of an Arrow type, extremes included."""
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return st.one_of(st.integers(0, 5), st.integers(int(info.min), min(int(info.max), 2**63 - 1)))
    if dtype.startswith("float"):
        return st.floats(width=int(dtype[5:]))
    if dtype == "timestamp[s]":
        return st.just(datetime.datetime(2020, 1, 1))
    known: dict[str, Any] = {"bool": st.booleans(), "binary": st.binary(max_size=3), "null": st.none()}
    return known.get(dtype, st.text("ab", max_size=2))


@st.composite
def feature(draw: Any, dtypes: tuple[str, ...] = SCALARS) -> tuple[Any, st.SearchStrategy[Any]]:
    """Draw a feature of `datasets`, and a strategy for its values."""
    import datasets

    dtype = draw(st.sampled_from(dtypes))
    value, cell = datasets.Value(dtype), number(dtype)
    shape = draw(st.sampled_from(("number", "number", "ragged", "even", "fixed", "large", "nested", "grid", "struct")))
    if shape == "ragged":
        return datasets.List(value), st.lists(cell, max_size=3)
    if shape == "even":
        size = draw(st.integers(0, 3))
        return datasets.List(value), st.lists(cell, min_size=size, max_size=size)
    if shape == "fixed":
        return datasets.List(value, length=2), st.lists(cell, min_size=2, max_size=2)
    if shape == "large":
        return datasets.LargeList(value), st.lists(cell, min_size=2, max_size=2)
    if shape == "nested":
        outer, inner = draw(st.integers(1, 2)), draw(st.integers(0, 2))
        rows = st.lists(st.lists(cell, min_size=inner, max_size=2), min_size=1, max_size=outer)
        return datasets.List(datasets.List(value)), rows
    if shape == "grid" and dtype in (*INTEGERS, "float32", "float64", "bool"):
        row = st.lists(cell, min_size=2, max_size=2)
        return datasets.Array2D((2, 2), dtype), st.lists(row, min_size=2, max_size=2)
    if shape == "struct" and draw(st.booleans()):
        return {"inner": value}, st.fixed_dictionaries({"inner": cell})
    return value, cell


@st.composite
def tables(draw: Any, tokens: bool) -> Any:
    """Draw a dataset with one to four columns.

    Args:
        draw: hypothesis passes it.
        tokens: whether the columns are those of a tokenizer, mostly of equal length in each sample.
    """
    import datasets

    rows = draw(st.integers(1, 6))
    columns: dict[str, list[Any]] = {}
    features: dict[str, Any] = {}
    if tokens:
        lengths = draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows))
        for name in ("input_ids", *draw(st.lists(st.sampled_from(TOKENS[1:]), unique=True))):
            dtype = draw(
                st.sampled_from(("int64", "int32", "int8", "bool", "float32")[: 3 if name == "input_ids" else 5])
            )
            sizes = lengths if draw(st.integers(0, 9)) else [length + 1 for length in lengths]
            columns[name] = [draw(st.lists(number(dtype), min_size=size, max_size=size)) for size in sizes]
            features[name] = datasets.List(datasets.Value(dtype))
    chosen = draw(st.lists(st.sampled_from(COLUMNS), unique=True, min_size=0 if tokens else 1, max_size=4))
    for name in chosen:
        features[name], cell = draw(feature(("int64", "int32", "bool", "float32", "string") if tokens else SCALARS))
        if not draw(st.integers(0, 7)):
            cell = st.none() | cell
        columns[name] = draw(st.lists(cell, min_size=rows, max_size=rows))
    names = draw(st.permutations([*columns]))
    return datasets.Dataset.from_dict(
        {name: columns[name] for name in names}, features=datasets.Features({name: features[name] for name in names})
    )


@st.composite
def reordered(draw: Any, dataset: Any) -> Any:
    """Return a dataset after drawn operations: select rows, join tables, change the format, take a subset."""
    import datasets
    from torch.utils.data import Subset

    for step in draw(st.lists(st.sampled_from(("select", "shuffle", "join", "slice")), max_size=3)):
        places = st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=8)
        if step == "select":
            dataset = dataset.select(draw(places))
        elif step == "shuffle":
            dataset = dataset.shuffle(seed=draw(st.integers(0, 9)))
        elif step == "join":
            dataset = datasets.concatenate_datasets([dataset, dataset.select(draw(places))])
        else:
            first = draw(st.integers(0, len(dataset) - 1))
            dataset = dataset.select(range(first, len(dataset)))
    format_ = draw(st.sampled_from((None, None, "numpy", "torch")))
    kept = draw(st.sampled_from((None, None, dataset.column_names[:2])))
    dataset = dataset.with_format(format_, columns=kept)
    if draw(st.booleans()):
        places = st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=8)
        dataset = Subset(dataset, draw(places))
    return dataset


def tokenizer(**options: Any) -> Any:
    """Return a tokenizer of transformers with three words. `options` are those of its class."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "[MASK]": 2}, unk_token="[UNK]"))
    known = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **{**known, **options})
