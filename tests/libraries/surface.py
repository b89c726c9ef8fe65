"""Which public names of transformers and accelerate the libraries touch, read from their source."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import accelerate
import transformers

VARIABLES = {
    "args": "TrainingArguments",
    "training_args": "TrainingArguments",
    "state": "TrainerState",
    "control": "TrainerControl",
    "accelerator": "Accelerator",
    "trainer": "Trainer",
}
"""Name of a variable or an attribute -> the class of its value."""


def touched(*packages: str) -> dict[str, set[str]]:
    """Return class -> its public names that the packages read, set, call or override."""
    known = {name: set(_public(kind)) for name, kind in _classes().items()}
    found: dict[str, set[str]] = {name: set() for name in known}
    trees = [tree for package in packages for tree in _trees(package)]
    trainers = _subclasses(trees, "Trainer")
    arguments = _subclasses(trees, "TrainingArguments")
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and (owner := VARIABLES.get(_last(node.value))):
                found[owner].add(node.attr)
            if isinstance(node, ast.ClassDef) and node.name in trainers | arguments:
                owner = "Trainer" if node.name in trainers else "TrainingArguments"
                found[owner].update(_own_names(node))
    return {owner: found[owner] & names for owner, names in known.items()}


def _classes() -> dict[str, type]:
    kinds = (transformers.TrainingArguments, transformers.TrainerState, transformers.TrainerControl)
    return {kind.__name__: kind for kind in (transformers.Trainer, *kinds, accelerate.Accelerator)}


def _public(kind: type) -> Iterator[str]:
    """Yield the public names of a class and those that its methods set on `self`."""
    names: set[str] = {*dir(kind)}
    if dataclasses.is_dataclass(kind):
        names.update(field.name for field in dataclasses.fields(kind))
    for node in ast.walk(ast.parse(inspect.getsource(kind))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _last(node.value) == "self":
            names.add(node.attr)
    yield from (name for name in names if not name.startswith("_"))


def _trees(package: str) -> Iterator[ast.Module]:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        if "experimental" not in path.parts:
            yield ast.parse(path.read_text(encoding="utf-8"))


def _subclasses(trees: list[ast.Module], base: str) -> set[str]:
    """Return the names of the classes that derive from a class of transformers."""
    derived = {
        node.name
        for tree in trees
        if base in _imported(tree)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and base in map(_last, node.bases)
    }
    while True:
        more = {
            node.name
            for tree in trees
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and derived & set(map(_last, node.bases))
        }
        if more <= derived:
            return derived
        derived |= more


def _imported(tree: ast.Module) -> set[str]:
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "transformers"
        for alias in node.names
    }


def _own_names(node: ast.ClassDef) -> Iterator[str]:
    """Yield what a class defines, and the attributes of `self` and `super()` in it."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and _last(part.value) in ("self", "super"):
            yield part.attr
        if isinstance(part, ast.FunctionDef):
            yield part.name
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.target.id


def _last(node: Any) -> str:
    if isinstance(node, ast.Call):
        return _last(node.func)
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
