"""Build the callback list of a trainer from its arguments and the user's list."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterable
from dataclasses import fields
from typing import Any

from ..engine.arguments import TrainingArguments
from ..events.bus import EventBus
from ..events.callback import Callback
from ..events.capabilities import Capability
from ..events.composition import refuse_conflicts
from ..events.errors import ArgumentError
from ..events.subscribers import refuse_wrong_settings
from ..events.triggers import never
from .base.cadence import Cadence
from .defaults import DEFAULTS
from .hf import DefaultFlowCallback
from .stopping.stop_at_max_steps import StopAtMaxSteps

logger = logging.getLogger(__name__)


def compose(
    args: TrainingArguments, listed: Iterable[Any], found: Iterable[Any] = (), named: Iterable[Any] = ()
) -> list[Any]:
    """Return the callbacks of a trainer in the order in which they are attached.

    The order is: default callbacks, `found`, `named`, `listed`. A callback in `named` or `listed` replaces a default or
    found callback of the same class. It also replaces callbacks of the classes in its attribute `instead_of`. An
    additional callback, such as a `Log` with a prefix, replaces no callback.

    Args:
        args: the training arguments.
        listed: the user's list: callbacks, or classes of callbacks.
        found: trackers, and plugins that join every run. The function skips entries that are None.
        named: callbacks and plugins that the arguments name as text. The function skips a named callback that equals a
            listed callback.

    Raises:
        SubscriptionError: if a setting of a callback, such as `id`, has a wrong value.
        ArgumentError: if a listed or named callback contradicts an argument that the user set, if a named callback
            contradicts a listed callback, or if two callbacks exclude each other.
    """
    explicit = [callback() if isinstance(callback, type) else callback for callback in listed]
    named = [*named]
    refuse_wrong_settings(each for each in (*explicit, *named) if isinstance(each, Callback))
    explicit = [*_beside(explicit, named), *explicit]
    built = [callback for callback in (cls.from_arguments(args) for cls in DEFAULTS) if callback is not None]
    built += [callback for callback in found if callback is not None]
    _refuse_contradictions(args, explicit)
    kept = [callback for callback in built if not any(_replaces(other, callback) for other in explicit)]
    if any(isinstance(callback, DefaultFlowCallback) for callback in explicit):
        kept = [callback for callback in kept if not isinstance(callback, StopAtMaxSteps)]
        for callback in kept:
            if isinstance(callback, Cadence):
                callback.trigger = never()
    refuse_conflicts(kept + explicit)
    return kept + explicit


def changed_arguments(args: TrainingArguments, before: TrainingArguments) -> set[str]:
    """Return the names of the arguments that differ from earlier arguments."""
    missing = object()
    return {each.name for each in fields(args) if getattr(args, each.name) != getattr(before, each.name, missing)}


def recompose(bus: EventBus, before: TrainingArguments, args: TrainingArguments, changed: Collection[str]) -> None:
    """Update the attached callbacks after arguments changed, as if the trainer was built with the new values.

    The function changes, attaches or detaches only callbacks that the arguments build. It does not touch callbacks that
    the program listed, changed or removed.

    Args:
        bus: the bus of the trainer.
        before: the arguments before the change.
        args: the arguments after the change.
        changed: the names of the arguments that changed.

    Raises:
        ArgumentError: if the change concerns a callback that moves or shards the model, if `callbacks` or `plugins`
            changed, or if two callbacks exclude each other.
    """
    if texts := sorted({"callbacks", "plugins"} & {*changed}):
        raise ArgumentError(
            f"{', '.join(texts)} changed after the Trainer was built. Set it before, or use `add_callback`."
        )
    attached = list(bus.subscribers.values())
    flow = any(isinstance(callback, DefaultFlowCallback) for callback in attached)
    for cls in DEFAULTS:
        was, now = (_built(cls, arguments, flow) for arguments in (before, args))
        if was == now:
            continue
        if any(each is not None and each.has(Capability.PLACES_MODEL) for each in (was, now)):
            raise ArgumentError(
                f"{', '.join(sorted(changed))} changed after the Trainer was built, and {cls.__name__} places the "
                "model. Set the arguments before you build the Trainer."
            )
        found = next((each for each in attached if type(each) is cls and each == was), None)
        if found is not None and now is not None:
            vars(found).update(vars(now))
        elif found is not None:
            bus.detach(found)
        elif was is None and now is not None and not any(_replaces(other, now) for other in attached):
            _attach_in_order(bus, now)
    refuse_conflicts(bus.subscribers.values())
    bus.resolve()
    _warn_of_listed(bus, args, changed)


def unfollowed(bus: EventBus, before: TrainingArguments, args: TrainingArguments, changed: Iterable[str]) -> list[str]:
    """Return the changed arguments that the attached default callbacks do not follow.

    Callbacks that the program listed are not built from arguments, so they do not count.

    Args:
        bus: the bus of the trainer.
        before: the arguments from which the default callbacks were built.
        args: the arguments now.
        changed: the names of the changed arguments.
    """
    attached = list(bus.subscribers.values())
    flow = any(isinstance(callback, DefaultFlowCallback) for callback in attached)

    def is_unfollowed(name: str) -> bool:
        one = copy.copy(before)
        vars(one)[name] = getattr(args, name)
        built = [tuple(_built(cls, arguments, flow) for arguments in (before, one)) for cls in DEFAULTS]
        return any(was != now and (was is None or was in attached) for was, now in built)

    return [name for name in changed if is_unfollowed(name)]


def _built(cls: type[Callback], args: TrainingArguments, flow: bool) -> Callback | None:
    callback = cls.from_arguments(args)
    if flow and isinstance(callback, StopAtMaxSteps):
        return None
    if flow and isinstance(callback, Cadence):
        callback.trigger = never()
    return callback


def _attach_in_order(bus: EventBus, callback: Callback) -> None:
    """Attach a new default callback at the position that `compose` would give this callback."""
    ids = list(bus.subscribers)
    later = DEFAULTS[DEFAULTS.index(type(callback)) + 1 :]
    following = [index for index, each in enumerate(bus.subscribers.values()) if type(each) in later]
    earlier = [index for index, each in enumerate(bus.subscribers.values()) if type(each) in DEFAULTS]
    place = following[0] if following else (earlier[-1] + 1 if earlier else 0)
    handle = bus.attach(callback)
    bus.reorder([*ids[:place], handle.owner_id, *ids[place:]])


def _warn_of_listed(bus: EventBus, args: TrainingArguments, changed: Collection[str]) -> None:
    """Warn if an argument in `changed` has no effect, because the user's own callback replaces the default callback."""
    for owner_id, callback in bus.subscribers.items():
        if not isinstance(callback, Callback) or callback.variant:
            continue
        spelled = [name for name in callback.arguments if name in changed]
        if spelled and type(callback).from_arguments(args) not in (callback, None):
            values = ", ".join(f"{name}={_plain(getattr(args, name))!r}" for name in spelled)
            logger.warning(
                "%s has no effect, because %s = %r decides. Change this callback.", values, owner_id, callback
            )


