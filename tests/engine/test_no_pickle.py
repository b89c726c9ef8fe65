"""Reading a checkpoint runs no code: the imported modules name no function that could."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

BEGINS = (
    *("trainbus.engine.checkpoint.read.resumption", "trainbus.engine.commands.main", "trainbus.engine.trainer"),
    *("trainbus.callbacks.flow.keep_best", "trainbus.callbacks.flow.checkpoint"),
    "trainbus.engine.checkpoint.write.model_files",
)
"""The modules that read checkpoints or write them, and so all that they import."""

UNSAFE = {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve", "cloudpickle"}


def path_of(root: Path, module: str) -> Path | None:
    """Return the file of a module of this project; None if it is none."""
    parts = module.split(".")[1:]
    for path in (root.joinpath(*parts).with_suffix(".py") if parts else root, root.joinpath(*parts, "__init__.py")):
        if path.is_file():
            return path
    return None


def imported(tree: ast.AST, package: list[str]) -> Iterator[str]:
    """Give the modules that a module imports anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            yield ".".join(module)
            yield from (".".join([*module, alias.name]) for alias in node.names)


def load_path(root: Path) -> dict[str, ast.Module]:
    """Return the syntax trees of the modules that reading a checkpoint may run, by name."""
    trees: dict[str, ast.Module] = {}
    waiting = [*BEGINS]
    while waiting:
        module = waiting.pop()
        path = path_of(root, module) if module.startswith("trainbus.") and module not in trees else None
        if path is not None:
            trees[module] = ast.parse(path.read_text(encoding="utf-8"))
            package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
            waiting += imported(trees[module], package)
    return trees


def dangers(tree: ast.AST) -> Iterator[str]:
    """Give what in a module could run code that is in a file it reads."""
    for name in imported(tree, ["trainbus"]):
        if name.partition(".")[0] in UNSAFE:
            yield f"imports {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if called in ("eval", "exec", "compile", "__import__"):
                yield f"calls {called}"
            if called == "torch.load" and options.get("weights_only") != "True":
                yield "calls torch.load without weights_only=True"
            if called in ("np.load", "numpy.load") or options.get("allow_pickle", "False") != "False":
                yield f"calls {called}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", ["imports pickle"]),
        ("def f():\n    from pickle import load", ["imports pickle", "imports pickle.load"]),
        ("torch.load(path)", ["calls torch.load without weights_only=True"]),
        ("torch.load(path, weights_only=False)", ["calls torch.load without weights_only=True"]),
        ("torch.load(path, weights_only=True)", []),
        ("eval(text)", ["calls eval"]),
        ("exec(text)", ["calls exec"]),
        ("model.eval()", []),
        ("np.load(path, allow_pickle=True)", ["calls np.load"]),
        ("json.loads(text)", []),
    ],
)
def test_code_in_pickles_is_detected(source: str, found: list[str]):
    assert list(dangers(ast.parse(source))) == found


def test_no_call_during_loading_can_run_code(root: Path):
    trees = load_path(root)
    folder = root / "engine/checkpoint"
    checkpoint = {
        ".".join(("trainbus.engine.checkpoint", *path.relative_to(folder).with_suffix("").parts))
        for path in folder.rglob("[a-z]*.py")
    }
    assert checkpoint <= trees.keys()
    found = {module: [*dangers(tree)] for module, tree in trees.items() if any(dangers(tree))}
    assert found == {}
