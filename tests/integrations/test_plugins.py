"""Callbacks that installed packages offer through an entry point, and integrations by name."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from torch import nn

from trainbus import Callback, Trainer, TrainingArguments
from trainbus import integrations as module
from trainbus.events import ArgumentError, MissingExtra, TrainbusError


class Offered(Callback):
    def on_step_end(self):
        """Hear the end of a step."""


def factory(args):
    return [Offered(), Offered()] if args.max_steps == 2 else None


def broken(args):
    raise ValueError("not today")


@pytest.fixture
def offer(monkeypatch):
    """Offer entry points of this file under a name, as an installed package would."""
    monkeypatch.setitem(sys.modules, "offering_package", sys.modules[__name__])

    def offer(**plugins):
        points = [EntryPoint(name, f"offering_package:{value}", module.GROUP) for name, value in plugins.items()]
        monkeypatch.setattr(module, "entry_points", lambda group: points if group == module.GROUP else [])

    return offer


def callbacks(tmp_path, **arguments):
    return Trainer(nn.Linear(2, 2), TrainingArguments(str(tmp_path), **arguments)).callbacks


def test_a_class_that_a_package_offers_is_attached(tmp_path, offer):
    offer(nice="Offered")
    assert isinstance(callbacks(tmp_path)["Offered"], Offered)


def test_a_plugin_function_may_return_several_callbacks_or_none(tmp_path, offer):
    offer(many="factory")
    assert {"Offered", "Offered-2"} <= set(callbacks(tmp_path, max_steps=2))
    assert "Offered" not in callbacks(tmp_path, max_steps=3)


def test_a_plugin_that_fails_is_named_with_the_way_to_leave_it_out(tmp_path, offer, monkeypatch):
    offer(bad="broken")
    with pytest.raises(TrainbusError, match=r"'bad' .*not today.*TRAINBUS_DISABLE_PLUGINS=bad"):
        callbacks(tmp_path)
    monkeypatch.setenv("TRAINBUS_DISABLE_PLUGINS", "other, bad")
    assert "Log" in callbacks(tmp_path)
    monkeypatch.setenv("TRAINBUS_DISABLE_PLUGINS", "all")
    assert "Log" in callbacks(tmp_path)


def test_a_plugin_that_cannot_be_imported_is_named(tmp_path, offer):
    offer(gone="NoSuchThing")
    with pytest.raises(TrainbusError, match="'gone'"):
        callbacks(tmp_path)


def test_a_broken_installed_plugin_does_not_stop_the_import(tmp_path):
    """Only building a trainer looks for plugins, and one that is broken is left out by a variable."""
    info = tmp_path / "broken_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{module.GROUP}]\nbad = broken_plugin:Callback\n")
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('broken at import')\n")
    program = """
import trainbus
from torch import nn
from trainbus.events import TrainbusError
try:
    trainbus.Trainer(nn.Linear(2, 2), trainbus.TrainingArguments("nowhere"))
except TrainbusError as error:
    print(error)
import os
os.environ["TRAINBUS_DISABLE_PLUGINS"] = "bad"
trainbus.Trainer(nn.Linear(2, 2), trainbus.TrainingArguments("nowhere"))
print("built without it")
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "'bad'" in done.stdout
    assert "broken at import" in done.stdout
    assert done.stdout.endswith("built without it\n")


def test_an_unknown_tracker_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(ArgumentError, match="did you mean 'wandb'"):
        callbacks(tmp_path, report_to="wandbb")


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("wandb", "wandb", "wandb"), ("sharded_ddp", "fairscale", "sharded")]
)
def test_a_missing_package_is_an_error_that_names_the_extra(monkeypatch, name, package, extra):
    target = module.TABLE[name][0].partition(":")[0]
    ours = f"trainbus.integrations.{target.partition('.')[0]}"
    for loaded in [name for name in sys.modules if f"{name}.".startswith((f"{package}.", f"{ours}."))]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(sys, "meta_path", [Blocker(package), *sys.meta_path])
    with pytest.raises(MissingExtra, match=rf"trainbus\[{extra}\]"):
        module.load(name)


class Blocker:
    """Makes a package look as if it were not installed."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
