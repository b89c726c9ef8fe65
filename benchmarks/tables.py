"""The tables and the chart of docs/benchmarks.md, from the rows of the benchmarks.

    python benchmarks/tables.py benchmarks/results.json

The command replaces the text between `<!-- measured: NAME -->` and `<!-- end of NAME -->`, for each name of `PARTS`.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from common import COMPOSER, HF, IGNITE, LIGHTNING, OURS, RAW, Curve, Result, amount, quartiles, spread_text

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
CHART = "benchmarks.svg"
LIBRARIES = (OURS, HF, LIGHTNING, IGNITE, COMPOSER)
SHARDING = ("memory between steps", "peak memory of a step")
PACKING = "time to equal loss"
GROUPED = f"{HF}, grouped"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def cell(result: Result, task: str, contender: str) -> str:
    """Return the ratio of a row to its base as text. If there is no ratio, return the value of the row."""
    row = result.row(task, contender)
    if row is None:
        return ""
    ratios = result.ratios(row)
    if contender != row.base and ratios:
        return spread_text(ratios)
    return amount(statistics.median(row.samples), row.unit)


def overview(result: Result, page: dict[str, Any]) -> str:
    """Return the table of all tasks that several libraries do."""
    shown = [
        task
        for task in result.tasks()
        if result.row(task, RAW) and result.row(task, HF) and not task.startswith(("batches of", PACKING, "GPT-2"))
    ]
    columns = [name for name in LIBRARIES if any(result.row(task, name) for task in shown)]
    rows = [(task, *(cell(result, task, name) for name in (RAW, *columns))) for task in shown]
    return table(("Task", RAW, *columns), rows)


def machine(result: Result, page: dict[str, Any]) -> str:
    """Return a sentence about the machine, the versions and the date."""
    found = page["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    left_out = "".join(
        f" {name} was not measured: {reason}." for name, reason in result.left_out.items() if name != "gpu"
    )
    return wrapped(
        f"Measured on {found['date']}: {found['cores']} cores of {found['cpu']} ({found['system']}), "
        f"{found['memory_gb']} GB of memory, {found['threads']} thread. Versions: {versions}.{left_out}"
    )


def wrapped(text: str, width: int = 120) -> str:
    """Return a paragraph in lines."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def data(result: Result, page: dict[str, Any]) -> str:
    """Return the table of the speed of batches."""
    rows = []
    for task in result.tasks():
        ours = result.row(task, OURS)
        if not task.startswith("batches of") or ours is None:
            continue
        name = task.removeprefix("batches of ").replace("TensorDataset", "`TensorDataset`")
        others = []
        for base in (HF, RAW):
            ratios = [1 / ratio for ratio in result.ratios(ours, base)]
            others.append(spread_text(ratios) if ratios else "")
        rows.append((name, f"{1 / statistics.median(ours.samples):,.0f}", *others))
    return table(("Data", "trainbus, rows/s", "times transformers", "times torch"), rows)


def packing(result: Result, page: dict[str, Any]) -> str:
    """Return the table of the time to reach the loss of the benchmark `packing`."""
    rows = []
    for row in result.rows:
        if row.task == PACKING:
            ratios = [1 / ratio for ratio in result.ratios(row, GROUPED)]
            rows.append((row.contender, f"{statistics.median(row.samples):.1f}", spread_text(ratios)))
    return table(("Contender", "Seconds", "times transformers with length grouping"), rows)


def sharding(result: Result, page: dict[str, Any]) -> str:
    """Return the table of the memory of each way to shard."""
    names = [row.contender for row in result.rows if row.task == SHARDING[0]]
    rows = []
    for name in names:
        found = [result.row(task, name) for task in SHARDING]
        values = [f"{statistics.median(row.samples):.2f}" if row else "" for row in found]
        rows.append((name, *values, f"{result.ratio(SHARDING[1], name):.2f}"))
    return table(("Strategy", "Between steps", "Peak", "Peak, relative to DDP"), rows)


def growth(result: Result, page: dict[str, Any]) -> str:
    """Return a table for each number that grows (callbacks, steps, rows, ranks), and the cost of one callback."""
    parts = []
    for kind in dict.fromkeys(curve.size_of for curve in result.curves):
        curves = [curve for curve in result.curves if curve.size_of == kind]
        sizes = sorted({size for curve in curves for size in curve.sizes})
        heads = (f"Cost by number of {kind}", "Library", *(f"{size:,}" for size in sizes))
        parts.append(table(heads, [(curve.task, curve.contender, *_values(curve, sizes)) for curve in curves]))
    single = [row for row in result.rows if row.task.startswith("one of")]
    if single:
        rows = [(row.task, row.contender, amount(statistics.median(row.samples), row.unit)) for row in single]
        parts.append(table(("Cost of one callback", "Library", "Time"), rows))
    return "\n\n".join(parts)


def _values(curve: Curve, sizes: Sequence[int]) -> list[str]:
    known = dict(zip(curve.sizes, curve.values))
    return [amount(known[size], curve.unit) if size in known else "" for size in sizes]


