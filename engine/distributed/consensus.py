"""Consensus: if a callback requests or vetoes a flag on one rank, the request or veto applies on all ranks.

A *rank-local* callback decides from a value that only one rank knows, such as a clock. Its class sets `local = True`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from ...events.activity import AGREE
from ...events.bus import EventBus
from ...events.composition import is_rank_local
from ...events.control import OUTSIDE, TrainerControl
from ...events.errors import RankDivergence
from ...events.flags import FLAGS, Flag
from .consistency import format_ranks
from .protocols import DistributedRun
from .ranks import Ranks
from .skipping import REMEDY, refuse_different_skips

Agree: TypeAlias = Callable[[TrainerControl], None]
"""A function that makes the ranks agree on flags. Every rank calls the function at the same point of a step."""
Reasons: TypeAlias = dict[Flag, dict[str, str]]
"""Flag -> id of a callback -> reason of the callback. One dict has all requests, another dict has all vetoes."""


def agree_single_process(control: TrainerControl) -> None:
    """Do nothing. The trainer uses this function in a single process, and on ranks that always raise the same flags."""


def rank_local_callbacks(bus: EventBus) -> list[str]:
    """Return the ids of the callbacks with `local = True`, which decide from a value that only one rank knows."""
    return [name for name, callback in bus.subscribers.items() if is_rank_local(callback)]


class Consensus:
    """Copies each request and veto of a flag to all ranks. Each copy keeps the author of the original.

    If two callbacks request an evaluation, the run evaluates twice. All ranks must know both requests. Otherwise some
    ranks would wait in the second evaluation.
    """

    def __init__(self, run: DistributedRun, authors: Iterable[str]) -> None:
        """Prepare to compare the flags of the ranks.

        Args:
            run: the run.
            authors: the ids of callbacks that write flags, the same ids on all ranks. If a callback with another id
                writes a flag, the next `__call__` needs a second collective.
        """
        self._activity = run.activity
        self._ranks = run.ranks
        self._state = run.state
        # The votes have one column for each callback, and one for OUTSIDE: code outside of handlers, which may write on
        # one rank only. All other callbacks share the last column.
        self._columns = {name: column for column, name in enumerate([OUTSIDE, *sorted(authors)])}
        self._late = 2 * len(FLAGS) * len(self._columns)
        """The position at which the last column starts."""
        self._no_votes = [0] * (self._late + 2 * len(FLAGS))

    def __call__(self, control: TrainerControl) -> None:
        """Make the ranks agree on the raised and vetoed flags. One reduction compares the flags of the ranks.

        If the flags differ, a second collective exchanges the requests and vetoes with their reasons. The second
        collective also runs if a callback that is not in `authors` wrote a flag.

        Raises:
            RankDivergence: on all ranks, if only some ranks skipped the update of a step. Their weights then differ.
        """
        outer, self._activity.name = self._activity.name, AGREE
        self._activity.mark(AGREE, True)
        votes = self._votes(control) if control.pending else self._no_votes
        *counts, skipped = self._ranks.sum_numbers([*votes, self._state.steps_skipped])
        if skipped % self._ranks.world_size:
            refuse_different_skips(self._ranks, self._state, control)
        # Equal votes in the last column may be of different callbacks.
        if any(0 < count < self._ranks.world_size for count in counts) or any(counts[self._late :]):
            of_ranks = self._ranks.gather_objects((_requests(control), _vetoes(control)))
            for rank, (requests, vetoes) in enumerate(of_ranks):
                if rank != self._ranks.rank:
                    copy_reasons(control, control.request, _requests(control), requests, rank)
                    copy_reasons(control, control.veto, _vetoes(control), vetoes, rank)
        self._activity.mark(AGREE, False)
        self._activity.name = outer

    def _votes(self, control: TrainerControl) -> list[int]:
        votes = self._no_votes.copy()
        width, last = 2 * len(FLAGS), len(self._columns)
        for offset, reasons in enumerate((_requests(control), _vetoes(control))):
            for index, flag in enumerate(FLAGS):
                for author in reasons[flag]:
                    votes[self._columns.get(author, last) * width + 2 * index + offset] = 1
        return votes


def _requests(control: TrainerControl) -> Reasons:
    return {flag: control.reasons(flag) for flag in FLAGS}


def _vetoes(control: TrainerControl) -> Reasons:
    return {flag: control.vetoes(flag) for flag in FLAGS}


def copy_reasons(
    control: TrainerControl, write: Callable[[Flag, str], None], own: Reasons, other: Reasons, rank: int
) -> None:
    """Copy the requests or vetoes that another rank has and this rank lacks. Each copy keeps the original author.

    Args:
        control: the control to write to.
        write: the method `request` or `veto` of the control, to write the copies.
        own: the requests or vetoes of this rank.
        other: the requests or vetoes of the other rank.
        rank: the number of the other rank. The ledger records it.
    """
    speaking = control.speaking
    before = speaking.author, control.rank
    try:
        control.rank = rank
        for flag, reasons in other.items():
            for author, reason in reasons.items():
                if author not in own[flag]:
                    speaking.author = author
                    write(flag, f"{reason}, on rank {rank}" if reason else f"on rank {rank}")
    finally:
        speaking.author, control.rank = before


class Comparison:
    """A check that each callback without `local = True` writes the same flags on all ranks."""

    def __init__(self, ranks: Ranks, bus: EventBus, agree: Agree) -> None:
        """Create a comparison that ignores all earlier flag writes."""
        self._ranks = ranks
        self._bus = bus
        self._agree = agree
        self._compared = bus.control.ledger.written

    def __call__(self, control: TrainerControl) -> None:
        """Compare the flag writes of all ranks since the last call, then call the argument `agree` of the constructor.

        Raises:
            RankDivergence: on all ranks, if a callback without `local = True` wrote a flag on some ranks only.
        """
        local = {*rank_local_callbacks(self._bus), OUTSIDE, "run"}
        new = control.ledger.since(self._compared)
        own = [
            (entry.author, entry.flag, entry.action)
            for entry in new
            if entry.author not in local and entry.flag != "callback"
        ]
        of_ranks = self._ranks.gather_objects(own)
        for author, flag, action in sorted({write for writes in of_ranks for write in writes}):
            having = [rank for rank, writes in enumerate(of_ranks) if (author, flag, action) in writes]
            if len(having) < self._ranks.world_size:
                raise RankDivergence(_difference(control.step, author, flag, action, having, self._ranks.world_size))
        self._agree(control)
        self._compared = control.ledger.written


def _difference(step: int, author: str, flag: str, action: str, having: list[int], world_size: int) -> str:
    others = [rank for rank in range(world_size) if rank not in having]
    verb = {"request": "requested", "veto": "vetoed", "withdraw": "withdrew its request of"}.get(action, action)
    return (
        f"After step {step}, {author} {verb} {flag!r} on {format_ranks(having)} and not on {format_ranks(others)}: it "
        f"decides from a value that only its own rank knows. {REMEDY}"
    )
