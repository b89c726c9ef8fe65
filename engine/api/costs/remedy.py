"""Find the remedy for a callback that takes much time."""

from __future__ import annotations

_LIBRARY = __name__.partition(".")[0]

_LOG = "log less often: set larger logging_steps"
_SAVE = "save less often: set larger save_steps"
_EVALUATE = "evaluate less often: set larger eval_steps"
_OF_EVENTS = {
    **{"on_log": _LOG, "on_eval": _EVALUATE, "on_predict": _EVALUATE},
    **dict.fromkeys(("on_save", "on_snapshot", "on_commit", "on_delete", "on_push"), _SAVE),
}
"""Beginning of an event name -> the remedy for a callback of trainbus that takes the most time at such an event."""
_OF_PARTS = {"StepCapture": "set capsule=False"}
"""Id of a handler that a callback of trainbus attaches for one session -> the argument to disable this handler."""


def is_own(name: str, subscriber: object) -> bool:
    """Return whether a callback or function is part of trainbus.

    Args:
        name: the id of the callback or function.
        subscriber: the callback or function; None if it is not attached any more. With None, the result is True only
            for the ids in `_OF_PARTS`.
    """
    owner = subscriber if hasattr(subscriber, "__qualname__") else type(subscriber)
    return name in _OF_PARTS or str(getattr(owner, "__module__", "")).partition(".")[0] == _LIBRARY


def remedy_of(name: str, subscriber: object, event: str) -> str:
    """Return the text of the remedy for a callback that takes much time.

    Args:
        name: the id of the callback or function.
        subscriber: the callback or function; None if it is not attached any more.
        event: the event at which the callback takes the most time.
    """
    if not is_own(name, subscriber):
        return "let it do its work less often"
    if name in _OF_PARTS:
        return _OF_PARTS[name]
    remedies = (remedy for begin, remedy in _OF_EVENTS.items() if event.startswith(begin))
    kind = type(subscriber).__name__
    return next(remedies, f"leave it out, or change its options: see `help({kind})`")
