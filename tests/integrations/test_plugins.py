"""Plugins of installed packages: which join a run, what is told about them, and integrations by name."""

import logging
import os
import subprocess
import sys

import pytest
from torch import nn

from support.trainers import regression_trainer
from trainbus import Trainer, TrainingArguments
from trainbus import integrations as module
from trainbus.engine.arguments.plugins.selection import Request, select
from trainbus.engine.arguments.plugins.text import Spec
from trainbus.events import ArgumentError, MissingExtra, TrainbusError

SPIKES = '''
from dataclasses import dataclass
from trainbus import Callback

@dataclass
class Spikes(Callback):
    """Counts spikes."""

    factor: float = 10.0

    def on_step_end(self): ...
'''
EVERYWHERE = SPIKES.replace('"""Counts spikes."""', "auto = True")
FACTORY = """
from trainbus import Callback

class Offered(Callback):
    def on_step_end(self): ...

def factory(args, *, count: int = 2):
    return [Offered() for _ in range(count)] if args.max_steps == 2 else None

def broken(args):
    raise ValueError("not today")
"""
GROUP = module.GROUP


def offer(packages, source=SPIKES, name="spikes", value="{pkg}:Spikes", **options):
    return packages.add(source, {GROUP: {name: value}}, **options)


def built(tmp_path, callbacks=None, **arguments):
    return Trainer(nn.Linear(2, 2), TrainingArguments(str(tmp_path / "run"), **arguments), callbacks=callbacks)


def names(trainer):
    return {name for name in trainer.callbacks if name.partition("-")[0] in ("Spikes", "Offered")}


# Installed is not active.


def test_an_installed_plugin_does_not_join(tmp_path, packages):
    offer(packages)
    assert names(built(tmp_path)) == set()


@pytest.mark.parametrize(
    "plugins",
    ["spikes(factor=4)", ["spikes(factor=4)"], {"spikes": {"factor": 4}}, [{"spikes": {"factor": "4"}}]],
    ids=["text", "list", "mapping", "list of mappings"],
)
def test_a_named_plugin_joins_with_its_options(tmp_path, packages, plugins):
    offer(packages)
    trainer = built(tmp_path, plugins=plugins)
    assert trainer.callbacks["Spikes"].factor == 4
    assert [Spec.parse(text).name for text in trainer.args.plugins] == ["spikes"]


def test_an_auto_plugin_joins_every_run_and_is_logged(tmp_path, packages, caplog):
    offer(packages, EVERYWHERE, name="spikes", version="2.1")
    trainer = regression_trainer(tmp_path / "run", args={"max_steps": 1})
    assert names(trainer) == {"Spikes"}
    with caplog.at_level(logging.INFO, logger="trainbus"):
        trainer.train()
    [line] = [record.getMessage() for record in caplog.records if "Plugin" in record.getMessage()]
    assert line.startswith("  Plugin spikes (offered_")
    assert line.endswith(" 2.1, auto)")


def test_a_listed_callback_replaces_the_plugin_of_its_class(tmp_path, packages):
    package = offer(packages, EVERYWHERE)
    mine = __import__(package).Spikes(factor=3)
    trainer = built(tmp_path, [mine])
    assert [callback for callback in trainer.callbacks.values() if type(callback) is type(mine)] == [mine]


def test_a_listed_callback_that_contradicts_a_named_plugin_is_refused(tmp_path, packages):
    package = offer(packages)
    spikes = __import__(package).Spikes
    assert names(built(tmp_path, [spikes(factor=4)], plugins="spikes(factor=4)")) == {"Spikes"}
    with pytest.raises(ArgumentError, match=r"contradicts the arguments[\s\S]*factor=3[\s\S]*factor=4"):
        built(tmp_path, [spikes(factor=3)], plugins="spikes(factor=4)")
    assert "second" in built(tmp_path, [spikes(factor=3)], plugins="spikes(factor=4, id='second')").callbacks


def test_a_plugin_function_has_its_parameters_as_options(tmp_path, packages):
    offer(packages, FACTORY, "many", "{pkg}:factory")
    assert names(built(tmp_path, max_steps=2, plugins="many")) == {"Offered", "Offered-2"}
    assert names(built(tmp_path, max_steps=2, plugins="many(count=1)")) == {"Offered"}
    assert names(built(tmp_path, max_steps=3, plugins="many")) == set()


# Turning plugins off.


def test_the_environment_chooses_exactly_the_plugins(tmp_path, packages, monkeypatch):
    package = offer(packages, EVERYWHERE)
    offer(packages, FACTORY, "many", "{pkg}:factory")
    monkeypatch.setenv("TRAINBUS_PLUGINS", "none")
    trainer = built(tmp_path, plugins="many", max_steps=2)
    assert names(trainer) == set()
    assert trainer.plugins == ["without many (by TRAINBUS_PLUGINS)"]
    assert package not in sys.modules  # no code of any plugin runs
    monkeypatch.setenv("TRAINBUS_PLUGINS", "spikes(factor=2, id='x'),many(count=1)")
    assert {"x", "Offered"} <= set(built(tmp_path, max_steps=2).callbacks)
    monkeypatch.setenv("TRAINBUS_PLUGINS", "spike")
    with pytest.raises(ArgumentError, match=r"`TRAINBUS_PLUGINS` names 'spike'.* did you mean 'spikes'"):
        built(tmp_path)


