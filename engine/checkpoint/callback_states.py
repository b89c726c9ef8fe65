"""The states of callbacks: collected for a checkpoint, restored on resume, and carried on for absent callbacks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ...events.bus import EventBus

logger = logging.getLogger(__name__)


class CallbackStates:
    """The states of the attached callbacks, and of callbacks that only an earlier session had."""

    def __init__(self, bus: EventBus) -> None:
        """Serve the callbacks attached to `bus`."""
        self._bus = bus
        self._carried: dict[str, Any] = {}

    def collect(self) -> dict[str, Any]:
        """Return the states of all callbacks that have one, by id, and the carried states."""
        states = dict(self._carried)
        for owner_id, callback in self._bus.subscribers.items():
            state = _state_of(callback)
            if state:
                states[owner_id] = state
        return states

    def restore(self, states: Mapping[str, Any]) -> None:
        """Load each state into its callback. Carry the states without a callback to the next checkpoint."""
        attached = self._bus.subscribers
        self._carried = {owner_id: state for owner_id, state in states.items() if owner_id not in attached}
        for owner_id, state in states.items():
            if owner_id in attached:
                _load_state(attached[owner_id], state)
        if self._carried:
            logger.info("The checkpoint has states of callbacks that are not attached: %s.", ", ".join(self._carried))


def _state_of(callback: Any) -> Any:
    if hasattr(callback, "state_dict"):
        return callback.state_dict()
    exported = getattr(callback, "state", None)  # the interface of transformers' ExportableState
    return exported() if callable(exported) and hasattr(type(callback), "from_state") else None


def _load_state(callback: Any, state: Any) -> None:
    if hasattr(callback, "load_state_dict"):
        callback.load_state_dict(state)
    elif isinstance(state, dict):
        for name, value in state.get("attributes", {}).items():
            setattr(callback, name, value)
