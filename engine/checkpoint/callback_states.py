"""The states of callbacks: collected for a checkpoint and restored on resume.

The *owner* of a state is the callback that saved the state. Checkpoints also have the states of `CarriedStates`, whose
callbacks are not attached.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from ...events.bus import EventBus
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.errors import CheckpointError
from ...events.state import exported_states
from .carried_states import CarriedStates, free_ids, load_state, state_of
from .migrated_states import migrated, migrates

logger = logging.getLogger(__name__)


@dataclass
class ResumeReport:
    """Which callback states a resume restored, and which states it did not restore. `str(report)` is one line."""

    restored: list[str] = field(default_factory=list)
    """The ids of callbacks that received a state of the present version."""
    migrated: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The callbacks that received a state of an earlier version: id -> (version of the state, version of the class)."""
    orphaned: list[str] = field(default_factory=list)
    """The ids of saved states that no attached callback received. Later checkpoints keep such a state, unless an
    attached callback of another class has the same id, or the state has averaged weights."""
    new: list[str] = field(default_factory=list)
    """The ids of callbacks that save a state, but received no state. They start fresh at the resumed step."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "restored": self.restored,
            "migrated": {owner_id: [was, now] for owner_id, (was, now) in self.migrated.items()},
            "orphaned": self.orphaned,
            "new": self.new,
        }

    def __str__(self) -> str:
        migrated = [f"{owner_id} (version {was} to {now})" for owner_id, (was, now) in self.migrated.items()]
        groups = {"restored": self.restored, "migrated": migrated, "orphaned": self.orphaned, "new": self.new}
        return "; ".join(f"{word}: {', '.join(ids)}" for word, ids in groups.items() if ids) or "none"


class CallbackStates:
    """The states of the attached callbacks, and the states of `CarriedStates`."""

    def __init__(self, bus: EventBus) -> None:
        """Create an object for the states of the callbacks that are attached to `bus`."""
        self._bus = bus
        self._carried = CarriedStates()
        bus.isolation.leaving = self._keep
        self.report = ResumeReport()
        """Which states the last resume restored."""

    def collect(self) -> dict[str, Any]:
        """Return the states to save in a checkpoint: callback id -> state.

        The dict includes the states of `CarriedStates`, whose callbacks are not attached.
        """
        states = dict(self._carried.states)
        for owner_id, callback in self._bus.subscribers.items():
            state = state_of(callback)
            if state:
                states[owner_id] = state
                self._note(owner_id, state)
        return states

    def _note(self, owner_id: str, state: Any) -> None:
        if self._bus.isolation.may_leave(owner_id):
            self._carried.note(owner_id, state)

    def _keep(self, owner_id: str) -> None:
        """Keep the state of a callback that the run unsubscribes now, for later checkpoints."""
        callback = self._bus.subscribers.get(owner_id)
        if callback is not None:
            began = self._bus.attributes_of(owner_id)
            self._carried.keep(owner_id, callback, lambda: owner_of(callback, began, saved=True))

    def exported(self) -> dict[str, Any]:
        """Return the states of callbacks with transformers' `ExportableState`, by class name, for the trainer state."""
        return exported_states(self._bus.subscribers.values())

    def owners(self) -> dict[str, Any]:
        """Return class, settings and version of each callback whose state `collect` returns, by callback id."""
        attached = self._bus.subscribers
        return self._carried.owners | {
            owner_id: owner_of(callback, self._bus.attributes_of(owner_id), saved=True)
            for owner_id, callback in attached.items()
            if state_of(callback)
        }

    def _attached_owners(self) -> dict[str, Any]:
        attached = self._bus.subscribers
        return {one: owner_of(callback, self._bus.attributes_of(one)) for one, callback in attached.items()}

    def forget_carried(self) -> None:
        """Drop the states of callbacks that are not attached. Also clear the resume report."""
        self._carried, self.report = CarriedStates(), ResumeReport()

    def restore(self, states: Mapping[str, Any], owners: Mapping[str, Any] | None = None) -> None:
        """Load each state into its callback. Keep the states of callbacks that are not attached, for later checkpoints.

        If a callback with averaged weights is not attached, its state is not kept.

        Args:
            states: id of a callback -> its state in the checkpoint.
            owners: the value that the method `owners` returned at the save; None to match the states by id only.

        Raises:
            CheckpointError: if a later version of the callback's class saved the state, or if `migrate` fails.
        """
        attached, owners = self._bus.subscribers, owners or {}
        self.report = report = ResumeReport()
        now = self._attached_owners()
        found = matched(states, owners, now)
        absent = [one for one in states if one not in found and not _is_of_another_class(one, owners, now)]
        names = free_ids(absent, attached)
        dropped = self._carried.carry(
            {names[one]: states[one] for one in absent},
            {names[one]: owners[one] for one in absent if one in owners},
        )
        carried = [*self._carried.states]
        for owner_id, target in found.items():
            self._load(target, attached[target], states[owner_id], owners.get(owner_id), now[target])
        report.restored.sort(key=list(attached).index)
        report.orphaned += [names.get(owner_id, owner_id) for owner_id in states if owner_id not in found]
        for owner_id in states:
            if owner_id not in found and _is_of_another_class(owner_id, owners, now):
                logger.warning(
                    "The state of %s is not restored: it is of the class %s, and %s is a %s now.",
                    *(owner_id, owners[owner_id]["class"], owner_id, type(attached[owner_id]).__name__),
                )
        _tell_matched_by_position({one: owners[one] for one in found if one in owners})
        for owner_id, callback in attached.items():
            if owner_id not in found.values() and state_of(callback):
                report.new.append(owner_id)
                if owner_id in states:
                    continue
                level = logging.WARNING if now[owner_id]["replaces_weights"] else logging.INFO
                logger.log(level, "%s has no state in the checkpoint. It starts at the resumed step.", owner_id)
        if carried:
            logger.warning(
                "The checkpoint has states of callbacks that are not attached: %s. Later checkpoints keep them.",
                ", ".join(carried),
            )
        if dropped:
            logger.warning(
                "The checkpoint has weights of callbacks that are not attached: %s. Later checkpoints do not keep "
                "them, because the training changes the weights.",
                ", ".join(dropped),
            )
        logger.info("Callback states, %s", report)

    def _load(self, owner_id: str, callback: Any, state: Any, saved: Mapping[str, Any] | None, now: Any) -> None:
        """Load a state into a callback. `saved` and `now` are the results of `owner_of` at the save and now."""
        version = now["version"]
        was = version if saved is None else saved.get("version", version)
        if saved is not None:
            _tell_differences(owner_id, saved, now, callback)
        if was < version:
            self.report.migrated[owner_id] = (was, version)
            state = migrated(callback, owner_id, state, was)
        else:
            self.report.restored.append(owner_id)
        self._note(owner_id, state)
        load_state(callback, state)

    def load_late(self, owner_id: str) -> None:
        """Load the carried state of a callback that was attached after the resume restored the states."""
        carried, attributes = self._carried, self._bus.attributes_of(owner_id)
        callback = self._bus.subscribers[owner_id]
        now = owner_of(callback, attributes)
        found = matched(carried.of_checkpoint(), carried.owners, {owner_id: now})
        for one in found:
            state, saved = carried.release(one)
            self.report.orphaned[:] = [each for each in self.report.orphaned if each != one]
            self._load(owner_id, callback, state, saved, now)

    def restore_weights(self, states: Mapping[str, Any], owners: Mapping[str, Any]) -> None:
        """Load only the states of callbacks that hold trained weights, such as a loss module.

        `load_best_model_at_end` calls this method after training. The states of other callbacks do not change.

        Args:
            states: id of a callback -> its state in the checkpoint.
            owners: the value that the method `owners` returned when the checkpoint was saved.
        """
        attached = {
            owner_id: callback
            for owner_id, callback in self._bus.subscribers.items()
            if isinstance(callback, Callback) and callback.has(Capability.HOLDS_WEIGHTS)
        }
        now = {one: owner for one, owner in self._attached_owners().items() if one in attached}
        for owner_id, target in matched(states, owners, now).items():
            state, was = states[owner_id], owners.get(owner_id, now[target]).get("version", 1)
            if was < now[target]["version"]:
                state = migrated(attached[target], target, state, was)
            load_state(attached[target], state)

    def refuse_other_weights(self, owners: Mapping[str, Any], path: Path, *, restores: bool) -> None:
        """Raise an error if the run would continue from other weights than the trained weights.

        A callback such as EMA saves its own weights in the model file, and the trained weights in its state.

        Args:
            owners: the value that the method `owners` returned when the checkpoint was saved.
            path: the checkpoint.
            restores: whether the run will restore the callback states.

        Raises:
            CheckpointError: if the model file has the weights of a callback, and no callback restores the trained ones.
        """
        attached = {type(callback).__name__ for callback in self._bus.subscribers.values()}
        for owner_id, owner in owners.items():
            if owner.get("replaces_weights") and not (restores and owner["class"] in attached):
                raise CheckpointError(
                    f"The model file of {path} has the weights of {owner_id}, not the trained weights, and "
                    f"{self._why_not_restored(owner, restores)}, or set `resume_partial=True` to "
                    f"continue the training from the "
                    "weights in the file."
                )

    def _why_not_restored(self, owner: Mapping[str, Any], restores: bool) -> str:
        """Return why no callback restores the trained weights, and the remedy. See `refuse_other_weights`."""
        kind, subscribers = owner["class"], self._bus.subscribers.values()
        call = f"{kind}({', '.join(f'{name}={value!r}' for name, value in owner['settings'].items())})"
        switch = "`restore_callback_states_from_checkpoint`"
        if kind in {type(callback).__name__ for callback in subscribers}:
            return f"{switch} is off, so {call} does not restore those. Set it to True"
        others = [type(each).__name__ for each in subscribers if owner_of(each)["replaces_weights"]]
        more = "" if restores else f", with {switch} on"
        if others:
            return f"{others[0]} is another class and does not restore those. Use {call} in its place{more}"
        return f"this run has no {kind} that restores those. Add {call} to the callbacks{more}"


