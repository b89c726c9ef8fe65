"""Functions on a set of callbacks: which callbacks have a capability, and which exclude each other.

A callback that does not derive from `Callback`, such as one written for transformers, has no capability.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from .callback import Callback
from .capabilities import Capability
from .errors import ArgumentError


def providers(callbacks: Iterable[object], capability: Capability) -> list[Callback]:
    """Return the callbacks that have a capability, in the given order."""
    return [callback for callback in callbacks if isinstance(callback, Callback) and callback.has(capability)]


def provides(callbacks: Iterable[object], capability: Capability) -> bool:
    """Return whether any of the callbacks has a capability."""
    return bool(providers(callbacks, capability))


def is_rank_local(callback: object) -> bool:
    """Return whether a callback decides from something that only one rank knows.

    Any class may set `local = True`, including a subclass of transformers' `TrainerCallback`.
    """
    return getattr(callback, "local", False) is True


def refuse_conflicts(callbacks: Iterable[object]) -> None:
    """Check that the callbacks work together.

    Raises:
        ArgumentError: if some callbacks exclude each other. The error lists all such pairs, each with the remedy.
    """
    own = [callback for callback in callbacks if isinstance(callback, Callback)]
    pairs = [*combinations(own, 2)]
    found = [text for one, other in pairs if (text := _conflict(one, other) or _conflict(other, one))]
    if found:
        one = len(found) == 1
        raise ArgumentError(found[0] if one else "Some callbacks exclude each other:\n- " + "\n- ".join(found))


def _conflict(one: Callback, other: Callback) -> str:
    reason = one.conflict_with(other)
    if not reason:
        return ""
    same = type(one) is type(other)
    names = (repr(one), repr(other)) if same else (type(one).__name__, type(other).__name__)
    return f"{names[0]} does not work with {names[1]}: {reason}"


def describe_capabilities(callbacks: Mapping[str, object]) -> str:
    """Return one line for each callback with capabilities: its id and the capabilities.

    Args:
        callbacks: id -> callback.
    """
    lines = []
    for owner_id, callback in callbacks.items():
        words = [known.value for known in Capability if provides([callback], known)]
        if is_rank_local(callback):
            words.append("decides on one rank (local)")
        if words:
            lines.append(f"  {owner_id}: {', '.join(words)}")
    return "Capabilities:\n" + "\n".join(lines) if lines else ""
