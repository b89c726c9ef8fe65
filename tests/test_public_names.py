"""Every public name that was importable before the modules moved still imports.

`tests/public_names.txt` has one line per module: `module: name name ...`. It holds the public names that each module
defined or re-exported. A name leaves the list only if its mechanism is gone. A renamed module needs a row in `FORMER`,
in `engine/_root/former.py`, and a renamed name a row in `FORMER_NAMES`, in `engine/_root/former_names.py`.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

import trainbus
from trainbus.events import MissingExtra
from trainbus.former import FORMER, FORMER_NAMES
from trainbus.integrations import INTEGRATIONS

LINES = Path(__file__).with_name("public_names.txt").read_text(encoding="utf-8").splitlines()
NAMES = {module: names.split() for module, _, names in (line.partition(":") for line in LINES)}
PACKAGES = {row.package for row in INTEGRATIONS.values()}


def imported(module: str):
    """Return a module; skip the test if its optional package is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fairscale uses older names of torch
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            raise
        pytest.skip(f"{error.name} is not installed")


def resolves(module, name: str) -> bool:
    try:
        getattr(module, name)
    except MissingExtra:
        return True  # the name exists; its package is not installed
    except AttributeError:
        return False
    return True


def test_the_list_is_complete():
    assert len(NAMES) == len(LINES) > 200
    assert sum(map(len, NAMES.values())) > 930
    assert {"trainbus", "trainbus.engine.optim", "trainbus.callbacks.carry_past"} <= set(NAMES)


@pytest.mark.parametrize("module", NAMES)
def test_public_names_still_import(module):
    found = imported(module)
    assert [name for name in NAMES[module] if not resolves(found, name)] == []


@pytest.mark.parametrize("former", FORMER)
def test_former_path_is_the_present_module(former):
    assert imported(f"trainbus.{former}") is imported(f"trainbus.{FORMER[former]}")
    assert sys.modules[f"trainbus.{FORMER[former]}"].__spec__.name == f"trainbus.{FORMER[former]}"


def test_no_former_path_hides_a_file(root):
    folders = {"engine", "events", "callbacks", "integrations"}
    for former in FORMER:
        path = root.joinpath(*former.split("."))
        if former.partition(".")[0] in folders:
            assert not path.with_suffix(".py").exists()
            assert not (path / "__init__.py").exists()


@pytest.mark.parametrize("path", FORMER_NAMES)
def test_former_names_give_the_present_object_and_others_are_missing(path):
    module = imported(f"trainbus.{path}")
    for name, place in FORMER_NAMES[path].items():
        assert name not in vars(module) or path.count(".") == 1
        home, _, present = place.rpartition(":")
        assert getattr(module, name) is getattr(imported(f"trainbus.{home or path}"), present)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        module.no_such_name


def test_a_renamed_class_is_one_class():
    from trainbus.callbacks.carry_past import CarryPast

    assert CarryPast is trainbus.CarryPast is trainbus.RecurrentMemory is trainbus.callbacks.CarryPast


def test_no_module_is_loaded_twice():
    """A second copy of a module would have a second copy of each class."""
    from trainbus.engine.surface import subscribing

    assert find_spec("trainbus.engine.surface.subscribing") is not None
    assert subscribing.__name__ == "trainbus.engine.api.callbacks"
    assert subscribing is sys.modules["trainbus.engine.api.callbacks"]
