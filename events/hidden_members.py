"""Find the handlers and settings of a mixin that the empty handlers and defaults of `Callback` hide."""

from __future__ import annotations

import inspect

_BASES = ("Callback", "TrainerCallback")
"""The names of base classes of callbacks, also in other libraries. Their own empty handlers do not count."""


def hidden_by(base: type, callback: object) -> str:
    """Return an error text if `base` hides a handler or a setting of a later base class; else an empty text."""
    cls, order = type(callback), type(callback).__mro__
    first = order[: order.index(base)]
    for later in order[order.index(base) + 1 :]:
        if later in base.__mro__ or later.__name__ in _BASES or getattr(later, "_is_protocol", False):
            continue
        names = [
            name
            for name, value in vars(later).items()
            if _hides(base, callback, name, value) and not any(name in vars(each) for each in first)
        ]
        if names:
            return (
                f"{cls.__name__} never uses {', '.join(f'{later.__name__}.{name}' for name in names)}, because "
                f"{base.__name__} comes before {later.__name__} in its bases. Write `class {cls.__name__}"
                f"({later.__name__}, {base.__name__})`."
            )
    return ""


def _hides(base: type, callback: object, name: str, value: object) -> bool:
    if name.startswith("_") or not hasattr(base, name) or name in getattr(callback, "__dict__", ()):
        return False
    return inspect.getattr_static(base, name) != value and not getattr(value, "__isabstractmethod__", False)
