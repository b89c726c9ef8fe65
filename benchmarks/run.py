"""Run all benchmarks. Write one JSON file with all rows, a chart, and the tables of docs/benchmarks.md.

    python benchmarks/run.py                   # about 40 minutes on two quiet cores
    python benchmarks/run.py --only growth     # replaces the rows of one benchmark in the files
    python benchmarks/run.py --quick --out F   # at most 3 minutes; writes all files to the folder F

Each benchmark runs in a process of its own, one after the other. The full form writes `benchmarks/results.json`,
`docs/benchmarks.svg` and the tables of `docs/benchmarks.md`. The quick form only tests the benchmarks. Its figures
are not for publication, so it writes a copy of the page to its folder. The exit status is 1 if a limit is exceeded or a
benchmark fails. The rows of the other benchmarks are written nevertheless.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tables
from common import Result, machine

HERE = Path(__file__).resolve().parent

BENCHMARKS: dict[str, list[list[str]]] = {
    "step_overhead": [["--limit", "1.3"]],
    "evaluation": [["--limit", "2"]],
    "data_path": [["--limit", "2.2"], ["--workers", "2", "--only", "text, padded", "vectors", "--rounds", "3"]],
    "packing": [["--limit", "1"]],
    "checkpoint_cost": [["--stall-limit", "0.5"]],
    "resume": [["--limit", "1"]],
    "import_cost": [["--limit", "1.5", "--start-limit", "0.5"]],
    "sharded_memory": [["--limit", "0.9"]],
    "growth": [["--callback-limit", "0.7", "--rank-limit", "2"]],
    "gpu": [[]],
}
"""Benchmark -> the options of each of its calls. The limits are a little higher than the values of a quiet machine."""
QUICK: dict[str, list[list[str]]] = {name: [["--quick"]] for name in BENCHMARKS}


def run(name: str, words: list[str]) -> tuple[Result, str]:
    """Run a benchmark. Return its rows, and the reason of a failure or an empty text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, str(HERE / f"{name}.py"), *words, "--json", str(path)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        found = Result.from_json(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else Result()
    lines = [line for line in done.stderr.splitlines() if line.startswith("FAILED")]
    reason = "; ".join(lines) or done.stderr[-2000:]
    return found, reason if done.returncode else ""


def page_of(
    by_benchmark: dict[str, Any], about: dict[str, Any], failures: dict[str, str], quick: bool
) -> dict[str, Any]:
    """Return the content of the JSON file."""
    result = Result()
    for name in BENCHMARKS:
        if name in by_benchmark:
            result.extend(Result.from_json(by_benchmark[name]))
    return {
        "machine": about,
        "quick": quick,
        **result.to_json(),
        "failures": failures,
        "benchmarks": by_benchmark,
    }


def main() -> int:
    """Run, write the files and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds and small work; not for publication")
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS))
    parser.add_argument("--out", type=Path, help="write all files to this folder, instead of the repository")
    options = parser.parse_args()
    if options.quick and options.out is None:
        parser.error("--quick needs --out: its figures are not for the repository")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    json_file = HERE / "results.json" if options.out is None else options.out / "results.json"
    page_file = tables.PAGE if options.out is None else options.out / tables.PAGE.name

    about, began = machine(), time.monotonic()
    by_benchmark: dict[str, Any] = {}
    if json_file.is_file() and options.only != list(BENCHMARKS):
        by_benchmark = json.loads(json_file.read_text(encoding="utf-8"))["benchmarks"]
    failures = {}
    for name in options.only:
        print(f"\n== {name} ==", flush=True)
        started, result = time.monotonic(), Result()
        for words in (QUICK if options.quick else BENCHMARKS)[name]:
            found, reason = run(name, words)
            result.extend(found)
            if reason:
                failures[name] = reason
                print(f"{name}: {reason}", file=sys.stderr, flush=True)
        by_benchmark[name] = result.to_json()
        print(f"{name} took {time.monotonic() - started:.0f} s", flush=True)
    about["load_at_end"] = round(os.getloadavg()[0], 2)
    about["minutes"] = round((time.monotonic() - began) / 60, 1)
    page = page_of(by_benchmark, about, failures, options.quick)
    json_file.write_text(json.dumps(page, indent=1) + "\n", encoding="utf-8")
    page_file.write_text(tables.with_tables(tables.PAGE.read_text(encoding="utf-8"), page), encoding="utf-8")
    tables.chart(Result.from_json(page), page_file.parent / tables.CHART)
    print(f"\nwritten: {json_file}, {page_file}, {page_file.parent / tables.CHART}; {about['minutes']} minutes")
    if about["load"] > 1 and not options.quick:
        print(f"The load of the machine was {about['load']} at the start. Publish figures of a quiet machine only.")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
