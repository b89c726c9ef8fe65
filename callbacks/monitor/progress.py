"""Show the progress of a run: progress bars on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tqdm.auto import tqdm

from ...engine.arguments import TrainingArguments
from ...engine.data.build import length_of
from ...engine.run import Run
from ...events.bus import Handle
from ...events.callback import Callback
from ...events.control import TrainerControl
from ...events.stages import Stage
from ...events.state import TrainerState


@dataclass
class Progress(Callback):
    """Shows steps, evaluations and logged values on rank 0.

    Every trainer has one. `disable_tqdm=True`, or `Progress(bar=False)` in the list, prints lines instead of bars. At
    the end it prints why training stopped.
    """

    stage = Stage.REPORT
    arguments = ("disable_tqdm",)

    bar: bool | None = None
    """Draw progress bars. Default: only if stderr is a terminal."""
    _bars: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _bar_handle: Handle | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Progress:
        return cls(None if args.disable_tqdm is None else not args.disable_tqdm)

    @property
    def draws(self) -> bool:
        """Whether bars are drawn."""
        return sys.stderr.isatty() if self.bar is None else self.bar

    def on_train_begin(self, run: Run, state: TrainerState) -> None:
        if state.is_world_process_zero and self.draws:
            bar = self._bars["train"] = tqdm(total=state.max_steps, initial=state.global_step, dynamic_ncols=True)
            # Subscribed here, so that without a bar no step calls a handler.
            self._bar_handle = run.bus.on("on_step_end", lambda: bar.update(1), stage=Stage.REPORT, id="Progress.bar")

    def on_prediction_step(self, run: Run, state: TrainerState, eval_dataloader: Any) -> None:
        if not state.is_world_process_zero or not self.draws:
            return
        if "evaluate" not in self._bars:
            total = length_of(eval_dataloader)
            self._bars["evaluate"] = tqdm(total=total, leave="train" not in self._bars, dynamic_ncols=True)
        self._bars["evaluate"].update(1)

    def on_evaluate(self) -> None:
        self._close("evaluate")

    def on_predict(self) -> None:
        self._close("evaluate")

    def on_log(self, state: TrainerState, logs: dict[str, Any]) -> None:
        if not state.is_world_process_zero:
            return
        line = in_one_line(logs, state)
        if "train" in self._bars:
            self._bars["train"].write(line)
        else:
            print(line, flush=True)

    def on_train_end(self, state: TrainerState, control: TrainerControl) -> None:
        self._close("train")
        if state.is_world_process_zero:
            print(f"Training {control.why('training_stop') or f'ended at step {state.global_step}'}.", flush=True)

    def on_close(self) -> None:
        for name in list(self._bars):
            self._close(name)
        handle, self._bar_handle = self._bar_handle, None
        if handle is not None:
            handle()

    def _close(self, name: str) -> None:
        bar = self._bars.pop(name, None)
        if bar is not None:
            bar.close()


def in_one_line(logs: Mapping[str, Any], state: TrainerState) -> str:
    """Return logged values as one line: the step and epoch, then each value with up to four digits."""
    values = [
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in logs.items()
        if key not in ("epoch", "total_flos")
    ]
    return f"step {state.global_step}/{state.max_steps}  epoch {state.epoch:.4g}  " + "  ".join(values)
