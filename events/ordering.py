"""Resolve the order of handlers: by stage, then by `before=` and `after=`, then by attachment."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from .errors import SubscriptionError, nearest
from .stages import Stage


@dataclass(frozen=True)
class Slot:
    """The ordering constraints of one handler: the stage, and the ids that the handler must run before or after."""

    owner_id: str
    stage: Stage
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    serial: int = 0
    """The number of the handler in the order of attachment to this event."""

    def __post_init__(self) -> None:
        if not isinstance(self.stage, Stage):
            raise SubscriptionError(
                f"The stage of {self.owner_id} is {self.stage!r}, not a Stage. Set it to one, such as Stage.REPORT."
            )


def resolve(slots: list[Slot], known: set[str], event: str) -> list[Slot]:
    """Sort the slots of the handlers of an event in the order in which the handlers run.

    Args:
        slots: the slots of all handlers of one event.
        known: the ids that `before` and `after` of a slot may name. An id without a slot in `slots` has no effect.
        event: the name of the event, for errors.

    Raises:
        SubscriptionError: for an unknown id, a constraint that contradicts the stages, or a cycle.
    """
    ordered = sorted(slots, key=lambda slot: (slot.stage, slot.serial))
    if not any(slot.before or slot.after for slot in ordered):
        return ordered
    by_id: dict[str, list[Slot]] = {}
    for slot in ordered:
        by_id.setdefault(slot.owner_id, []).append(slot)

    follows: dict[Slot, set[Slot]] = {slot: set() for slot in ordered}
    for slot in ordered:
        for target in (*slot.before, *slot.after):
            if target not in known:
                raise SubscriptionError(
                    f"{slot.owner_id} has before= or after= with the id {target!r} at {event}, but no callback has "
                    f"that id{nearest(target, known)} Known: {', '.join(sorted(known))}."
                )
        for earlier, later in [(slot, other) for target in slot.before for other in by_id.get(target, [])] + [
            (other, slot) for target in slot.after for other in by_id.get(target, [])
        ]:
            if earlier.stage > later.stage:
                raise SubscriptionError(
                    f"{earlier.owner_id} must run before {later.owner_id} at {event}, but it runs in stage "
                    f"{earlier.stage.name}, after stage {later.stage.name} of {later.owner_id}. Change one stage."
                )
            follows[earlier].add(later)
    return _sorted_by(follows, event)


def _sorted_by(follows: dict[Slot, set[Slot]], event: str) -> list[Slot]:
    """Return the slots in topological order (Kahn, 1962).

    If several slots may come next, the lowest stage comes first. In a stage, the handler attached first comes first.

    Args:
        follows: all slots. Each key is a slot, each value holds the slots that must come after it.
        event: the name of the event, for errors.

    Raises:
        SubscriptionError: for a cycle.
    """
    waiting = dict.fromkeys(follows, 0)
    for followers in follows.values():
        for follower in followers:
            waiting[follower] += 1
    free: list[tuple[int, int, Slot]] = []
    for slot, count in waiting.items():
        if count == 0:
            heappush(free, (slot.stage, slot.serial, slot))
    done: list[Slot] = []
    while free:
        slot = heappop(free)[2]
        done.append(slot)
        for follower in follows[slot]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heappush(free, (follower.stage, follower.serial, follower))
    if len(done) < len(follows):
        stuck = {slot: followers for slot, followers in follows.items() if slot not in done}
        while waiting_only := [slot for slot, followers in stuck.items() if followers.isdisjoint(stuck)]:
            for slot in waiting_only:  # it waits for the cycle and is not part of it
                del stuck[slot]
        names = ", ".join(slot.owner_id for slot in stuck)
        raise SubscriptionError(
            f"At {event} these callbacks form a cycle of before= and after=: {names}. Remove one of these constraints."
        )
    return done
