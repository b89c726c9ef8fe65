"""Modules of optional libraries that the program has imported already. This package does not import them."""

from __future__ import annotations

import sys
from typing import Any


def imported(name: str) -> Any:
    """Return a module that is imported completely; None otherwise.

    A module is in `sys.modules` before its code has run. Another thread, such as the thread of a tracker, may still be
    importing it, and then its names are missing. No object of its classes can exist before the import is complete.

    Args:
        name: the full name, such as `transformers.loss.loss_utils`.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module
