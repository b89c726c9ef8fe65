"""Control a running training by files: `touch <output_dir>/save`, `evaluate`, `log` or `stop`."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.control import Flag, TrainerControl

FLAGS: dict[str, Flag] = {"log": "log", "evaluate": "evaluate", "save": "save", "stop": "training_stop"}
"""File name -> the flag that it requests."""


@dataclass
class ControlFile(Callback):
    """Requests a flag at the end of a step if a file named `save`, `evaluate`, `log` or `stop` exists.

    It deletes the file, so each file counts once. Only rank 0 looks. Every trainer has one. List it to change its
    folder: `ControlFile("/tmp/run-7", seconds=10)`. A checkpoint now: `touch <output_dir>/save`.
    """

    local = True

    folder: str | None = None
    """The folder of the files. Default: the output folder."""
    seconds: float = 1.0
    """The shortest time between two checks for the files, in seconds."""
    _next: float = field(default=0.0, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> ControlFile:
        return cls()

    def on_step_end(self, run: Run, control: TrainerControl) -> None:
        if time.monotonic() < self._next or not run.state.is_world_process_zero:
            return
        self._next = time.monotonic() + self.seconds
        folder = run.args.output_path if self.folder is None else run.args.resolved(self.folder)
        for name, flag in FLAGS.items():
            file = folder / name
            if file.is_file():
                with suppress(FileNotFoundError):
                    file.unlink()
                control.request(flag, f"the file {file}")