def _is_of_another_class(owner_id: str, owners: Mapping[str, Any], now: Mapping[str, Mapping[str, Any]]) -> bool:
    return owner_id in owners and owner_id in now and owners[owner_id]["class"] != now[owner_id]["class"]


def owner_of(callback: Any, attributes: Mapping[str, Any] | None = None, *, saved: bool = False) -> dict[str, Any]:
    """Return the class, settings and state version of a callback, and whether the callback replaces weights.

    Args:
        callback: the callback.
        attributes: the attributes that the callback had when it was attached. Default: its current attributes.
        saved: True if the returned dict is written to a checkpoint together with the callback state. Attributes that
            changed since the callback was attached are then left out, because they are state and not settings.
    """
    began = attributes if saved else None
    settings = _settings(callback, began) if is_dataclass(callback) else _attributes(callback, attributes, saved)
    return {
        "class": type(callback).__name__,
        "settings": settings,
        "version": getattr(type(callback), "state_version", 1),
        "replaces_weights": isinstance(callback, Callback) and callback.has(Capability.REPLACES_WEIGHTS),
    }


def matched(
    states: Iterable[str], saved: Mapping[str, Any], attached: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Find the attached callback for each saved state: id of the state -> id of the callback.

    If callbacks have the same class, their ids can depend on the order of attaching. So class and settings count first.
    The order of preference is: equal class, settings and id; equal class and settings; equal class and id; equal class.
    If callbacks are equally good, the first in `attached` matches. States without a match are left out.

    Args:
        states: the ids of the saved states.
        saved: id of a state -> class and settings of its callback at the save. A state without an entry matches by id.
        attached: id of an attached callback -> class and settings of this callback.
    """

    def equal(one: str, other: str, *names: str) -> bool:
        return all(settings_fit(saved[one].get(name), attached[other].get(name)) for name in names)

    found = {one: one for one in states if one not in saved and one in attached}
    known = [one for one in states if one in saved]
    rounds: list[Callable[[str, str], bool]] = [
        lambda one, other: one == other and equal(one, other, "class", "settings"),
        lambda one, other: equal(one, other, "class", "settings"),
        lambda one, other: one == other and equal(one, other, "class"),
        lambda one, other: equal(one, other, "class"),
    ]
    for fits in rounds:
        for one in known:
            free = (other for other in attached if other not in found.values() and fits(one, other))
            if one not in found and (other := next(free, None)) is not None:
                found[one] = other
    return found


def _settings(callback: Any, attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a dataclass callback, except `id` and fields that changed after `attach`."""
    values = {field.name: getattr(callback, field.name, None) for field in fields(callback) if field.init}
    settings = {name: _plain(value) for name, value in values.items() if name != "id" and _is_comparable(value)}
    began = {name: _plain(value) for name, value in (attributes or {}).items() if name in settings}
    return {name: text for name, text in settings.items() if _same(began.get(name, text), text)}


def _attributes(callback: Any, attributes: Mapping[str, Any] | None, saved: bool) -> dict[str, Any]:
    """Return the settings of a callback that is not a dataclass. `owner_of` explains `attributes` and `saved`.

    Settings are the attributes with the names of constructor arguments. If no attribute has such a name, all public
    attributes are settings. Only attributes whose value is a number, a string, a bool or None count.
    """
    now = getattr(callback, "__dict__", {})
    public = {
        name: value
        for name, value in (now if attributes is None else attributes).items()
        if not name.startswith("_") and name not in _OF_ALL and _is_plain(value)
    }
    if saved:
        public = {name: value for name, value in public.items() if name in now and _same(now[name], value)}
    named = inspect.signature(type(callback)).parameters if public else {}
    return {name: public[name] for name in public if name in named} or public


_OF_ALL = ("id", "on_error", "budget", "over_budget")
"""Attributes that control how the bus calls a callback. They do not count as settings."""


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or one is other)


