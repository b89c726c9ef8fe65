"""AttachedCallbacks: the callbacks of a trainer as a list that a program may change."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from typing import Any, Protocol

from ...events.bus import EventBus
from ..run import Run


class HasCallbacks(Protocol):
    """The attributes of a trainer that the callback handler uses. The Trainer implements this protocol."""

    run: Run
    bus: EventBus

    @property
    def callback_handler(self) -> Any:
        """The callback handler, which attaches, detaches and reorders callbacks."""

    @property
    def callbacks(self) -> dict[str, Any]:
        """All callbacks and subscribed functions, by id."""

    def add_callback(self, callback: Any) -> Any:
        """Attach a callback. Return a handle that detaches the callback."""

    def pop_callback(self, callback: Any) -> Any:
        """Detach a callback and return it; None if it is not attached."""

    def remove_callback(self, callback: Any) -> None:
        """Detach a callback."""

    def _note_metrics(self, metrics: dict[str, Any]) -> None:
        """If an override of `evaluate` runs, record `metrics` as metrics of its evaluation. Otherwise do nothing.

        Only metrics with the prefix of the evaluation, such as `eval_`, are recorded.
        """

    def _take_announced_save(self) -> bool:
        """Return whether the program itself called `_save_checkpoint` at this step.

        Only the first call of this method after a save returns True.
        """


class AttachedCallbacks(MutableSequence[Any]):
    """The callbacks of a trainer as a list. A change of the list attaches, detaches or reorders callbacks."""

    def __init__(self, trainer: HasCallbacks) -> None:
        """Create the list for a trainer."""
        self._trainer = trainer

    def _now(self) -> list[Any]:
        return list(self._trainer.callbacks.values())

    def _set(self, callbacks: list[Any]) -> None:
        self._trainer.callback_handler.callbacks = callbacks

    def __len__(self) -> int:
        return len(self._now())

    def __getitem__(self, place: Any) -> Any:
        return self._now()[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        now = self._now()
        now[place] = value
        self._set(now)

    def __delitem__(self, place: Any) -> None:
        now = self._now()
        del now[place]
        self._set(now)

    def insert(self, index: int, value: Any) -> None:
        """Attach a callback at a position in the order of attachment."""
        now = self._now()
        now.insert(index, value)
        self._set(now)

    def sort(self, *, key: Callable[[Any], Any], reverse: bool = False) -> None:
        """Sort the callbacks by a key. This changes the order of attachment."""
        self._set(sorted(self._now(), key=key, reverse=reverse))

    def copy(self) -> list[Any]:
        """Return the callbacks as a plain list. A change of the plain list attaches and detaches nothing."""
        return self._now()

    def __add__(self, other: Any) -> list[Any]:
        return [*self._now(), *other]

    def __radd__(self, other: Any) -> list[Any]:
        return [*other, *self._now()]

    def __eq__(self, other: object) -> bool:
        return self._now() == (other._now() if isinstance(other, AttachedCallbacks) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._now())
