"""Imports between folders, and limits of a module."""

from __future__ import annotations

import ast
import configparser
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainbus.integrations import TABLE

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("events", "engine", "callbacks", "integrations")
FACADE = Path("engine/_root/__init__.py")
"""What `import trainbus` gives: it knows all rooms and enters none."""
COMPOSITION_ROOT = Path("engine/trainer.py")
TESTING = Path("engine/_root/testing")
"""`trainbus.testing`: the kit for authors of callbacks. It uses trainbus as they do, so it may import all folders."""

SIBLINGS = {
    "events": {"events"},
    "engine": {"engine", "events"},
    "callbacks": {"callbacks", "engine", "events"},
    "integrations": {"integrations", "callbacks", "engine", "events"},
}
"""Which folders each may import. Of each other, integrations may not: see below."""

# numpy is a dependency of torch's users, and of ours; tqdm is the progress bar's.
OUTSIDE = {
    "events": {"blinker"},
    "engine": {"torch", "numpy", "safetensors"},
    "callbacks": {"torch", "numpy", "tqdm"},
    "integrations": {"torch", "numpy"},
}
"""Which packages each may import, beside the standard library."""

MYPY_PLUGIN = Path("engine/_root/mypy_plugin.py")
"""Only mypy imports it."""

PYTEST = {(TESTING / f"{name}.py", "pytest") for name in ("fixtures", "parametrize")}
"""The modules that import pytest. It is not a dependency of trainbus."""


INTEGRATIONS = {target.partition(":")[0].partition(".")[0] for target, _, _ in TABLE.values()}
"""The integrations: a module each, or a folder of modules."""


def package_of(path: Path) -> list[str]:
    """Return the package that a module's relative imports begin at, as `["trainbus", "engine", "data"]`."""
    if path.parts[:2] == FACADE.parts[:2]:
        return ["trainbus", *path.parent.parts[2:]]
    return ["trainbus", *path.parent.parts]


def imports_of(source: str, package: list[str]) -> Iterator[str]:
    """Give every name that a module imports, anywhere in it and whole: `trainbus.events.bus.EventBus`, `os.path`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            yield from (".".join([*module, alias.name]) for alias in node.names)


def attributes_of(source: str) -> Iterator[str]:
    """Give every dotted name that is read in a module, as `torch.distributed.get_rank`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            parts, value = [node.attr], node.value
            while isinstance(value, ast.Attribute):
                parts, value = [value.attr, *parts], value.value
            if isinstance(value, ast.Name):
                yield ".".join([value.id, *parts])


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os.path, torch as t", ["os.path", "torch"]),
        ("from torch import nn as modules, optim", ["torch.nn", "torch.optim"]),
        ("from . import run", ["trainbus.engine.data.run"]),
        ("from .feed import Feed", ["trainbus.engine.data.feed.Feed"]),
        ("from ..run import Run", ["trainbus.engine.run.Run"]),
        ("from ...events.bus import EventBus", ["trainbus.events.bus.EventBus"]),
        ("from ... import callbacks", ["trainbus.callbacks"]),
        ("def f():\n    if True:\n        import wandb", ["wandb"]),
        ("if TYPE_CHECKING:\n    from trainbus.callbacks.flow.log import Log", ["trainbus.callbacks.flow.log.Log"]),
    ],
)
def test_the_reader_of_imports_sees_every_spelling(source, found):
    assert list(imports_of(source, ["trainbus", "engine", "data"])) == found


def test_the_reader_of_attributes_sees_the_whole_name():
    assert "torch.distributed.get_rank" in attributes_of("if torch.distributed.get_rank() == 0: pass")


@pytest.fixture(scope="module")
def modules(project_files) -> dict[Path, str]:
    """The source of every module of the four folders, by its path."""
    paths = [path for path in project_files if path.suffix == ".py" and path.parts[0] in FOLDERS]
    assert {path.parts[0] for path in paths} == set(FOLDERS)
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in paths}


@pytest.fixture(scope="module")
def imports(modules) -> dict[Path, set[str]]:
    """What every module imports."""
    return {path: set(imports_of(source, package_of(path))) for path, source in modules.items()}


def within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def inside(names: set[str]) -> set[str]:
    return {name for name in names if within(name, "trainbus")}


def integration_of(module: str) -> str:
    """Return the integration that a module is, or is a part of, as `deepspeed.config` is of `deepspeed`."""
    return module.partition(".")[0]


def module_of(path: Path) -> str:
    """Return a module of a folder, relative to it, as `deepspeed.config`; the folder's own is `__init__`."""
    parts = path.with_suffix("").parts[1:]
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def outside(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names} - {"trainbus", *sys.stdlib_module_names}


