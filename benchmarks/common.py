"""The common parts of the benchmarks: rounds that alternate the contenders, rows, tables, and common options.

A *contender* is a library, or a way to do the task, that a benchmark compares with others. A benchmark measures each
contender once in each round, so that a slow phase of the machine affects all of them. A row of
the result is a task and a contender, with one value per round. A ratio compares two contenders within one round.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import json
import logging
import os
import platform
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

RAW, OURS, HF, LIGHTNING, IGNITE, COMPOSER = (
    "raw torch",
    "trainbus",
    "transformers",
    "Lightning",
    "ignite",
    "Composer",
)
COMPOSER_RAW = "raw torch of Composer"
"""The plain loop in the environment of Composer, which has an older torch."""
PACKAGES = ("torch", "trainbus", "transformers", "accelerate", "lightning", "pytorch-ignite", "datasets", "numpy")

T = TypeVar("T")


@dataclass
class Row:
    """A task and a contender, with one value per round."""

    task: str
    contender: str
    unit: str
    samples: list[float]
    base: str = RAW
    """The contender by whose value each ratio divides."""


@dataclass
class Curve:
    """A cost that grows with a size."""

    task: str
    contender: str
    sizes: list[int]
    values: list[float]
    unit: str
    size_of: str
    """The thing that `sizes` counts."""


@dataclass
class Result:
    """The rows and curves of one benchmark or of several."""

    rows: list[Row] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Contender or benchmark -> why it is not measured."""

    def add(self, task: str, unit: str, found: Mapping[str, Sequence[float]], base: str = RAW) -> None:
        """Add the rows of a task: contender -> one value per round.

        The ratios of Composer divide by the plain loop of its own environment, if it was measured.
        """
        bases = {COMPOSER: COMPOSER_RAW} if base == RAW and COMPOSER_RAW in found else {}
        for name, values in found.items():
            self.rows.append(Row(task, name, unit, [float(value) for value in values], bases.get(name, base)))

    def row(self, task: str, contender: str) -> Row | None:
        """Return a row; None if it was not measured."""
        return next((row for row in self.rows if (row.task, row.contender) == (task, contender)), None)

    def ratios(self, row: Row, base: str | None = None) -> list[float]:
        """Return for each round the value of a row, divided by the value of another contender.

        The list is empty if a value of the other contender is not positive. A difference of two noisy times can be
        negative.

        Args:
            row: the row.
            base: the other contender. Default: the base of the row.
        """
        other = self.row(row.task, row.base if base is None else base)
        if other is None or min(other.samples) <= 0:
            return []
        return [mine / theirs for mine, theirs in zip(row.samples, other.samples)]

    def ratio(self, task: str, contender: str, base: str | None = None) -> float:
        """Return the median of the ratios of the rounds."""
        row = self.row(task, contender)
        return statistics.median(self.ratios(row, base) or [float("nan")]) if row else float("nan")

    def tasks(self) -> list[str]:
        """Return the tasks in order."""
        return list(dict.fromkeys(row.task for row in self.rows))

    def extend(self, other: Result) -> None:
        """Add the rows and curves of another benchmark."""
        self.rows += other.rows
        self.curves += other.curves
        self.left_out |= other.left_out

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values, with the median and the quartiles of the ratios of each row."""
        rows = [
            {**asdict(row), "median": statistics.median(row.samples), "ratio": spread(self.ratios(row))}
            for row in self.rows
        ]
        return {"rows": rows, "curves": [asdict(curve) for curve in self.curves], "left_out": self.left_out}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Result:
        """Read what `to_json` returned."""
        names = Row.__dataclass_fields__
        rows = [Row(**{name: value for name, value in row.items() if name in names}) for row in values["rows"]]
        return cls(rows, [Curve(**curve) for curve in values["curves"]], dict(values["left_out"]))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile. A slow phase of a shared machine changes them little. It would change
    the highest value.
    """
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return the median and the quartiles; None without values."""
    if not values:
        return None
    first, third = quartiles(values)
    return {"median": statistics.median(values), "first_quartile": first, "third_quartile": third}


def spread_text(values: Sequence[float], digits: int = 2) -> str:
    """Return the median and the quartiles as `1.10 (1.05 to 1.22)`."""
    first, third = quartiles(values)
    return f"{statistics.median(values):.{digits}f} ({first:.{digits}f} to {third:.{digits}f})"


def amount(value: float, unit: str) -> str:
    """Return a value with its unit as text. Seconds are shown as s, ms or us, whichever fits."""
    if unit == "s":
        for size, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if abs(value) >= size or name == "µs":
                return f"{value / size:.3g} {name}"
    if unit == "bytes":
        for size, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}"
        return f"{value:.0f} B"
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:.3g} {unit}"


def interleave(contenders: Mapping[str, Callable[[], T]], rounds: int, warm_ups: int = 1) -> dict[str, list[T]]:
    """Call each contender once in each round. `order_of_round` gives the order.

    Args:
        contenders: name -> a function that measures once.
        rounds: the rounds that count.
        warm_ups: the rounds before them, which do not count.

    Returns:
        Name -> what the function returned in each round.
    """
    found: dict[str, list[T]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(-warm_ups, rounds):
        for name in order_of_round(names, turn):
            value = contenders[name]()
            if turn >= 0:
                found[name].append(value)
        if sys.stderr.isatty():
            print(f"\rround {turn + 1} of {rounds} ", end="\r", file=sys.stderr, flush=True)
    return found


def order_of_round(names: Sequence[str], turn: int) -> list[str]:
    """Return the order of the contenders in a round.

    A contender runs slower or faster after some others, because of what they leave in caches and in the allocator. In
    `2 * len(names)` rounds, each contender runs equally often at each place, and equally often directly after each of
    the others. Source: E. J. Williams, "Experimental designs balanced for the estimation of residual effects of
    treatments", 1949.
    """
    count = len(names)
    zigzag = [(place + 1) // 2 * (-1) ** (place + 1) for place in range(count)]  # 0, 1, -1, 2, -2, ...
    order = [names[(turn + offset) % count] for offset in zigzag]
    return order[::-1] if turn // count % 2 else order


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Hide the output of the contenders, in a `with` block."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def keep_freed_memory() -> None:
    """Tell the allocator of this process to return no freed memory to the system. This works with glibc only.

    Otherwise the number of page faults depends on what the process did before. Two equal runs of 600 steps of a model
    of 40 MB had 0.06 and 1.4 million page faults, and 0.2 and 3.2 s of system time, of 12 s.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    trim_threshold, mmap_threshold = -1, -3  # the names are M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in malloc.h
    if mallopt is not None:
        mallopt(trim_threshold, 2**30)
        mallopt(mmap_threshold, 2**25)  # the greatest value


