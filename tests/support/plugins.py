"""Installed packages with plugins, made of files: a module or package, and the folder of metadata that pip writes."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

_NUMBERS = itertools.count()


class Packages:
    """Makes packages that `importlib.metadata` finds, in a folder at the head of `sys.path`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.modules: set[str] = set()

    def add(
        self, source: str, entries: Mapping[str, Mapping[str, str]], name: str = "", version: str = "1.0", **files: str
    ) -> str:
        """Install a package and return the name of its package.

        Args:
            source: the text of its `__init__.py`.
            entries: group of entry points -> name -> the object that it refers to; `{pkg}` stands for the package.
            name: the name of the distribution and of the package. Default: one that no other test uses.
            files: texts of further modules, by name.
        """
        name = name or f"offered_{next(_NUMBERS)}"
        package = name.replace("-", "_")
        (self.folder / package).mkdir()
        for module, text in {"__init__": source, **files}.items():
            (self.folder / package / f"{module}.py").write_text(text, encoding="utf-8")
        info = self.folder / f"{package}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        lines = []
        for group, points in entries.items():
            lines += [f"[{group}]", *(f"{point} = {value.format(pkg=package)}" for point, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (info / "top_level.txt").write_text(f"{package}\n", encoding="utf-8")
        self.modules.add(package)
        importlib.invalidate_caches()
        return package

    def is_imported(self, package: str) -> bool:
        """Return whether any code of the package has run in this process."""
        return package in sys.modules


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    """Install packages with plugins for one test."""
    made = Packages(tmp_path / "site")
    monkeypatch.syspath_prepend(str(made.folder))
    for variable in ("TRAINBUS_PLUGINS", "TRAINBUS_DISABLE_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)
    yield made
    for name in [name for name in sys.modules if name.partition(".")[0] in made.modules]:
        del sys.modules[name]
