"""Show the progress of a run: progress bars on a terminal, a table in a notebook, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...engine.api.console import in_notebook, is_terminal, open_console, say
from ...engine.arguments import TrainingArguments
from ...engine.data.build import length_of
from ...engine.evaluation.outputs import is_train_summary, plain
from ...engine.run import Run
from ...events.bus import Handle
from ...events.callback import Callback
from ...events.control import TrainerControl
from ...events.handlers import in_either_style
from ...events.stages import Stage
from ...events.state import TrainerState
from ..base.nonfinite import nonfinite_note
from .pace import pace_of

if TYPE_CHECKING:
    from .notebook_progress import NotebookProgress

HIDDEN = ("epoch", "total_flos")
"""Logged values that a line of values leaves out. The line shows the epoch beside the step."""
SPEEDS = ("_samples_per_second", "_steps_per_second")
"""The suffixes of the names of logged speeds."""
BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
"""The format of the bar of a training. The postfix is the pace of the session."""


@dataclass
class Progress(Callback):
    """Shows steps, evaluations and logged values on rank 0. A notebook shows a live table with a progress bar.

    Every trainer has a `Progress`. To print lines instead of bars, set `disable_tqdm=True`, or add
    `Progress(bar=False)` to the callbacks. At the end, the callback prints why training stopped, whether the training
    loss was NaN, and which callbacks failed.
    """

    stage = Stage.REPORT
    arguments = ("disable_tqdm",)

    bar: bool | None = None
    """Whether to draw progress bars. Default: True if the program runs in a notebook or if stderr is a terminal, and
    False elsewhere."""
    _bars: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _notebook: NotebookProgress | None = field(default=None, init=False, repr=False, compare=False)
    _bar_handle: Handle | None = field(default=None, init=False, repr=False, compare=False)
    _widths: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _drawn: float = field(default=0.0, init=False, repr=False, compare=False)
    _run: Run | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Progress:
        return cls(None if args.disable_tqdm is None else not args.disable_tqdm)

    @property
    def draws(self) -> bool:
        """Whether the callback draws progress bars.

        If stderr is closed, the value is False. Otherwise it is the field `bar`. If `bar` is None, the value is True in
        a notebook or if stderr is a terminal.
        """
        if sys.stderr is None:  # the program was started with a closed stderr
            return False
        return is_terminal(sys.stderr) or in_notebook() if self.bar is None else self.bar

    def _table(self) -> NotebookProgress | None:
        """Return the table for a notebook; None outside of a notebook, or if the callback draws no bars."""
        if self._notebook is None and self.draws and in_notebook():
            from .notebook_progress import NotebookProgress  # few programs run in a notebook

            self._notebook = NotebookProgress()
        return self._notebook

    def on_setup(self, run: Run) -> None:
        run.bus.signals["on_prediction_step"].rest(self, Progress.on_prediction_step, not self.draws)

    @in_either_style
    def on_train_begin(self, *, run: Run, state: TrainerState) -> None:
        self._widths, self._drawn, self._run = {}, 0.0, run
        if not state.is_world_process_zero:
            return
        if (table := self._table()) is not None:
            table.begin(run, state)
        elif self.draws:
            with open_console():
                self._bars["train"] = _new_bar(total=state.max_steps, initial=state.global_step, bar_format=BAR)
                # Subscribed here, so that without a bar no step calls a handler.
                self._bar_handle = run.bus.on("on_step_end", self._advance, stage=Stage.REPORT, id="Progress.bar")

    def _advance(self, run: Run) -> None:
        with open_console():
            bar, now = self._bars["train"], time.monotonic()
            if now - self._drawn >= 1:
                self._drawn = now
                bar.set_postfix_str(str(pace_of(run)), refresh=False)
            bar.update(1)

    @in_either_style
    def on_prediction_step(self, *, state: TrainerState, eval_dataloader: Any) -> None:
        if not state.is_world_process_zero or not self.draws:
            return
        if (table := self._table()) is not None:
            table.evaluate(eval_dataloader)
            return
        with open_console():
            if "evaluate" not in self._bars:
                total = length_of(eval_dataloader)
                self._bars["evaluate"] = _new_bar(total=total, leave="train" not in self._bars)
            self._bars["evaluate"].update(1)

    @in_either_style
    def on_evaluate(self) -> None:
        self._close("evaluate")

    @in_either_style
    def on_predict(self) -> None:
        self._close("evaluate")

    @in_either_style
    def on_log(self, *, state: TrainerState, logs: dict[str, Any]) -> None:
        if not state.is_world_process_zero:
            return
        if (table := self._table()) is not None:
            table.log(state.global_step, logs)
            return
        line = in_one_line(logs, state, self._widths)
        if "loss" in logs and self._run is not None:
            line = f"{line}  {pace_of(self._run)}".rstrip()
        if "train" in self._bars and sys.stdout is not None:
            with open_console():
                self._bars["train"].write(line)
        else:
            say(line)

    @in_either_style
    def on_train_end(self, *, run: Run, state: TrainerState, control: TrainerControl) -> None:
        self._close("train")
        note = nonfinite_note(run)
        if state.is_world_process_zero:
            why = control.why("training_stop") or f"ended at step {state.global_step}"
            say(f"Training {why}.{f' {note}' if note else ''}")
            if failures := run.bus.isolation.summary():
                say(failures)

    def on_close(self) -> None:
        self._run = None
        for name in list(self._bars):
            self._close(name)
        notebook, self._notebook = self._notebook, None
        if notebook is not None:
            notebook.close()
        handle, self._bar_handle = self._bar_handle, None
        if handle is not None:
            handle()

    def _close(self, name: str) -> None:
        if self._notebook is not None and name == "evaluate":
            self._notebook.evaluated()
        bar = self._bars.pop(name, None)
        if bar is not None:
            with open_console():
                bar.close()


def _new_bar(**options: Any) -> Any:
    """Return a progress bar of tqdm that fits the width of the terminal. `options` are arguments of `tqdm`."""
    from tqdm.auto import tqdm  # runs without a bar do not need it

    return tqdm(dynamic_ncols=True, **options)


def in_one_line(logs: Mapping[str, Any], state: TrainerState, widths: dict[str, int] | None = None) -> str:
    """Return logged values as one line: the step and epoch, then the name of each value and the value.

    A float has four significant digits. From 10,000 it has no decimals. A line with the totals of the training contains
    the logged speeds. All other lines leave the logged speeds out, because `Progress` adds the speed of the session.

    Args:
        logs: name -> value.
        state: the state of the trainer.
        widths: name -> the width of the column of this value. The function increases a width if the value needs more
            space, so that the next lines are aligned with this line. None: the columns are not aligned.
    """
    whole = is_train_summary(logs)
    if widths is None or whole:
        widths = {}
    else:
        widths.setdefault("step", len(f"step {state.max_steps}/{state.max_steps}"))
    cells = {"step": f"step {state.global_step}/{state.max_steps}", "epoch": f"epoch {state.epoch:.4g}"}
    for key, value in logs.items():
        if key not in HIDDEN and (whole or not str(key).endswith(SPEEDS)):
            cells[key] = f"{key} {_short(value)}"
    for key, cell in cells.items():
        widths[key] = max(widths.get(key, 0), len(cell))
    return "  ".join(cell.ljust(widths[key]) for key, cell in cells.items()).rstrip()


LONGEST_VALUE = 100
"""The largest number of characters of a text in a line. A longer text is cut."""


def _short(value: Any) -> str:
    value = plain(value)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return f"{type(value).__name__}{list(value.shape)}"
    if not isinstance(value, float):
        text = " ".join(str(value).split())
        return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
