"""The data of classify.py: Python's own standard library as labelled text, or any CSV, JSON lines or Parquet file."""

import ast
import difflib
import random
import sysconfig
import textwrap
from collections import Counter
from pathlib import Path

from datasets import ClassLabel, Dataset, DatasetDict, Value, load_dataset
from datasets.exceptions import DatasetGenerationError

# The ten largest packages that every Python from 3.10 on has. Not idlelib, tkinter and turtledemo, which Linux
# distributions leave out; nor distutils, lib2to3 and _pyrepl, which came or went with a version.
PACKAGES = ("asyncio", "email", "encodings", "http", "importlib",
            "logging", "multiprocessing", "unittest", "urllib", "xml")  # fmt: skip
MIN_LINES = 3  # `def close(self): self._file.close()` could be anybody's
TEST_SHARE = 0.25
SPLIT_SEED = 0  # not --seed: runs that differ in their seed are then measured on the same rows
FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


def standard_library():
    """Return rows of text (a function's source), label (its package), name and group (its file), in two splits."""
    root = Path(sysconfig.get_path("stdlib"))
    rows = {}  # by text: a function that stands in several files is taken once, or it could be in both splits
    for file in sorted(path.relative_to(root) for package in PACKAGES for path in (root / package).rglob("*.py")):
        if not {"test", "tests"} & set(file.parts):
            for name, text in functions((root / file).read_text(encoding="utf-8")):
                place = file.as_posix()
                row = {"text": text, "label": file.parts[0], "name": f"{place}: {name}", "group": place}
                rows.setdefault(text, row)
    if not rows:
        raise ValueError(f"The sources of Python's standard library are not in {root}: pass a --train_file.")
    return split_by_group(Dataset.from_list(list(rows.values())))


def functions(source):
    """Yield the name and the source of each function and method."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno - node.lineno + 1 >= MIN_LINES:
            yield node.name, textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))


def from_files(train_file, eval_file, text_column, label_column):
    """Return the same two splits of the user's own rows; without an eval file, a quarter of the train file."""
    train = read(train_file, text_column, label_column)
    if len(set(train["label"])) < 2:
        raise ValueError(f"{train_file} holds a single label, {train['label'][0]!r}: there is nothing to tell apart.")
    if eval_file is None:
        return split_by_group(train)
    test = read(eval_file, text_column, label_column)
    unseen = Counter(test["label"]).keys() - set(train["label"])
    if unseen:
        raise ValueError(f"{eval_file} holds labels that are not in {train_file}: {', '.join(sorted(unseen))}.")
    return DatasetDict(train=train, test=test)


def read(path, text_column, label_column):
    """Read one file; return its rows as text, label (as a string), name and group."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    if path.suffix not in FORMATS:
        raise ValueError(f"{path}: the name should end in {', '.join(FORMATS)}.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty.")
    # What a CSV file holds stays as it stands there: "NA" is a text like any other, and 01 is not 1.
    as_is = {"converters": {text_column: str, label_column: str}, "na_filter": False} if path.suffix == ".csv" else {}
    try:
        rows = load_dataset(FORMATS[path.suffix], data_files=str(path), split="train", **as_is)
    except (DatasetGenerationError, ValueError) as error:
        reason = error.__cause__ or error
        raise ValueError(f"{path} holds no rows, or is no {FORMATS[path.suffix]} file: {reason}") from error
    texts, labels = column(rows, text_column, path), column(rows, label_column, path)
    kept = [i for i in range(len(rows)) if texts[i] and labels[i]]
    if len(kept) < len(rows):
        missing = f"{texts.count('')} without a text, {labels.count('')} without a label"
        print(f"{path}: dropped {len(rows) - len(kept)} of {len(rows)} rows: {missing}.")
    if not kept:
        raise ValueError(f"{path} holds no row that has both a text and a label.")
    # The group is the text, so that a row that is there twice is not in both splits.
    return Dataset.from_list(
        [{"text": texts[i], "label": labels[i], "name": f"row {i + 1}: {texts[i]!r}", "group": texts[i]} for i in kept]
    )


def column(rows, name, path):
    """Return one column as strings, '' where there is nothing."""
    if name not in rows.column_names:
        nearest = difflib.get_close_matches(name, rows.column_names, n=1, cutoff=0)[0]
        raise ValueError(
            f"{path} has no column {name!r}; did you mean {nearest!r}? Its columns: {', '.join(rows.column_names)}."
        )
    kind = rows.features[name]
    if not isinstance(kind, (Value, ClassLabel)):
        raise ValueError(f"The column {name!r} of {path} should hold strings or numbers, and holds {kind}.")
    return ["" if value is None or value != value else str(value).strip() for value in rows[name]]


def split_by_group(rows):
    """Move whole groups of each label to the test split while they fit into its share; the rest is for training."""
    sizes = Counter(zip(rows["label"], rows["group"]))
    room = {label: TEST_SHARE * count for label, count in Counter(rows["label"]).items()}
    groups = sorted(sizes)
    random.Random(SPLIT_SEED).shuffle(groups)
    test = set()
    for label, group in groups:
        if sizes[label, group] <= room[label]:
            room[label] -= sizes[label, group]
            test.add((label, group))
    if not test:
        raise ValueError("No label has enough rows to keep a quarter for the test: add rows, or pass an --eval_file.")
    parts = {"train": [], "test": []}
    for i, key in enumerate(zip(rows["label"], rows["group"])):
        parts["test" if key in test else "train"].append(i)
    return DatasetDict({name: rows.select(indices) for name, indices in parts.items()})
