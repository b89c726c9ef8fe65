"""The states that checkpoints keep although their callbacks are not attached, and access to the state of a callback."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...events.callback import Callback
from ...events.errors import noting
from ..distributed.memory_errors import lacks_memory

logger = logging.getLogger(__name__)


@dataclass
class CarriedStates:
    """The states of two kinds of callbacks that are not attached.

    - Callbacks that an earlier session attached, and that this session does not attach.
    - Callbacks that the run unsubscribed, because they failed or exceeded their time budget.

    States of callbacks that replace weights, such as EMA, are not carried. They have the weights of an earlier step. If
    a later session attached the callback again, it would load these weights.
    """

    states: dict[str, Any] = field(default_factory=dict)
    """The states by callback id."""
    owners: dict[str, Any] = field(default_factory=dict)
    """Class, settings and state version of the callbacks, by callback id."""
    _resumed: set[str] = field(default_factory=set)
    """The ids of the states that a resume carried. The others are of callbacks that the run unsubscribed."""
    _last: dict[str, Any] = field(default_factory=dict)
    """Copies of the last saved or restored states, for callbacks that the run may unsubscribe."""

    def carry(self, states: Mapping[str, Any], owners: Mapping[str, Any]) -> list[str]:
        """Carry the states of a checkpoint. They replace all states that this object carried before.

        Args:
            states: the states by callback id.
            owners: class, settings and state version of callbacks, by callback id. An id in `states` may have no entry.
                Entries for ids that are not in `states` are ignored.

        Returns:
            The ids of the states that are not carried, because their callbacks replace weights.
        """
        left_out = [owner_id for owner_id in states if _replaces_weights(owners.get(owner_id, {}))]
        self.states = {owner_id: state for owner_id, state in states.items() if owner_id not in left_out}
        self.owners = {owner_id: owners[owner_id] for owner_id in self.states if owner_id in owners}
        self._resumed = set(self.states)
        return left_out

    def of_checkpoint(self) -> list[str]:
        """Return the ids of the states that a resume carried, and that no callback has received since."""
        return [owner_id for owner_id in self.states if owner_id in self._resumed]

    def release(self, owner_id: str) -> tuple[Any, Any]:
        """Stop to carry a state. Return the state and its owner; None as the owner if it is unknown."""
        self._resumed.discard(owner_id)
        return self.states.pop(owner_id), self.owners.pop(owner_id, None)

    def note(self, owner_id: str, state: Any) -> None:
        """Store the last saved or restored state of an attached callback that the run may unsubscribe later."""
        self._last[owner_id] = _copied(state)

    def keep(self, owner_id: str, callback: Any, owner: Callable[[], dict[str, Any]]) -> None:
        """Carry the state of a callback that the run unsubscribes now.

        If the state cannot be read, carry the last saved or restored state. If the callback replaces weights, carry no
        state.

        Args:
            owner_id: the id of the callback.
            callback: the callback.
            owner: a function that returns a dict with the class, settings and state version of the callback. The entry
                `replaces_weights` says whether the callback replaces weights.
        """
        try:
            state = _copied(state_of(callback))
        except Exception as error:
            state = self._last.get(owner_id)
            kept = "have no state of it" if state is None else "keep its last saved state"
            logger.warning(
                "The state of %s cannot be read: %s: %s. Later checkpoints %s.",
                *(owner_id, type(error).__name__, error, kept),
            )
        if state and not _replaces_weights(about := owner()):
            self.states[owner_id], self.owners[owner_id] = state, about
            self._resumed.discard(owner_id)


def free_ids(ids: list[str], taken: Iterable[str]) -> dict[str, str]:
    """Return an id for each state, with a new suffix if an attached callback has the id of the state."""
    names: dict[str, str] = {}
    for one in ids:
        used = {*taken, *names.values()}
        names[one] = next(name for n in itertools.count(1) if (name := one if n == 1 else f"{one}-{n}") not in used)
    return names


def _replaces_weights(owner: Mapping[str, Any]) -> bool:
    return bool(owner.get("replaces_weights"))


def exports(callback: Any) -> bool:
    """Return whether a callback has the interface of transformers' ExportableState, and no `state_dict` of its own."""
    cls = type(callback)
    exportable = hasattr(cls, "from_state") and callable(getattr(cls, "state", None))
    return exportable and getattr(cls, "state_dict", Callback.state_dict) is Callback.state_dict


def state_of(callback: Any) -> Any:
    """Return the state of a callback; None or an empty dict if it has none."""
    with noting(f"{type(callback).__name__}.state_dict failed."):
        if exports(callback):
            return callback.state()
        return callback.state_dict() if hasattr(callback, "state_dict") else None


def load_state(callback: Any, state: Any) -> None:
    """Load a state of a checkpoint into a callback."""
    with noting(f"{type(callback).__name__}.load_state_dict failed, with the state of the checkpoint."):
        if not exports(callback):
            if hasattr(callback, "load_state_dict"):
                callback.load_state_dict(state)
        elif isinstance(state, dict):
            if state.get("args"):
                callback.__init__(**state["args"])  # initialise the same object again
            for name, value in state.get("attributes", {}).items():
                setattr(callback, name, value)


def _copied(state: Any) -> Any:
    """Return a deep copy of a state, because the callback or the training may change its values later."""
    try:
        return copy.deepcopy(state)
    except Exception as error:  # a checkpoint may hold more kinds of values than `deepcopy` copies
        if lacks_memory(error):
            raise
        return state
