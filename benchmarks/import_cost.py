"""Measure the import time of trainbus, relative to the import time of torch.

    python benchmarks/import_cost.py --limit 1.2

Each import runs in a new process. The imports alternate, and the ratios are computed within a round.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time

BASE = "import torch"
IMPORTS = (BASE, "import trainbus", "from trainbus import Trainer, TrainingArguments")


def seconds(statement: str, folder: str) -> float:
    """Return the seconds of a process that runs one import statement."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True, cwd=folder)
    return time.perf_counter() - began


def main() -> int:
    """Measure, print, and return 1 if the import of the Trainer exceeds the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="processes per import")
    parser.add_argument("--limit", type=float, help="fail if the Trainer exceeds this multiple of torch")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        for statement in IMPORTS:  # warm-up: writes bytecode and fills the file cache
            seconds(statement, folder)
        rounds = [{statement: seconds(statement, folder) for statement in IMPORTS} for _ in range(options.rounds)]
    ratios = {}
    for statement in IMPORTS:
        typical = statistics.median(taken[statement] for taken in rounds)
        ratios[statement] = statistics.median(taken[statement] / taken[BASE] for taken in rounds)
        print(f"{statement:46} {typical * 1e3:6.0f} ms  x {ratios[statement]:5.3f}")
    return int(options.limit is not None and ratios[IMPORTS[-1]] > options.limit)


if __name__ == "__main__":
    sys.exit(main())
