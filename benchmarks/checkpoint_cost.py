"""Measure what a checkpoint costs the whole run, and how long it stalls a step.

    python benchmarks/checkpoint_cost.py
    python benchmarks/checkpoint_cost.py --millions 60 --saves 4 --rounds 5 --limit 0.9 --stall-limit 0.25

The cost is the wall time of a run with saves, minus the wall time of the same run without saves, per checkpoint. It
contains the stall, the slower steps while the checkpoint is written, and the wait for the last write at the end. The
run ends one step after a save. trainbus and transformers also save at the last step, so they wait for two writes at the
end. With a small number of `--saves`, this wait is most of the cost. The processor time is computed in the same way. It
counts all threads of the process, and other programs on the machine change it less than the wall time. The stall is the
time of a step with a save, minus the median step of the run without saves.

All libraries train the same model with AdamW, which keeps two values per weight. They alternate in each round. trainbus
runs twice: it writes in the background, which is the default, and in the training thread. The plain loop calls
`torch.save`. Only trainbus waits until the files are on the disk (`fsync`), and writes hashes. With `--busy`, the
operations of torch use all cores, so the thread that writes finds no idle core.

`--limit` and `--stall-limit` compare trainbus with transformers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from common import HF, OURS, RAW, Benchmark, interleave
from contenders import installed
from saving import BETWEEN, KINDS, checkpoints_in, saving_task, size_of, steps_of

Measures = dict[str, float]
TASKS = {
    "wall": "cost of a checkpoint",
    "cpu": "cost of a checkpoint, processor time",
    "stall": "stall of a step by a checkpoint",
    "bytes": "size of a checkpoint",
}
"""Measure -> the name of its task."""


def measured(kind: str, home: Path, options: argparse.Namespace, saves: int) -> Measures:
    """Train with and without saves. Return what a checkpoint adds, its longest stall, and its bytes."""
    folder = home / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    steps = saves * BETWEEN + 1
    seconds: list[tuple[float, float]] = []
    times: list[list[float]] = []
    for save_every in (0, BETWEEN):
        task = saving_task(options.millions, save_every)
        cpu = time.process_time()
        times.append(steps_of(kind, task, steps, folder))
        seconds.append((times[-1][-1] - times[-1][0], time.process_time() - cpu))
    written = checkpoints_in(folder)
    if len(written) < saves:
        raise SystemExit(f"{kind} wrote {len(written)} checkpoints of {saves}")
    usual = statistics.median(later - earlier for earlier, later in pairwise(times[0][2:-1]))
    # The forward pass of step n is times[1][n]. A save comes after step BETWEEN, 2 * BETWEEN, ...
    after = range(BETWEEN, saves * BETWEEN + 1, BETWEEN)
    stalls = [times[1][step + 1] - times[1][step] - usual for step in after]
    (plain, plain_cpu), (saving, saving_cpu) = seconds
    found = {
        "wall": (saving - plain) / len(written),
        "cpu": (saving_cpu - plain_cpu) / len(written),
        "stall": statistics.median(stalls),
        "bytes": float(size_of(written[saves - 1])),
    }
    shutil.rmtree(folder)
    return found


def main() -> int:
    """Measure, print, and return 1 if a limit is exceeded."""
    benchmark = Benchmark(__doc__, rounds=5)
    benchmark.option("--millions", type=float, help="weights of the model, in millions (default: 10)")
    benchmark.option("--saves", type=int, help="checkpoints of a run (default: 3)")
    benchmark.option("--busy", action="store_true", help="let torch use all cores")
    benchmark.option("--limit", type=float, help="the greatest median ratio of the cost to transformers")
    benchmark.option("--stall-limit", type=float, help="the same limit for the stall")
    options = benchmark.begin()
    options.millions = options.millions or (2 if options.quick else 10)
    options.saves = options.saves or (1 if options.quick else 3)
    if options.busy:
        torch.set_num_threads(os.cpu_count() or 1)
    kinds = [kind for kind in KINDS if kind in installed(benchmark) or kind.startswith(OURS)]
    with tempfile.TemporaryDirectory(prefix="cost-") as home:
        for kind in kinds:  # imports and the first allocations are not part of a round
            measured(kind, Path(home), argparse.Namespace(**{**vars(options), "millions": 1}), 1)
        runs: dict[str, Callable[[], Measures]] = {
            kind: partial(measured, kind, Path(home), options, options.saves) for kind in kinds
        }
        found = interleave(runs, options.rounds, warm_ups=0)
    for measure, task in TASKS.items():
        unit = "bytes" if measure == "bytes" else "s"
        benchmark.add(task, unit, {kind: [each[measure] for each in values] for kind, values in found.items()})
    if min(each["wall"] for kind in (RAW, HF) for each in found.get(kind, [])) <= 0:
        print("A run with saves was not slower than one without: raise --millions or use a quieter machine.")
    for measure, limit in (("wall", options.limit), ("stall", options.stall_limit)):
        task = TASKS[measure]
        benchmark.limit(benchmark.result.ratio(task, OURS, HF), limit, f"{task}, relative to transformers")
    return benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())
