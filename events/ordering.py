"""Resolve the order of handlers: by stage, then by `before=` and `after=`, then by attachment."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from .errors import SubscriptionError, nearest
from .stages import Stage


@dataclass(frozen=True)
class Place:
    """The position of one handler in the order, as declared."""

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


def resolve(places: list[Place], known: set[str], event: str) -> list[Place]:
    """Return the places in order.

    Args:
        places: all handlers of one event.
        known: the ids of all callbacks that are or were attached. A constraint on one without a handler for this event
            has no effect.
        event: the name of the event, for errors.

    Raises:
        SubscriptionError: for an unknown id, a constraint that contradicts the stages, or a cycle.
    """
    ordered = sorted(places, key=lambda place: (place.stage, place.serial))
    if not any(place.before or place.after for place in ordered):
        return ordered
    by_id: dict[str, list[Place]] = {}
    for place in ordered:
        by_id.setdefault(place.owner_id, []).append(place)

    follows: dict[Place, set[Place]] = {place: set() for place in ordered}
    for place in ordered:
        for target in (*place.before, *place.after):
            if target not in known:
                raise SubscriptionError(
                    f"{place.owner_id} wants to run before or after {target!r} at {event}, but no callback has that "
                    f"id{nearest(target, known)} Known: {', '.join(sorted(known))}."
                )
        for earlier, later in [(place, other) for target in place.before for other in by_id.get(target, [])] + [
            (other, place) for target in place.after for other in by_id.get(target, [])
        ]:
            if earlier.stage > later.stage:
                raise SubscriptionError(
                    f"{earlier.owner_id} must run before {later.owner_id} at {event}, but it runs in stage "
                    f"{earlier.stage.name}, after stage {later.stage.name} of the other. Change one of the stages."
                )
            follows[earlier].add(later)
    return _sorted_by(follows, event)


def _sorted_by(follows: dict[Place, set[Place]], event: str) -> list[Place]:
    """Sort topologically. Among the free places, take the earliest each time (Kahn, 1962)."""
    waiting = dict.fromkeys(follows, 0)
    for followers in follows.values():
        for follower in followers:
            waiting[follower] += 1
    free: list[tuple[int, int, Place]] = []
    for place, count in waiting.items():
        if count == 0:
            heappush(free, (place.stage, place.serial, place))
    done: list[Place] = []
    while free:
        place = heappop(free)[2]
        done.append(place)
        for follower in follows[place]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heappush(free, (follower.stage, follower.serial, follower))
    if len(done) < len(follows):
        stuck = {place: followers for place, followers in follows.items() if place not in done}
        while waiting_only := [place for place, followers in stuck.items() if followers.isdisjoint(stuck)]:
            for place in waiting_only:  # it waits for the cycle and is not part of it
                del stuck[place]
        names = ", ".join(place.owner_id for place in stuck)
        raise SubscriptionError(
            f"At {event} these callbacks form a cycle of before= and after=: {names}. Remove one of these constraints."
        )
    return done
