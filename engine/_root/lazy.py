"""Lazy re-exports (PEP 562): the first use of a name imports its module."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(package: str, places: Mapping[str, tuple[str, ...]]) -> tuple[Callable[[str], Any], list[str]]:
    """Return the `__getattr__` and the `__all__` of a package that re-exports names of its modules.

    Args:
        package: the package, as `__name__`.
        places: module, relative to the package -> the names it provides.
    """
    home = {name: module for module, names in places.items() for name in names}

    def __getattr__(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{home[name]}", package), name)

    return __getattr__, list(home)
