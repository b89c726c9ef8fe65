"""The curves of a report as one PNG file, for papers. This needs matplotlib."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from ....events.errors import ArgumentError, MissingExtra
from .collect import RunData
from .page import charts_of, unique_names


def png_of(runs: Sequence[RunData]) -> bytes:
    """Return the curves of runs over steps as a PNG image, with 200 dots per inch.

    Raises:
        MissingExtra: if matplotlib is not installed.
        ArgumentError: if no run has a curve with at least two points.
    """
    try:
        canvas: Any = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg
        make_figure: Any = importlib.import_module("matplotlib.figure").Figure
    except ModuleNotFoundError as error:
        raise MissingExtra("--png needs matplotlib: pip install 'trainbus[report]'") from error
    charts, names = charts_of(runs), unique_names(runs)
    if not charts:
        raise ArgumentError("--png: the runs have logged no curve.")
    columns = min(2, len(charts))
    lines = -(-len(charts) // columns)
    figure = make_figure(figsize=(4.2 * columns, 2.8 * lines), layout="constrained")
    canvas(figure)
    for index, (title, drawn) in enumerate(charts.items(), 1):
        axes = figure.add_subplot(lines, columns, index)
        for run, _, curve in drawn:
            label = names[run].replace("$", r"\$")
            axes.plot(curve.steps, curve.values, linewidth=1.2, color=f"C{run % 10}", label=label)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        if index == 1 and len(runs) > 1:
            axes.legend(fontsize=7, frameon=False)
    image = BytesIO()
    figure.savefig(image, dpi=200, format="png")
    return image.getvalue()
