"""Runs a program under a seed of Python's hashes that differs on each process: sets are then in another order."""

import os
import sys

if __name__ == "__main__":
    seed = str(1 + int(os.environ["RANK"]))
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": seed})
