"""Measure what a checkpoint costs the whole run, and how long it stalls a step.

    python benchmarks/checkpoint_cost.py
    python benchmarks/checkpoint_cost.py --millions 60 --saves 4 --block 30 --limit 0.9 --stall-limit 0.25

The cost of a checkpoint is the wall time of the `--block` steps after the save, minus the wall time of the next
`--block` steps. Only the first block contains the stall and the slower steps while the checkpoint is written. The
blocks are neighbours, so a machine that becomes faster or slower changes both. The processor time is computed in the
same way. It counts all threads of the process, and other programs on the machine change it less than the wall time. The
stall is the time of the step with the save, minus the mean step of the second block. The wait for the last write at the
end of a run is not part of the cost.

All libraries train the same model with AdamW, which keeps two values per weight. They alternate in each round. trainbus
runs twice: it writes in the background, which is the default, and in the training thread. The plain loop calls
`torch.save`. Only trainbus waits until the files are on the disk (`fsync`), and writes hashes. With `--busy`, the
operations of torch use all cores, so the thread that writes finds no idle core.

`--limit` and `--stall-limit` compare trainbus with transformers.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from common import HF, OURS, RAW, Benchmark, interleave
from places import Places
from saving import SYNCHRONOUS, checkpoints_in, processor, saving_task, size_of, steps_of

Measures = dict[str, float]
TASKS = {
    "wall": "cost of a checkpoint",
    "cpu": "cost of a checkpoint, processor time",
    "stall": "stall of a step by a checkpoint",
    "bytes": "size of a checkpoint",
}
"""Measure -> the name of its task."""


def measured(kind: str, home: str, block: int, millions: float, saves: int) -> Measures:
    """Train with saves. Return the medians over all saves: what a checkpoint adds, its stall, and its bytes."""
    folder = Path(home) / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.sync()  # the files of the contender before are written
    times = steps_of(kind, saving_task(millions, 2 * block), 2 * block * (saves + 1), folder)
    written = checkpoints_in(folder)
    if len(written) < saves:
        raise SystemExit(f"{kind} wrote {len(written)} checkpoints of {saves}")
    # The forward pass of step n is times[n]. A save comes after step 2 * block, 4 * block, ...
    after = range(2 * block, 2 * block * saves + 1, 2 * block)
    usual = [(times[step + 2 * block] - times[step + block]) / block for step in after]
    found = {
        "wall": statistics.median(_added(times, step, block) for step in after),
        "cpu": statistics.median(_added([0.0, *processor], step, block) for step in after),
        "stall": statistics.median(times[step + 1] - times[step] - each for step, each in zip(after, usual)),
        "bytes": float(size_of(written[0])),
    }
    shutil.rmtree(folder)
    return found


def _added(times: list[float], step: int, block: int) -> float:
    """Return the time of the block after the save of a step, minus the time of the next block, which has no save."""
    return 2 * times[step + block] - times[step] - times[step + 2 * block]


def main() -> int:
    """Measure, print, and return 1 if a limit is exceeded."""
    benchmark = Benchmark(__doc__, rounds=5)
    benchmark.option("--millions", type=float, help="weights of the model, in millions (default: 10)")
    benchmark.option("--saves", type=int, help="checkpoints of a run (default: 4)")
    benchmark.option("--block", type=int, help="steps of a block; the write must end within them (default: 60)")
    benchmark.option("--busy", action="store_true", help="let torch use all cores")
    benchmark.option("--limit", type=float, help="the greatest median ratio of the cost to transformers")
    benchmark.option("--stall-limit", type=float, help="the same limit for the stall")
    options = benchmark.begin()
    options.millions = options.millions or (2 if options.quick else 10)
    options.saves = options.saves or (1 if options.quick else 4)
    block = options.block or (10 if options.quick else 60)
    if options.busy:
        torch.set_num_threads(os.cpu_count() or 1)
    with Places(benchmark) as places, tempfile.TemporaryDirectory(prefix="cost-") as home:
        kinds = [kind for name in places.names for kind in ((OURS, SYNCHRONOUS) if name == OURS else (name,))]
        for kind in kinds:  # imports and the first allocations are not part of a round
            places.bind(measured, kind, home, 5, 1.0, 1)()
        task = (home, block, options.millions, options.saves)
        runs = {kind: places.bind(measured, kind, *task) for kind in kinds}
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