def settings_fit(saved: Any, now: Any) -> bool:
    """Return whether a saved value equals the current value. In dicts, only the keys that both have are compared."""
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        return all(saved[name] == now[name] for name in saved.keys() & now.keys())
    return bool(saved == now)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


def _is_comparable(value: Any) -> bool:
    return " at 0x" not in repr(value)  # the default text of an object differs in every process


def _tell_matched_by_position(owners: Mapping[str, Mapping[str, Any]]) -> None:
    """Warn about callbacks of equal class and settings, because only their order decides which state each receives."""
    alike: dict[str, list[str]] = {}
    for owner_id, owner in owners.items():
        if owner_id.partition("-")[0] == owner["class"]:  # an id that the user chose tells it apart
            alike.setdefault(f"{owner['class']} {owner['settings']}", []).append(owner_id)
    for ids in alike.values():
        if len(ids) > 1:
            logger.warning(
                "The states of %s are matched by their position in the list of callbacks, because their settings do "
                "not tell them apart. Give each callback its own `id`.",
                " and ".join(ids),
            )


def _tell_differences(owner_id: str, saved: Mapping[str, Any], now: Mapping[str, Any], callback: Any) -> None:
    if saved.get("version", 1) > now["version"]:
        raise CheckpointError(
            f"The state of {owner_id} has version {saved['version']}, and this {now['class']} reads versions up to "
            f"{now['version']}. Install the release that saved it, or remove {now['class']}."
        )
    if saved.get("version", 1) < now["version"] and not migrates(callback):
        logger.warning(
            "The state of %s has version %s, and this %s writes version %s. Its `load_state_dict` "
            "receives the state of the older version.",
            *(owner_id, saved.get("version", 1), now["class"], now["version"]),
        )
    was, settings = saved.get("settings", {}), now["settings"]
    names = sorted(name for name in was.keys() & settings.keys() if was[name] != settings[name])
    if names:
        changes = ", ".join(f"{name} was {was[name]!r} and is {settings[name]!r}" for name in names)
        # `callback.arguments` names the training arguments that configure it. Users change these on purpose.
        level = logging.INFO if getattr(callback, "arguments", ()) else logging.WARNING
        logger.log(level, "%s resumes with other settings: %s.", owner_id, changes)
