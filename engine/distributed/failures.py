"""Failures of ranks: a failing rank writes a report, and the waiting ranks quote the report in their errors.

A run without failures writes no report. The ranks exchange reports through the store of the rendezvous, which still
works when a collective fails.
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from typing import Any

from ...events.activity import COMPARE_RANKS
from ...events.errors import RankFailure
from .consistency import compare_settings, digest, session_settings
from .failure_report import FailureReport, describe_failure, error_line, failure_location
from .host import ProcessAddress, run_with_timeout
from .protocols import DistributedRun
from .ranks import Ranks, connection_lost
from .rendezvous import Store

logger = logging.getLogger(__name__)

REPORT_TIMEOUT = 2.0
"""Seconds: the time limit for a write to the store, and how long a rank that lost its connection waits for reports."""

_SESSIONS = itertools.count(1)
"""Counts the sessions. A session has the same number on all ranks. The keys of its reports contain this number."""

_POLL_INTERVAL = 0.05
_ADDRESS_KEY, _SESSION_KEY, _EXIT_KEY = "trainbus/process/", "trainbus/failed/", "trainbus/ended/"
_MAX_LENGTH = 2000


@cache
def register_process(ranks: Ranks) -> None:
    """Write the host and the process id of this process into the store of the rendezvous.

    Also register an exit function. If an error ends the program later, the exit function writes the error into the
    store. In a single process, `register_process` does nothing.

    Call `register_process` right after the rendezvous. If this rank then fails before its first session, the errors of
    the other ranks can name this rank.
    """
    if not ranks.single_process:
        store = ranks.store
        address = ProcessAddress.current()
        run_with_timeout(REPORT_TIMEOUT, lambda: _write(store, f"{_ADDRESS_KEY}{ranks.rank}", asdict(address)), None)
        atexit.register(_report_at_exit, ranks)


def _report_at_exit(ranks: Ranks) -> None:
    error = getattr(sys, "last_value", None)
    if error is not None and not isinstance(error, RankFailure):
        report = FailureReport(ranks.rank, "its program", error_line(error)[:_MAX_LENGTH], lost=False)
        with suppress(Exception):  # the store may be gone, and a thread cannot start while the interpreter exits
            _write(ranks.store, f"{_EXIT_KEY}{ranks.rank}", asdict(report))


def _write(store: Store | None, key: str, values: dict[str, Any]) -> None:
    if store is not None:
        store.set(key, json.dumps(values))


def _read(store: Store | None, key: str) -> dict[str, Any] | None:
    return json.loads(store.get(key)) if store is not None and store.check([key]) else None


class FailureMonitor:
    """The failure monitor of a session in a single process. It does nothing, because there are no other ranks."""

    def begin(self) -> None:
        """Do nothing: in a single process, there are no arguments, plugins or callbacks of other ranks to compare."""

    def explain(self, error: BaseException) -> BaseException:
        """Return `error` itself: in a single process, no other rank can be the cause."""
        return error


class RankFailureMonitor(FailureMonitor):
    """The failure monitor of a session on several ranks.

    Before the session, the monitor compares the arguments, plugins and callbacks of the ranks. If the session fails,
    the monitor reports the error of this rank to the other ranks.
    """

    def __init__(self, run: DistributedRun) -> None:
        """Create the monitor of the next session of `run`. Every rank must create a monitor for each session."""
        self._run = run
        self._session = next(_SESSIONS)
        self._addresses: dict[int, ProcessAddress] = {}
        self._others = [rank for rank in range(run.ranks.world_size) if rank != run.ranks.rank]

    def begin(self) -> None:
        """Exchange the process addresses of the ranks, and compare their arguments, plugins and callbacks.

        Raises:
            RankDivergence: on all ranks, if arguments or plugins differ.
            SubscriptionError: on all ranks, if callbacks or callback orders differ.
        """
        run = self._run
        with run.activity(COMPARE_RANKS):
            own, address = session_settings(run), ProcessAddress.current()
            of_ranks = run.ranks.gather_objects((address.host, address.pid, digest(own)))
            self._addresses = {rank: ProcessAddress(host, pid) for rank, (host, pid, _) in enumerate(of_ranks)}
            compare_settings(run, own, [own_digest for *_, own_digest in of_ranks])

    def explain(self, error: BaseException) -> BaseException:
        """Write a report of an error for the other ranks, and return the error to raise.

        If `error` means that the connection to another rank is lost, return a `RankFailure` that says what happened to
        the other ranks. Otherwise return `error` itself.
        """
        run, lost = self._run, connection_lost(error)
        location = failure_location(error, run.state.global_step)
        own = FailureReport(run.ranks.rank, location, error_line(error)[:_MAX_LENGTH], lost)
        store = run.ranks.store
        # The process that hosts the store may be gone. Then a call blocks.
        run_with_timeout(REPORT_TIMEOUT, lambda: _write(store, self._key(own.rank), asdict(own)), None)
        if not lost:
            return error
        reports: dict[int, FailureReport] = {}
        silent: dict[int, bool | None] = {}
        run_with_timeout(2 * REPORT_TIMEOUT, lambda: self._collect_reports(store, reports, silent), None)
        collected = dict(reports)  # the thread may still run
        without_report = dict(silent) or self._liveness(collected)
        text = str(error).lower()
        waited = run.args.ddp_timeout if "timed out" in text or "timeout" in text else None
        message = describe_failure(own, collected, without_report, waited)
        logger.error("%s", message)  # now: the launcher may end this process before it prints its error
        return RankFailure(message)

    def _key(self, rank: int) -> str:
        return f"{_SESSION_KEY}{self._session}/{rank}"

    def _collect_reports(
        self, store: Store | None, reports: dict[int, FailureReport], silent: dict[int, bool | None]
    ) -> None:
        """Read the reports of the other ranks from the store, and check whether their processes are alive.

        Repeat both until one of these conditions is true:

        - a report has an error that is not a lost connection;
        - a process is dead;
        - all ranks have reported;
        - `REPORT_TIMEOUT` seconds have passed.

        Args:
            store: the store of the rendezvous.
            reports: receives the reports, by rank.
            silent: receives the ranks without a report as keys. Each value says whether the process of the rank is
                alive; None if this is unknown.
        """
        for rank in self._others:  # a rank that never came to this session registered its address before
            if rank not in self._addresses and (address := _read(store, f"{_ADDRESS_KEY}{rank}")):
                self._addresses[rank] = ProcessAddress(**address)
        deadline = time.monotonic() + REPORT_TIMEOUT
        while True:
            alive = self._liveness({})  # checked before the reports: a process that is dead now has written its report
            for rank in set(self._others) - set(reports):
                if report := _read(store, self._key(rank)) or _read(store, f"{_EXIT_KEY}{rank}"):
                    reports[rank] = FailureReport(**report)
            left = {rank: is_alive for rank, is_alive in alive.items() if rank not in reports}
            known = not left or not all(report.lost for report in reports.values()) or False in left.values()
            if known or time.monotonic() > deadline:
                silent.update(left)
                return
            time.sleep(_POLL_INTERVAL)

    def _liveness(self, reports: Mapping[int, FailureReport]) -> dict[int, bool | None]:
        """Return a dict with all ranks that are not in `reports`, except the rank of this process.

        Each key is a rank. Each value says whether the process of the rank is alive; None if this is unknown.
        """
        addresses = dict(self._addresses)
        without_report = [rank for rank in self._others if rank not in reports]
        return {rank: addresses[rank].is_alive() if rank in addresses else None for rank in without_report}


def failure_monitor(run: DistributedRun) -> FailureMonitor:
    """Return the failure monitor for the next session of `run`. Every rank must call this function."""
    return FailureMonitor() if run.ranks.single_process else RankFailureMonitor(run)
