"""The sections of a report, except the curves. Each function returns HTML, or an empty text if no run has the data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from ...checkpoint.format.files import readable_size
from ...evaluation.metric_names import SPEED
from ..costs.goodput import PARTS, described
from .collect import RunData
from .plots import HEIGHT, WIDTH, line_style, short, ticks
from .tables import Html, Number, digits, duration, moment, table

MOST_ROWS = 40
"""The number of last rows that a table of evaluations, checkpoints, decisions or sessions shows. Of the earlier rows, a
table shows only the best evaluation and the checkpoints with pins."""
LANES = ("evaluate", "save", "delete", "load_best", "stop")
_EMPTY: tuple[Any, ...] = (None, [], {}, "")


def overview(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Return a table with one row for each run, and a list of missing data."""
    rows = []
    for run, name in zip(runs, names):
        loss = run.curves["loss"].finite if "loss" in run.curves else []
        best = ""
        if run.best:
            at = f" at step {run.best['step']:,}" if isinstance(run.best.get("step"), int) else ""
            best = f"{_metric(run)} {digits(run.best['value'])}{at}"
        planned = f" of {run.max_steps:,}" if run.max_steps and run.max_steps > 0 else ""
        status = Html(f'<span class="status {escape(run.status)}">{escape(run.status)}</span>')
        last = Number(loss[-1][1] if loss else None)
        epoch = Number(None if run.epoch is None else run.epoch)
        steps = Number(run.step, f"{run.step:,}{planned}")
        rows.append((name, status, steps, epoch, last, best, Number(0, duration(run.seconds)), run.reason))
    heads = ("run", "status", "steps", "epoch", "loss", "best", "time", "reason")
    text = _aligned(table("Runs", heads, rows), ("steps", "epoch", "loss", "time"))
    if len(runs) == 1:
        facts = zip(heads[1:-1], rows[0][1:-1])  # the reason is in the title of the page
        text = table("", ("", ""), [(name, _left(value)) for name, value in facts if value != ""])
    notes = [
        f"<li>{escape(names[index]) + ': ' if len(runs) > 1 else ''}{escape(note)}</li>"
        for index, run in enumerate(runs)
        for note in run.notes
    ]
    return text + (f'<ul class="soft">{"".join(notes)}</ul>' if notes else "")


def _left(cell: Any) -> Any:
    """Return a `Number` as text, which a table aligns to the left. Return any other cell unchanged."""
    if not isinstance(cell, Number):
        return cell
    return cell.text or ("-" if cell.value is None else digits(cell.value))


def _metric(run: RunData) -> str:
    name = str((run.best or {}).get("metric") or "metric")
    return name if name.startswith("eval_") or name == "metric" else f"eval_{name}"


def _aligned(text: str, numeric: Iterable[str]) -> str:
    """Return the HTML of a table, with the heads of the columns `numeric` aligned to the right like their cells."""
    for name in numeric:
        text = text.replace(f'<th scope="col">{escape(name)}</th>', f'<th scope="col" class="n">{escape(name)}</th>')
    return text


