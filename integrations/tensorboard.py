"""TensorBoard: logged numbers, as event files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from ..callbacks.base.tracker import in_sections
from ..engine.arguments import TrainingArguments
from ..engine.run import Run
from ..events.callback import Callback
from ..events.stages import Stage
from ..events.state import TrainerState


@dataclass
class TensorBoard(Callback):
    """Writes logged numbers to event files, on rank 0.

    `report_to="tensorboard"` builds it, or list `TensorBoard("runs/first")`. Read them with
    `tensorboard --logdir <output_dir>/runs`.
    """

    stage = Stage.REPORT
    folder: str | None = None
    """The folder of the event files. Default: `runs` in the output folder."""
    on_error: str = "warn"
    """What happens when writing fails. By default it warns and training continues."""
    _writer: Any = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> TensorBoard:
        return cls(folder=args.logging_dir)

    def on_log(self, run: Run, state: TrainerState, logs: dict[str, Any]) -> None:
        if not state.is_world_process_zero:
            return
        if self._writer is None:
            self._writer = SummaryWriter(self.folder or os.path.join(run.args.output_dir, "runs"))
        for key, value in logs.items():
            if isinstance(value, (int, float)):
                self._writer.add_scalar(in_sections(key), value, state.global_step)

    def on_close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
