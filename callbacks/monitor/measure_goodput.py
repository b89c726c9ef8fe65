"""Record the times of each session of a run, to compute the goodput of the run over restarts."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...engine.api.costs.goodput import MEASURED, NAME, VERSION
from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError
from ...events.stages import Stage, order
from ...events.timeline import DATA, EVALUATE, SAVES, WAIT
from ..base.line_file import LineFile

logger = logging.getLogger(__name__)

GROWTH = 0.01
"""The shortest time between two heartbeats, as a share of the length of the session so far. In a long session, the
heartbeats become rare, so the file stays small."""
IMPORTED = time.time()


@dataclass
class MeasureGoodput(Callback):
    """Appends the times of each session to `goodput.jsonl` in the output folder, to measure the goodput of the run.

    The goodput is the time of the kept steps, divided by the time of all sessions. A step is lost if the run resumes
    from an earlier step. All other steps are kept. `trainbus status` and the report show the goodput.

    Every trainer has one `MeasureGoodput`. Rank 0 writes the file. If no callback can write checkpoints, there is no
    file. The callback writes a line when training begins, at each save, and when training ends. Between these lines, a
    thread writes heartbeats. A heartbeat is a line with the current step and time, which shows that the session still
    runs. The steps do not wait for the thread. If the process is killed, the file lacks only the time after the last
    line.

    Raises:
        ArgumentError: if the field `seconds` is not above 0.
    """

    stage = Stage.RELEASE
    on_error = "warn"

    seconds: float = 1.0
    """The shortest time between two heartbeats, in seconds. In a long session, the time between
    heartbeats is 1 % of the length of the session so far."""
    _file: LineFile | None = field(default=None, init=False, repr=False, compare=False)
    _id: str = field(default="", init=False, repr=False, compare=False)
    _built: float = field(default=0.0, init=False, repr=False, compare=False)
    _began: float = field(default=0.0, init=False, repr=False, compare=False)
    _before: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _ended: threading.Event | None = field(default=None, init=False, repr=False, compare=False)
    _thread: threading.Thread | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ArgumentError(f"MeasureGoodput({self.seconds}): set a number of seconds above 0.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> MeasureGoodput:
        return cls()

    @order(Stage.PREPARE)
    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self._built = _began_of_session()

    def on_train_begin(self, run: Run) -> None:
        self._finish(run)
        if not (run.saves and run.state.is_world_process_zero):  # a run that saves nothing is not resumed
            return
        # Differences of the monotonic clock, because somebody may set the system clock.
        start_up, self._id = time.time() - self._built, uuid.uuid4().hex[:12]
        # An evaluation before the first step is not start-up. A resumed run repeats an interrupted evaluation here.
        self._began, self._before = time.monotonic() - start_up, {**_parts(run), "evaluating": 0.0}
        try:
            run.args.output_path.mkdir(parents=True, exist_ok=True)
            self._file = LineFile(run.args.output_path / NAME)
        except OSError as error:
            logger.warning("The goodput of the run is not measured: %s", error)
            return
        resumes = bool(run.state.global_step or run.session.resume_requested)
        self._write_parts(run, "start", goodput=VERSION, began=self._built, resumes=resumes)
        self._ended = ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, args=(run, ended), name="trainbus-goodput", daemon=True)
        self._thread.start()

    def on_save_due(self, run: Run) -> None:
        self._write_parts(run, "save")

    @order(Stage.PREPARE)  # closing events run in reverse order, so the time of the other callbacks counts
    def on_close(self, run: Run) -> None:
        self._finish(run)

    def _finish(self, run: Run) -> None:
        if self._ended is not None and self._thread is not None:
            self._ended.set()
            self._thread.join()
        if self._file is not None:
            self._write_parts(run, "end", how=_end_of(run.exception))
            with suppress(OSError):
                self._file.close()
        self._ended, self._thread, self._file = None, None, None

    def _beat(self, run: Run, ended: threading.Event) -> None:
        while not ended.wait(max(self.seconds, GROWTH * (time.monotonic() - self._began))):
            self._write(run, "beat")

    def _write_parts(self, run: Run, what: str, **more: Any) -> None:
        if self._file is not None:
            parts = _parts(run)
            self._write(run, what, **{name: round(parts[name] - self._before[name], 3) for name in MEASURED}, **more)

    def _write(self, run: Run, what: str, **more: Any) -> None:
        """Append a line to the file, if the file is open. The thread of the heartbeats calls this method too.

        Args:
            run: the run.
            what: the kind of the line: `start`, `beat`, `save` or `end`.
            **more: other values of the line.
        """
        seconds = round(time.monotonic() - self._began, 3)
        record = {"session": self._id, "what": what, "step": run.state.global_step, "seconds": seconds, **more}
        file = self._file
        try:
            if file is not None:
                # A kill or a full disk may have cut the last line of the session before this one.
                file.append("\n" * (what == "start") + json.dumps(record) + "\n")
        except OSError as error:  # a full disk ends no training
            logger.debug("No record in %s: %s", NAME, error)


def _end_of(error: BaseException | None) -> str:
    if error is None:
        return "ended"
    return "failed" if isinstance(error, Exception) else "interrupted"


def _parts(run: Run) -> dict[str, float]:
    """Return the seconds of this session so far: in evaluations (`evaluating`), in saves (`saving`), and in waits for
    data or other ranks (`waiting`).

    `waiting` is an estimate. Only one in seven of the steps without log, evaluation or save is measured in detail.
    """
    timeline = run.bus.timeline
    parts = timeline.sums().parts
    seconds = {name: parts[name] * 1e-9 for name in (EVALUATE, SAVES, DATA, WAIT)}
    waiting = seconds[DATA] + seconds[WAIT] + timeline.stalled
    return {"evaluating": seconds[EVALUATE], "saving": seconds[SAVES], "waiting": waiting}


_known_session = [False]


def _began_of_session() -> float:
    """Return when the current session began, in seconds since 1970.

    The first training session of a program begins with the process, so that imports and the preparation of data count.
    A later session of the program begins when this function is called. In a notebook or at a prompt, each session
    begins when this function is called.
    """
    first, _known_session[0] = not _known_session[0], True
    interactive = hasattr(sys, "ps1") or "ipykernel" in sys.modules
    return began_of_process() if first and not interactive else time.time()


def began_of_process() -> float:
    """Return when this process began, in seconds since 1970. Outside of Linux: when this module was imported."""
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - age
    except (OSError, ValueError, AttributeError, IndexError):
        return IMPORTED