def evaluations(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Return one table of evaluations per run. `names` are the names of the runs."""
    return _of_each(runs, names, _evaluations)


def _evaluations(run: RunData) -> str:
    if not run.evaluations:
        return ""
    metrics = list(dict.fromkeys(name for each in run.evaluations for name in each["metrics"]))
    metrics = [name for name in metrics if not name.endswith(SPEED)]
    best = run.best["step"] if run.best else None
    shown = _last(run.evaluations, lambda each: each["step"] == best)
    rows = []
    for each in shown:
        values = (Number(each["metrics"].get(name)) for name in metrics)
        rows.append((Number(each["step"]), *values, "best" if each["step"] == best else ""))
    text = table(_counted(len(shown), len(run.evaluations), "evaluations"), ("step", *metrics, ""), rows)
    return _aligned(text, ("step", *metrics))


def checkpoints(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Return one table of checkpoints per run. The column `pins` says why a checkpoint is kept."""
    return _of_each(runs, names, _checkpoints)


def _checkpoints(run: RunData) -> str:
    if not run.checkpoints:
        return ""
    rows = []
    shown = _last(run.checkpoints, lambda each: bool(each["pins"]))
    for each in shown:
        metrics = ", ".join(f"{name} {digits(value)}" for name, value in each["metrics"].items() if name != "epoch")
        pins = ", ".join(each["pins"])
        state = "; ".join(each["problems"]) or "good"
        size = Number(each["bytes"], readable_size(each["bytes"]))
        rows.append((Number(each["step"]), size, moment(each["time"]), metrics, pins, state))
    heads = ("step", "size", "written (UTC)", "metrics", "pins", "state")
    text = table(_counted(len(shown), len(run.checkpoints), "checkpoints"), heads, rows)
    return _aligned(text, ("step", "size"))


def decisions(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Return for each run a timeline of all decisions, such as evaluations and saves, and a table of the last 40."""
    return _of_each(runs, names, _decisions)


def _decisions(run: RunData) -> str:
    if not run.decisions:
        return ""
    shown = _last(run.decisions, lambda each: False)
    rows = [(Number(each["step"]), each["what"], each["by"] or "run", each["reason"]) for each in shown]
    caption = _counted(len(shown), len(run.decisions), "decisions")
    listed = _aligned(table(caption, ("step", "what", "by", "reason"), rows), ("step",))
    return f"{_timeline(run)}<details><summary>Decisions with author and reason</summary>{listed}</details>"


def _timeline(run: RunData) -> str:
    lanes = [lane for lane in LANES if any(each["what"] == lane for each in run.decisions)]
    wide, left, high = 2 * WIDTH, 92, 24
    last = max(1, run.step, run.max_steps or 0)
    bottom = len(lanes) * high + 10

    def x_of(step: float) -> float:
        return left + step / last * (wide - left - 20)

    text = ""
    for index, lane in enumerate(lanes):
        middle = index * high + high // 2 + 4
        # Several decisions on one pixel are one mark, so a long run stays small.
        places = sorted({round(x_of(each["step"])) for each in run.decisions if each["what"] == lane})
        marks = "".join(f"M{x} {middle - 7}v14" for x in places)
        text += (
            f'<text x="0" y="{middle + 4}">{escape(lane.replace("_", " "))}</text>'
            f'<line class="grid" x1="{left}" x2="{wide - 20}" y1="{middle}" y2="{middle}"/>'
            f'<path class="line c{index}" d="{marks}"/>'
        )
    text += "".join(
        f'<text x="{x_of(step):.0f}" y="{bottom + 14}" text-anchor="middle">{escape(short(step))}</text>'
        for step in ticks(0, last, 8)
    )
    counts = ", ".join(f"{sum(each['what'] == lane for each in run.decisions)} {lane}" for lane in lanes)
    label = f"Decisions over steps 0 to {last:,}: {counts}"
    return (
        f'<div class="scroll"><div class="timeline"><svg viewBox="0 0 {wide} {min(HEIGHT, bottom + 22)}" role="img" '
        f'aria-label="{escape(label)}">{text}</svg></div></div>'
    )


def costs(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Return the time by part and by callback, for each run that recorded its costs."""
    return _of_each(runs, names, _costs)


def _costs(run: RunData) -> str:
    if run.costs is None:
        return ""
    text = f"<p>{escape(str(run.costs['verdict']))}</p>" if run.costs.get("verdict") else ""
    parts = [each for each in run.costs["parts"] if each["seconds"] > 0]
    whole = sum(each["seconds"] for each in parts)
    rows: list[tuple[Any, ...]] = [
        (
            each["part"],
            Number(0, duration(each["seconds"])),
            Number(0, f"{each['seconds'] / whole:.1%}"),
            Html(f'<span class="bar" style="width:{8 * each["seconds"] / whole:.2f}rem"></span>'),
        )
        for each in parts
    ]
    if rows:
        text += _aligned(table("Time by part", ("part", "time", "share", ""), rows), ("time", "share"))
    sums: dict[str, list[float]] = {}
    for each in run.costs["callbacks"]:
        total = sums.setdefault(each["callback"], [0.0, 0.0])
        total[0] += each["seconds"]
        total[1] += each.get("calls") or 0
    rows = [
        (name, Number(0, duration(seconds)), Number(int(calls)))
        for name, (seconds, calls) in sorted(sums.items(), key=lambda item: -item[1][0])
    ]
    if rows:
        shown = _aligned(table("Time by callback", ("callback", "time", "calls"), rows), ("time", "calls"))
        text += f"<details><summary>Time by callback</summary>{shown}</details>"
    return text


def goodput(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Return the goodput of each run, with a table of the last sessions of the run. The last row has the totals."""
    return _of_each(runs, names, _goodput)


def _goodput(run: RunData) -> str:
    if run.goodput is None:
        return ""
    heads = (
        "session",
        "began (UTC)",
        "steps",
        "time",
        *(part.replace("_", "-") for part in PARTS),
        "lost steps",
        "end",
    )
    rows: list[tuple[Any, ...]] = []
    sessions = run.goodput["sessions"]
    shown = sessions[-MOST_ROWS:]
    for index, each in enumerate(shown, len(sessions) - len(shown) + 1):
        steps = f"{each['first_step']:,} to {each['last_step']:,}"
        last = run.status if index == len(sessions) else "killed"
        ended = each["ended"] or last
        times = (Number(0, duration(each[part])) for part in ("seconds", *PARTS))
        rows.append((Number(index), moment(each["began"]), steps, *times, Number(each["lost_steps"]), ended))
    times = (Number(0, duration(run.goodput[part])) for part in ("seconds", *PARTS))
    rows.append(("all", "", "", *times, Number(run.goodput["lost_steps"]), ""))
    text = f"<p>Goodput: {escape(described(run.goodput))}.</p>"
    caption = _counted(len(shown), len(sessions), "sessions")
    return text + _aligned(table(caption, heads, rows), (heads[0], *heads[3:-1]))


def arguments(runs: Sequence[RunData], names: Sequence[str], different: Sequence[str]) -> str:
    """Return the arguments of the runs as HTML; an empty string if no run has arguments.

    For one run, the result is a table in a closed `<details>` block. For several runs, the result is a table of the
    arguments that differ, and then a closed block with the arguments that are equal.

    Args:
        runs: the runs.
        names: the names of the runs.
        different: the names of the arguments that differ.
    """
    known = [(run, name) for run, name in zip(runs, names) if run.arguments]
    if not known:
        return ""
    all_names = dict.fromkeys(name for run, _ in known for name in run.arguments)
    heads = ("argument", *(name for _, name in known))

    def row(name: str) -> tuple[Any, ...]:
        return (name, *(_written(run.arguments.get(name)) for run, _ in known))

    if len(known) == 1:
        given = [row(name) for name in all_names if known[0][0].arguments[name] not in _EMPTY]
        empty = ", ".join(name for name in all_names if known[0][0].arguments[name] in _EMPTY)
        shown = table(f"{len(given)} arguments", heads, given)
        more = f'<p class="soft">Not set: {escape(empty)}.</p>' if empty else ""
        return f"<details><summary>{len(all_names)} arguments</summary>{shown}{more}</details>"
    differ = table("Arguments that differ", heads, [row(name) for name in different], range(len(different)))
    equal = [(name, _written(known[0][0].arguments.get(name))) for name in all_names if name not in different]
    same = table("Arguments that are equal", ("argument", "value"), equal)
    first = differ if different else "<p>No argument differs.</p>"
    return f"{first}<details><summary>{len(equal)} equal arguments</summary>{same}</details>"


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def environment(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Return a table with a column for each run: its environment, its folder, and the files that the report read."""
    keys = dict.fromkeys(key for run in runs for key in run.environment)
    rows: list[tuple[Any, ...]] = []
    for key in keys:
        rows.append((key.replace("_", " "), *(_written(run.environment.get(key, "-")) for run in runs)))
    rows.append(("folder", *(run.folder for run in runs)))
    rows.append(("files read", *(", ".join(run.sources) for run in runs)))
    return table("Environment", ("", *names), rows)


def callbacks(runs: Sequence[RunData], names: Sequence[str]) -> str:
    """Return a table for each run. Each row has one event, and the callbacks that handle it, in the order of calls."""
    return _of_each(runs, names, _callbacks)


def _callbacks(run: RunData) -> str:
    if not run.callbacks:
        return ""
    rows = [
        (event, ", ".join(f"{name} ({str(stage).lower()})" for name, stage in handlers.items()))
        for event, handlers in run.callbacks.items()
        if isinstance(handlers, dict)
    ]
    shown = table("Callbacks by event, in the order of calls", ("event", "callbacks (stage)"), rows)
    return f"<details><summary>Plan of {len(rows)} events</summary>{shown}</details>"


def _of_each(runs: Sequence[RunData], names: Sequence[str], section: Callable[[RunData], str]) -> str:
    """Return the HTML of `section` for each run that has data for it.

    With several runs, the HTML of each run is in a `<details>` block.

    Args:
        runs: the runs.
        names: the names of the runs.
        section: a function that returns the HTML for one run; an empty text if the run has no data.
    """
    found = [(index, name, text) for index, (run, name) in enumerate(zip(runs, names)) if (text := section(run))]
    if len(runs) == 1:
        return "".join(text for _, _, text in found)
    swatch = '<svg class="swatch" viewBox="0 0 22 8" aria-hidden="true"><path {} d="M1 4H21"/></svg>'
    return "".join(
        f"<details{' open' * (len(runs) <= 2)}><summary>{swatch.format(line_style(index))}{escape(name)}</summary>"
        f"{text}</details>"
        for index, name, text in found
    )


def _last(rows: list[dict[str, Any]], stays: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Return the last `MOST_ROWS` rows, and before them the older rows for which `stays` returns True."""
    early = [each for each in rows[:-MOST_ROWS] if stays(each)]
    return early + rows[-MOST_ROWS:]


def _counted(shown: int, there: int, what: str) -> str:
    if there == 1:
        return f"1 {what.removesuffix('s')}"
    if shown == there:
        return f"{there:,} {what}"
    earlier = f", and {shown - MOST_ROWS:,} earlier" if shown > MOST_ROWS else ""
    return f"The last {min(shown, MOST_ROWS):,} of {there:,} {what}{earlier}"