def gpu(result: Result, page: dict[str, Any]) -> str:
    """Return the table of the GPU, or a sentence that says why there is none."""
    tasks = [task for task in result.tasks() if task.startswith("GPT-2 on cuda")]
    if not tasks:
        return f"Not measured: {result.left_out.get('gpu', 'the GPU benchmark did not run')}."
    names = [row.contender for row in result.rows if row.task == tasks[0]]
    rows = [(task, *(cell(result, task, name) for name in names)) for task in tasks]
    return table(("Task", *names), rows)


def chart_link(result: Result, page: dict[str, Any]) -> str:
    """Return the link to the chart."""
    return f"![The time of each library relative to a plain torch loop, for each task]({CHART})"


PARTS: dict[str, Callable[[Result, dict[str, Any]], str]] = {
    "machine": machine,
    "overview": overview,
    "chart": chart_link,
    "data": data,
    "packing": packing,
    "sharding": sharding,
    "growth": growth,
    "gpu": gpu,
}


def needs(name: str, result: Result) -> bool:
    """Return whether the result has the rows that a part of the page needs. A run with `--only` has rows for some
    parts."""
    tasks = result.tasks()
    return {
        "data": any(task.startswith("batches of") for task in tasks),
        "packing": PACKING in tasks,
        "sharding": SHARDING[0] in tasks,
        "growth": bool(result.curves),
        "gpu": any(task.startswith("GPT-2 on cuda") for task in tasks) or "gpu" in result.left_out,
    }.get(name, any(result.row(task, RAW) for task in tasks))


def with_tables(text: str, page: dict[str, Any]) -> str:
    """Return the text of the page with the tables of a result.

    Raises:
        ValueError: if the page lacks a marker.
    """
    result = Result.from_json(page)
    for name, make in PARTS.items():
        marked = re.compile(rf"(?<=<!-- measured: {name} -->\n).*?(?=\n<!-- end of {name} -->)", re.DOTALL)
        found = marked.search(text)
        if found is None:
            raise ValueError(f"the page has no markers <!-- measured: {name} --> and <!-- end of {name} -->")
        if needs(name, result):
            text = text[: found.start()] + make(result, page) + text[found.end() :]
    return text


def chart(result: Result, path: Path) -> None:
    """Draw the ratios to raw torch, and the curves of growth, as SVG."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    colours = {
        RAW: "#555555",
        OURS: "#d62728",
        HF: "#e6a700",
        LIGHTNING: "#7b4ea3",
        IGNITE: "#2a7fb8",
        COMPOSER: "#3a9d5d",
    }
    tasks = [task for task in result.tasks() if result.row(task, RAW) and result.row(task, OURS)]
    tasks = [task for task in tasks if not task.startswith("GPT-2") and result.row(task, OURS).base == RAW]  # type: ignore[union-attr]
    kinds = list(dict.fromkeys((curve.size_of, curve.unit) for curve in result.curves))
    lines = -(-len(kinds) // 2)
    heights = [1.2 + 0.34 * len(tasks), 3.6 * max(lines, 0.01)]
    figure = Figure(figsize=(10, sum(heights)), layout="constrained")
    FigureCanvasSVG(figure)
    # Each part has margins of its own, so the long names of the tasks do not make the curves narrow.
    top, bottom = figure.subfigures(2, 1, height_ratios=heights)
    axes = top.subplots()
    for number, (name, colour) in enumerate(colours.items()):
        shift = 0.13 * (number - len(colours) // 2)  # equal values stay visible
        places, middles, ranges = [], [], []
        for place, task in enumerate(tasks):
            row = result.row(task, name)
            ratios = result.ratios(row) if row is not None else []
            if not ratios:
                continue
            middle, (first, third) = statistics.median(ratios), quartiles(ratios)
            if first <= 0:  # the axis is logarithmic
                continue
            places.append(place + shift)
            middles.append(middle)
            ranges.append((middle - first, third - middle))
        if places:
            errors = list(zip(*ranges))
            axes.errorbar(middles, places, xerr=errors, fmt="o", color=colour, label=name, markersize=5, elinewidth=1)
    axes.axvline(1, color=colours[RAW], linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(tasks)), tasks)
    axes.set_ylim(len(tasks) - 0.5, -0.5)
    axes.set_xlabel("times raw torch (less is better): median of the rounds, first and third quartile")
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    axes.grid(axis="x", alpha=0.3)
    if tasks:
        axes.legend(ncols=6, loc="lower center", bbox_to_anchor=(0.4, 1.0), fontsize=8, frameon=False)
    dashes = ("-", "--", ":", "-.")
    for index, (kind, unit) in enumerate(kinds):
        axes = bottom.add_subplot(lines, 2, index + 1)
        curves = [curve for curve in result.curves if (curve.size_of, curve.unit) == (kind, unit)]
        named = list(dict.fromkeys(curve.task for curve in curves))
        for curve in curves:
            style = dashes[named.index(curve.task) % len(dashes)]
            label = f"{curve.task}, {curve.contender}"
            axes.plot(curve.sizes, curve.values, style, color=colours.get(curve.contender), label=label, marker=".")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(kind)
        axes.set_ylabel("seconds" if unit == "s" else unit)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=6, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "trainbus"}):
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Write the tables and the chart of a file."""
    page = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), page), encoding="utf-8")
    chart(Result.from_json(page), PAGE.parent / CHART)


if __name__ == "__main__":
    main()
