"""What importing trainbus costs beside importing torch, which it needs anyway.

    python benchmarks/import_cost.py --limit 1.2

Each import is that of a new process. They take turns, and what is compared are ratios within a round.
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


def seconds(statement, folder):
    """Return how long a process takes that only imports, beginning to end."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True, cwd=folder)
    return time.perf_counter() - began


def main():
    """Measure and show; return 1 if importing the Trainer is slower than the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="processes for each import")
    parser.add_argument("--limit", type=float, help="fail if the Trainer takes more than this many times torch")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        for statement in IMPORTS:  # once before, so that bytecode is written and files are cached
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
