"""Show the progress of a run: progress bars on a terminal, a table in a notebook, plain lines otherwise."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tqdm.auto import tqdm

from ...engine.api.console import is_terminal, open_console, say
from ...engine.arguments import TrainingArguments
from ...engine.data.build import length_of
from ...engine.run import Run
from ...events.bus import Handle
from ...events.callback import Callback
from ...events.control import TrainerControl
from ...events.handlers import in_either_style
from ...events.stages import Stage
from ...events.state import TrainerState
from ..base.nonfinite import nonfinite_note
from .notebook_progress import NotebookProgress, in_notebook


@dataclass
class Progress(Callback):
    """Shows steps, evaluations and logged values on rank 0: in a notebook as a live table with a progress bar.

    Every trainer has one. `disable_tqdm=True`, or `Progress(bar=False)` in the list, prints lines instead of bars. At
    the end it prints why training stopped, whether the training loss was NaN, and which callbacks failed.
    """

    stage = Stage.REPORT
    arguments = ("disable_tqdm",)

    bar: bool | None = None
    """Draw progress bars. Default: only if stderr is a terminal, or in a notebook."""
    _bars: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _notebook: NotebookProgress | None = field(default=None, init=False, repr=False, compare=False)
    _bar_handle: Handle | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Progress:
        return cls(None if args.disable_tqdm is None else not args.disable_tqdm)

    @property
    def draws(self) -> bool:
        """Whether bars are drawn."""
        if sys.stderr is None:  # the program was started with a closed stderr
            return False
        return is_terminal(sys.stderr) or in_notebook() if self.bar is None else self.bar

    def _table(self) -> NotebookProgress | None:
        """Return the view of the notebook; None outside of one."""
        if self._notebook is None and self.draws and in_notebook():
            self._notebook = NotebookProgress()
        return self._notebook

    @in_either_style
    def on_train_begin(self, *, run: Run, state: TrainerState) -> None:
        if not state.is_world_process_zero:
            return
        if (table := self._table()) is not None:
            table.begin(run, state)
        elif self.draws:
            with open_console():
                self._bars["train"] = tqdm(total=state.max_steps, initial=state.global_step, dynamic_ncols=True)
                # Subscribed here, so that without a bar no step calls a handler.
                self._bar_handle = run.bus.on("on_step_end", self._advance, stage=Stage.REPORT, id="Progress.bar")

    def _advance(self) -> None:
        with open_console():
            self._bars["train"].update(1)

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
                self._bars["evaluate"] = tqdm(total=total, leave="train" not in self._bars, dynamic_ncols=True)
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
        line = in_one_line(logs, state)
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


def in_one_line(logs: Mapping[str, Any], state: TrainerState) -> str:
    """Return logged values as one line: the step and epoch, then each value with up to four digits."""
    values = [
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in logs.items()
        if key not in ("epoch", "total_flos")
    ]
    return f"step {state.global_step}/{state.max_steps}  epoch {state.epoch:.4g}  " + "  ".join(values)
