"""Find the code that reads each training argument. The documentation and a test use it; the test finds arguments that
no code reads."""

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
    """Return the readers of each argument: argument -> classes, or modules if the code is outside of a class.

    A property or method of the arguments may read several fields. Code that uses it counts as a reader of all these
    fields. The methods that check the arguments (`_CHECKS`) do not count.
    """
    behind = _fields_behind_properties(fields)
    found: dict[str, set[str]] = {name: set() for name in fields}
    for folder in FOLDERS:
        # The testing kit does not count: it reads arguments as a user's program does.
        for path in sorted(path for path in (ROOT / folder).rglob("*.py") if path.parent.name != "testing"):
            if ARGUMENTS in path.parents:
                continue
            for place, name in _reads(path):
                for field in behind.get(name, {name}) & fields:
                    found[field].add(place)
    return {name: sorted(places) for name, places in found.items()}


def _fields_behind_properties(fields: set[str]) -> dict[str, set[str]]:
    """Return the fields behind properties and methods: name of the property or method -> the fields that it reads.

    Fields that it reads through other properties or methods are included.
    """
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
            # In `getattr(args, name) for name in ("a", "b")`, the names are strings somewhere in the same module.
            for text in ast.walk(tree):
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield owners.get(id(text), module), text.value


def _is_args(node: ast.expr) -> bool:
    """Return whether an expression means the arguments: `args`, or an attribute such as `self.args`, `run.args`."""
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
