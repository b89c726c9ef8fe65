"""Measure the time of a resume, from the call of the library to the first forward pass, each time in a new process.

    python benchmarks/resume.py
    python benchmarks/resume.py --millions 60 --limit 1

The checkpoint is from the middle of an epoch. It has a model and the states of AdamW, which keeps two values per
weight. Before the measured call, the benchmark builds the model and the trainer, and imports torch's compiler, because
the first optimizer of a process would import it. trainbus reads every file and compares its hash. The plain loop calls
`torch.load` and does not skip the samples that the checkpoint has seen.

`--limit` compares trainbus with transformers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from common import HF, OURS, RAW, Benchmark, interleave
from places import Places
from saving import BETWEEN, SYNCHRONOUS, checkpoints_in, saving_task, steps_of

STEPS = 2 * BETWEEN
"""The steps of the run. Its checkpoint is in the middle."""


def save(kind: str, folder: str, millions: float) -> str:
    """Train to a checkpoint in the middle of an epoch, and return its path."""
    Path(folder).mkdir()
    steps_of(kind, saving_task(millions, BETWEEN), STEPS, Path(folder))
    return str(checkpoints_in(Path(folder))[0])


def seconds_of(kind: str, checkpoint: str, millions: float) -> float:
    """Resume in a new process. Return the seconds to the first forward pass."""
    words = ["--child", kind, checkpoint, "--millions", str(millions)]
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{kind} did not resume:\n{done.stderr[-3000:]}")
    return float(done.stdout.split()[-1])


def resumed(kind: str, checkpoint: str, millions: float) -> float:
    """Resume in this process. Return the seconds to the first forward pass."""
    with tempfile.TemporaryDirectory() as folder:
        times = steps_of(kind, saving_task(millions, resume=checkpoint), STEPS, Path(folder))
    made = len(times) - 2
    expected = STEPS if kind == RAW else STEPS - BETWEEN
    if made != expected:
        raise SystemExit(f"{kind} made {made} steps after the resume, and {expected} are left")
    return times[1] - times[0]


def main() -> int:
    """Measure, print, and return 1 if the limit is exceeded."""
    benchmark = Benchmark(__doc__, rounds=5)
    benchmark.option("--millions", type=float, help="weights of the model, in millions (default: 30)")
    benchmark.option("--limit", type=float, help="the greatest median ratio to transformers")
    benchmark.option("--child", nargs=2, metavar=("CONTENDER", "CHECKPOINT"), help="resume once and print the seconds")
    options = benchmark.begin()
    options.millions = options.millions or (2 if options.quick else 30)
    if options.child:
        kind, checkpoint = options.child
        print(resumed(kind, checkpoint, options.millions))
        return 0
    task = "resume"
    wanted = (RAW, OURS, HF) if options.quick else ()
    with Places(benchmark, *wanted) as places, tempfile.TemporaryDirectory(prefix="resume-") as home:
        runs = {}
        for name in places.names:
            kind = SYNCHRONOUS if name == OURS else name
            checkpoint = places.bind(save, kind, str(Path(home) / name), options.millions)()
            runs[name] = places.bind(seconds_of, name, checkpoint, options.millions)
        benchmark.add(task, "s", interleave(runs, options.rounds, warm_ups=int(not options.quick)))
    benchmark.limit(benchmark.result.ratio(task, OURS, HF), options.limit, f"{task}, relative to transformers")
    return benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())
