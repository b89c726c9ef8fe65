"""Open, write and finish a wandb run. The worker thread of the tracker calls these functions."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import wandb
from wandb.sdk.wandb_run import TeardownHook, TeardownStage

from ...callbacks.base.row_tracker import Outcome, TrackerSession
from ...callbacks.base.tracker_rows import AXIS
from ...engine.api.console import say
from ...events.control import TrainerControl
from . import identity, service
from .identity import Identity
from .limits import Guard, is_plain
from .opening import Request, init, request_after
from .run_file import missing_rows, wait_until_complete, wait_until_quiet

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_OURS: dict[str, WandbSession] = {}
"""The open runs of this process, by id. Runs that the user's program opened are not included."""
_UNSEEN: dict[str, tuple[int, int]] = {}
"""Id of a run that this process finished -> its last step and its number of rows. The file of such a run may not have
all rows yet."""
_LOCK = threading.Lock()
RECENT_ROWS, RECENT_SECONDS = 1000, 60.0
"""A session stores its last rows: at most this number of rows, for this number of seconds. If wandb-core dies before
it writes these rows, the session writes them again."""
ALERT_SECONDS = 600
"""The shortest time between two alerts with the same title."""


class WandbSession(TrackerSession):
    """An open run of wandb."""

    def __init__(self, live: Any, owned: bool, request: Request) -> None:
        """Wrap an open run.

        Args:
            live: the open run, as returned by `wandb.init`.
            owned: whether this session finishes the run. False for a run that the user's program opened.
            request: the request that `open_run` received.
        """
        self.live, self.owned, self.request = live, owned, request
        self.run_id = live.id
        self._guard = Guard(leave_out=self.leave_out)
        self._defined: set[tuple[str, ...]] = set()
        self.segments: tuple[identity.Segment, ...] = ()
        """The segments of the run so far. Each checkpoint contains the segments, because a copy of the checkpoint may
        resume in another folder."""
        self.progress = (-1, 0)
        """The step of the last written row, and the number of rows of the run."""
        self._recent: deque[tuple[float, float, int, dict[str, Any]]] = deque(maxlen=RECENT_ROWS)
        self._hook = TeardownHook(request.before_finish or (lambda: None), TeardownStage.EARLY)
        hooks_of(live).append(self._hook)

    @property
    def ended(self) -> bool:
        """Whether the run is finished, for example because the program called `wandb.finish()`."""
        return getattr(self.live, "_is_finished", False) is True

    def reopen(self) -> None:
        if self.ended:
            self._open_after_end()

    def continue_after(self, step: int, counter: int, rows: float) -> None:
        """Make `has` return True for the rows that the run already has. Number the next row `counter + 1`.

        Args:
            step: the last step of the run.
            counter: the last value of `_step`, the row number of the client.
            rows: the number of rows that the run has for this step; infinite if the number is not known.
        """
        self.last_step, self.rows_of_last_step, self.progress = step, rows, (step, counter + 1)
        if self.owned and self.live.offline:
            self.live.log({}, step=counter + 1, commit=False)  # online, the service continues the counter

    def write(self, row: dict[str, Any], step: int) -> None:
        row = self._guard.apply(row)
        try:
            self._with_service(lambda: self._log(row, step))
        except (AttributeError, TypeError, ValueError) as error:  # the client cannot convert a value
            refused = [name for name, value in row.items() if not is_plain(value)]
            if not refused:
                raise
            for name in refused:  # the error does not say which value the client refuses
                self.leave_out(name, row[name], str(error))
            row = {name: value for name, value in row.items() if name not in refused}
            self._with_service(lambda: self._log(row, step))
        now = time.monotonic()
        self._recent.append((now, self.logged_at, step, row))
        while now - self._recent[0][0] > RECENT_SECONDS:
            self._recent.popleft()

    def _log(self, row: dict[str, Any], step: int) -> None:
        self._define(row)
        # The client uses its own time for rows without `_timestamp`.
        # Without `step=`: the user's own `log` calls advance the client's counter, and the client drops rows below it.
        self.live.log({**row, "_timestamp": self.logged_at}, commit=True)
        self.progress = (max(step, self.progress[0]), self.progress[1] + 1)

    def summarize(self, values: Mapping[str, Any]) -> None:
        plain = self._guard.apply(values)
        if self.ended and not self.owned:  # another run with a summary and no rows would only surprise
            logger.warning("The program finished the run %s, so its summary lacks %s.", self.run_id, ", ".join(plain))
            return
        self._with_service(lambda: self.live.summary.update(plain))

    def _with_service(self, call: Callable[[], _T]) -> _T:
        """Call a function and return its result.

        If the user's program finished the run, first call `_open_after_end`. If wandb-core has died, and this session
        opened the run, start wandb-core, open the run again, and repeat the call.
        """
        if not self.ended:
            try:
                return call()
            except Exception as error:
                if not self.ended:  # the program may finish the run during the call
                    if not self.owned or not service.has_died():
                        raise
                    logger.warning("The service of wandb has ended: %s. The run continues with another one.", error)
                    service.restart()
                    self._open_again(self._further_part())
                    return call()
        self._open_after_end()
        return call()

    def _further_part(self) -> Request:
        """Build the request that opens the run again, after wandb-core has died or the program has finished the run."""
        known = replace(self.request.identity, run_id=self.run_id, segments=self.segments)
        stored = identity.load(self.request.folder, self.run_id) or known
        return replace(self.request, identity=stored, resumes=True, save_code=False)

    def _open_after_end(self) -> None:
        """Open a run for the next rows, after the user's program finished the current run.

        If this session opened the finished run, open the same run again. Otherwise, open a new run in the project of
        the finished run.
        """
        before, last = self.run_id, self.progress[0]
        if self.owned:
            self._open_again(self._further_part())
        else:
            self._open_again(request_after(self.request, self.live))
        where = "a further part of this run" if self.run_id == before else f"the run {self.run_id}"
        logger.warning(
            "The program finished the wandb run %s. %s go to %s. To prevent this, finish the run after "
            "`trainer.end()`.",
            *(before, "All rows" if last < 0 else f"Rows after step {last}", where),
        )

    def _open_again(self, request: Request) -> None:
        """Open a run for `request`, and use this new run instead of the current run.

        wandb-core may die before it writes a row. So the new run may lack recent rows of the current run. The method
        writes these rows again, except if the user's program opened the current run or the new run.
        """
        with _LOCK:
            _OURS.pop(self.run_id, None)
        lost, opened = list(self._recent) if self.owned else [], open_run(request)
        if opened.owned:
            with _LOCK:
                _OURS[opened.run_id] = self
        if self.owned and opened.owned:
            self.last_step, self.rows_of_last_step, self._repeated = opened.last_step, opened.rows_of_last_step, 0
        else:  # a run of the program begins or ends: the rows that it has are not repeated
            lost = []
        self.live, self.owned, self.run_id, self.request = opened.live, opened.owned, opened.run_id, request
        self.progress, self.segments, self._hook = opened.progress, opened.segments, opened._hook
        self._defined.clear()
        for _, logged_at, step, row in lost:
            if not self.has(step):
                self.logged_at = logged_at
                self._log(row, step)

    def update_config(self, values: Mapping[str, Any]) -> None:
        """Add values to the config of the run."""
        self._with_service(lambda: self.live.config.update(dict(values), allow_val_change=True))

    def alert(self, title: str, text: str) -> None:
        """Send an alert. The service drops an alert if it got one with the same title in the last 10 minutes."""
        told = {"title": title[:63], "text": text, "level": "ERROR", "wait_duration": ALERT_SECONDS}
        self._with_service(lambda: self.live.alert(**told))

    def log_artifact(self, artifact: Any, aliases: Sequence[str]) -> Any:
        """Upload an artifact. Return the object that wandb's `log_artifact` returns."""
        return self._with_service(lambda: self.live.log_artifact(artifact, aliases=list(aliases)))

    def finish(self, outcome: Outcome) -> None:
        if not self.owned:
            if self._hook in (hooks := hooks_of(self.live)):
                hooks.remove(self._hook)  # the run of the program outlives the trainer
            with _LOCK:
                _UNSEEN[self.run_id] = self.progress
            return
        with _LOCK:
            _OURS.pop(self.run_id, None)
        if outcome.preempted and not self.ended:
            self._with_service(lambda: self.live.mark_preempting())
        if not self.ended:
            self._with_service(lambda: self.live.finish(exit_code=outcome.exit_code))
        if self.request.primary and not self.live.disabled:
            # The client returns before its service has written the file.
            if not wait_until_complete(Path(self.live.sync_dir)):
                with _LOCK:
                    _UNSEEN[self.run_id] = self.progress
                if self.live.offline and (lacks := missing_rows(Path(self.live.sync_dir), AXIS, self.progress[0])):
                    logger.warning("The wandb run %s is not complete: %s", self.run_id, lacks)
            stored = identity.load(self.request.folder, self.run_id) or self.request.identity
            _store(self.request.folder, replace(stored, finished=not outcome.exit_code))
            tell_sync(stored)

    def _define(self, row: Mapping[str, Any]) -> None:
        for name in _leaves(row):
            if name not in self._defined:
                self._defined.add(name)
                key = ".".join(part.replace("\\", "\\\\").replace(".", "\\.") for part in name)
                axis = self.request.axis_of("/".join(name))
                if name == (axis,):
                    self.live.define_metric(key)
                else:
                    self.live.define_metric(key, step_metric=axis)