class Benchmark:
    """The options, the result and the limits of one benchmark.

    Every benchmark has `--rounds`, `--quick` and `--json`. `--quick` is for tests: it makes few rounds and small work.
    """

    def __init__(self, doc: str | None, rounds: int = 5, quick_rounds: int = 1) -> None:
        """Create the benchmark. `doc` is the docstring of its module, which `--help` shows."""
        self.parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.parser.add_argument("--rounds", type=int, help=f"measurements of each contender (default: {rounds})")
        self.parser.add_argument("--quick", action="store_true", help="few rounds and small work; not for publication")
        self.parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to a file")
        self._rounds = rounds, quick_rounds
        self.result = Result()
        self.failures: list[str] = []
        self.options = argparse.Namespace()

    def option(self, *names: str, **settings: Any) -> None:
        """Add an option of this benchmark."""
        self.parser.add_argument(*names, **settings)

    def begin(self) -> argparse.Namespace:
        """Read the command line, and make the process quiet and single-threaded."""
        self.options = options = self.parser.parse_args()
        if options.rounds is None:
            options.rounds = self._rounds[options.quick]
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        return options

    def add(self, task: str, unit: str, found: Mapping[str, Sequence[float]], base: str = RAW) -> None:
        """Add the rows of a task and print them."""
        self.result.add(task, unit, found, base)
        self.show(task)

    def show(self, task: str) -> None:
        """Print the rows of a task."""
        rows = [row for row in self.result.rows if row.task == task]
        print(f"\n{task}: the median of {len(rows[0].samples)} rounds, and the ratio to {rows[0].base}")
        for row in rows:
            ratios = self.result.ratios(row)
            base = "" if row.base == rows[0].base else f" to {row.base}"
            compared = f"x {spread_text(ratios)}{base}" if ratios else ""
            print(
                f"  {row.contender:<28}{amount(statistics.median(row.samples), row.unit):>16}  {compared}", flush=True
            )

    def curve(self, curve: Curve) -> None:
        """Add a curve and print it."""
        self.result.curves.append(curve)
        values = "  ".join(f"{size:,}: {amount(value, curve.unit)}" for size, value in zip(curve.sizes, curve.values))
        print(f"{curve.task}, {curve.contender}, by {curve.size_of}\n  {values}", flush=True)

    def leave_out(self, name: str, reason: str) -> None:
        """Record that a contender is not measured, and why."""
        self.result.left_out[name] = reason
        print(f"{name} is left out: {reason}", flush=True)

    def limit(self, value: float, limit: float | None, sentence: str) -> None:
        """Let the benchmark fail if a value exceeds a limit, or if the value is NaN. A limit of None means no limit."""
        if limit is not None and not value <= limit:
            self.failures.append(f"{sentence}: {value:.3f}, and the limit is {limit:g}")

    def finish(self) -> int:
        """Write the rows, print the failures and return the exit status."""
        if self.options.json is not None:
            self.options.json.write_text(json.dumps(self.result.to_json()), encoding="utf-8")
        for failure in self.failures:
            print(f"FAILED: {failure}", file=sys.stderr)
        return int(bool(self.failures))


def machine() -> dict[str, Any]:
    """Return the machine, the versions, the date and the load."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "load": round(os.getloadavg()[0], 2),
        "versions": versions,
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
