"""Measure the rows a second from a dataset to batches of tensors: of trainbus, transformers' Trainer and torch.

    python benchmarks/data_path.py
    python benchmarks/data_path.py --workers 0 2 --limit 2.2

Every contender makes shuffled batches of 32 rows and uses what its users use: the loaders of the two Trainers, and a
`DataLoader` of torch. For torch, padding and rows of Python numbers need the collator of transformers; other rows use
torch's own. The contenders alternate, and one round is one epoch of each. The table shows the median of the rows a
second, and the median of the ratios within a round, with the lowest and the highest. Without workers it measures the
CPU time of the process, so other processes do not count. With workers it measures wall-clock time.

`--limit` fails if the first row, padded text, is less than this many times as fast as transformers, or if data with
columns is slower than torch without workers.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import datasets
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import trainbus

BATCH, ROWS, TOKENS, FEATURES = 32, 6400, 128, 32
SLACK = 0.95
"""The lowest ratio to torch that counts as equal."""

Loaders = dict[str, Callable[[], Any]]


class Model(nn.Module):
    """Takes the columns of all datasets."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        x: Any = None,
        labels: Any = None,
    ) -> Any:
        """Compute nothing: only batches are made."""


def tokenizer() -> Any:
    """Return a tokenizer of transformers with two words."""
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


def text(lengths: Any) -> datasets.Dataset:
    """Return tokenized text with samples of these lengths, in the types that a tokenizer and `map` give."""
    numbers = np.random.default_rng(0)
    return datasets.Dataset.from_dict(
        {
            "input_ids": [numbers.integers(1, 30000, length).tolist() for length in lengths],
            "token_type_ids": [[0] * length for length in lengths],
            "attention_mask": [[1] * length for length in lengths],
            "label": numbers.integers(0, 2, len(lengths)).tolist(),
        },
        features=datasets.Features(
            {
                "input_ids": datasets.List(datasets.Value("int32")),
                "token_type_ids": datasets.List(datasets.Value("int8")),
                "attention_mask": datasets.List(datasets.Value("int8")),
                "label": datasets.Value("int64"),
            }
        ),
    )


def cases() -> dict[str, tuple[Any, Any, Any]]:
    """Return datasets, with their tokenizer and the collator for torch."""
    ragged = text(np.random.default_rng(1).integers(16, 2 * TOKENS - 16, ROWS))
    even = text([TOKENS] * ROWS)
    padder = tokenizer()
    points, labels = torch.randn(ROWS, FEATURES), torch.randint(2, (ROWS,))
    vectors = datasets.Dataset.from_dict({"x": points.numpy(), "labels": labels.numpy()})
    plain = transformers.default_data_collator
    return {
        "text, padded": (ragged, padder, transformers.DataCollatorWithPadding(padder)),
        "text, shuffled table, padded": (ragged.shuffle(seed=0), padder, transformers.DataCollatorWithPadding(padder)),
        "text of one length": (even, None, plain),
        "text of one length, numpy format": (even.with_format("numpy"), None, default_collate),
        "text of one length, torch format": (even.with_format("torch"), None, default_collate),
        "vectors": (vectors, None, plain),
        "vectors, torch format": (vectors.with_format("torch"), None, default_collate),
        "TensorDataset": (TensorDataset(points, labels), None, default_collate),
        "list of dicts of tensors": ([{"x": x, "labels": y} for x, y in zip(points, labels)], None, default_collate),
        "list of dicts of arrays": (
            [{"x": x, "labels": y} for x, y in zip(points.numpy(), labels.tolist())],
            None,
            default_collate,
        ),
        "list of dicts of numbers": (
            [{"x": x, "labels": y} for x, y in zip(points.tolist(), labels.tolist())],
            None,
            plain,
        ),
    }


def loaders(case: tuple[Any, Any, Any], workers: int, folder: str) -> Loaders:
    """Return the functions that make the loader of each contender."""
    dataset, padder, collator = case
    options = {"per_device_train_batch_size": BATCH, "dataloader_num_workers": workers, "report_to": "none"}
    options |= {"use_cpu": True, "dataloader_pin_memory": False}
    given = {"train_dataset": dataset, "processing_class": padder}
    criterion = nn.functional.cross_entropy if isinstance(dataset, TensorDataset) else None
    ours = trainbus.Trainer(Model(), trainbus.TrainingArguments(folder, **options), criterion=criterion, **given)
    # The default collator of transformers does not take the tuples of a TensorDataset.
    collate = default_collate if isinstance(dataset, TensorDataset) else None
    arguments = transformers.TrainingArguments(folder, **options)
    theirs = transformers.Trainer(Model(), arguments, data_collator=collate, **given)
    return {
        "trainbus": ours.get_train_dataloader,
        "transformers": theirs.get_train_dataloader,
        "torch": lambda: DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, collate_fn=collator),
    }


def rate(loader: Any, clock: Callable[[], float]) -> float:
    """Return the rows a second of one epoch, after its first batch, which starts workers."""
    batches = iter(loader)
    next(batches)
    began = clock()
    count = sum(1 for _ in batches)
    return count * BATCH / (clock() - began)


def measured(case: tuple[Any, Any, Any], workers: int, rounds: int, folder: str) -> dict[str, list[float]]:
    """Return the rows a second of each contender, by round."""
    clock = time.perf_counter if workers else time.process_time
    made = {name: make() for name, make in loaders(case, workers, folder).items()}
    found: dict[str, list[float]] = {name: [] for name in made}
    gc.collect()
    gc.freeze()  # a full collection takes longer than an epoch of the fastest case
    for turn in range(rounds + 1):
        for name, loader in made.items():
            value = rate(loader, clock)
            if turn:  # the first round warms up
                found[name].append(value)
    return found


def ratios(found: dict[str, list[float]], name: str) -> list[float]:
    """Return how many times as fast as a contender trainbus is, by round, sorted."""
    return sorted(ours / other for ours, other in zip(found["trainbus"], found[name]))


def main() -> None:
    """Measure all cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=float, help="the lowest accepted ratio to transformers for padded text")
    parser.add_argument("--only", nargs="+", help="the cases to measure")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, datasets {datasets.__version__}\n")
    print(f"| {'Data':<34} | Workers | trainbus, rows/s | times transformers | times torch |")
    print(f"| {'-' * 34} | ------- | ---------------- | ------------------ | ----------- |")
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name, case in cases().items():
            for workers in options.workers if options.only is None or name in options.only else ():
                found = measured(case, workers, options.rounds, folder)
                speed = statistics.median(found["trainbus"])
                shown = []
                for other in ("transformers", "torch"):
                    each = ratios(found, other)
                    middle = statistics.median(each)
                    shown.append(f"{middle:.2f} ({each[0]:.2f} to {each[-1]:.2f})")
                    columns = not name.startswith("list of")
                    least = (
                        SLACK * columns if other == "torch" else (options.limit or 0) if name == "text, padded" else 0
                    )
                    if middle < least and not workers:
                        failed.append(f"{name}: {middle:.2f} times {other}, and the limit is {least}")
                print(f"| {name:<34} | {workers:>7} | {speed:>16,.0f} | {shown[0]:>18} | {shown[1]:>11} |", flush=True)
    if options.limit is not None and failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
