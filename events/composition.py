"""Functions on a set of callbacks: which callbacks have a capability, and which do not work together.

A callback that does not derive from `Callback`, such as one written for transformers, has no capability.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .callback import Callback
from .capabilities import BestMetric, Capability
from .errors import ArgumentError


def providers(callbacks: Iterable[object], capability: Capability) -> list[Callback]:
    """Return the callbacks that have the given capability. The order of the callbacks stays the same."""
    return [callback for callback in callbacks if isinstance(callback, Callback) and callback.has(capability)]


def provides(callbacks: Iterable[object], capability: Capability) -> bool:
    """Return whether at least one of the callbacks has the given capability."""
    return bool(providers(callbacks, capability))


def best_metric_of(callbacks: Iterable[object]) -> BestMetric | None:
    """Return the metric of the first callback that chooses the best model.

    Return None if no callback chooses the best model, or if the first such callback names no metric.
    """
    choosers = providers(callbacks, Capability.CHOOSES_BEST_MODEL)
    return choosers[0].best_metric if choosers else None


def is_rank_local(callback: object) -> bool:
    """Return whether a callback decides from a value that only one rank knows, such as a clock.

    Any class may set `local = True`, including a subclass of transformers' `TrainerCallback`.
    """
    return getattr(callback, "local", False) is True


def refuse_conflicts(callbacks: Iterable[object]) -> None:
    """Check that the callbacks work together.

    Raises:
        ArgumentError: if two callbacks do not work together. The error lists all such pairs, each with the remedy.
    """
    own = [callback for callback in callbacks if isinstance(callback, Callback)]
    # Only pairs with a callback that may conflict are compared. Most callbacks never conflict, so there are few pairs.
    excluding = [index for index, callback in enumerate(own) if _may_conflict(callback)]
    pairs = {(min(one, other), max(one, other)) for one in excluding for other in range(len(own)) if one != other}
    both = ((own[first], own[second]) for first, second in sorted(pairs))
    found = [text for one, other in both if (text := _conflict(one, other) or _conflict(other, one))]
    if found:
        one = len(found) == 1
        raise ArgumentError(found[0] if one else "Some callbacks exclude each other:\n- " + "\n- ".join(found))


def _may_conflict(callback: Callback) -> bool:
    return bool(callback.conflicts_with) or type(callback).conflict_with is not Callback.conflict_with


def _conflict(one: Callback, other: Callback) -> str:
    reason = one.conflict_with(other)
    if not reason:
        return ""
    same = type(one) is type(other)
    names = (repr(one), repr(other)) if same else (type(one).__name__, type(other).__name__)
    return f"{names[0]} does not work with {names[1]}: {reason}"


def describe_capabilities(callbacks: Mapping[str, object]) -> str:
    """Return a text that lists the capabilities of the callbacks, with one line per callback.

    A line also says whether the callback sets `local = True`. A callback without capabilities and without
    `local = True` has no line. The text is empty if no callback has a line.

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
