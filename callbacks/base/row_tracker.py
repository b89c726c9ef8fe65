"""RowTracker: the base class of trackers that write one row per step, in a separate thread."""

from __future__ import annotations

import atexit
import logging
import sys
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.control import TrainerControl
from ...events.errors import ArgumentError
from ...events.stages import Stage, order
from ...events.state import TrainerState
from .outcome import Outcome as Outcome
from .outcome import outcome_of as outcome_of
from .tracker_rows import AXIS, merge, only_resumed, row_of, rows_of_history, settled, totals_of
from .tracker_session import Opening as Opening
from .tracker_session import TrackerSession as TrackerSession
from .tracker_worker import TrackerWorker

logger = logging.getLogger(__name__)


DRAIN_SECONDS = 5.0
"""The longest wait in seconds for the next row to reach the client, when a training ends. Each row that the client
receives starts a new wait."""


@dataclass
class RowTracker(Callback):
    """Writes one row per step to a run of a tracker, on rank 0. A resumed training continues the same run.

    The values of one step become one row, with the step under `train/global_step`. If a step logs a name twice, a
    second row follows. A thread calls the service, and logs errors of the service as warnings. After a crash, the
    tracker skips rows that the service already has. Rows that the service lacks come from the log history of the
    checkpoint.

    A subclass implements `connect`, which returns the function that opens a `TrackerSession`.
    """

    stage = Stage.REPORT
    capabilities = frozenset({Capability.REPORTS})
    service: ClassVar[str] = ""
    """The name of the service, for messages."""

    on_error: str = field(default="warn", kw_only=True)
    """The action when the tracker fails. Default: log a warning and continue the training."""
    deadline: float | None = field(default=None, kw_only=True)
    """The most seconds that the start and the end of a run wait for the tracker. Default: 60 for most trackers."""
    run_id: str | None = field(default=None, init=False)
    """The id of the tracker's run. None until the callback opens a run."""
    _session: TrackerSession | None = field(default=None, init=False, repr=False, compare=False)
    _worker: TrackerWorker | None = field(default=None, init=False, repr=False, compare=False)
    _row: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _step: int = field(default=-1, init=False, repr=False, compare=False)
    _logged_at: float = field(default=0.0, init=False, repr=False, compare=False)
    _written: int = field(default=-1, init=False, repr=False, compare=False)
    _trained: bool = field(default=False, init=False, repr=False, compare=False)
    _repeats: bool = field(default=False, init=False, repr=False, compare=False)
    _warned: bool = field(default=False, init=False, repr=False, compare=False)
    _resumes: int = field(default=0, init=False, repr=False, compare=False)
    _loaded: dict[str, Any] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.deadline is not None and not self.deadline > 0:
            raise ArgumentError(f"{type(self).__name__}(deadline={self.deadline!r}): set a number of seconds above 0.")

    # What a subclass implements.

    def connect(self, run: Run, opening: Opening) -> Callable[[], TrackerSession]:
        """Read the tracker's settings from `run`, and return the function that opens a `TrackerSession`."""
        raise NotImplementedError

    def prepare(self, run: Run, opening: Opening) -> Opening:
        """Return the values that `connect` receives: `opening`, or an `Opening` with changes, such as a new run id."""
        return opening

    def extra_columns(self, run: Run) -> dict[str, Any]:
        """Return the columns to add to every row, such as the column of an x-axis."""
        return {}

    def unfinished_run(self, run: Run) -> str | None:
        """Return the id of the tracker's run that the session continues; None to start a new run of the tracker.

        This method is called only if the session should resume, but has no saved state of this callback. Example: the
        training was killed before its first checkpoint.
        """
        return None

    def saved_state(self) -> dict[str, Any]:
        """Return the values that a checkpoint stores for a resumed session."""
        return {}

    def writes(self, run: Run) -> bool:
        """Return whether this process writes to a run of the tracker. By default, only rank 0 does."""
        return run.state.is_world_process_zero

    def missed(self, count: int, reason: str) -> None:
        """Warn after the run that the service did not receive `count` rows or values. `reason`: the first error."""
        logger.warning("%s did not receive %d rows or values. The first reason: %s", self.service, count, reason)

    @property
    def opening_timeout(self) -> float:
        """How many seconds the training waits for the tracker to open its run. Afterwards, rows wait in memory."""
        return 60.0

    @property
    def closing_timeout(self) -> float:
        """How many seconds the program waits for the tracker to send the last rows and close its run."""
        return 60.0

    def within(self, timeout: float) -> float:
        """Return `timeout`, or the field `deadline` if it is set and is shorter. Both are in seconds."""
        return timeout if self.deadline is None else min(timeout, self.deadline)

    # Opening.

    def on_init_end(self) -> None:
        self._loaded, self._trained = None, False
        if self._worker is None:
            self.run_id = None  # a new trainer reports to a new run, unless `start` opened it

    @order(Stage.PREPARE)  # the handlers of users may write to the run
    def on_train_begin(self, run: Run) -> None:
        loaded, self._loaded = self._loaded, None
        if self._trained and loaded is None:
            self._finish(Outcome())  # a second training from the start is another run
        elif loaded is not None and loaded["run_id"] != self.run_id:
            self._finish(Outcome())
        opening = self._opening(run, loaded)
        if self._worker is None:
            self._open(run, opening)
        else:
            self._adopt(run, opening)
        self._trained = True

    def _opening(self, run: Run, loaded: dict[str, Any] | None) -> Opening:
        step = run.state.global_step
        if loaded is not None:
            self._resumes = int(loaded.get("resumes", 0)) + 1
            return Opening(loaded["run_id"], self._resumes, step, loaded)
        if self._worker is not None and self.run_id is not None:  # an evaluation before the training opened it
            return Opening(self.run_id)
        self._resumes = 0
        known = self.unfinished_run(run) if run.session.resume_requested else None
        if known is not None:
            return Opening(known, 1, step)
        return Opening(self.new_id(run))

    def new_id(self, run: Run) -> str:
        """Return the id of a new run of the tracker. Empty: the service chooses the id."""
        return uuid.uuid4().hex

    def _open(self, run: Run, opening: Opening) -> None:
        if self.writes(run):
            self._open_prepared(run, self.prepare(run, opening))

    def _open_prepared(self, run: Run, opening: Opening) -> None:
        self.run_id, self._resumes = opening.run_id, opening.resumes
        self._row, self._step, self._written, self._session, self._warned = {}, -1, -1, None, False
        self._repeats = opening.resumes > 0 and opening.exact
        self._begin(self.connect(run, opening))
        self._restore(run, opening)

    def _begin(self, opens: Callable[[], TrackerSession]) -> None:
        """Start the worker thread, which opens the run. Wait up to `opening_timeout` seconds for the first attempt.

        Args:
            opens: opens the run. If it raises an error, the worker calls it again later.
        """

        def open_run() -> None:
            session = opens()
            session._service = self.service or type(self).__name__
            self._session, self.run_id = session, session.run_id
            _finish_at_exit(self)  # after the client registered its exit function, because the last one runs first

        worker = self._worker = TrackerWorker(self.service, open_run)
        timeout = self.within(self.opening_timeout)
        if not worker.wait_until_tried(timeout):
            said = "%s does not answer after %g s. The training starts, and its rows wait in memory."
            logger.info(said, self.service, timeout)
        if self._session is None:
            _finish_at_exit(self)

    def _adopt(self, run: Run, opening: Opening) -> None:
        """Continue the open run of the tracker, or close this run and open the run of `opening`.

        The open run is closed if it has another id than `opening`. It is also closed if `opening` resumes a run and
        this process has already written rows.
        """
        wanted = self.prepare(run, opening)
        # A resume after rows of this process opens the run again, because an open run does not skip or remove rows.
        if wanted.run_id != self.run_id or (wanted.resumes and self._written >= 0):
            self._finish(Outcome())
            self._open_prepared(run, wanted)
            return
        self._resumes, self._repeats = wanted.resumes, wanted.resumes > 0 and wanted.exact
        self._reopen()
        self.describe(run, wanted)
        self._restore(run, wanted)

    def _reopen(self) -> None:
        """If the user's program has finished the tracker's run, open it again, and wait until it is open."""
        if self._worker is not None and self._session is not None and self._session.ended:
            self.submit(lambda session: session.reopen())
            self._worker.drain(self.within(self.opening_timeout))

    def _restore(self, run: Run, opening: Opening) -> None:
        """After a resume, write the rows of the log history that the service lacks."""
        for step, row in rows_of_history(self.backfilled(run, opening), opening.step):
            self._put(row, step, repeated=True, logged_at=time.time())

    def describe(self, run: Run, opening: Opening) -> None:
        """Send the settings of a training to a run that was already open, for example for an earlier evaluation."""

    def backfilled(self, run: Run, opening: Opening) -> Any:
        """Return the log history if the training resumes, to write missing rows; () if the training is new."""
        return run.state.log_history if opening.resumes or opening.step else ()

    # Rows.

    def on_log(self, run: Run, state: TrainerState, logs: dict[str, Any]) -> None:
        if self._worker is None:
            if not self.writes(run):
                return
            self._open(run, Opening(self.run_id or self.new_id(run)))
        if (totals := totals_of(logs)) and not only_resumed(run):
            self.submit(lambda session: session.summarize(totals), again=True)
        row = row_of(settled(logs), state.global_step)
        # The totals of a training that was complete when it resumed come after the last row was restored.
        if row and not (totals and state.global_step <= self._written and row.keys() <= {"train/epoch", AXIS}):
            self.add(run, row)

    def on_predict(self, run: Run, state: TrainerState, metrics: dict[str, Any]) -> None:
        RowTracker.on_log(self, run, state, metrics)  # a subclass may override `on_log`

    def add(self, run: Run, row: dict[str, Any]) -> None:
        """Add columns to the row of the current step."""
        step = run.state.global_step
        if step != self._step or not merge(self._row, row):
            self._commit()
            self._logged_at = time.time()
            self._step, self._row = step, {**self.extra_columns(run), **row, AXIS: step}

    def on_step_end(self, run: Run, state: TrainerState, control: TrainerControl) -> None:
        if self._row and self._step < state.global_step:
            self._commit()

    def _commit(self) -> None:
        row, self._row = self._row, {}
        if row:
            self._put(row, self._step, repeated=self._repeats, logged_at=self._logged_at)

    def _put(self, row: dict[str, Any], step: int, repeated: bool, logged_at: float) -> None:
        """Make the thread write a row.

        Args:
            row: the row.
            step: the step of the row.
            repeated: whether to skip the row if the service has it (`TrackerSession.has`).
            logged_at: the time of the log, in seconds since 1970.
        """
        if step < self._written and not self._warned:
            self._warned = True
            logger.warning(
                "%s: step %d is lower than step %d, the last one of the run %s. The rows are written, and the axis "
                "%r decreases. Use a new run for a new training.",
                *(self.service, step, self._written, self.run_id, AXIS),
            )
        self._written = max(step, self._written)

        def write(session: TrackerSession) -> None:
            if not (repeated and session.has(step)):
                session.logged_at = logged_at
                session.write(row, step)

        self.submit(write, again=True)

    def submit(self, call: Callable[[Any], None], again: bool = False) -> None:
        """Make the tracker's thread run the function `call` after all earlier calls.

        Args:
            call: the function. It receives the open `TrackerSession`.
            again: whether to repeat the call after a failure.
        """
        if self._worker is not None:
            self._worker.submit(lambda: self._call(call), again)

    def _call(self, call: Callable[[Any], None]) -> None:
        if self._session is None:
            raise ConnectionError("the run of the tracker is not open")
        call(self._session)
        self.run_id = self._session.run_id  # the session may open another run: see `flush`

    def flush(self) -> None:
        """Write the waiting rows. Call this method before your program finishes the run, as with `wandb.finish()`.

        With wandb, the training can log more rows after your program finishes the run. If the tracker opened the run,
        the later rows go to the same run. If your program opened the run, the later rows go to a new run.
        """
        if self._worker is not None and not self._worker.is_current:
            self._commit()
            self._worker.drain(DRAIN_SECONDS, self.within(float("inf")))

    # The end.

    def on_train_end(self, run: Run, control: TrainerControl) -> None:
        values = {"stopped": control.why("training_stop"), **self.final_summary(run)}
        self.submit(lambda session: session.summarize(values), again=True)

    def final_summary(self, run: Run) -> dict[str, Any]:
        """Return values for the summary of the tracker's run: name -> value. Called when a training ends."""
        return {}

    def on_exception(self, run: Run, exception: BaseException) -> None:
        self._finish(outcome_of(exception))

    def on_close(self) -> None:
        self._commit()
        self._repeats = False  # later evaluations are new
        if self._worker is not None and self._session is not None:
            self._worker.drain(DRAIN_SECONDS, self.within(float("inf")))  # the user may read or finish the run next

    def on_end(self) -> None:
        self.finish()

    def finish(self, failed: bool = False) -> None:
        """Close the tracker's run if it is open. With `failed=True`, the service shows the run as failed."""
        self._finish(Outcome(1 if failed else 0))

    def _finish(self, outcome: Outcome) -> None:
        self._commit()
        worker, self._worker = self._worker, None
        if worker is None:
            return

        def close() -> None:
            session, self._session = self._session, None
            if session is not None:
                session.finish(outcome)

        timeout = self.within(self.closing_timeout)
        done = worker.close(timeout, close)
        missed = worker.missed + (0 if done else worker.waiting)
        if not done or missed:
            slow = f"it did not finish within {timeout:g} s"
            self.missed(missed, worker.reason or slow)

    def state_dict(self) -> dict[str, Any]:
        if self._loaded is not None:
            return dict(self._loaded)  # nothing opened yet
        if self.run_id is None:
            return {}
        saved = self.saved_state()  # first, because rows that it writes may open another run
        return {"run_id": self.run_id, "resumes": self._resumes, **saved}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._loaded = dict(state)


def _finish_at_exit(tracker: RowTracker) -> None:
    """Register a function that closes the tracker's run when the program ends."""
    reference = weakref.ref(tracker)

    def finish() -> None:
        found = reference()
        if found is not None:
            error = getattr(sys, "last_value", None)  # the error that ended the program, if there was one
            found._finish(outcome_of(error) if isinstance(error, BaseException) else Outcome())

    atexit.register(finish)