def _replaces(listed: Any, built: Any) -> bool:
    if not isinstance(listed, Callback):
        return isinstance(listed, type(built))  # a callback of another library has no variant and no `instead_of`
    return not listed.variant and (isinstance(listed, type(built)) or isinstance(built, listed.instead_of))


def _beside(listed: list[Any], named: Iterable[Any]) -> list[Any]:
    """Return the callbacks that the arguments name as text, except those that equal a callback of the user's list.

    Raises:
        ArgumentError: if a named callback has other settings than a listed callback of the same class, and has
            neither an `id` nor a `variant`.
    """
    kept, problems = [], []
    for callback in named:
        same = [other for other in listed if type(other) is type(callback)]
        if any(_are_equal(other, callback) for other in same):
            continue
        beside = isinstance(callback, Callback) and (callback.id or callback.variant)
        if same and not beside:
            problems.append(f"{same[0]!r} in the list, and {callback!r} by text in the arguments")
        kept.append(callback)
    if problems:
        raise ArgumentError(
            "The list of callbacks contradicts the arguments. For each pair, leave out one of the two, or give the "
            "text an id=... of its own to have both:\n- " + "\n- ".join(problems)
        )
    return kept


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two callbacks of one class have the same settings.

    Callbacks of other libraries define no `==`, so the function compares their attributes.
    """
    return bool(one == other) or (not isinstance(one, Callback) and vars(one) == vars(other))


def _refuse_contradictions(args: TrainingArguments, explicit: list[Any]) -> None:
    problems = []
    for callback in explicit:
        if not isinstance(callback, Callback) or callback.variant:
            continue  # a variant does not replace the callback that the arguments build
        spelled = [name for name in callback.arguments if name in args.given]
        spells = type(callback).from_arguments(args) if spelled else callback
        if not spelled or spells == callback:
            continue
        given = ", ".join(f"{name}={_plain(getattr(args, name))!r}" for name in spelled)
        problems.append(f"{callback!r} in the list, and {given} in the arguments, which builds {spells!r}")
    if problems:
        raise ArgumentError(
            "Callbacks contradict arguments. For each pair, leave out one of the two:\n- " + "\n- ".join(problems)
        )


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)
