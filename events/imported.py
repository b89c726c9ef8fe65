"""Find a module of an optional library if the program has imported this module already. Nothing is imported."""

from __future__ import annotations

import sys
from typing import Any


def imported(name: str) -> Any:
    """Return a module if its import is complete; None otherwise.

    Python adds a module to `sys.modules` before the code of the module has run. While another thread imports the
    module, names of the module may be missing. So the function returns None for a module whose import is not complete.

    Args:
        name: the full name, such as `transformers.loss.loss_utils`.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else module