def hooks_of(live: Any) -> list[Any]:
    """Return the list of functions that the wandb run `live` calls when it finishes. The caller may change the list.

    If this version of wandb has no such list, return a new empty list. A change of this new list has no effect.
    """
    found = getattr(live, "_teardown_hooks", None)
    return found if isinstance(found, list) else []


def _leaves(row: Mapping[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the path of each value of a row, as a tuple of keys. Values in nested dicts have paths of several keys."""
    found: list[tuple[str, ...]] = []
    for name, value in row.items():
        found += _leaves(value, (*above, name)) if isinstance(value, Mapping) else [(*above, name)]
    return found


def open_run(request: Request) -> WandbSession:
    """Open the wandb run that `request` describes. If the service fails, open the run offline.

    If the user's program already opened a run, use the run of the program instead.

    Raises:
        Exception: an error of `wandb.init` in offline mode.
    """
    _finish_earlier(request.identity.run_id)
    _wait_for_earlier(request.identity)
    active = wandb.run
    if active is not None and active.id not in _OURS:
        session = WandbSession(active, owned=False, request=request)
        session.update_config({**request.config, **request.changes})
        if request.resumes and active.id == request.identity.run_id:
            _continue(session)
        return session
    _store_id(request)
    try:
        live = init(request)
    except Exception:
        if not service.has_open_runs():
            service.restart()  # it may keep the id in use, and the next attempt needs it
        raise
    session = WandbSession(live, owned=True, request=request)
    with _LOCK:
        _OURS[live.id] = session
    if live.disabled:
        return session
    if request.save_code:
        live.log_code()
    if request.changes:
        session.update_config(request.changes)
    if request.resumes:
        _continue(session)
    if request.primary:
        known = replace(request.identity, run_id=live.id).with_segment(live.sync_dir, bool(live.offline))
        session.segments = known.segments
        _store(request.folder, known, opens=True)
    return session


def _store_id(request: Request) -> None:
    """Store the id of a new run in the folder `request.folder` before the client opens the run.

    If the process is killed while the client opens the run, the next process continues the same run.
    """
    stored = identity.load(request.folder)
    writes = request.primary and (request.options.get("mode") or os.environ.get("WANDB_MODE")) != "disabled"
    if writes and (stored is None or stored.run_id != request.identity.run_id):
        with suppress(OSError):  # the store after the opening warns
            identity.store(request.folder, request.identity, opens=True)


def _store(folder: Path, known: Identity, opens: bool = False) -> None:
    """Call `identity.store(folder, known, opens)`. If the call raises an `OSError`, log a warning."""
    try:
        identity.store(folder, known, opens)
    except OSError as error:
        logger.warning("The id %s of the wandb run cannot be stored in %s: %s", known.run_id, folder, error)


def _finish_earlier(run_id: str) -> None:
    """If trainbus has the run `run_id` open in this process, finish the run, to complete the file of the run.

    The client cannot write two runs with the same id at the same time.
    """
    with _LOCK:
        earlier = _OURS.get(run_id)
    if earlier is not None:
        earlier.finish(Outcome())


def _wait_for_earlier(known: Identity) -> None:
    """Wait until no process writes to the last segment in `known`, for at most about 4 seconds.

    The process wandb-core of a killed program may still write the file of this segment.

    The name of a segment's folder has its start time, such as `20250131_120000`. Two segments that start in the same
    second would share a folder. If the last segment started in the current second, wait until the next second.
    """
    for part in known.segments[-1:]:
        wait_until_quiet(Path(part.folder))
        # The client names a folder by the second, and would write over the file of a part from the same second.
        while time.strftime("%Y%m%d_%H%M%S") in Path(part.folder).name:
            time.sleep(0.05)


def _continue(session: WandbSession) -> None:
    """Find the last step of a resumed run, and make the session skip the rows that the run already has.

    By default, the last step is the step in the local files. There are two exceptions:

    - If an online run has other rows than the local files, the service gives the last step.
    - If local files of an offline run are missing, or if wandb's mode is `shared`, the step in the local files may be
      too early. If the checkpoint has a later step, the step of the checkpoint is the last step.
    """
    request, live = session.request, session.live
    local = request.identity.written(AXIS)
    with _LOCK:
        unseen_step, unseen_rows = _UNSEEN.pop(request.identity.run_id, (-1, 0))
    local = replace(local, step=max(local.step, unseen_step), counter=max(local.counter, unseen_rows - 1))
    gone = any(part.file is None for part in request.identity.segments) or not request.identity.segments
    step, counter, rows = local.step, local.counter, float(local.rows)
    if unseen_step >= local.step:
        rows = math.inf
    shared = live.settings.mode == "shared"  # the service numbers the rows of a shared run
    if not live.offline and not shared:
        arrived = int(live.starting_step) - 1
        if counter < 0 or counter != arrived:  # another machine wrote the rows, or the last ones did not arrive
            step, counter, rows = int(live.summary.get(AXIS, -1)), arrived, math.inf
    elif gone or shared:
        step, rows = max(step, request.known_step), math.inf
        counter = max(counter, request.known_rows, request.known_step)
    session.continue_after(step, counter, rows)


def tell_sync(known: Identity) -> None:
    """Print the commands that upload the offline segments of a run. Without such segments, print nothing."""
    waiting = known.waiting
    if waiting:
        commands = "\n".join(identity.sync_commands(waiting))
        say(f"This run is offline. Upload it with:\n{commands}")


@contextmanager
def speaking_for(control: TrainerControl, live: Any) -> Iterator[None]:
    """Return a context manager. Inside its `with` block, the author of flag writes is the wandb account."""
    speaking = control.speaking
    before, speaking.author = speaking.author, f"{getattr(live, 'entity', None) or 'user'} (wandb)"
    try:
        yield
    finally:
        speaking.author = before
