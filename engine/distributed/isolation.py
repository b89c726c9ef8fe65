"""Isolation on several ranks: if a callback fails on one rank, all ranks treat the callback in the same way."""

from __future__ import annotations

from ...events.activity import AGREE
from ...events.bus import EventBus
from ...events.callback import Callback
from ...events.channels import Subscription
from ...events.control import TrainerControl
from ...events.isolation import Verdict
from ...events.stages import Stage
from .consistency import format_ranks
from .protocols import DistributedRun

_DECIDING = (Stage.MEASURE, Stage.DECIDE, Stage.ACT)
_NOT_DECIDING = frozenset({"on_init_end", "on_setup", "on_load", "on_train_end", "on_exception", "on_close", "on_end"})
"""Events after which the run acts on no flag."""


def shared_callbacks(bus: EventBus) -> frozenset[str]:
    """Return the ids of the callbacks whose failures the ranks must exchange.

    These are two kinds of callbacks:

    - Callbacks that the run may unsubscribe or call less often, because they fail or are slow. If only one rank did
      this, the other ranks would wait in the collectives of the callback.
    - Callbacks that can raise flags, and whose failures cause only a warning. If such a callback fails on one rank,
      this rank may lack a flag that the other ranks have.
    """
    found = set()
    for owner_id, callback in bus.subscribers.items():
        if not isinstance(callback, Callback):
            continue
        own = [each for event in bus for each in bus.order_of(event) if each.owner is callback]
        if bus.isolation.may_leave(owner_id) or any(_may_lose_a_decision(each) for each in own):
            found.add(owner_id)
    return frozenset(found)


def _may_lose_a_decision(found: Subscription) -> bool:
    """Return whether a rank may lack a flag after a handler fails on this rank.

    True if the handler of the subscription `found` can raise flags, and its failure causes only a warning.
    """
    deciding = found.slot.stage in _DECIDING and found.event.name not in _NOT_DECIDING
    return deciding and found.policy.action == "warn"


class SharedFailures:
    """Exchanges the failures of callbacks between the ranks, before the ranks agree on flags.

    If a callback failed on one rank, all ranks drop the flags that this callback raised. If one rank must unsubscribe
    the callback or call it less often, all ranks do so at the same step.
    """

    def __init__(self, run: DistributedRun) -> None:
        """Prepare to exchange the failures of the callbacks of `run`."""
        self._ranks, self._activity, self._isolation = run.ranks, run.activity, run.bus.isolation

    def exchange(self, control: TrainerControl) -> None:
        """Exchange the failures of callbacks between the ranks, so that all ranks treat each callback in the same way.

        A first collective counts the failures. If there are any, a second collective exchanges the failures.
        """
        outer, self._activity.name = self._activity.name, AGREE
        own, self._isolation.pending = self._isolation.pending, {}
        if self._ranks.sum_numbers([len(own)])[0]:
            of_ranks = self._ranks.gather_objects(own)
            for owner_id in sorted({name for verdicts in of_ranks for name in verdicts}):
                self._apply(
                    control, owner_id, {rank: each[owner_id] for rank, each in enumerate(of_ranks) if owner_id in each}
                )
        self._activity.name = outer

    def _apply(self, control: TrainerControl, owner_id: str, verdicts: dict[int, Verdict]) -> None:
        failed = [rank for rank, verdict in verdicts.items() if verdict.failed]
        if failed:
            why = f"it failed on {format_ranks(failed)} with {verdicts[failed[0]].failed}"
            control.restore(owner_id, {}, why)
        leaving = [rank for rank, verdict in verdicts.items() if verdict.quarantine]
        if leaving:
            self._isolation.unsubscribe(owner_id, f"{verdicts[leaving[0]].quarantine}, on {format_ranks(leaving)}")
            return
        self._isolation.thin(owner_id, max(verdict.every for verdict in verdicts.values()))
