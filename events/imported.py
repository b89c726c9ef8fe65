"""Find modules of optional libraries that the program has imported already. trainbus does not import them for this."""

from __future__ import annotations

import sys
from typing import Any


def imported(name: str) -> Any:
    """Return a module if its import is complete; None otherwise.

    A module is in `sys.modules` before its code has run. Another thread, such as the thread of a tracker, may still be
    importing it, and then its names are missing. So an incomplete module counts as not imported. No
    object of its classes can exist yet, so nothing is missed.

    Args:
        name: the full name, such as `transformers.loss.loss_utils`.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module
