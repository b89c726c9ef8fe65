"""Measure what a checkpoint costs the whole run, compared with transformers' Trainer.

    python benchmarks/checkpoint_cost.py
    python benchmarks/checkpoint_cost.py --millions 60 --saves 4 --rounds 5 --limit 0.9

The cost is the wall time of a run with saves, minus the wall time of the same run without saves, per checkpoint. It
contains the stall, the slower steps while the checkpoint is written, and the wait for the last write at the end. The
run ends one step after a save, so it waits for two writes there. A small number of `--saves` shows mostly this wait.
The processor time is computed in the same way: it counts all threads, and other programs on the machine change it less.

All libraries train the same model with AdamW, which keeps two values per weight. They alternate in each round, and
each round gives one ratio. trainbus runs twice: it writes in the background (`async`), and in the training thread
(`sync`). With `--busy`, the operations of torch use all cores, as in a run whose cores have no spare time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from checkpoint_stall import BETWEEN, Large, ZeroDataset, arguments

KINDS = {
    "transformers": ("transformers", {}),
    "async": ("trainbus", {"async_save": True}),
    "sync": ("trainbus", {"async_save": False}),
}
"""The compared ways to save: the library, and its arguments."""


def seconds_of(library: Any, folder: Path, options: argparse.Namespace, **more: Any) -> tuple[float, float]:
    """Train once. Return the wall time and the processor time of `train`."""
    args = library.TrainingArguments(**{**arguments(folder, options.saves), **more})
    trainer = library.Trainer(Large(options.millions), args, train_dataset=ZeroDataset())
    wall, cpu = time.perf_counter(), time.process_time()
    trainer.train()
    return time.perf_counter() - wall, time.process_time() - cpu


def cost(kind: str, home: Path, options: argparse.Namespace) -> tuple[float, float]:
    """Return the wall time and the processor time that a checkpoint adds to a run, in seconds."""
    name, extra = KINDS[kind]
    library = importlib.import_module(name)
    folder = home / kind
    shutil.rmtree(folder, ignore_errors=True)
    without = seconds_of(library, folder, options, **extra, save_strategy="no")
    saving = seconds_of(library, folder, options, **extra)
    written = {path.name for path in folder.iterdir() if path.name.startswith("checkpoint-")}
    missing = {f"checkpoint-{BETWEEN * number}" for number in range(1, options.saves + 1)} - written
    if missing:
        raise SystemExit(f"{kind} did not write {sorted(missing)}")
    shutil.rmtree(folder)
    # Both libraries also save at the last step.
    return (saving[0] - without[0]) / len(written), (saving[1] - without[1]) / len(written)


def main() -> int:
    """Measure, print, and return 1 if the cost of writing in the background exceeds the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=float, default=10, help="weights of the model, in millions (default: 10)")
    parser.add_argument("--saves", type=int, default=3, help="checkpoints of a run (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (default: 5)")
    parser.add_argument("--busy", action="store_true", help="let torch use all cores")
    parser.add_argument("--limit", type=float, help="fail if the median wall ratio to transformers exceeds this")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if options.busy:
        torch.set_num_threads(os.cpu_count() or 1)
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="cost-") as home, contextlib.redirect_stdout(io.StringIO()):
        for kind in KINDS:  # imports and the first allocations are not part of a round
            cost(kind, Path(home), argparse.Namespace(**{**vars(options), "saves": 1}))
        for number in range(options.rounds):
            kinds = list(KINDS)
            for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
                found[kind].append(cost(kind, Path(home), options))
                print(number + 1, kind, *(f"{seconds:.3f}" for seconds in found[kind][-1]), file=sys.stderr)
    if min(min(each) for each in found["transformers"]) <= 0:
        raise SystemExit("a run with saves was not slower than one without: raise --millions or use a quieter machine")
    threads = torch.get_num_threads()
    print(
        f"{options.millions:g} million weights, {options.saves} checkpoints, {options.rounds} rounds, {threads} threads"
    )
    print(f"{'':14}{'wall':>9}{'cpu':>9}   ratio of the wall time      ratio of the processor time")
    for kind, costs in found.items():
        wall, cpu = (statistics.median(each[index] for each in costs) for index in (0, 1))
        ratios = "".join(f"   {_spread(found, kind, index)}" for index in (0, 1))
        print(f"{kind:14}{wall:8.3f}s{cpu:8.3f}s{ratios}")
    ratio = statistics.median(_ratios(found, "async", 0))
    return int(options.limit is not None and ratio > options.limit)


def _ratios(found: dict[str, list[tuple[float, float]]], kind: str, index: int) -> list[float]:
    return [ours[index] / theirs[index] for ours, theirs in zip(found[kind], found["transformers"])]


def _spread(found: dict[str, list[tuple[float, float]]], kind: str, index: int) -> str:
    """Return the median ratio of the rounds, with the lowest and the highest."""
    ratios = _ratios(found, kind, index)
    return f"{statistics.median(ratios):6.2f} ({min(ratios):.2f} to {max(ratios):.2f})  "


if __name__ == "__main__":
    sys.exit(main())