# Who may import whom.


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_imports_only_the_folders_it_may(imports, folder):
    allowed = ["trainbus.lazy", "trainbus.former_names", *(f"trainbus.{sibling}" for sibling in SIBLINGS[folder])]
    trespasses = {
        f"{path} imports {name}"
        for path, names in imports.items()
        if path.parts[0] == folder and path not in (FACADE, COMPOSITION_ROOT) and TESTING not in path.parents
        for name in inside(names)
        if not any(within(name, module) for module in allowed)
    }
    assert trespasses == set()


def test_composition_root_is_the_only_module_of_the_engine_that_knows_the_guests(imports):
    knows = {
        path
        for path, names in imports.items()
        if path.parts[0] == "engine" and TESTING not in path.parents
        for name in names
        if within(name, "trainbus.callbacks") or within(name, "trainbus.integrations")
    }
    assert knows == {FACADE, COMPOSITION_ROOT}


def test_facade_imports_only_for_type_checkers(modules):
    tree = ast.parse(modules[FACADE])
    guarded = {
        inner
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    assert guarded
    free = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)) and node not in guarded]
    assert outside({name for node in free for name in imports_of(ast.unparse(node), ["trainbus"])}) == set()
    assert inside({name for node in free for name in imports_of(ast.unparse(node), ["trainbus"])}) == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_imports_only_the_packages_it_may(imports, folder):
    own = {
        integration_of(target.partition(":")[0]): package
        for target, package, _ in TABLE.values()
        if folder == "integrations"
    }
    trespasses = {
        f"{path} imports {package}"
        for path, names in imports.items()
        if path.parts[0] == folder
        for package in outside(names) - OUTSIDE[folder] - {own.get(integration_of(module_of(path)))}
        if (path, package) != (MYPY_PLUGIN, "mypy") and (path, package) not in PYTEST
    }
    assert trespasses == set()


def test_imports_without_an_extra_are_core_dependencies():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    core = set(re.findall(r"^([a-z]+)", setup["options"]["install_requires"], re.MULTILINE))
    assert set().union(*OUTSIDE.values()) == core


def test_integrations_do_not_import_each_other(imports):
    trespasses = {
        f"{path} imports {name}"
        for path, names in imports.items()
        if path.parts[0] == "integrations"
        for name in names
        if within(name, "trainbus.integrations")
        if integration_of(name.split(".")[2]) != integration_of(module_of(path))
    }
    assert trespasses == set()


def test_every_integration_is_in_the_table(imports):
    modules = {integration_of(module_of(path)) for path in imports if path.parts[0] == "integrations"} - {"__init__"}
    assert modules == INTEGRATIONS


def test_only_the_channels_import_blinker(imports):
    assert {path for path, names in imports.items() if "blinker" in outside(names)} == {Path("events/channels.py")}


def test_only_ranks_and_integrations_name_torch_distributed(modules, imports):
    named = {
        path
        for path, source in modules.items()
        if any(within(name, "torch.distributed") for name in imports[path] | set(attributes_of(source)))
    }
    assert Path("engine/distributed/ranks.py") in named
    parallelism = {Path(f"callbacks/parallel/{name}.py") for name in ("ddp", "fully_shard", "sharded_optimizer")}
    allowed = {Path("engine/distributed/ranks.py"), *parallelism}
    assert {path for path in named if path.parts[0] != "integrations"} <= allowed


def test_guests_use_no_private_name_of_the_engine(imports):
    trespasses = {
        f"{path} imports {name}"
        for path, names in imports.items()
        if path.parts[0] in ("callbacks", "integrations")
        for name in inside(names)
        if any(part.startswith("_") for part in name.split("."))
    }
    assert trespasses == set()


# What a module looks like.


def test_no_module_is_over_400_lines_and_the_loop_not_over_200(modules):
    lines = {path: len(source.splitlines()) for path, source in modules.items()}
    assert {path: count for path, count in lines.items() if count > 400} == {}
    assert lines[Path("engine/loop.py")] <= 200


def test_every_module_has_a_docstring_that_begins_with_a_sentence(modules):
    docs = {path: (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0] for path, source in modules.items()}
    assert {path: doc for path, doc in docs.items() if not re.fullmatch(r"(?s)\S.+[.:]", doc)} == {}


@pytest.mark.parametrize(
    "pattern",
    [r"\b(TODO|FIXME|XXX)\b", r"#\s*type:\s*ignore(?!\[[a-z-]+)", r"#\s*noqa(?!:\s*[A-Z])"],
    ids=["promises", "ignored types without a code", "ignored lints without a code"],
)
def test_no_module_contains(modules, pattern):
    found = {
        f"{path}:{number}"
        for path, source in modules.items()
        for number, line in enumerate(source.splitlines(), 1)
        if re.search(pattern, line)
    }
    assert found == set()


def test_repository_has_no_package_that_would_hide_the_installed_one(root):
    assert not (root / "__init__.py").exists()
    assert not (root / "trainbus").exists()
    assert not (root / "tests" / "__init__.py").exists()
