"""The report as one HTML file. The page loads no other file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ....events.recording.files import written
from ...evaluation.metric_names import SPEED
from .collect import RunData, differing
from .curves import Curve
from .plots import COLOURS, line_style, plot
from .schema import points_of_a_curve
from .sections import arguments, callbacks, checkpoints, costs, decisions, environment, evaluations, goodput, overview
from .tables import Html, Number, table

_FIRST = ("loss", "eval_loss")
_LAST = ("learning_rate", "grad_norm")
_NOT_DRAWN = (*SPEED, "total_flos", "train_loss")
"""Endings of logged names for which a report draws no curve."""

Lines = list[tuple[int, Curve, Curve]]
"""For each run of a chart: the index of the run, the whole curve, and the reduced curve that is drawn."""


def render(runs: Sequence[RunData], title: str | None = None) -> str:
    """Return the report of runs as HTML.

    Args:
        runs: the runs, in the order in which they are shown.
        title: the title of the page. Default: the names of the runs.
    """
    names = unique_names(runs)
    title = title or (", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else ""))
    charts = charts_of(runs)
    different = differing(runs)
    sections = [
        ("overview", "Overview", overview(runs, names)),
        ("curves", "Curves", _curves(charts, names)),
        ("evaluations", "Evaluations", evaluations(runs, names)),
        ("checkpoints", "Checkpoints", checkpoints(runs, names)),
        ("decisions", "Decisions", decisions(runs, names)),
        ("time", "Time", costs(runs, names)),
        ("goodput", "Goodput", goodput(runs, names)),
        ("arguments", "Arguments", arguments(runs, names, different)),
        ("environment", "Environment", environment(runs, names)),
        ("callbacks", "Callbacks", callbacks(runs, names)),
        ("about", "About this page", _about(runs, charts)),
    ]
    there = [section for section in sections if section[2]]
    links = "".join(f'<li><a href="#{ident}">{heading}</a></li>' for ident, heading, _ in there)
    body = "".join(
        f'<section id="{ident}" aria-labelledby="{ident}-h"><h2 id="{ident}-h">{heading}</h2>{content}</section>'
        for ident, heading, content in there
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data:\">"
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{_asset("report.css")}</style></head>'
        f'<body><a class="skip" href="#main">To the contents</a><header><h1>{escape(title)}</h1>{_summary(runs)}'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header><main id="main">{body}</main>'
        f'<script type="application/json" id="data">{_script_data(charts, runs, names)}</script>'
        f"<script>{_asset('report.js')}</script></body></html>\n"
    )


def unique_names(runs: Sequence[RunData]) -> list[str]:
    """Return the names of runs. If several runs have the same name, add their folders: `demo (out/a)`."""
    names = [run.name for run in runs]
    return [f"{run.name} ({run.folder})" if names.count(run.name) > 1 else run.name for run in runs]


def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _summary(runs: Sequence[RunData]) -> str:
    if len(runs) > 1:
        return f'<p class="soft">{len(runs)} runs side by side.</p>'
    run = runs[0]
    planned = f" of {run.max_steps:,}" if run.max_steps and run.max_steps > 0 else ""
    status = f'<span class="status {escape(run.status)}">{escape(run.status)}</span>'
    reason = f": {escape(run.reason)}" if run.reason else ""
    return f"<p>{status} at step {run.step:,}{planned}{reason}</p>"


def charts_of(runs: Sequence[RunData]) -> dict[str, Lines]:
    """Return the curves to draw, by title: the logged values, and the values of every step from recordings.

    A chart without a curve of at least two points is left out.
    """
    most = points_of_a_curve(runs)
    logged = dict.fromkeys(name for run in runs for name in run.curves if not name.endswith(_NOT_DRAWN))
    middle = [name for name in logged if name not in (*_FIRST, *_LAST)]
    order = [name for name in (*_FIRST, *middle, *_LAST) if name in logged]
    charts = {
        name: [(index, run.curves[name]) for index, run in enumerate(runs) if name in run.curves] for name in order
    }
    for name in ("loss", *_LAST):
        # The learning rate of every step adds nothing to the logged one.
        if name not in logged or name != "learning_rate":
            lines = [(index, run.steps[name]) for index, run in enumerate(runs) if name in run.steps]
            charts |= {f"{name} of every step": lines} if lines else {}
    drawn = {name: [(index, curve, curve.reduced(most)) for index, curve in lines] for name, lines in charts.items()}
    return {name: lines for name, lines in drawn.items() if any(len(curve.values) > 1 for _, curve, _ in lines)}


def _curves(charts: dict[str, Lines], names: Sequence[str]) -> str:
    if not charts:
        return "<p>The runs have logged no curve yet.</p>"
    tools = (
        '<div class="tools" hidden><fieldset><legend>Over</legend>'
        '<button type="button" data-axis="step" aria-pressed="true">steps</button>'
        '<button type="button" data-axis="seconds" aria-pressed="false">time</button>'
        '<button type="button" data-axis="samples" aria-pressed="false">samples</button></fieldset>'
        '<fieldset><legend>Scale</legend><button type="button" data-scale="linear" aria-pressed="true">linear</button>'
        '<button type="button" data-scale="log" aria-pressed="false">log</button></fieldset></div>'
    )
    numbered = enumerate(charts.items())
    figures = "".join(_figure(f"chart{index}", name, lines, names) for index, (name, lines) in numbered)
    return f'{tools}<div class="charts">{figures}</div>'


def _figure(ident: str, name: str, lines: Lines, names: Sequence[str]) -> str:
    points = [(index, list(zip(map(float, drawn.steps), drawn.values))) for index, _, drawn in lines]
    steps = [step for _, curve, _ in lines for step in (curve.steps[0], curve.steps[-1])]
    said = f"{name} of {len(lines)} run{'s' * (len(lines) > 1)}, steps {min(steps):,} to {max(steps):,}"
    rows, notes = [], []
    for index, curve, _ in lines:
        finite = [value for _, value in curve.finite]
        swatch = (
            f'<svg class="swatch" viewBox="0 0 22 8" aria-hidden="true"><path {line_style(index)} d="M1 4H21"/></svg>'
        )
        ends = (finite[-1], min(finite), max(finite)) if finite else (None, None, None)
        rows.append((Html(swatch + escape(names[index])), *map(Number, ends)))
        if broken := [step for step, value in zip(curve.steps, curve.values) if not math.isfinite(value)]:
            many = f"{len(broken):,} values are" if len(broken) > 1 else "1 value is"
            notes.append(f"<p>{escape(names[index])}: {many} not finite, the first at step {broken[0]:,}.</p>")
    drawn = plot(name, said, points, ident)
    return (
        f'<figure data-chart="{escape(name)}"><figcaption>{escape(name)}</figcaption>'
        f'<div class="plot" role="group" aria-label="{escape(name)}: move with the arrow keys to read values">{drawn}'
        f'</div><output aria-live="polite"></output>{"".join(notes)}'
        f"{table('', ('run', 'last', 'least', 'largest'), rows, numbers=1)}</figure>"
    )


def _script_data(charts: dict[str, Lines], runs: Sequence[RunData], names: Sequence[str]) -> str:
    found: dict[str, Any] = {name: list(_lines(lines, runs, names)) for name, lines in charts.items()}
    text = json.dumps(written(found), separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":  # so that no value ends the script
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _lines(lines: Lines, runs: Sequence[RunData], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for index, _, drawn in lines:
        yield {
            "run": index,
            "name": names[index],
            "samples": runs[index].samples_per_step,
            "steps": drawn.steps,
            "seconds": [None if each is None else round(each, 2) for each in drawn.seconds],
            "values": [float(f"{value:.6g}") for value in drawn.values],
        }


def _about(runs: Sequence[RunData], charts: dict[str, Lines]) -> str:
    reduced = any(len(whole.values) > len(drawn.values) for lines in charts.values() for _, whole, drawn in lines)
    notes = ["The file is complete in itself: it loads nothing."]
    if reduced:
        notes.append(
            f"Long curves are drawn with at most about {points_of_a_curve(runs)} points. Each part of a curve keeps "
            "its least and its largest value, so no spike is lost. The tables under the curves use all values."
        )
    if len(runs) > COLOURS:
        notes.append(f"The colours repeat after {COLOURS} runs, with another dash.")
    return "".join(f"<p>{escape(each)}</p>" for each in notes)
