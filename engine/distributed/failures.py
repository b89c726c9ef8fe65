"""Faults of several processes: one that fails leaves word why, and one that waited for it in vain says so.

Nothing is done in the course of a run. What a process leaves word of, it leaves in the store that the process group was
joined by, which works when a collective does not.
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from ...events.errors import RankFailure
from .consistency import check_told, digest, named, told
from .ranks import Ranks, lost_touch
from .rendezvous import Store

if TYPE_CHECKING:
    from ..run import Run

logger = logging.getLogger(__name__)

LISTENS = 2.0
"""Seconds for which a process that lost touch waits for word of the others."""

_SESSIONS = itertools.count(1)
"""All processes have the same sessions: what was left in an earlier one, and is over, is told apart by its number."""

_PAUSE = 0.05
_HERE, _FAILED, _ENDED = "trainbus/process/", "trainbus/failed/", "trainbus/ended/"

T = TypeVar("T")


@dataclass(frozen=True)
class Report:
    """What a process that fails leaves word of."""

    rank: int
    """The process."""
    where: str
    """What it was at, as `backward of step 5`."""
    error: str
    """Its error, as `ValueError: no rows`."""
    lost: bool
    """Whether it failed only because it waited for another in vain."""


@dataclass(frozen=True)
class Peer:
    """Where a process is."""

    machine: str
    """The machine, and the part of it that can see the process."""
    pid: int
    """Its number there."""

    @classmethod
    def here(cls) -> Peer:
        """Return this process."""
        try:
            space = os.readlink("/proc/self/ns/pid")  # two containers of a name do not see each other's processes
        except OSError:
            space = ""
        return cls(f"{socket.gethostname()} {space}", os.getpid())

    def alive(self) -> bool | None:
        """Say whether it is alive; None if that cannot be told from here."""
        if self.machine != Peer.here().machine:
            return None
        try:
            os.kill(self.pid, 0)
            with open(f"/proc/{self.pid}/stat", encoding="utf-8", errors="replace") as file:
                return file.read().rpartition(")")[2].split()[0] not in "ZX"  # dead, and not yet buried
        except ProcessLookupError:
            return False
        except (OSError, IndexError):
            return True


@cache
def introduce(ranks: Ranks) -> None:
    """Leave word where this process is, and at its end, of an error of its program that nobody caught.

    Done when it joined the others: what happens to it before its first session is known to them too.
    """
    if not ranks.single_process:
        store = ranks.store
        here = Peer.here()
        within(LISTENS, lambda: _write(store, f"{_HERE}{ranks.rank}", asdict(here)), None)
        atexit.register(_leave_last_word, ranks)


def _leave_last_word(ranks: Ranks) -> None:
    error = getattr(sys, "last_value", None)
    if error is not None and not isinstance(error, RankFailure):
        report = Report(ranks.rank, "its program", in_a_line(error)[:2000], lost=False)
        with suppress(Exception):  # what a store raises that is gone; and no thread begins in a program that ends
            _write(ranks.store, f"{_ENDED}{ranks.rank}", asdict(report))


def _write(store: Store | None, key: str, values: dict[str, Any]) -> None:
    if store is not None:
        store.set(key, json.dumps(values))


def _read(store: Store | None, key: str) -> dict[str, Any] | None:
    return json.loads(store.get(key)) if store is not None and store.check([key]) else None


class Watch:
    """Watches over one session of a single process: there is nobody to tell, and nobody to wait for."""

    def begin(self) -> None:
        """Look at the others before anything is announced."""

    def explain(self, error: BaseException) -> BaseException:
        """Return the error to raise in place of another: that one, unless it only says that another process failed."""
        return error


class RanksWatch(Watch):
    """Watches over one session of several processes."""

    def __init__(self, run: Run) -> None:
        """Watch over the session of `run` that begins, on every process."""
        self._run = run
        self._session = next(_SESSIONS)
        self._peers: dict[int, Peer] = {}
        self._others = [rank for rank in range(run.ranks.world_size) if rank != run.ranks.rank]

    def begin(self) -> None:
        mine, here = told(self._run), Peer.here()
        everyone = self._run.ranks.gather_objects((here.machine, here.pid, digest(mine)))
        self._peers = {rank: Peer(machine, pid) for rank, (machine, pid, _) in enumerate(everyone)}
        check_told(self._run, mine, [told_digest for *_, told_digest in everyone])

    def explain(self, error: BaseException) -> BaseException:
        """Tell the others of an error; of one that comes of losing touch with them, return what they tell of it."""
        run, lost = self._run, lost_touch(error)
        mine = Report(run.ranks.rank, where(error, run.state.global_step), in_a_line(error)[:2000], lost)
        store = run.ranks.store
        # The store may be gone with its process, and an answer of it be waited for in vain.
        within(LISTENS, lambda: _write(store, self._key(mine.rank), asdict(mine)), None)
        if not lost:
            return error
        heard: dict[int, Report] = {}
        silent: dict[int, bool | None] = {}
        within(2 * LISTENS, lambda: self._listen(store, heard, silent), None)
        reports = dict(heard)  # the thread may not be done
        left = dict(silent) or self._silent(reports)
        text = str(error).lower()
        waited = run.args.ddp_timeout if "timed out" in text or "timeout" in text else None
        said = explanation(mine, reports, left, waited)
        logger.error("%s", said)  # now: a launcher that has noticed too may end this process before it prints its error
        return RankFailure(said)

    def _key(self, rank: int) -> str:
        return f"{_FAILED}{self._session}/{rank}"

    def _listen(self, store: Store | None, heard: dict[int, Report], silent: dict[int, bool | None]) -> None:
        """Wait for the reports of others, until one is of an error of its own, or a process is found to be gone."""
        for rank in self._others:  # one that never came to this session said earlier where it is
            if rank not in self._peers and (place := _read(store, f"{_HERE}{rank}")):
                self._peers[rank] = Peer(**place)
        deadline = time.monotonic() + LISTENS
        while True:
            seen = self._silent({})  # looked at first: who is gone now has left all that it had to say
            for rank in set(self._others) - set(heard):
                if report := _read(store, self._key(rank)) or _read(store, f"{_ENDED}{rank}"):
                    heard[rank] = Report(**report)
            left = {rank: alive for rank, alive in seen.items() if rank not in heard}
            known = not left or not all(report.lost for report in heard.values()) or False in left.values()
            if known or time.monotonic() > deadline:
                silent.update(left)
                return
            time.sleep(_PAUSE)

    def _silent(self, heard: Mapping[int, Report]) -> dict[int, bool | None]:
        """Return whether those that said nothing are alive, by rank."""
        peers = dict(self._peers)
        return {rank: peers[rank].alive() if rank in peers else None for rank in self._others if rank not in heard}


def watch_over(run: Run) -> Watch:
    """Return what watches over a session of a run that begins."""
    return Watch() if run.ranks.single_process else RanksWatch(run)


def within(seconds: float, work: Callable[[], T], otherwise: T) -> T:
    """Return what some work gives, or something else if it takes too long or meets an error."""
    results: list[T] = []

    def attempt() -> None:
        try:
            results.append(work())
        except Exception:  # what a store raises that is gone is known to the store
            return

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else otherwise


def in_a_line(error: BaseException) -> str:
    """Return an error as `ValueError: no rows`; of one that carries the traceback of a worker, that worker's error."""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    return text.strip().splitlines()[-1] if "Traceback (most recent call last)" in text else text


