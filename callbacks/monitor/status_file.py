"""Write the status of a run, and how it ended, to a JSON file for the launcher."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...engine.api.console import FULL
from ...engine.api.costs.costs import Costs
from ...engine.api.costs.read import read_costs
from ...engine.arguments import TrainingArguments
from ...engine.checkpoint.format.files import Checkpoint, step_of
from ...engine.checkpoint.read.listing import newest_first
from ...engine.checkpoint.read.saved import SavedCheckpoint
from ...engine.commands.status import NAME
from ...engine.distributed.failure_report import error_line
from ...engine.evaluation.outputs import recordable
from ...engine.run import Run
from ...events.callback import Callback
from ...events.composition import best_metric_of
from ...events.errors import RankFailure
from ...events.recording.files import written
from ...events.stages import Stage, order
from ..base.nonfinite import nonfinite_note
from ..base.tracker_rows import TOTALS
from ..stopping.stop_on_signal import BY_SIGNAL
from .pace import pace_of

logger = logging.getLogger(__name__)

CALLBACKS = 20
"""The largest number of callbacks in the file. The file has the slowest callbacks, the slowest first."""
DECISIONS = 10
"""The largest number of ledger entries in the file. The file has the newest entries."""
DETAILS: tuple[tuple[str, Any], ...] = (("decisions", []), ("costs", None), ("metrics", {}))
"""The fields that become empty if the disk is full, each with its empty value, in the order in which they become
empty."""
CUT = "..."
"""The end of a reason that is cut because the disk is full."""
LONGEST_CHARACTER = 12
"""The largest number of bytes of a character in JSON: two escapes, such as `\\ud83d\\ude00`."""


@dataclass
class StatusFile(Callback):
    """Writes `run_status.json`: the status of the run, the reason, and the name of the checkpoint to resume from.

    Every trainer has a `StatusFile`. The file is in the output folder. `trainbus status` reads the file. A launcher
    script can also read the file to know why a run ended. The exit code of torchrun is not sufficient, because torchrun
    exits with code 1 for every failure. The status is one of:

    - `running`: the training runs, or its process was killed;
    - `done`: all planned steps are done;
    - `stopped`: a callback stopped the run early;
    - `preempted`: a signal stopped the run;
    - `failed`: an error ended the run.

    The file also has the steps per second, the remaining time and the costs of this session, the newest value of each
    metric, and the newest entries of the ledger. The speed and the remaining time are those of the progress bar. Until
    a resumed session has trained a step, the file has the speed and the costs of the previous session. A metric that
    this session has not logged yet has its value of the previous session.

    Rank 0 writes the file when training begins and ends, at each checkpoint, and when values are logged. After an
    error, the failing rank also writes the file. Other ranks that end because of this error do not overwrite the file.

    If the disk is full, the callback overwrites the file in place, because a new file would need free space. If the
    values need more space than the file has, the callback leaves out the ledger entries, the costs and the metrics, in
    this order, and then cuts the reason.
    """

    on_error = "warn"

    name: str = NAME
    """The name of the file in the output folder."""
    seconds: float = 5.0
    """After a write, the callback does not write logged values for this number of seconds."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    _ended: tuple[Any, ...] | None = field(default=None, init=False, repr=False, compare=False)
    _since: float = field(default_factory=time.time, init=False, repr=False, compare=False)
    _warned: bool = field(default=False, init=False, repr=False, compare=False)
    _next: float = field(default=0.0, init=False, repr=False, compare=False)
    _metrics: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _resume_from: str | None = field(default=None, init=False, repr=False, compare=False)
    _newest: str | None = field(default=None, init=False, repr=False, compare=False)
    _seen: frozenset[tuple[str, int]] | None = field(default=None, init=False, repr=False, compare=False)
    _loaded: Path | None = field(default=None, init=False, repr=False, compare=False)
    """The absolute path of the checkpoint that the run resumed from; None for a fresh start."""
    _earlier: frozenset[tuple[str, int]] = field(default=frozenset(), init=False, repr=False, compare=False)
    """The checkpoints that were in the folder when the session began."""
    _before: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _setup: float = field(default=0.0, init=False, repr=False, compare=False)
    _began: float | None = field(default=None, init=False, repr=False, compare=False)
    """The time at which the first session of the run began, in seconds since 1970. None if this time is not known."""
    _start: tuple[int, bool] = field(default=(0, False), init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> StatusFile:
        return cls()

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self._resume_from, self._newest, self._seen, self._loaded = None, None, None, None
            self._earlier = _checkpoints_in(run.args.output_path)
            self._metrics, self._start = {}, (run.state.global_step, False)
            self._before = self._read(run) if run.session.resume_requested else {}
            self._setup = time.time()
            self._began = self._before.get("began") if self._before else self._setup

    def on_load(self, run: Run, checkpoint: Checkpoint) -> None:
        self._loaded = checkpoint.path.absolute()
        self._resume_from, self._newest = str(self._loaded), None
        self._seen = _checkpoints_in(run.args.output_path)

    @order(Stage.PREPARE)
    def on_train_begin(self, run: Run) -> None:
        self._start = (run.state.global_step, True)
        # A training from step 0 is a fresh start.
        before = self._before if run.state.global_step else {}
        fresh = None if run.state.global_step else self._setup
        self._began = before.get("began") if before.get("run_id") == run.run_id else fresh
        self._before = self._with_history(run, before) if run.state.global_step else {}
        self._write(run, "running")

    @order(Stage.REPORT)
    def on_log(self, run: Run, logs: dict[str, Any]) -> None:
        if run.mode != "train" or not run.state.is_world_process_zero:
            return
        self._metrics |= recordable(logs)[0]
        if time.monotonic() >= self._next:
            self._write(run, "running", looks=False)

    @order(Stage.RELEASE)
    def on_save_due(self, run: Run) -> None:
        self._write(run, "running")

    @order(Stage.RELEASE)
    def on_train_end(self, run: Run) -> None:
        state = run.state
        ended = state.global_step >= state.max_steps or state.epoch >= state.num_train_epochs
        why = run.control.why
        reason = "; ".join(filter(None, (why("training_stop") or why("epoch_stop"), nonfinite_note(run))))
        self._end(run, "done" if ended else "stopped", reason, 0)

    @order(Stage.PREPARE)
    def on_exception(self, run: Run, exception: BaseException) -> None:
        if run.mode == "train":
            status, reason = "failed", error_line(exception)
            if isinstance(exception, BY_SIGNAL):
                status, reason = "preempted", preempted_by(exception.reason, run.control.why("training_stop"))
            if not isinstance(exception, RankFailure) or not self._written_by_another_rank(run):
                self._end(run, status, reason, exit_code(exception))

    @order(Stage.PREPARE)
    def on_close(self, run: Run) -> None:
        if self._ended is not None:
            self._write(run, *self._ended)  # the background writer has finished its checkpoint by now
        self._ended, self._since = None, time.time()

    def _written_by_another_rank(self, run: Run) -> bool:
        """Return whether another rank has already written its error to the file in this session."""
        try:
            written = self._read(run)
            own_error = written["status"] == "failed" and not written["reason"].startswith(RankFailure.__name__)
            return bool(own_error and written["time"] >= self._since)
        except KeyError:
            return False

    def _read(self, run: Run) -> dict[str, Any]:
        """Return the content of the file; {} if the file does not exist or cannot be read."""
        try:
            content = json.loads((run.args.output_path / self.name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    @staticmethod
    def _with_history(run: Run, before: dict[str, Any]) -> dict[str, Any]:
        """Return the content of the file. Add metrics from the log history of the checkpoint, if the file lacks them.

        The file lacks metrics if the disk was full during the last write. If the run resumes in another output folder,
        this folder has no file yet.
        """
        logged = {name: value for entry in run.state.log_history for name, value in entry.items() if name != "step"}
        return {**before, "metrics": {**logged, **(before.get("metrics") or {})}}

    def _end(self, run: Run, *ended: Any) -> None:
        self._ended = ended
        self._write(run, *ended)

    def _write(self, run: Run, status: str, reason: str = "", code: int | None = None, *, looks: bool = True) -> None:
        if status != "failed" and not run.state.is_world_process_zero:
            return
        folder = run.args.output_path
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if looks:
                self._look_for_newest(folder, run.run_id)
            replace(folder / self.name, {"status": status, "reason": reason, "exit_code": code, **self._values(run)})
        except OSError as error:
            if run.saves and not self._warned:  # a run that saves nothing needs no folder
                logger.warning("The status of the run cannot be written to %s: %s", folder / self.name, error)
                self._warned = True

    def _look_for_newest(self, folder: Path, run_id: str) -> None:
        """Store the path of the newest undamaged checkpoint of the run.

        If the run has no undamaged checkpoint, store the path of the checkpoint that the session loaded.

        Check only checkpoints that are new or changed. A folder may hold thousands of checkpoints. If each save checked
        all of them, saves would become slower.
        """
        seen, former = _checkpoints_in(folder), self._seen
        if seen == former:
            return
        names = {name for name, _ in seen}
        if self._newest in names:  # it is newer than all others of the last look
            names = {self._newest, *(name for name, _ in seen - (former or frozenset()))}
        new = {name for name, _ in seen - self._earlier}
        found = [SavedCheckpoint.open((folder / name).absolute()) for name in names]
        own = [saved for saved in found if self._is_own(saved, run_id, saved.path.name in new)]
        good = newest_first([saved for saved in own if not saved.problems(full=False)], run_id)
        loaded = str(self._loaded) if self._loaded is not None and self._loaded.is_dir() else None
        self._resume_from, self._newest = (str(good[0].path), good[0].path.name) if good else (loaded, None)
        self._seen = seen

    def _is_own(self, saved: SavedCheckpoint, run_id: str, new: bool) -> bool:
        """Return whether the run itself saved or loaded the checkpoint `saved`.

        Also return True in two cases:

        - The run has no id yet.
        - The checkpoint has no run id, and is new in this session. For example, an override of `_save_checkpoint` wrote
          the checkpoint.
        """
        if not run_id or saved.path == self._loaded:
            return True
        return saved.run_id == run_id if saved.run_id else new

    def _values(self, run: Run) -> dict[str, Any]:
        first, began = self._start
        self._next = time.monotonic() + self.seconds
        steps, before = run.state.global_step - first, self._before
        pace = pace_of(run) if steps > 0 and began else None
        speed, left = (None, None) if pace is None else (pace.rate, pace.left)
        costs = _short(read_costs(run, run.bus.timeline.ranks))
        if not steps and before.get("costs"):
            speed, costs = before.get("steps_per_second"), before["costs"]
        return {
            "step": run.state.global_step,
            "max_steps": run.state.max_steps,
            "epoch": run.state.epoch,
            "steps_in_session": steps,
            "steps_per_second": speed,
            "seconds_left": left,
            "metrics": self._newest_metrics(steps),
            "best": _best(run),
            "costs": costs,
            "decisions": [str(entry) for entry in list(run.control.ledger)[-DECISIONS:]],
            "resume_from": self._resume_from,
            # A fresh run that fails before it gets an id is not the run of the file.
            "run_id": run.run_id or (self._read(run).get("run_id") if run.session.resume_requested else None) or "",
            "began": self._began,
            "world_size": run.ranks.world_size,
            "rank": run.ranks.rank,
            "time": time.time(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }

    def _newest_metrics(self, steps: int) -> dict[str, Any]:
        """Return the newest value of each name that a session of the run logged.

        If a session makes no step, its totals, such as `train_loss`, do not replace the totals of earlier sessions.

        Args:
            steps: the number of steps of this session.
        """
        earlier = self._before.get("metrics") or {}
        kept = () if steps else (name for name in TOTALS if name in earlier)
        return {**earlier, **self._metrics, **{name: earlier[name] for name in kept}}


def _best(run: Run) -> dict[str, Any] | None:
    """Return the metric, value and step of the best evaluation; None if the run has no best value yet."""
    state = run.state
    if state.best_metric is None:
        return None
    named = best_metric_of(run.bus.subscribers.values())
    return {"metric": named and named.name, "value": state.best_metric, "step": state.best_global_step}


def _short(costs: Costs) -> dict[str, Any]:
    """Return the costs as a dict, with only the `CALLBACKS` slowest callbacks."""
    values = costs.to_dict()
    return {**values, "callbacks": values["callbacks"][:CALLBACKS]}


def _checkpoints_in(folder: Path) -> frozenset[tuple[str, int]]:
    """Return the names of the checkpoints in a folder, each with the time of its last change in nanoseconds."""
    found = set()
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if step_of(Path(entry.name)) is not None:
                with suppress(OSError):  # retention deletes it at this moment
                    found.add((entry.name, entry.stat().st_mtime_ns))
    return frozenset(found)


def preempted_by(signal: str, stopped: str) -> str:
    """Return why a run was preempted: the signal and the reason of the stop request.

    Args:
        signal: the name of the signal, such as `SIGTERM`, or the name and the rank: `SIGTERM, on rank 1`.
        stopped: the reason of the stop request. If `stopped` contains the name of the signal, the result is `stopped`.
    """
    name = signal.partition(",")[0]
    return stopped if name in stopped else "; ".join(filter(None, (signal, stopped)))


def replace(path: Path, values: dict[str, Any]) -> None:
    """Write values to a JSON file atomically: at any time, the file has either the old or the new content.

    If the disk is full, overwrite the file in place, because this needs no free space. During this write, the file may
    have a mixture of the old and the new content.

    Raises:
        OSError: if the file cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(_encoded(values))
        os.replace(beside, path)
    except OSError as error:
        if error.errno not in FULL or not path.is_file():
            raise
        size = int(min(path.stat().st_size, _largest_file()))
        data = _shortened(values, size)
        with open(path, "r+b") as file:
            file.write(data[:-1].ljust(size - 1) + b"\n")
            file.truncate()
    finally:
        beside.unlink(missing_ok=True)


def _largest_file() -> float:
    """Return the largest size of a file in bytes that `ulimit -f` allows; infinity without a limit."""
    try:
        import resource
    except ImportError:  # on Windows
        return math.inf
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def _encoded(values: dict[str, Any]) -> bytes:
    return (json.dumps(written(values), indent=2, allow_nan=False) + "\n").encode()


def _shortened(values: dict[str, Any], size: int) -> bytes:
    """Return values as JSON of at most `size` bytes.

    `DETAILS` lists names of fields. The function empties these fields one after the other, until the JSON is short
    enough. If the JSON is still too long, the function cuts the end of the value `reason`.

    Raises:
        OSError: if the shortest form of the values needs more than `size` bytes.
    """
    data = _encoded(values)
    for name, empty in DETAILS:
        if len(data) > size and name in values:
            data = _encoded(values := {**values, name: empty})
    reason = values["reason"]
    while len(data) > size and reason:
        reason = reason[: -1 - (len(data) - size) // LONGEST_CHARACTER]
        data = _encoded({**values, "reason": reason + CUT})
    if len(data) > size:
        raise OSError(errno.ENOSPC, f"The disk is full, and the old content has only {size} bytes")
    return data


def exit_code(error: BaseException) -> int:
    """Return the exit code of a Python program that does not catch the error."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 130 if isinstance(error, KeyboardInterrupt) else 1
