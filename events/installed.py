"""Installed plugins: the entry points of packages, found without importing the packages."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .errors import TrainbusError

GROUP = "trainbus.callbacks"
"""The entry-point group of callbacks."""

COMMAND_GROUP = "trainbus.commands"
"""The entry-point group of commands of `trainbus`. An entry point names a function `add_to`, or a module that has this
function."""

MANIFEST = "trainbus_plugins.json"
"""The file name of the plugin manifest in the folder of a package."""


@dataclass(frozen=True)
class Plugin:
    """One entry point of an installed package."""

    entry: EntryPoint = field(repr=False)

    @property
    def name(self) -> str:
        """The name of the entry point."""
        return self.entry.name

    @property
    def value(self) -> str:
        """The path of the object that the entry point names, such as `package.module:Class`."""
        return self.entry.value

    @property
    def package(self) -> str:
        """The name of the distribution; empty if it is unknown."""
        return str(self.entry.dist.name) if self.entry.dist is not None else ""

    @property
    def version(self) -> str:
        """The version of the distribution; empty if it is unknown."""
        return str(self.entry.dist.version) if self.entry.dist is not None else ""

    @property
    def origin(self) -> str:
        """The package and its version, such as `acme 1.0`."""
        return f"{self.package} {self.version}".strip() or "unknown package"

    @property
    def module(self) -> str:
        """The name of the module in the property `value`, such as `package.module`."""
        return self.value.partition(":")[0].strip()

    @property
    def file(self) -> str:
        """The path of the file of the module `module`; empty if there is no file. The module is not imported."""
        place = module_file(self.module)
        return "" if place is None else str(place)

    def manifest(self) -> Mapping[str, Any] | None:
        """Read the part of the plugin manifest about this plugin: a dict with keys such as `doc` and `options`.

        Return None if the package has no plugin manifest, or if this part is missing, invalid or outdated. The part is
        outdated if its key `value` differs from the property `value` of this plugin.
        """
        row = manifest_of(self.module).get("plugins", {}).get(self.name)
        return row if _is_row(row) and row.get("value") == self.value else None

    def load(self) -> Any:
        """Import and return the object of the plugin.

        Raises:
            TrainbusError: if the import fails. The error names the plugin. If the plugin is not a command, the error
                also names the environment variable that disables the plugin.
        """
        try:
            if self.entry.pattern.fullmatch(self.value) is None:
                raise ValueError("the entry point is not `package.module:name`")
            return self.entry.load()
        except (KeyboardInterrupt, GeneratorExit, MemoryError):
            raise
        except BaseException as error:  # also SystemExit, and a panic of an extension module
            raise self.failure(error) from error

    def failure(self, error: BaseException) -> TrainbusError:
        """Return an error that says that the plugin cannot be loaded because of `error`, and how to fix it."""
        kind = "command" if self.entry.group == COMMAND_GROUP else "plugin"
        leave_out = f", or leave it out with TRAINBUS_DISABLE_PLUGINS={self.name}" if kind == "plugin" else ""
        return TrainbusError(
            f"The {kind} {self.name!r} of {self.origin} ({self.value}) cannot be loaded: {type(error).__name__}: "
            f"{str(error).rstrip('.')}. Fix or uninstall it{leave_out}."
        )


_ROW = {
    **{"value": str, "doc": str, "auto": bool, "stage": str, "handlers": dict, "events": dict, "options": dict},
    **{"requires": str, "conflicts": list},
}
"""Key of the part of a plugin manifest about one plugin -> the type of the value under the key."""


def _is_row(row: Any) -> bool:
    """Return whether `row`, the part of a plugin manifest about one plugin, is a dict with values of the right types.

    The manifest may have been edited by hand.
    """
    return (
        isinstance(row, dict)
        and all(isinstance(row[name], kind) for name, kind in _ROW.items() if name in row)
        and all(isinstance(each, str) for name in ("handlers", "events") for each in row.get(name, {}).values())
        and all(isinstance(each, str) for each in row.get("conflicts", ()))
        and all(isinstance(each, dict) and {"type", "required"} <= each.keys() for each in _options_of(row))
    )


def _options_of(row: Mapping[str, Any]) -> list[Any]:
    return list(row.get("options", {}).values())


def installed(group: str = GROUP) -> dict[str, Plugin]:
    """Return the installed plugins of a group: name -> plugin, in alphabetical order. Nothing is imported.

    If two packages offer the same name, the package that comes first in `sys.path` wins. The function `duplicates`
    returns the plugins of both packages.
    """
    found: dict[str, Plugin] = {}
    for entry in _entries(group):
        found.setdefault(entry.name, Plugin(entry))
    return dict(sorted(found.items()))


def duplicates(group: str = GROUP) -> dict[str, list[Plugin]]:
    """Return the names that several plugins have: name -> all plugins with this name."""
    found: dict[str, dict[tuple[str, str], Plugin]] = {}
    for entry in _entries(group):
        plugin = Plugin(entry)
        found.setdefault(entry.name, {})[plugin.package, plugin.value] = plugin
    return {name: [*same.values()] for name, same in found.items() if len(same) > 1}


def _entries(group: str) -> tuple[EntryPoint, ...]:
    return _read(group, tuple((folder, _changed(folder)) for folder in sys.path))


@lru_cache(maxsize=8)
def _read(group: str, folders: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """Read the entry points of a group. Reading is slow, so the result is cached until a folder changes.

    Args:
        group: the entry-point group.
        folders: each folder of `sys.path` with the time of its last change, in nanoseconds; 0 if the folder cannot be
            read. These pairs are the key of the cache.
    """
    return tuple(entry_points(group=group))


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def module_folder(module: str) -> Path | None:
    """Return the folder of a package, without importing it; None if the module is not a package or is not found."""
    return next(iter(_folders(module)), None)


def module_file(module: str) -> Path | None:
    """Return the file of a module, without importing the module or its parent packages; None if no file is found."""
    parent, _, name = module.rpartition(".")
    if not parent:
        origin = getattr(_top(name), "origin", None)
        return Path(origin) if origin and Path(origin).is_file() else None
    for folder in _folders(parent):
        spec = PathFinder.find_spec(name, [str(folder)])
        if spec is not None and spec.origin:
            return Path(spec.origin)
    return None


def manifest_of(module: str) -> Mapping[str, Any]:
    """Read the plugin manifest of the package of a module; return an empty dict if there is no readable manifest.

    The manifest is in the folder of the module's package or of a parent package. The nearest manifest counts.
    """
    name = module
    while name:
        for folder in _folders(name):
            try:
                found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if isinstance(found, dict) and isinstance(found.get("plugins"), dict):
                return found
        name = name.rpartition(".")[0]
    return {}


def _folders(package: str) -> list[Path]:
    """Return the folders of a package, without importing it."""
    top, *rest = package.split(".")
    folders = [Path(place) for place in getattr(_top(top), "submodule_search_locations", None) or ()]
    for name in rest:
        folders = [folder / name for folder in folders if (folder / name).is_dir()]
    return folders


def _top(name: str) -> Any:
    try:
        return find_spec(name)  # for a top-level name, this imports nothing
    except (ImportError, ValueError, AttributeError):
        return None
