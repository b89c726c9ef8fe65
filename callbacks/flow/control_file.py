"""Ask a running training for things by hand: `touch <output_dir>/save`, `evaluate`, `log` or `stop`."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.control import Flag, TrainerControl

FLAGS: dict[str, Flag] = {"log": "log", "evaluate": "evaluate", "save": "save", "stop": "training_stop"}
"""The names of the files, and what each asks for."""


@dataclass
class ControlFile(Callback):
    """Looks for files named `save`, `evaluate`, `log` and `stop`; does at the end of the step what they say, once."""

    local = True

    folder: str | None = None
    """Where; by default the output folder."""
    seconds: float = 1.0
    """How often it looks, at most."""
    _next: float = field(default=0.0, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> ControlFile:
        return cls()

    def on_step_end(self, run: Run, control: TrainerControl) -> None:
        if time.monotonic() < self._next or not run.state.is_world_process_zero:
            return
        self._next = time.monotonic() + self.seconds
        folder = Path(run.args.output_dir if self.folder is None else self.folder)
        for name, flag in FLAGS.items():
            file = folder / name
            if file.is_file():
                with suppress(FileNotFoundError):
                    file.unlink()
                control.request(flag, f"the file {file}")
