"""The data of classify.py: Python's standard library as labelled text, or any CSV, JSON lines or Parquet file."""

import ast
import difflib
import random
import sysconfig
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, Value, load_dataset
from datasets.exceptions import DatasetGenerationError

# The ten largest packages of every Python version since 3.10. Linux distributions leave out idlelib, tkinter and
# turtledemo. distutils, lib2to3 and _pyrepl are only in some versions.
PACKAGES = ("asyncio", "email", "encodings", "http", "importlib",
            "logging", "multiprocessing", "unittest", "urllib", "xml")  # fmt: skip
MIN_LINES = 3  # `def close(self): self._file.close()` could be from any package
TEST_FRACTION = 0.25
SPLIT_SEED = 0  # not --seed: runs with different seeds are measured on the same test rows
FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


def standard_library() -> DatasetDict:
    """Return rows of text (a function's source), label (its package), name and group (its file), in two splits."""
    root = Path(sysconfig.get_path("stdlib"))
    rows: dict[str, dict[str, str]] = {}  # by text, so that a function in several files is not in both splits
    for file in sorted(path.relative_to(root) for package in PACKAGES for path in (root / package).rglob("*.py")):
        if not {"test", "tests"} & set(file.parts):
            for name, text in functions((root / file).read_text(encoding="utf-8")):
                group = file.as_posix()
                row = {"text": text, "label": file.parts[0], "name": f"{group}: {name}", "group": group}
                rows.setdefault(text, row)
    if not rows:
        raise ValueError(f"The sources of Python's standard library are not in {root}: pass a --train_file.")
    return split_by_group(Dataset.from_list(list(rows.values())))


def functions(source: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the source of each function and method."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = lines[node.lineno - 1 : node.end_lineno]
            if len(body) >= MIN_LINES:
                yield node.name, textwrap.dedent("\n".join(body))


def from_files(train_file: str, eval_file: str | None, text_column: str, label_column: str) -> DatasetDict:
    """Return the two splits of the user's own rows. Without an eval file, a quarter of the train file is for tests."""
    train = read(train_file, text_column, label_column)
    if len(set(train["label"])) < 2:
        raise ValueError(f"{train_file} has a single label, {train['label'][0]!r}: there is nothing to classify.")
    if eval_file is None:
        return split_by_group(train)
    test = read(eval_file, text_column, label_column)
    unseen = Counter(test["label"]).keys() - set(train["label"])
    if unseen:
        raise ValueError(f"{eval_file} has labels that are not in {train_file}: {', '.join(sorted(unseen))}.")
    return DatasetDict(train=train, test=test)


def read(file: str, text_column: str, label_column: str) -> Dataset:
    """Read one file and return its rows as text, label (a string), name and group."""
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    if path.suffix not in FORMATS:
        raise ValueError(f"{path}: the name must end in {', '.join(FORMATS)}.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty.")
    # CSV values are strings: "NA" is a text like any other, and 01 is not 1.
    as_is: dict[str, Any] = {}
    if path.suffix == ".csv":
        as_is = {"converters": {text_column: str, label_column: str}, "na_filter": False}
    try:
        rows = load_dataset(FORMATS[path.suffix], data_files=str(path), split="train", **as_is)
    except (DatasetGenerationError, ValueError) as error:
        reason = error.__cause__ or error
        raise ValueError(f"{path} has no rows, or is not a {FORMATS[path.suffix]} file: {reason}") from error
    texts, labels = column(rows, text_column, path), column(rows, label_column, path)
    kept = [i for i in range(len(rows)) if texts[i] and labels[i]]
    if len(kept) < len(rows):
        missing = f"{texts.count('')} without a text, {labels.count('')} without a label"
        print(f"{path}: dropped {len(rows) - len(kept)} of {len(rows)} rows: {missing}.")
    if not kept:
        raise ValueError(f"{path} has no row with both a text and a label.")
    # The group is the text, so that equal rows are in one split.
    return Dataset.from_list(
        [{"text": texts[i], "label": labels[i], "name": f"row {i + 1}: {texts[i]!r}", "group": texts[i]} for i in kept]
    )


def column(rows: Dataset, name: str, path: Path) -> list[str]:
    """Return one column as strings; '' for a missing value."""
    if name not in rows.column_names:
        nearest = difflib.get_close_matches(name, rows.column_names, n=1, cutoff=0)[0]
        raise ValueError(
            f"{path} has no column {name!r}; did you mean {nearest!r}? Its columns: {', '.join(rows.column_names)}."
        )
    kind = rows.features[name]
    if not isinstance(kind, (Value, ClassLabel)):
        raise ValueError(f"The column {name!r} of {path} must hold strings or numbers, but holds {kind}.")
    return ["" if value is None or value != value else str(value).strip() for value in rows[name]]


def split_by_group(rows: Dataset) -> DatasetDict:
    """Return the splits train and test. All rows of a group and label are in the same split.

    Test gets at most `TEST_FRACTION` of the rows of each label.
    """
    sizes = Counter(zip(rows["label"], rows["group"]))
    room = {label: TEST_FRACTION * count for label, count in Counter(rows["label"]).items()}
    groups = sorted(sizes)
    random.Random(SPLIT_SEED).shuffle(groups)
    test = set()
    for label, group in groups:
        if sizes[label, group] <= room[label]:
            room[label] -= sizes[label, group]
            test.add((label, group))
    if not test:
        raise ValueError("No label has enough rows to keep a quarter for the test: add rows, or pass an --eval_file.")
    parts: dict[str, list[int]] = {"train": [], "test": []}
    for i, key in enumerate(zip(rows["label"], rows["group"])):
        parts["test" if key in test else "train"].append(i)
    return DatasetDict({name: rows.select(indices) for name, indices in parts.items()})
