"""Control a running training by the command `trainbus tell`, or by files in the output folder."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.commands.requests import FLAGS, Setting, receive, setting_of
from ...engine.optim.set_rate import set_learning_rate
from ...engine.run import Run
from ...events.callback import Callback
from ...events.control import TrainerControl
from ...events.flags import Flag
from ...events.stages import Stage, order
from ...events.trigger_kinds import AtEnd, alternatives
from ...events.triggers import every
from ..base.cadence import Cadence

logger = logging.getLogger(__name__)

_TOLD = "trainbus tell: "
"""The start of the reason of each request from `trainbus tell`. Other ranks recognize the request by this reason."""


@dataclass
class ControlFile(Callback):
    """Controls a running training by the command `trainbus tell`, or by files in a folder.

    For example, `trainbus tell <output_dir> save` and `touch <output_dir>/save` both request a checkpoint. The files
    are called `save`, `evaluate`, `log` and `stop`. The command can also change the learning rate and the intervals.
    Every trainer has a `ControlFile`. Rank 0 checks the folder at the end of a step, at most once in `seconds`. A
    request applies to all ranks. The callback deletes each file that it finds, so one file makes one request. If the
    run saves checkpoints, a request to stop also saves a checkpoint. To use another folder, add
    `ControlFile("/tmp/run-7", seconds=10)` to the callbacks.
    """

    local = True

    folder: str | None = None
    """The folder with the requests. Default: the output folder."""
    seconds: float = 1.0
    """The shortest time between two checks of the folder, in seconds."""
    _next: float = field(default=0.0, init=False, repr=False, compare=False)
    _waiting: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _intervals: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> ControlFile:
        return cls()

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self._waiting, self._intervals = [], {}  # a resumed run restores its own values later

    @order(Stage.PREPARE)
    def on_train_begin(self, run: Run) -> None:
        for work, interval in self._intervals.items():
            _set_interval(run, work, interval)

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
                _request(run, control, flag, f"the file {file}")
        for request in receive(folder):
            if setting_of(request) is None:
                _request(run, control, FLAGS[request], f"{_TOLD}{request}")
            else:
                self._waiting.append(request)
        if self._waiting:
            # All ranks receive the reason of a request. Each rank changes its settings when it serves this log request.
            control.request("log", _TOLD + ", ".join(self._waiting))

    @order(Stage.PREPARE)
    def on_log_due(self, run: Run, control: TrainerControl, requested_by: frozenset[str]) -> None:
        if control.speaker not in requested_by:
            return
        entries = [entry for entry in control.ledger.of("log") if entry.author == control.speaker]
        reason = next(entry.reason for entry in reversed(entries) if entry.action == "request")
        for request in reason.removeprefix(_TOLD).split(", "):
            if reason.startswith(_TOLD) and (setting := setting_of(request)) is not None:
                self._change(run, setting)
        self._waiting = []

    def _change(self, run: Run, setting: Setting) -> None:
        if setting.name == "lr":
            set_learning_rate(run.optimizer, run.lr_scheduler, float(setting.value))
        else:
            self._intervals[setting.name] = setting.value
            _set_interval(run, setting.name, setting.value)
        logger.info("step %d: %s, requested by `trainbus tell`", run.state.global_step, setting)

    def state_dict(self) -> dict[str, Any]:
        return {"intervals": dict(self._intervals)} if self._intervals else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._intervals = dict(state.get("intervals", {}))


def _request(run: Run, control: TrainerControl, flag: Flag, reason: str) -> None:
    """Raise a flag. For a stop, also request a checkpoint if the run saves checkpoints, as after Ctrl-C."""
    control.request(flag, reason)
    if flag == "training_stop" and run.saves:
        control.request("save", reason)


def _set_interval(run: Run, work: str, interval: str) -> None:
    """Change the interval of logs, evaluations or saves.

    Additional callbacks, such as a `Log` with a prefix, keep their interval.

    Args:
        run: the run.
        work: `log`, `evaluate` or `save`.
        interval: the interval, such as `200` or `10min`.
    """
    for callback in run.bus.subscribers.values():
        if isinstance(callback, Cadence) and callback.flag == work and not callback.variant:
            last = [each for each in alternatives(callback.trigger) if isinstance(each, AtEnd)]
            callback.replace_trigger(reduce(or_, last, every(interval)))  # the last step is still saved
