"""The datasets that users pass: load a table as a dataset, and describe why an object cannot be a dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from ...events.errors import DataError
from ...events.imported import imported
from .collators.default import Collator, default_data_collator, sample_problem
from .collators.padding import DataCollatorWithPadding

DATASET_NEEDS = "it needs __getitem__ and __len__, or __iter__ to be streamed"
"""What an object needs to be a dataset."""

SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
"""The suffixes of files that are loaded as datasets."""


def as_dataset(data: Any, load: Callable[[str], Any]) -> Any:
    """Load a pandas DataFrame or a file as a dataset of the library `datasets`. Return any other object unchanged.

    Args:
        data: the object that the user passed. In a dict, each DataFrame and each path is loaded.
        load: receives the name of an integration, and returns the integration. `as_dataset` calls `load("tables")`.

    Raises:
        DataError: for a path without a suffix in `SUFFIXES`, such as `.csv`, or for a file that does not exist.
        MissingExtra: if the library `datasets` is needed and not installed.
    """
    if isinstance(data, dict) and any(map(_is_table, data.values())):
        return {name: as_dataset(each, load) for name, each in data.items()}
    if not _is_table(data):
        return data
    if not isinstance(data, (str, Path)):
        return load("tables").from_frame(data)
    return load("tables").from_file(check_table_file(data))


def check_table_file(data: str | Path) -> Path:
    """Return the path of a file that can be loaded as a dataset, with `~` expanded.

    Raises:
        DataError: for a path without a suffix in `SUFFIXES`, such as `.csv`, or for a file that does not exist.
    """
    path = Path(os.path.expanduser(data))
    if not is_table_file(data):
        raise DataError(
            f"The dataset is the text {str(data)!r}. Pass a dataset, such as `datasets.load_dataset({str(data)!r}, "
            f"split='train')` returns, or the path of a file: {', '.join(SUFFIXES)}."
        )
    if not path.is_file():
        raise DataError(f"There is no file {str(data)!r} to load as a dataset. The working folder is {Path.cwd()}.")
    return path


def is_table_file(path: str | Path) -> bool:
    """Return whether a path has a suffix in `SUFFIXES`, such as `.csv`."""
    return Path(path).suffix.lower() in SUFFIXES


def _is_table(data: Any) -> bool:
    pandas = imported("pandas")
    return isinstance(data, (str, Path)) or (pandas is not None and isinstance(data, pandas.DataFrame))


def problem_of(name: str, dataset: Any, collator: Collator) -> str:
    """Check a dataset. Return a text with the problem and the remedy; an empty text if no problem is found.

    The function reads a sample only from a list or tuple. Reading another dataset might draw random numbers.

    Args:
        name: the argument, such as `train_dataset`.
        dataset: the dataset.
        collator: turns the samples into batches. For a collator of the user, samples are not checked.
    """
    if isinstance(dataset, type):
        return f"`{name}` is the class {dataset.__name__}. Pass an instance: `{dataset.__name__}(...)`."
    if isinstance(dataset, DataLoader):
        which = name.partition("_")[0]  # `train`, `eval` or `test`
        return (
            f"`{name}` is a DataLoader. Pass its dataset, `loader.dataset`, and set the batch size in the arguments. "
            f"To keep the loader, override `get_{which}_dataloader`."
        )
    if type(dataset).__module__ == "datasets.dataset_dict":
        splits = list(dataset)
        chosen = _split_for(name, splits)
        return (
            f"`{name}` is a {type(dataset).__name__} with the splits {', '.join(map(repr, splits))}. Pass one of them, "
            f"such as `data[{chosen!r}]`, or load one with `load_dataset(..., split={chosen!r})`."
        )
    if isinstance(dataset, Mapping):
        keys = ", ".join(map(repr, dataset))
        first = next(iter(dataset.values()), None)
        if hasattr(first, "column_names"):  # a dataset
            remedy = f"Pass one split, such as `splits[{next(iter(dataset))!r}]`."
        else:
            remedy = "Pass rows, such as a list of dicts. Make a dataset of columns with `datasets.Dataset.from_dict`."
        return f"`{name}` is a {type(dataset).__name__} with the keys {keys}. {remedy}"
    if isinstance(dataset, np.ndarray) and (dataset.ndim == 0 or dataset.dtype.kind not in "biufc"):
        return f"`{name}` is an array of {dataset.dtype}. Pass an array of numbers, or a list of dicts."
    pandas = imported("pandas")
    if pandas is not None and isinstance(dataset, pandas.Series):
        return f"`{name}` is a pandas Series, which has one column. Pass a data frame with inputs and labels."
    if not (hasattr(dataset, "__iter__") or (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"))):
        kind = type(dataset).__name__
        return f"`{name}` is of type {kind}, which is not a dataset: {DATASET_NEEDS}."
    if isinstance(dataset, (list, tuple)) and dataset and all(map(_is_dataset, dataset)):
        return f"`{name}` is a {type(dataset).__name__} of datasets, not of samples. {_JOIN[name == 'eval_dataset']}"
    padding = type(collator) is DataCollatorWithPadding
    if isinstance(dataset, (list, tuple)) and dataset and (padding or collator is default_data_collator):
        problem = sample_problem(dataset[0])
        return f"`{name}` cannot be used: {problem}" if problem else ""
    return ""


_JOIN = (
    "Pass one dataset: join them with `datasets.concatenate_datasets` or `torch.utils.data.ConcatDataset`.",
    "Pass a dict, to evaluate each one: `eval_dataset={'first': data[0], 'second': data[1]}`.",
)
"""The remedies for a list of datasets: first for an argument that takes one dataset, then for `eval_dataset`."""


def _is_dataset(sample: Any) -> bool:
    """Return whether an element of a list is a dataset of torch or of the library `datasets`, and not a sample."""
    return isinstance(sample, Dataset) or type(sample).__module__.startswith("datasets.")


def _split_for(name: str, splits: list[str]) -> str:
    """Return the split to suggest for the argument `name`: `train` for `train_dataset`, else `test` or `validation`.

    If `splits` has no such split, return its first item; `train` if `splits` is empty.
    """
    wanted = ("train",) if name == "train_dataset" else ("test", "validation")
    return next((split for split in (*wanted, *splits) if split in splits), "train")


def problems_of(datasets: Mapping[str, Any], collator: Collator) -> Iterator[str]:
    """Check the datasets of arguments, and yield each problem as text. Skip arguments that are None.

    Args:
        datasets: name of the argument, such as `train_dataset` -> dataset. If `eval_dataset` is a dict, each dataset in
            this dict is checked.
        collator: turns the samples into batches.
    """
    for name, dataset in datasets.items():
        several = name == "eval_dataset" and isinstance(dataset, Mapping)
        sets = {f"{name}[{key!r}]": each for key, each in dataset.items()} if several else {name: dataset}
        if dataset is not None:
            yield from filter(None, (problem_of(label, each, collator) for label, each in sets.items()))
