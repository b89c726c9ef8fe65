"""Find the code that reads each training argument: for the documentation, and for the test against dead arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("engine", "callbacks", "integrations")
ARGUMENTS = ROOT / "engine" / "arguments"

_CHECKS = ("problems", "__post_init__", "_normalize_and_check", "fallbacks", "check_resumes")
"""The methods that check the arguments."""


def readers_of(fields: set[str]) -> dict[str, list[str]]:
    """Return argument -> the classes that read it, or the modules if the code is outside of a class.

    Code that reads a property or method of the arguments reads every field that this property or method looks at. The
    checks of the arguments do not count.
    """
    behind = _fields_behind_properties(fields)
    found: dict[str, set[str]] = {name: set() for name in fields}
    for folder in FOLDERS:
        # The testing kit reads arguments as any user does.
        for path in sorted(path for path in (ROOT / folder).rglob("*.py") if path.parent.name != "testing"):
            if ARGUMENTS in path.parents:
                continue
            for place, name in _reads(path):
                for field in behind.get(name, {name}) & fields:
                    found[field].add(place)
    return {name: sorted(places) for name, places in found.items()}


def _fields_behind_properties(fields: set[str]) -> dict[str, set[str]]:
    """Return property or method of the arguments -> the fields it looks at, directly and through others."""
    looked_at: dict[str, set[str]] = {}
    for path in ARGUMENTS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name not in _CHECKS:
                names = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
                looked_at.setdefault(node.name, set()).update(names)
    behind = {}
    for name in looked_at:
        reached, ahead = set(), {name}
        while ahead:
            reached |= ahead
            ahead = set().union(*(looked_at.get(each, set()) for each in ahead)) - reached
        behind[name] = reached & fields
    return behind


def _reads(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the place and the name of each attribute that a module reads from an object called `args`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    owners = {id(node): cls.name for cls in tree.body if isinstance(cls, ast.ClassDef) for node in ast.walk(cls)}
    for node in ast.walk(tree):
        place = owners.get(id(node), module)
        if isinstance(node, ast.Attribute) and _is_args(node.value):
            yield place, node.attr
        elif isinstance(node, ast.Call) and _reads_by_name(node):
            # getattr(args, name) for name in ("a", "b"): the names are strings somewhere in the same module.
            for text in ast.walk(tree):
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield owners.get(id(text), module), text.value


def _is_args(node: ast.expr) -> bool:
    """Return whether an expression is the arguments: `args`, `self.args`, `run.args`, `search.base.args`."""
    return (isinstance(node, ast.Name) and node.id == "args") or (
        isinstance(node, ast.Attribute) and node.attr == "args"
    )


def _reads_by_name(call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Name)
        and call.func.id == "getattr"
        and _is_args(call.args[0])
        and not isinstance(call.args[1], ast.Constant)
    )
