"""Measure how many rows per second trainbus, transformers' Trainer and torch convert to batches of tensors.

    python benchmarks/data_path.py
    python benchmarks/data_path.py --workers 0 2 --limit 2.2

Every contender makes shuffled batches of 32 rows and uses what its users use: the loaders of the two Trainers, and a
`DataLoader` of torch, which users of Lightning and ignite pass too. For torch, padding and rows of Python numbers need
the collator of transformers; other rows use torch's own. The contenders alternate, and one round is one epoch of each.
The value of a round is the time of a row. Without workers it is the CPU time of the process, so other processes do not
count. With workers it is wall-clock time.

With `--limit`, the benchmark fails in two cases: if trainbus is less than this many times as fast as transformers for
padded text (the first row of the table), or if it is slower than torch without workers for data with columns.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import datasets
import numpy as np
import torch
import transformers
from common import HF, OURS, RAW, Benchmark, hushed, interleave
from tokenizers import Tokenizer, models
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import trainbus

BATCH, TOKENS, FEATURES = 32, 128, 32
SLACK = 0.95
"""The lowest ratio to torch that still counts as equally fast."""

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
    """Return tokenized text with samples of these lengths, in the same types as a tokenizer and `Dataset.map`
    return."""
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


def cases(count: int) -> dict[str, tuple[Any, Any, Any]]:
    """Return datasets of `count` rows, with their tokenizer and the collator for torch."""
    ragged = text(np.random.default_rng(1).integers(16, 2 * TOKENS - 16, count))
    even = text([TOKENS] * count)
    padder = tokenizer()
    points, labels = torch.randn(count, FEATURES), torch.randint(2, (count,))
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
        RAW: lambda: DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, collate_fn=collator),
        OURS: ours.get_train_dataloader,
        HF: theirs.get_train_dataloader,
    }


def seconds_of(loader: Any, clock: Callable[[], float]) -> float:
    """Return the seconds per row of one epoch. The first batch does not count, because it starts the workers."""
    batches = iter(loader)
    next(batches)
    began = clock()
    count = sum(1 for _ in batches)
    return (clock() - began) / (count * BATCH)


def main() -> int:
    """Measure all cases and print the tables."""
    benchmark = Benchmark(__doc__, rounds=5)
    benchmark.option("--workers", type=int, nargs="+", default=[0])
    benchmark.option("--limit", type=float, help="the lowest accepted ratio to transformers for padded text")
    benchmark.option("--only", nargs="+", help="the cases to measure")
    options = benchmark.begin()
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        wanted = ["text, padded", "vectors"] if options.quick else options.only
        for name, case in cases(1600 if options.quick else 6400).items():
            for workers in options.workers if wanted is None or name in wanted else ():
                task = f"batches of {name}" + (f", {workers} workers" if workers else "")
                with hushed():
                    made = {each: make() for each, make in loaders(case, workers, folder).items()}
                gc.collect()
                gc.freeze()  # a full collection takes longer than an epoch of the fastest case
                clock = time.perf_counter if workers else time.process_time
                timed = {each: partial(seconds_of, loader, clock) for each, loader in made.items()}
                benchmark.add(task, "s", interleave(timed, options.rounds))
                if options.limit is None or workers:
                    continue
                ratio = benchmark.result.ratio
                if name == "text, padded":
                    benchmark.limit(ratio(task, OURS, HF), 1 / options.limit, f"{task}, time relative to transformers")
                if not name.startswith("list of"):
                    benchmark.limit(ratio(task, OURS), 1 / SLACK, f"{task}, time relative to torch")
    return benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())
