"""States of earlier versions of a callback, which its method `migrate` converts."""

from __future__ import annotations

from typing import Any

from ...events.callback import Callback
from ...events.errors import CheckpointError
from ..distributed.memory_errors import lacks_memory


def migrates(callback: Any) -> bool:
    """Return whether the class of a callback has a method `migrate`, which converts states of earlier versions."""
    return getattr(type(callback), "migrate", Callback.migrate) is not Callback.migrate


def migrated(callback: Any, owner_id: str, state: Any, version: int) -> Any:
    """Return a state of an earlier version, converted by the method `migrate` of its callback.

    If the callback has no method `migrate`, the state is returned unchanged.

    Raises:
        CheckpointError: if `migrate` fails, or does not return a dict.
    """
    if not migrates(callback):
        return state
    try:
        converted = callback.migrate(state, version)
    except Exception as error:
        if lacks_memory(error):
            raise
        raise CheckpointError(
            f"{owner_id}.migrate cannot convert the state of version {version}: {type(error).__name__}: {error}. "
            f"Install the release that saved it, or remove {type(callback).__name__}."
        ) from error
    if not isinstance(converted, dict):
        raise CheckpointError(
            f"{owner_id}.migrate returned a {type(converted).__name__} for the state of version {version}. Return the "
            "dict that `load_state_dict` takes."
        )
    return converted
