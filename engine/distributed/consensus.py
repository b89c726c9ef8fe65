"""Consensus: all processes of a run serve the same flags, for the same callbacks, and hear in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ...events.bus import EventBus
from ...events.composition import is_rank_local
from ...events.control import FLAGS, OUTSIDE, TrainerControl
from ...events.errors import RankDivergence
from ..run import Run
from .consistency import named
from .ranks import Ranks

Agree: TypeAlias = Callable[[TrainerControl], None]
Wishes: TypeAlias = dict[str, dict[str, str]]
"""For each flag, who asks for it or forbids it, and why."""

DEBUG = "rank_divergence"
"""The value of `debug` that has the processes compared."""

BEFORE_UPDATE = (
    *("on_epoch_begin", "on_step_begin", "on_batch", "on_loss", "on_substep_end"),
    *("on_gradients", "on_pre_optimizer_step"),
)
"""The events between the end of a step and the update of the next."""


def agreement(run: Run) -> Agree:
    """Return what makes the processes of a run agree on what is asked for, called once before flags are served.

    Nothing is done in a single process, nor where no callback decides from what only one process knows.
    """
    if run.ranks.single_process:
        return agree_single_process
    agree = Consensus(run) if any_local(run.bus) else agree_single_process
    return Comparison(run.ranks, run.bus, agree) if DEBUG in run.args.observed else agree


def agreement_on_updates(run: Run, agree: Agree) -> Agree:
    """Return what makes them agree within a step, before its update: `agree`, where it is needed.

    It is where a callback that decides from what only one process knows hears of a step before its update, which it
    may want left out, or where processes are compared.
    """
    local = {*local_authors(run.bus)}
    hears = any(hearer.owner_id in local for event in BEFORE_UPDATE for hearer in run.bus.plan(event))
    return agree if hears or DEBUG in run.args.observed else agree_single_process


def agree_single_process(control: TrainerControl) -> None:
    """Agree with nobody: every process decides from what all of them know."""


def any_local(bus: EventBus) -> bool:
    """Say whether any callback decides from something that only one process knows."""
    return bool(local_authors(bus))


def local_authors(bus: EventBus) -> list[str]:
    """Return the ids of the callbacks that decide from something that only one process knows."""
    return [name for name, callback in bus.subscribers.items() if is_rank_local(callback)]


class Consensus:
    """Has every process ask for what any asks for, and forbid what any forbids, in the name of the same callbacks.

    The authors count too, not only the flags: of two evaluations, each is made at the request of its own callback, and
    a process that did not know of it would leave the others waiting.
    """

    def __init__(self, run: Run) -> None:
        """Prepare for a training of `run` that begins, and for the callbacks that are attached by then."""
        self._ranks = run.ranks
        self._state = run.state
        # Whoever writes outside of handlers does so on one process; all who come later share the last place.
        heard = {hearer.owner_id for event in run.bus for hearer in run.bus.plan(event)}
        self._places = {name: place for place, name in enumerate([OUTSIDE, *sorted(heard)])}
        self._nothing = [0] * (2 * len(FLAGS) * (len(self._places) + 1))

    def __call__(self, control: TrainerControl) -> None:
        """Agree: one reduction, and only if processes differ, a second round in which reasons are told.

        Raises:
            RankDivergence: on all processes, if some of them left out the update of the step just made.
        """
        votes = self._votes(control) if control.pending else self._nothing
        *counts, skipped = self._ranks.sum_numbers([*votes, self._state.steps_skipped])
        if skipped % self._ranks.world_size:
            self._refuse_drift(control)
        if any(0 < count < self._ranks.world_size for count in counts):
            everyone = self._ranks.gather_objects((_requests(control), _vetoes(control)))
            for rank, (requests, vetoes) in enumerate(everyone):
                if rank != self._ranks.rank:
                    adopt(control, control.request, _requests(control), requests, rank)
                    adopt(control, control.veto, _vetoes(control), vetoes, rank)

    def _votes(self, control: TrainerControl) -> list[int]:
        votes = self._nothing.copy()
        wide, last = 2 * len(FLAGS), len(self._places)
        for offset, wishes in enumerate((_requests(control), _vetoes(control))):
            for place, flag in enumerate(FLAGS):
                for author in wishes[flag]:
                    votes[self._places.get(author, last) * wide + 2 * place + offset] = 1
        return votes

    def _refuse_drift(self, control: TrainerControl) -> None:
        everyone = self._ranks.gather_objects((self._state.steps_skipped, control.why("skip_update")))
        most = max(skipped for skipped, _ in everyone)
        without = [rank for rank, (skipped, _) in enumerate(everyone) if skipped == most]
        others = [rank for rank in range(self._ranks.world_size) if rank not in without]
        who = everyone[without[0]][1].partition(" by ")[2] or "no callback"
        raise RankDivergence(
            f"The update of step {control.step} was left out on {named(without)} and not on {named(others)}, by {who}: "
            f"their weights differ now. {_REMEDY}, or declare `local = True` in its class, so that all do what one "
            "asks for."
        )


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
        mine = [(entry.author, entry.flag, entry.action) for entry in new if entry.author not in local]
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
    return (
        f"After step {step}, {author} {what} {flag!r} on {named(ranks)} and not on {named(others)}: it decides from "
        f"what only its own process knows. {_REMEDY}, or declare `local = True` in its class, so that all do what one "
        "asks for."
    )


_REMEDY = "Decide from what all processes know, as metrics, `grad_norm` or `run.ranks.sum(...)`"