def test_a_run_leaves_out_a_plugin(tmp_path, packages, monkeypatch):
    offer(packages, EVERYWHERE)
    assert names(built(tmp_path, plugins="no:spikes")) == set()
    with pytest.raises(ArgumentError, match=r"names 'spikse'.* did you mean 'spikes'"):
        built(tmp_path, plugins="no:spikse")
    for value in ("other, spikes", "all"):
        monkeypatch.setenv("TRAINBUS_DISABLE_PLUGINS", value)
        assert names(built(tmp_path)) == set()


def test_one_error_names_all_unknown_plugins(tmp_path, packages):
    offer(packages)
    with pytest.raises(ArgumentError) as caught:
        built(tmp_path, plugins=["spiks", "ema", "no:nothing"])
    said = str(caught.value)
    assert "'spiks', which is not an installed plugin; did you mean 'spikes'?" in said
    assert "'ema', which is not an installed plugin; it is a callback of this library. Name it in `callbacks`." in said
    assert "'nothing'" in said


@pytest.mark.parametrize(
    ("request_", "joins", "left_out"),
    [
        (Request(), {"a": "auto"}, {}),
        (Request(named=[Spec("b")]), {"a": "auto", "b": "named"}, {}),
        (Request(named=[Spec("a")]), {"a": "named"}, {}),
        (Request(named=[Spec("b")], off={"b"}), {"a": "auto"}, {"b": "no:b"}),
        (Request(only=[]), {}, {"a": "TRAINBUS_PLUGINS"}),
        (Request(only=[Spec("b")]), {"b": "TRAINBUS_PLUGINS"}, {"a": "TRAINBUS_PLUGINS"}),
        (Request(named=[Spec("b")], disabled={"all"}), {}, dict.fromkeys("ab", "TRAINBUS_DISABLE_PLUGINS")),
    ],
)
def test_the_selection_is_a_pure_function(request_, joins, left_out):
    found = select(["a", "b", "c"], ["a"], request_)
    assert {name: why for name, (_, why) in found.joins.items()} == joins
    assert found.left_out == left_out
    assert not found.problems


def test_options_of_the_arguments_hold_where_the_environment_has_none():
    request = Request(named=[Spec("b", {"x": 1})], only=[Spec("b")])
    assert select(["b"], [], request).joins["b"][0] == Spec("b", {"x": 1})


# Broken plugins.


def test_a_broken_plugin_that_is_not_named_breaks_no_run(tmp_path, packages, caplog):
    offer(packages, "raise RuntimeError('broken at import')", "bad")
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        assert "Log" in built(tmp_path).callbacks
    [warning] = [record.getMessage() for record in caplog.records]
    assert "'bad'" in warning
    assert "broken at import" in warning
    assert "TRAINBUS_DISABLE_PLUGINS=bad" in warning


@pytest.mark.parametrize(
    ("source", "value", "says"),
    [
        ("raise RuntimeError('broken at import')", "{pkg}:Any", "broken at import"),
        ("raise SystemExit(3)", "{pkg}:Any", "SystemExit: 3"),
        ("", "{pkg}:NoSuchThing", "NoSuchThing"),
        (FACTORY, "{pkg}:broken", "not today"),
    ],
)
def test_a_broken_plugin_that_the_run_names_is_an_error(tmp_path, packages, source, value, says):
    offer(packages, source, "bad", value)
    with pytest.raises(TrainbusError, match=rf"bad[\s\S]*{says}"):
        built(tmp_path, plugins="bad")


def test_a_plugin_for_another_contract_is_refused(tmp_path, packages):
    offer(packages, SPIKES.replace("    factor", '    requires = ">=2"\n    factor'))
    with pytest.raises(TypeError, match=r"Spikes requires the plugin contract >=2, but this trainbus has 1\.0"):
        built(tmp_path, plugins="spikes")


def test_only_building_a_trainer_looks_for_plugins(tmp_path, packages):
    package = offer(packages, "raise RuntimeError('broken at import')", "bad")
    program = """
import sys, trainbus
from torch import nn
trainbus.TrainingArguments("nowhere")
assert "PACKAGE" not in sys.modules
trainbus.Trainer(nn.Linear(2, 2), trainbus.TrainingArguments("nowhere"))
print("built without it")
""".replace("PACKAGE", package)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages.folder), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "built without it\n"
    assert "'bad'" in done.stderr


# Integrations by name.


def test_an_unknown_tracker_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(ArgumentError, match="did you mean 'wandb'"):
        built(tmp_path, report_to="wandbb")


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