PLACES = {
    ("evaluation.loop", "evaluation_loop"): "an evaluation",
    ("api.evaluation", "evaluate"): "an evaluation",
    ("api.evaluation", "predict"): "a prediction",
    ("checkpoint.write.snapshot", "take_snapshot"): "a save",
    ("checkpoint.write.save", "write_checkpoint"): "a save",
    ("checkpoint.write.save", "on_all_ranks"): "a save",
    ("distributed.consensus", "__call__"): "agreeing on what was asked for",
    ("distributed.failures", "begin"): "comparing what processes are told",
    ("checkpoint.read.choosing", "checkpoint_to_resume"): "choosing what to resume from",
    ("distributed.consistency", "check_built"): "comparing what processes are told",
    ("stepper", "step"): "forward",
    ("stepper", "backward"): "backward",
    ("stepper", "_update"): "the update",
    ("data.feed", "take"): "fetching batches",
}
"""What a process is at while it is in a function of a module of this package."""

IN_STEP = ("forward", "backward", "the update", "fetching batches")
"""Those that belong to the step being made, and do not come after the last one."""


def where(error: BaseException, steps: int) -> str:
    """Say what an error came of, as `backward of step 5` or `an evaluation after step 4`, by its traceback.

    The innermost place counts: a handler of a callback, by its name, or one of `PLACES`.

    Args:
        error: an error that was raised.
        steps: the steps that are done.
    """
    place = ""
    cause: BaseException | None = error
    while not place and cause is not None:  # one that explains another was raised elsewhere
        place, cause = _place(cause), cause.__cause__
    if not place:
        return f"its program after step {steps}"
    return f"{place} of step {steps + 1}" if place in IN_STEP else f"{place} after step {steps}"


def _place(error: BaseException) -> str:
    package = __name__.removesuffix(".distributed.failures")
    place, traceback = "", error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        module, function = str(frame.f_globals.get("__name__", "")), frame.f_code.co_name
        if (module, function) == (f"{package.rpartition('.')[0]}.events.bus", "announce"):
            place = getattr(frame.f_locals.get("subscription"), "label", place)
        elif module.startswith(f"{package}."):
            place = PLACES.get((module.removeprefix(f"{package}."), function), place)
        traceback = traceback.tb_next
    return place


def explanation(
    mine: Report, heard: Mapping[int, Report], silent: Mapping[int, bool | None], waited: float | None
) -> str:
    """Say in words what became of the others.

    Args:
        mine: what this process was at.
        heard: the reports of others, by rank.
        silent: those that left no word, and whether they are alive, None where nobody knows.
        waited: the seconds after which it gave up; None if the connection broke.
    """
    here = f"rank {mine.rank} was waiting in {mine.where}"
    if waited is not None:
        here += f", for the {waited:g} seconds that `ddp_timeout` allows"
    failed = [report for report in heard.values() if not report.lost]
    if failed:
        said = "; ".join(f"Rank {report.rank} failed in {report.where}: {report.error}" for report in failed)
        return f"{said.rstrip('.')}. Meanwhile {here}."
    gone = [rank for rank, alive in silent.items() if alive is False]
    if gone:
        are = "is" if len(gone) == 1 else "are"
        why = "killed, for want of memory perhaps, ended early, or crashed, as where processes send different things"
        return f"{named(gone).capitalize()} {are} gone without a word ({why}), while {here}."
    if silent:
        hangs = all(alive for alive in silent.values())
        what = "left no word and live: they may hang" if hangs else "left no word: they were killed or hang"
        if len(silent) == 1:
            what = "left no word and lives: it may hang" if hangs else "left no word: it was killed or hangs"
        return f"{named([*silent]).capitalize()} {what}, while {here}."
    said = " and ".join(f"rank {report.rank} had given up in {report.where}" for report in heard.values())
    return f"The processes lost each other: {said}, and {here}."
