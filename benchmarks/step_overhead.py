"""Measure the time of a step of a plain torch loop, of trainbus, and of other libraries that do the same work.

    python benchmarks/step_overhead.py
    python benchmarks/step_overhead.py --tasks perceptron --with --limit 1.2

The first task trains a tiny perceptron, so that the overhead of a library is visible. The second task fine-tunes a
small BERT, whose steps are so long that the same overhead hardly matters. All libraries have their default callbacks.

The benchmark also works on a busy machine. It measures the CPU time of the process, so other processes do not count. It
reads the clock when a batch is requested, so setup and teardown do not count. Runs are short, and the contenders
alternate. The value of a round is the median step. For `--limit`, the benchmark takes the smallest first decile of all
rounds of each contender, because this is the most reliable figure on a busy machine. `--limit` applies to the
perceptron only. `--wall` measures wall-clock time instead.

Composer needs an older torch. It runs in a process of its own, see `benchmarks/places.py`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import contenders
from common import OURS, RAW, Benchmark, interleave
from contenders import CONTENDERS, TASKS, periods
from places import Places

QUANTILES = (0.1, 0.5)
SIZES = {"step of a perceptron": (300, 20, 40), "fine-tuning of a small BERT": (40, 8, 24)}
"""Task -> the steps of a run, the steps that do not count, and the rounds."""


def measured(name: str, task: str, steps: int, warm_up: int, wall: bool, folder: str) -> list[float]:
    """Train once. Return the quantiles of the time of a step, in seconds."""
    contenders.clock = time.perf_counter if wall else time.process_time
    ordered: Sequence[float] = periods(CONTENDERS[name], TASKS[task], steps, Path(folder), warm_up)
    return [ordered[int(len(ordered) * quantile)] for quantile in QUANTILES]


def main() -> int:
    """Measure, print, and return 1 if trainbus exceeds the limit."""
    benchmark = Benchmark(__doc__, rounds=0)
    benchmark.option("--steps", type=int, help="steps per run (default: 300 of the perceptron, 40 of BERT)")
    benchmark.option("--tasks", nargs="+", default=list(TASKS), help="words of the names of the tasks")
    benchmark.option("--with", nargs="*", choices=list(CONTENDERS), dest="others", help="contenders (default: all)")
    benchmark.option("--limit", type=float, help="fail if trainbus exceeds this multiple of the plain loop")
    benchmark.option("--wall", action="store_true", help="measure wall-clock time instead of CPU time")
    options = benchmark.begin()
    wanted = () if options.others is None else (RAW, OURS, *options.others)
    with Places(benchmark, *wanted) as places, tempfile.TemporaryDirectory() as folder:
        for task, (steps, warm_up, rounds) in SIZES.items():
            if not any(word in task for word in options.tasks):
                continue
            steps = options.steps or (steps // 3 if options.quick else steps)
            runs = {
                name: places.bind(measured, name, task, steps, warm_up, options.wall, folder) for name in places.names
            }
            found = interleave(runs, options.rounds or rounds)
            benchmark.add(task, "s", {name: [each[1] for each in values] for name, values in found.items()})
            quietest = {name: min(each[0] for each in values) for name, values in found.items()}
            ratio = quietest[OURS] / quietest[RAW]
            print(f"trainbus takes {ratio:.3f} times the plain loop in the first decile of the quietest round")
            if task.startswith("step"):
                benchmark.limit(ratio, options.limit, "trainbus, as a multiple of the plain loop")
    return benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())
