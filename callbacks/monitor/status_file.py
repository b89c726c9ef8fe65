"""Say in a file how the run is doing, and how it ended, for whoever started it."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.checkpoint.read.listing import list_checkpoints, newest_first
from ...engine.distributed.failure_report import error_line
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import RankFailure
from ...events.stages import Stage, order
from ..stopping.stop_on_signal import Stopped

NAME = "run_status.json"
"""The file, in the output folder."""


@dataclass
class StatusFile(Callback):
    """Writes `run_status.json`: whether the run goes on or how it ended, why, and what it can be resumed from.

    A launcher may hide that: torchrun ends with code 1 whatever its processes end with. The file says `running`,
    `done`, `stopped` (before its planned end, by a callback), `preempted` (by a signal) or `failed`, with the exit code
    of the process. The first process writes it, and of a failure every one that lives to tell: one that only reports
    what became of another leaves alone what that one wrote.
    """

    on_error = "warn"

    name: str = NAME
    """The name of the file in the output folder."""
    id: str | None = None
    """Its name in the ledger and in checkpoints."""
    _ended: tuple[Any, ...] | None = field(default=None, init=False, repr=False, compare=False)
    _since: float = field(default_factory=time.time, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> StatusFile | None:
        return cls() if args.world_size > 1 else None

    @order(Stage.PREPARE)
    def on_train_begin(self, run: Run) -> None:
        self._write(run, "running")

    @order(Stage.RELEASE)
    def on_save_due(self, run: Run) -> None:
        self._write(run, "running")

    @order(Stage.RELEASE)
    def on_train_end(self, run: Run) -> None:
        state = run.state
        ended = state.global_step >= state.max_steps or state.epoch >= state.num_train_epochs
        why = run.control.why
        self._end(run, "done" if ended else "stopped", why("training_stop") or why("epoch_stop"), 0)

    @order(Stage.PREPARE)
    def on_exception(self, run: Run, exception: BaseException) -> None:
        if run.mode == "train":
            status, reason = "failed", error_line(exception)
            if isinstance(exception, Stopped):
                status, reason = "preempted", preempted_by(exception.reason, run.control.why("training_stop"))
            if not isinstance(exception, RankFailure) or not self._told_by_another(run):
                self._end(run, status, reason, exit_code(exception))

    @order(Stage.PREPARE)
    def on_close(self, run: Run) -> None:
        if self._ended is not None:
            self._write(run, *self._ended)  # by now a checkpoint is there that a thread was writing
        self._ended, self._since = None, time.time()

    def _told_by_another(self, run: Run) -> bool:
        """Say whether another process of this session wrote of an error of its own."""
        try:
            there = json.loads((Path(run.args.output_dir) / self.name).read_text(encoding="utf-8"))
            at_first_hand = there["status"] == "failed" and not there["reason"].startswith(RankFailure.__name__)
            return bool(at_first_hand and there["time"] >= self._since)
        except (OSError, ValueError, KeyError):
            return False

    def _end(self, run: Run, *ended: Any) -> None:
        self._ended = ended
        self._write(run, *ended)

    def _write(self, run: Run, status: str, reason: str = "", code: int | None = None) -> None:
        if status == "failed" or run.state.is_world_process_zero:
            folder = Path(run.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            newest = newest_first(list_checkpoints(folder))
            values = {
                "status": status,
                "step": run.state.global_step,
                "epoch": run.state.epoch,
                "reason": reason,
                "exit_code": code,
                "resume_from": str(newest[0].path.absolute()) if newest else None,
                "world_size": run.ranks.world_size,
                "rank": run.ranks.rank,
                "time": time.time(),
                "host": socket.gethostname(),
                "pid": os.getpid(),
            }
            replace(folder / self.name, values)


def preempted_by(signal: str, stopped: str) -> str:
    """Say what ended a run: a signal, and beside it what the control says, where that does not name the signal."""
    name = signal.partition(",")[0]
    return stopped if name in stopped else "; ".join(filter(None, (signal, stopped)))


def replace(path: Path, values: dict[str, Any]) -> None:
    """Write values as JSON into a file, which holds at each moment either these or what it held before."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def exit_code(error: BaseException) -> int:
    """Return the code with which Python ends a program whose error nobody catches."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 130 if isinstance(error, KeyboardInterrupt) else 1
