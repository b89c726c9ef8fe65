"""Lazy re-exports (PEP 562): the first use of a name imports its module."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def lazy_exports(
    package: str, places: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Build the `__getattr__`, the `__dir__` and the `__all__` of a package that re-exports names of its modules.

    Python reads `__dir__` to suggest the nearest name if a name is unknown.

    Args:
        package: the name of the package: its `__name__`.
        places: each key is a module, relative to the package. Each value has the names to re-export from it.
    """
    home = {name: module for module, names in places.items() for name in names}

    def __getattr__(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(load(home[name], package), name)

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return __getattr__, __dir__, list(home)


def load(module: str, package: str) -> ModuleType:
    """Import a module of a package, without garbage collections: see `without_collections`.

    Args:
        module: the name of the module, relative to the package.
        package: the name of the package: its `__name__`.
    """
    with without_collections():
        return importlib.import_module(f"{package}.{module}")


@contextmanager
def without_collections() -> Iterator[None]:
    """Prevent garbage collections inside a `with` block that imports many modules.

    Garbage collections would take a third of the time of `from trainbus import Trainer`.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
