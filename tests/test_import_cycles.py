"""No two modules import each other, not even for type checkers, and the folders stay small."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_architecture import FACADE, FOLDERS, ROOT, imports_of, package_of

LIMITS = {"engine": 18, "callbacks": 12}
"""The most files and folders directly in a folder."""


def module_name(path: Path) -> str:
    if path.parts[:2] == ("engine", "_root"):
        return ".".join(["trainbus", *path.with_suffix("").parts[2:]]).removesuffix(".__init__")
    return ".".join(["trainbus", *path.with_suffix("").parts]).removesuffix(".__init__")


def graph_of(sources: dict[Path, str]) -> dict[str, set[str]]:
    """Return module -> the modules it imports, in functions and for type checkers too.

    A package's `__init__` that only re-exports lazily imports nothing when it runs: its imports for type checkers do
    not count. A module that imports a name from a package imports the module that defines it, not the package.
    """
    modules = {module_name(path): path for path in sources}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        lazy = path == FACADE or "lazy_exports(" in sources[path]
        found: set[str] = set()
        for imported in imports_of(sources[path], package_of(path)) if not lazy else ():
            parts = imported.split(".")
            known = next(
                (".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in modules), None
            )
            if known is not None and known != name:
                found.add(known)
        graph[name] = found
    return graph


def cycles_of(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return found


@pytest.fixture(scope="module")
def sources(project_files: list[Path]) -> dict[Path, str]:
    """The source of every module of the four folders."""
    paths = [path for path in project_files if path.suffix == ".py" and path.parts[0] in FOLDERS]
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in paths}


def test_cycles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert cycles_of(graph) == [["a", "b", "c"]]
    assert cycles_of({"a": {"b"}, "b": set()}) == []


def test_imports_for_type_checkers_count():
    sources = {
        Path("engine/a.py"): "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import B\n",
        Path("engine/b.py"): "def f():\n    from .a import A\n",
    }
    assert cycles_of(graph_of(sources)) == [["trainbus.engine.a", "trainbus.engine.b"]]


def test_no_modules_import_each_other(sources: dict[Path, str]):
    assert cycles_of(graph_of(sources)) == []


@pytest.mark.parametrize("folder", LIMITS)
def test_folder_has_few_entries(project_files: list[Path], folder: str):
    entries = {path.parts[1] for path in project_files if path.parts[0] == folder}
    assert len(entries) <= LIMITS[folder], sorted(entries)
