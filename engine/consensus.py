"""Consensus: all processes of a run serve the same flags, for the same callbacks, and hear in the same order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import pairwise
from typing import TypeAlias

from ..events.bus import EventBus
from ..events.control import FLAGS, OUTSIDE, TrainerControl
from ..events.errors import RankDivergence, SubscriptionError
from .ranks import Ranks
from .run import Run

Agree: TypeAlias = Callable[[TrainerControl], None]
Wishes: TypeAlias = dict[str, dict[str, str]]
"""For each flag, who asks for it or forbids it, and why."""

DEBUG = "rank_divergence"
"""The value of `debug` that has the processes compared."""


def agreement(run: Run) -> Agree:
    """Return what makes the processes of a run agree on what is asked for, called once before flags are served.

    Nothing is done in a single process, nor where no callback decides from what only one process knows.
    """
    if run.ranks.alone:
        return agree_alone
    agree = Consensus(run.ranks, run.bus) if any_local(run.bus) else agree_alone
    return Comparison(run.ranks, run.bus, agree) if DEBUG in run.args.observed else agree


def agree_alone(control: TrainerControl) -> None:
    """Agree with nobody: every process decides from what all of them know."""


def any_local(bus: EventBus) -> bool:
    """Say whether any callback decides from something that only one process knows."""
    return bool(local_authors(bus))


def local_authors(bus: EventBus) -> list[str]:
    """Return the ids of the callbacks that decide from something that only one process knows."""
    return [name for name, callback in bus.subscribers.items() if getattr(callback, "local", False) is True]


class Consensus:
    """Has every process ask for what any asks for, and forbid what any forbids, in the name of the same callbacks.

    The authors count too, not only the flags: of two evaluations, each is made at the request of its own callback, and
    a process that did not know of it would leave the others waiting.
    """

    def __init__(self, ranks: Ranks, bus: EventBus) -> None:
        """Prepare for the callbacks of `bus`; those that are attached until the first step count."""
        self._ranks = ranks
        self._bus = bus
        self._authors: dict[str, int] = {}
        self._nothing: list[int] = []

    def __call__(self, control: TrainerControl) -> None:
        """Agree: one reduction, and only if processes differ, a second round in which reasons are told."""
        if not self._nothing:
            # Whoever writes outside of handlers does so on one process; all others share the last place.
            names = [*local_authors(self._bus), OUTSIDE]
            self._authors = {name: place for place, name in enumerate(names)}
            self._nothing = [0] * (2 * len(FLAGS) * (len(names) + 1))
        counts = self._ranks.sum_numbers(self._votes(control) if control.pending else self._nothing)
        if any(0 < count < self._ranks.world_size for count in counts):
            everyone = self._ranks.gather_objects((_requests(control), _vetoes(control)))
            for rank, (requests, vetoes) in enumerate(everyone):
                if rank != self._ranks.rank:
                    adopt(control, control.request, _requests(control), requests, rank)
                    adopt(control, control.veto, _vetoes(control), vetoes, rank)

    def _votes(self, control: TrainerControl) -> list[int]:
        votes = self._nothing.copy()
        wide, last = 2 * len(FLAGS), len(self._authors)
        for offset, wishes in enumerate((_requests(control), _vetoes(control))):
            for place, flag in enumerate(FLAGS):
                for author in wishes[flag]:
                    votes[self._authors.get(author, last) * wide + 2 * place + offset] = 1
        return votes


def _requests(control: TrainerControl) -> Wishes:
    return {flag: control.reasons(flag) for flag in FLAGS}


def _vetoes(control: TrainerControl) -> Wishes:
    return {flag: control.vetoes(flag) for flag in FLAGS}


def adopt(control: TrainerControl, write: Callable[[str, str], None], mine: Wishes, theirs: Wishes, rank: int) -> None:
    """Write what another process asks for or forbids and this one does not, as its callbacks did.

    Args:
        control: what is written to.
        write: its `request` or `veto`.
        mine: what this process wants.
        theirs: what the other one wants.
        rank: the other one, which the ledger names.
    """
    speaking = control.speaking
    before = speaking.author, control.rank
    try:
        control.rank = rank
        for flag, wishes in theirs.items():
            for author, reason in wishes.items():
                if author not in mine[flag]:
                    speaking.author = author
                    write(flag, f"{reason}, on rank {rank}" if reason else f"on rank {rank}")
    finally:
        speaking.author, control.rank = before


class Comparison:
    """Raises where processes wrote different things to the control, and the callbacks did not declare that they may."""

    def __init__(self, ranks: Ranks, bus: EventBus, agree: Agree) -> None:
        """Compare before `agree` is called."""
        self._ranks = ranks
        self._bus = bus
        self._agree = agree
        self._seen = bus.control.ledger.written

    def __call__(self, control: TrainerControl) -> None:
        """Compare what was written since the last call, then agree.

        Raises:
            RankDivergence: on all processes, for the first difference that nobody declared.
        """
        local = {*local_authors(self._bus), OUTSIDE, "run"}
        new = control.ledger.since(self._seen)
        # Whether an update is left out is decided within the step, before anybody could agree.
        written = [(entry.author, entry.flag, entry.action) for entry in new]
        mine = [write for write in written if write[0] not in local or write[1] == "skip_update"]
        everyone = self._ranks.gather_objects(mine)
        for author, flag, action in sorted({write for of_rank in everyone for write in of_rank}):
            with_it = [rank for rank, of_rank in enumerate(everyone) if (author, flag, action) in of_rank]
            if len(with_it) < self._ranks.world_size:
                raise RankDivergence(_difference(control.step, author, flag, action, with_it, self._ranks.world_size))
        self._agree(control)
        self._seen = control.ledger.written


def _difference(step: int, author: str, flag: str, action: str, ranks: list[int], world_size: int) -> str:
    others = [rank for rank in range(world_size) if rank not in ranks]
    what = {"request": "asked for", "veto": "forbade", "withdraw": "took back its request of"}.get(action, action)
    same = "from what all processes know, as metrics, `grad_norm` or `run.ranks.sum(...)`"
    remedy = f"Decide {same}"
    if flag != "skip_update":
        remedy += ", or declare `local = True` in its class, so that all do what one asks for"
    return (
        f"After step {step}, {author} {what} {flag!r} on {named(ranks)} and not on {named(others)}: it decides from "
        f"what only its own process knows. {remedy}."
    )


def named(ranks: list[int]) -> str:
    """Return ranks as words: `rank 1`, `ranks 0 and 2`."""
    words = [str(rank) for rank in ranks]
    return f"rank {words[0]}" if len(words) == 1 else f"ranks {', '.join(words[:-1])} and {words[-1]}"


# Who hears what.


def check_subscribers(run: Run) -> None:
    """Refuse callbacks that are not the same, in the same order, on all processes; done when a session begins.

    Raises:
        SubscriptionError: on all processes, naming the first difference.
    """
    if run.ranks.alone:
        return
    mine = {event: [hearer.owner_id for hearer in run.bus.plan(event)] for event in run.bus}
    digests = run.ranks.gather_objects(hashlib.sha256(json.dumps(mine).encode()).hexdigest())
    if len(set(digests)) > 1:
        raise SubscriptionError(
            f"The processes do not hear the same: {first_difference(run.ranks.gather_objects(mine))}. What one does "
            "and another does not may leave them waiting for each other. Attach the same callbacks, in the same order, "
            "on every process; one for the first only may return where `state.is_world_process_zero` is False."
        )


def first_difference(everyone: list[dict[str, list[str]]]) -> str:
    """Say in words where the hearers of events, given for each process in order of rank, differ first."""
    for event in dict.fromkeys(event for plan in everyone for event in plan):
        heard = [plan.get(event, []) for plan in everyone]
        for name in dict.fromkeys(name for names in heard for name in names):
            having = [rank for rank, names in enumerate(heard) if name in names]
            lacking = [rank for rank, names in enumerate(heard) if name not in names]
            if lacking:
                has, have_not = ("has", "have")[len(having) > 1], ("has", "have")[len(lacking) > 1]
                return f"{named(having)} {has} {name} in {event}, {named(lacking)} {have_not} not"
        for (rank, names), (other, others) in pairwise(enumerate(heard)):
            if names != others:
                first, second = next(pair for pair in zip(names, others) if pair[0] != pair[1])
                return f"in {event}, rank {rank} calls {first} where rank {other} calls {second}"
    return "in nothing but the events that there are"
