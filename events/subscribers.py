"""Subscribers: the handlers, the stage and the id of a callback."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import custom_events
from .callback import Callback
from .contract import check_requires
from .errors import SubscriptionError, UnknownCallback, nearest
from .handlers import Handler
from .hidden_members import hidden_by
from .policies import ACTIONS, Budget, Policy, budget_of, policy_of
from .settings import meaning, problems_of_settings
from .stages import Stage, names

logger = logging.getLogger(__name__)

FOREIGN_BASE = "TrainerCallback"
"""The name of the base class of the callbacks of transformers. Callbacks that derive from a class with this name are
*foreign*."""

POLICIES, checked_policy, own_events = ACTIONS, policy_of, custom_events.own_events
"""The former names of `ACTIONS`, `policy_of` and `custom_events.own_events`."""


class Attached(dict[str, Any]):
    """The attached callbacks and functions by id. For an unknown id, the error suggests the nearest id."""

    def __missing__(self, owner_id: str) -> Any:
        attached = ", ".join(self)
        hint = nearest(owner_id, self)
        raise UnknownCallback(f"No callback with the id {owner_id!r} is attached{hint} Attached are: {attached}.")


@dataclass
class Subscriber:
    """A callback or function, with its handlers and settings."""

    callback: object
    handlers: dict[str, Handler]
    stage: Stage = Stage.DECIDE
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    wanted_id: str | None = None
    """The value of the field `id` of the callback; None if the field is not set."""
    on_error: str = "raise"
    foreign: bool = False
    """Whether the callback derives from a class named `TrainerCallback` (transformers), not from `Callback`."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """The attributes of the callback at its attachment, before the run changes them: name -> value."""


def inspect_subscriber(callback: object, known: Iterable[str]) -> Subscriber:
    """Read the handlers, the stage and the id of a callback.

    Handlers are the `on_*` methods that the callback does not inherit from its base class, such as `Callback`. If the
    name of such a method is not an event, the function raises an error. For a callback of transformers, the function
    only logs a warning.

    Args:
        callback: the callback.
        known: the names of all events.

    Raises:
        SubscriptionError: if `callback` is a class or a text, or has a method `on_*` that is not an event. Also if its
            base class hides a handler of a mixin. Also if a setting, such as `id` or `on_error`, has a wrong value.
            Also if its attribute `requires` excludes this release. Also if `callback` has no handler, and derives
            neither from `Callback` nor from a class named `TrainerCallback`.
    """
    if isinstance(callback, type):
        raise SubscriptionError(f"{callback.__name__} is a class. Attach an instance: {callback.__name__}(...).")
    if isinstance(callback, str):
        raise SubscriptionError(
            f"{callback!r} is a text. Write texts of callbacks in the arguments: "
            f"`TrainingArguments(callbacks=[{callback!r}])`."
        )
    if isinstance(callback, Callback):
        check_requires(callback.requires, type(callback).__name__)
    base = base_of(type(callback))
    foreign = base is not None and base is not Callback
    if not foreign and (problems := problems_of_settings(callback)):
        raise SubscriptionError(" ".join(problems))
    if base is not None and (hidden := hidden_by(base, callback)):
        if not foreign:
            raise SubscriptionError(hidden)
        logger.warning("%s", hidden)
    handlers: dict[str, Handler] = {}
    known = list(known)
    for name in dir(callback):
        if not name.startswith("on_") or name == "on_error":
            continue
        value = getattr(type(callback), name, None)
        inherited = base is not None and value is not None and value is getattr(base, name, None)
        if inherited and name not in getattr(callback, "__dict__", ()):
            continue
        try:
            handler = getattr(callback, name)
        except Exception as error:
            raise SubscriptionError(
                f"{type(callback).__name__}.{name} cannot be read: {type(error).__name__}: {error}. Write a method."
            ) from error
        if not callable(handler):
            if isinstance(callback, Callback) and name in known and handler is not None:
                raise SubscriptionError(
                    f"{type(callback).__name__}.{name} is {handler!r}, not a method. An event has this name: write "
                    f"`def {name}(self)`, or rename it."
                )
            continue
        if name not in known:
            message = f"{type(callback).__name__}.{name} matches no event{nearest(name, known)}"
            if not foreign:
                raise SubscriptionError(f"{message} {_of_lightning(callback) or _UNKNOWN_EVENT}")
            logger.warning("%s It is never called.", message)
            continue
        handlers[name] = handler
    if not handlers and base is None:
        raise SubscriptionError(
            f"{type(callback).__name__} is not a callback: it has no method named on_<event>. "
            f"Add one, such as on_step_end, or subscribe a function with trainer.on(event, function)."
            f"{' To use it as a collator, pass it as `data_collator`.' if callable(callback) else ''}"
        )
    if not handlers and isinstance(callback, Callback) and (idle := _methods_of(type(callback))):
        logger.warning(
            "%s has no handler, so no event calls it. It has the methods %s. The name of a handler is the name of its "
            "event, such as on_step_end.",
            *(type(callback).__name__, ", ".join(idle)),
        )
    if not foreign:
        _warn_of_half_states(type(callback))
    stage = getattr(callback, "stage", Stage.DECIDE)
    if not isinstance(stage, Stage):
        stage = Stage.DECIDE  # of a foreign class
    wanted = None if foreign else getattr(callback, "id", None)
    return Subscriber(
        callback,
        handlers,
        stage,
        names(getattr(callback, "before", ())) if not foreign else (),
        names(getattr(callback, "after", ())) if not foreign else (),
        wanted,
        "raise" if foreign else getattr(callback, "on_error", "raise"),
        foreign,
        {name: _as_now(value) for name, value in getattr(callback, "__dict__", {}).items()},
    )


_UNKNOWN_EVENT = "Rename or remove it. If another callback declares this event, attach that callback first."


def _warn_of_half_states(cls: type[Any]) -> None:
    """Warn if a class defines only one of the methods `state_dict` and `load_state_dict`."""
    saves, loads = (
        getattr(cls, name, None) not in (None, getattr(Callback, name)) for name in ("state_dict", "load_state_dict")
    )
    if saves and not loads:
        logger.warning(
            "%s has `state_dict`, but no `load_state_dict`. A resumed run does not restore its state.", cls.__name__
        )
    elif loads and not saves:
        logger.warning(
            "%s has `load_state_dict`, but no `state_dict`. Checkpoints do not contain its state.", cls.__name__
        )


def _as_now(value: Any) -> Any:
    """Return a shallow copy of an attribute of a callback if the attribute is a list, dict or set.

    Return any other value itself. The copy stays unchanged if the callback changes the attribute later.
    """
    return value.copy() if type(value) in (list, dict, set) else value


def refuse_wrong_settings(callbacks: Iterable[Callback]) -> None:
    """Check the settings that every callback has, such as `id`, `on_error` and `budget`.

    Raises:
        SubscriptionError: if settings have wrong values. The error lists all of them, and says how to fix each.
    """
    problems = [problem for callback in callbacks for problem in _problems_of(callback)]
    if problems:
        one = len(problems) == 1
        raise SubscriptionError(problems[0] if one else f"{len(problems)} problems:\n  - " + "\n  - ".join(problems))


def _problems_of(callback: Callback) -> Iterator[str]:
    yield from problems_of_settings(callback)
    label = type(callback).__name__
    checks: tuple[Callable[[], object], ...] = (
        lambda: checked_on_error(callback, callback.on_error, label),
        lambda: budget_for(callback, label),
    )
    for check in checks:
        try:
            check()
        except SubscriptionError as error:
            yield str(error)


def checked_on_error(callback: object, on_error: Any, label: str) -> Policy:
    """Return the policy with the name `on_error`, which says what happens if a handler raises an exception.

    Raises:
        SubscriptionError: if `on_error` is not a known value.
    """
    try:
        return policy_of(on_error, label)
    except SubscriptionError as error:
        raise SubscriptionError(f"{error}{meaning(callback, 'on_error')}") from None


def budget_for(callback: object, owner_id: str) -> Budget | None:
    """Return the time budget of a callback; None if the callback has no time budget.

    A dataclass may have a field `budget` with another meaning, such as `budget: int = 5`. If the value of this field is
    not a text, the result is None.

    Raises:
        SubscriptionError: if `budget` has another form than `2%` or `200us`, or if `over_budget` is not known.
    """
    if not isinstance(callback, Callback):
        return None
    budget: Any = callback.budget
    own_field = "budget" in getattr(callback, "__dataclass_fields__", ())
    if budget is None or (own_field and not isinstance(budget, str)):
        return None
    return budget_of(budget, callback.over_budget, owner_id)


def identity(subscriber: Any, wanted: str | None, taken: Container[str]) -> str:
    """Choose the id of a subscriber: the requested id, or the name of the class or function.

    If another subscriber already has this name as its id, the name gets a suffix: `-2`, `-3` and so on.

    Args:
        subscriber: the callback or function.
        wanted: the requested id. None: choose an id from the name.
        taken: the ids of the attached subscribers.

    Raises:
        SubscriptionError: if another subscriber has the requested id, or if the requested id is not a text.
    """
    if wanted is not None and not isinstance(wanted, str):
        raise SubscriptionError(f"The id {wanted!r} is not a text. Write one, such as id='mine'.")
    if wanted:
        if wanted in taken:
            raise SubscriptionError(f"Two callbacks have the id {wanted!r}. Set another id for one of them: id='...'.")
        return wanted
    own = subscriber.default_id() if isinstance(subscriber, Callback) else getattr(subscriber, "__name__", None)
    name = own or type(subscriber).__name__
    serial = 1
    while (candidate := name if serial == 1 else f"{name}-{serial}") in taken:
        serial += 1
    return candidate


def _of_lightning(callback: object) -> str:
    """Return a sentence that says how to attach a callback of Lightning; an empty text for any other object."""
    tops = {base.__module__.partition(".")[0] for base in type(callback).__mro__}
    name = type(callback).__name__
    return f"It is a callback of Lightning: write Lightning({name}(...))." if tops & _LIGHTNING else ""


_LIGHTNING = {"lightning", "pytorch_lightning", "lightning_fabric"}


def _methods_of(cls: type[Callback]) -> list[str]:
    """Return the names of the public methods that a class adds to `Callback`."""
    return [
        name
        for name, value in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and not hasattr(Callback, name) and value.__name__ != "<lambda>"
    ]


def base_of(cls: type) -> type | None:
    """Return the base class with the empty handlers: `Callback`, or the topmost class named `TrainerCallback`.

    Return None if the class has neither base.
    """
    if issubclass(cls, Callback):
        return Callback
    foreign = [base for base in cls.__mro__ if base.__name__ == FOREIGN_BASE]
    return foreign[-1] if foreign else None


def is_same(one: object, other: object) -> bool:
    """Return whether `one` and `other` are the same object, or the same method of the same object."""
    return one is other or (inspect.ismethod(other) and one == other)  # each access to a method creates another object


class Ordered(dict[Any, None]):
    """A set in the order of insertion. A `Channel` stores its handlers in such a set."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)

    def copy(self) -> Ordered:
        return Ordered(self)

    def __or__(self, other: Any) -> Ordered:  # type: ignore[override]
        return Ordered(dict.fromkeys([*self, *other]))
