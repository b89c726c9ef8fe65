"""NotebookProgress: a table of the logged values and a progress bar, both updated in the output of a notebook cell."""

from __future__ import annotations

import html
import importlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...engine.data.build import length_of
from ...engine.evaluation.outputs import is_train_summary
from ...engine.run import Run
from ...events.bus import Handle
from ...events.stages import Stage
from ...events.state import TrainerState
from .pace import Pace, pace_of

REFRESH = 0.2
"""The shortest time between two drawings of the bar, in seconds."""

HIDDEN = ("epoch", "total_flos", "grad_norm", "learning_rate")
"""The names of logged values without a column. Names that end with a text in `_HIDDEN_ENDS` have no column either."""
_HIDDEN_ENDS = ("_runtime", "_per_second", "_preparation_time")
NAMES = {"loss": "Training Loss", "eval_loss": "Validation Loss"}
"""Name of a logged value -> the name of its column, as in transformers. `columns_of` derives all other names."""


@dataclass
class NotebookView:
    """A table and bars in the output of a notebook cell."""

    total: int
    """The number of steps of the run."""
    step: int = 0
    """The number of completed steps."""
    comment: str = ""
    """The text beside the bar."""
    columns: list[str] = field(default_factory=lambda: ["Step"])
    """The names of the columns."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The rows of the table. Each row is a dict: column -> value."""
    evaluated: int | None = None
    """The number of evaluated batches. None: no evaluation is in progress."""
    batches: int | None = None
    """The number of batches of the evaluation. None: the number is unknown."""
    pace: Pace = field(default_factory=lambda: Pace(0, 0, 0.0))
    """The speed and the remaining time of the session."""
    _output: Any = None
    _drawn: float = 0.0

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Add values to the row of a step. If the last row is of another step, add a row first."""
        if not values:
            return
        if not self.rows or self.rows[-1]["Step"] != step:
            self.rows.append({"Step": step})
        self.rows[-1].update(values)
        self.columns += [name for name in values if name not in self.columns]

    def due(self) -> bool:
        """Return whether `REFRESH` seconds have passed since the last drawing."""
        return time.monotonic() - self._drawn >= REFRESH

    def draw(self) -> None:
        """Draw the bars and the table in the output of the cell. A later call replaces the earlier drawing."""
        ipython = importlib.import_module("IPython.display")  # the kernel has imported it
        self._drawn = time.monotonic()
        shown = ipython.HTML(self.html())
        if self._output is None:
            self._output = ipython.display(shown, display_id=True)
        else:
            self._output.update(shown)

    def html(self) -> str:
        """Return the bars and the table as HTML."""
        text = _bar(self.step, self.total, f"[{self.step}/{self.total} {self.timing()}{self.comment}]")
        if self.rows:
            text += _table(self.columns, self.rows)
        if self.evaluated is not None:
            of = "" if self.batches is None else f"/{self.batches}"
            text += _bar(self.evaluated, self.batches or self.evaluated, f"Evaluation [{self.evaluated}{of}]")
        return text

    def timing(self) -> str:
        """Return the time so far, the remaining time and the speed, as HTML; an empty text before the first step."""
        if self.pace.left is None:
            return ""
        return f"{_clock(self.pace.seconds)} &lt; {_clock(self.pace.left)}, {self.pace.rate:.2f} it/s, "


class NotebookProgress:
    """A bar and a table of metrics in the output of a notebook cell.

    In a notebook, `Progress` uses this class instead of the bars of a terminal.
    """

    def __init__(self) -> None:
        self.view: NotebookView | None = None
        self._handle: Handle | None = None

    def begin(self, run: Run, state: TrainerState) -> None:
        """Show the bar of a training."""
        self.view = NotebookView(state.max_steps, state.global_step)
        self.view.draw()
        self._handle = run.bus.on("on_step_end", self._advance, stage=Stage.REPORT, id="Progress.notebook")

    def _advance(self, run: Run, state: TrainerState) -> None:
        if self.view is not None:
            self.view.step, self.view.comment = state.global_step, f"Epoch {state.epoch:.2f}/{state.num_train_epochs}"
            if self.view.due() or state.global_step >= state.max_steps:
                self.view.pace = pace_of(run)
                self.view.draw()

    def evaluate(self, loader: Any) -> None:
        """Advance the bar of an evaluation by one batch."""
        if self.view is None:
            self.view = NotebookView(0)
        self.view.evaluated = (self.view.evaluated or 0) + 1
        self.view.batches = length_of(loader)
        if self.view.due():
            self.view.draw()

    def evaluated(self) -> None:
        """Remove the bar of an evaluation."""
        if self.view is not None:
            self.view.evaluated = None
            self.view.draw()

    def log(self, step: int, logs: Mapping[str, Any]) -> None:
        """Add logged values to the table."""
        if self.view is None:
            self.view = NotebookView(0)
        self.view.add(step, columns_of(logs))
        self.view.draw()

    def close(self) -> None:
        """Draw the bar and the table for the last time, without the bar of an evaluation."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle()
        view, self.view = self.view, None
        if view is not None:
            view.evaluated = None
            view.draw()


def columns_of(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of a table row: column name -> logged value. For the totals of a training, return {}."""
    if is_train_summary(logs):
        return {}
    return {
        NAMES.get(name, name.removeprefix("eval_").replace("_", " ").title()): value
        for name, value in logs.items()
        if name not in HIDDEN and not name.endswith(_HIDDEN_ENDS) and isinstance(value, (bool, int, float, str))
    }


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f'<th style="text-align: left">{html.escape(name)}</th>' for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(row.get(name))}</td>" for name in columns) + "</tr>" for row in rows)
    return f'<table border="1" class="dataframe"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(value: Any) -> str:
    if value is None:
        return "No log"
    return f"{value:.6f}" if isinstance(value, float) else html.escape(str(value))


def _bar(value: int, total: int, label: str) -> str:
    if not total:
        return ""
    bar = f'<progress value="{value}" max="{total}" style="width: 300px; height: 20px; vertical-align: middle">'
    return f"<div>{bar}</progress> {label}</div>"


def _clock(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes:02d}:{left:02d}"
