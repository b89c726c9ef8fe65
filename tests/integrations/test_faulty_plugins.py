"""Faulty plugins: each is an error with its name where a run names it, and breaks no run that does not."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest

from support.trainers import net_trainer
from trainbus import ArgumentParser, TrainingArguments
from trainbus.engine.commands.main import main
from trainbus.events import ArgumentError, TrainbusError
from trainbus.events.installed import MANIFEST

CALLBACKS, COMMANDS = "trainbus.callbacks", "trainbus.commands"

THING = """
from dataclasses import dataclass
from trainbus import Callback, Event

@dataclass
class Thing(Callback):
    '''Counts steps.'''

    factor: float = 1.0
    auto = True
    {body}

    def on_step_end(self): ...
"""


def thing(body: str = "pass") -> str:
    return THING.format(body=body)


FAULTS = {
    "syntax error": ("def f(:\n", "SyntaxError"),
    "missing import": ("import nothing_here_at_all\n", "nothing_here_at_all"),
    "error at import": ("raise RuntimeError('broken')\n", "broken"),
    "exit at import": ("raise SystemExit(3)\n", "SystemExit: 3"),
    "missing class": ("x = 1\n", "has no attribute 'Thing'"),
    "instance": (thing() + "Thing = Thing()\n", "is not a callback class"),
    "number": ("class N(int):\n    auto = True\nThing = N(3)\n", "3 is not a callback class"),
    "plain class": ("class Thing:\n    auto = True\n", "is not a callback"),
    "function of a number": ("def Thing(args): return [3]\nThing.auto = True\n", "returns 3, which is not a callback"),
    "function that raises": ("def Thing(args): raise ValueError('boom')\nThing.auto = True\n", "boom"),
    "constructor that raises": (thing("def __post_init__(self): raise ValueError('no key')"), "no key"),
    "required option": (thing().replace("float = 1.0", "float"), "needs `factor`"),
    "other contract": (thing("requires = '>=7'"), "requires the plugin contract >=7"),
    "malformed contract": (thing("requires = 'seven'"), "'seven' is not a condition"),
    "misspelled event": (thing("def on_step_edn(self): ..."), "did you mean 'on_step_end'"),
    "unknown parameter": (thing("def on_log(self, los): ..."), "did you mean 'logs'"),
    "wrong annotation": (thing("def on_log(self, logs: int): ..."), "annotates 'logs' as int"),
    "no event": (thing("events = (3,)"), "is not an event"),
    "events that are no tuple": (thing("events = Event('on_spike', 'x')"), "Write a tuple of events"),
    "own event of the catalogue": (thing("events = (Event('on_log', 'x'),)"), "exists already"),
    "own field id": (thing("id: int = 3"), "Thing.id is 3. It takes a text"),
    "own field on_error": (thing("on_error: bool = True"), "Every callback has the setting `on_error`"),
    "own method on_error": (thing("def on_error(self, error): ..."), "Every callback has the setting `on_error`"),
    "malformed budget": (thing("budget = '3 parsecs'"), "Thing.budget is '3 parsecs'"),
    "thinned decider": (thing("budget = '3%'\n    over_budget = 'thin'"), "Thing.over_budget is 'thin'"),
    "conflict with a number": (thing("conflicts_with = (3,)"), "Thing.conflicts_with is "),
    "panic at import": ("class Panic(BaseException): pass\nraise Panic('core')\n", "Panic: core"),
}
"""Fault -> the source of a plugin `thing` that joins every run, and what the messages say."""


ONLY_WHEN_BUILT = {"function of a number", "function that raises", "constructor that raises", "required option"}
"""The faults that `trainbus plugins --check` cannot see, because it builds no callback."""


def offer(packages: Any, source: str, entry: str = "thing", value: str = "Thing", **options: Any) -> str:
    return packages.add(source, {CALLBACKS: {entry: f"{{pkg}}:{value}"}}, **options)


def warnings(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_plugin_breaks_only_runs_that_name_it(fault, packages, tmp_path, caplog, capsys):
    source, said = FAULTS[fault]
    offer(packages, source)
    with pytest.raises(TrainbusError, match=said):
        net_trainer(tmp_path, plugins=["thing"])
    caplog.clear()
    trainer = net_trainer(tmp_path, plugins=[])
    assert said in warnings(caplog)
    assert "This run does without it" in warnings(caplog)
    assert "TRAINBUS_DISABLE_PLUGINS=thing" in warnings(caplog)
    assert trainer.plugins == []
    caplog.clear()
    net_trainer(tmp_path, plugins=["no:thing"])
    assert warnings(caplog) == ""
    assert main(["plugins", "--json"]) == 0
    ArgumentParser(TrainingArguments).format_help()


@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in ONLY_WHEN_BUILT])
def test_the_check_names_the_fault(fault, packages, capsys):
    offer(packages, FAULTS[fault][0])
    assert main(["plugins", "--check", "--json"]) == 1
    [row] = json.loads(capsys.readouterr().out)["plugins"]
    assert any(FAULTS[fault][1] in problem for problem in row["problems"])


def test_a_plugin_that_joins_every_run_may_handle_events_of_others(packages, tmp_path, caplog):
    declared = "from trainbus import Callback, Event\nclass Spikes(Callback):\n    events = (Event('on_spike', 'x'),)\n"
    offer(packages, declared + "    def on_step_end(self): ...\n", "spikes", "Spikes")
    offer(packages, thing("def on_spike(self): ..."))
    assert "Thing" in net_trainer(tmp_path, plugins=["spikes"]).callbacks
    caplog.clear()
    assert "Thing" not in net_trainer(tmp_path, plugins=[]).callbacks
    assert "Thing.on_spike matches no event" in warnings(caplog)


# Names.


def test_a_name_of_two_packages_is_refused_where_a_run_names_it(packages, tmp_path, caplog):
    source = thing().replace("auto = True", "auto = False")
    offer(packages, source, name="one")
    offer(packages, source, name="other")
    with pytest.raises(
        ArgumentError, match=r"one 1.0 \(one:Thing\) and other 1.0 \(other:Thing\) both offer .*'thing'"
    ):
        net_trainer(tmp_path, plugins=["thing"])
    assert net_trainer(tmp_path, plugins=[]).plugins == []
    assert net_trainer(tmp_path, plugins=[], callbacks=["one:Thing"]).callbacks["Thing"].__module__ == "one"
    assert "both offer" not in warnings(caplog)


def test_a_name_of_two_packages_that_join_every_run_is_a_warning(packages, tmp_path, caplog):
    offer(packages, thing(), name="one")
    offer(packages, thing(), name="other")
    assert "Thing" in net_trainer(tmp_path, plugins=[]).callbacks
    assert "both offer the plugin 'thing'" in warnings(caplog)


def test_names_may_have_letters_of_any_language(packages, tmp_path, capsys):
    offer(packages, thing().replace("auto = True", "größe: str = 'groß'"), "schön")
    trainer = net_trainer(tmp_path, plugins=["schön(größe='größer')"])
    assert trainer.callbacks["Thing"].größe == "größer"
    words = ["--output_dir", str(tmp_path), "--schön.größe", "klein"]
    [args] = ArgumentParser(TrainingArguments).parse_args_into_dataclasses(words, look_for_args_file=False)
    assert args.plugins == ["schön(größe='klein')"]
    with pytest.raises(TrainbusError, match="did you mean 'schön'"):
        net_trainer(tmp_path, plugins=["schon"])
    assert main(["plugins", "--check"]) == 0
    assert "größe: str = 'groß'" in capsys.readouterr().out


def test_the_check_reports_a_name_that_no_run_can_write(packages, capsys):
    offer(packages, thing(), "thing-x")
    assert main(["plugins", "--check"]) == 1
    assert "no run can name 'thing-x': use letters, digits and underscores" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("acme.thing", "the options of 'acme.thing' have no flags"),
        ("none", "'none' has a meaning of its own in the environment variables"),
        ("ema", "trainbus has a callback 'ema', which `callbacks` takes instead"),
    ],
)
def test_the_check_reports_a_name_with_another_meaning(name, said, packages, capsys):
    offer(packages, thing(), name)
    assert main(["plugins", "--check"]) == 1
    assert said in capsys.readouterr().out


def test_an_entry_point_without_a_name_is_reported_as_such(packages, capsys):
    offer(packages, thing(), value="")
    assert main(["plugins", "--check"]) == 1
    assert "the entry point is not `package.module:name`" in capsys.readouterr().out


def test_a_name_with_a_dash_is_not_suggested(packages, tmp_path):
    offer(packages, thing(), "my-thing")
    with pytest.raises(ArgumentError, match="No run can name the installed plugin 'my-thing'"):
        net_trainer(tmp_path, plugins=["my_thing"])


def test_the_json_output_has_no_text_that_a_plugin_prints_at_import(packages, capsys):
    package = offer(packages, "print('hello')\n" + thing())
    assert main(["plugins", "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plugins"]
    sys.modules.pop(package)
    assert main(["plugins", "manifest", package, "--print"]) == 0
    assert json.loads(capsys.readouterr().out)["plugins"]


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TRAINBUS_PLUGINS", "none,thing", "Write `none` alone"),
        ("TRAINBUS_PLUGINS", "thing(factor=2),thing(factor=3)", "names 'thing' with different options"),
        ("TRAINBUS_PLUGINS", "thing(factor=2", "`TRAINBUS_PLUGINS`: "),
        ("TRAINBUS_DISABLE_PLUGINS", "thing;other", "`TRAINBUS_DISABLE_PLUGINS`: "),
    ],
)
def test_a_wrong_variable_is_refused_with_its_name(variable, value, said, packages, tmp_path, monkeypatch):
    offer(packages, thing())
    monkeypatch.setenv(variable, value)
    with pytest.raises(ArgumentError) as raised:
        net_trainer(tmp_path, plugins=[])
    assert said in str(raised.value)


@pytest.mark.parametrize("value", ["thing other", "no:thing", "thing(factor=2)", " thing ,"])
def test_a_variable_disables_a_plugin_in_every_notation(value, packages, tmp_path, monkeypatch):
    offer(packages, thing())
    monkeypatch.setenv("TRAINBUS_DISABLE_PLUGINS", value)
    assert "Thing" not in net_trainer(tmp_path, plugins=["thing"]).callbacks


# Options.


def test_flags_take_literals_and_the_options_of_every_callback(packages, tmp_path):
    offer(packages, thing("items: tuple[int, ...] = ()\n    table: dict[str, list[int]] | None = None"))
    flags = {"items": "[1, 2]", "table": "{'a': [1]}", "on_error": "warn", "factor": "-4"}
    words = ["--output_dir", str(tmp_path), *(f"--thing.{name}={value}" for name, value in flags.items())]
    [args] = ArgumentParser(TrainingArguments).parse_args_into_dataclasses(words, look_for_args_file=False)
    made = net_trainer(tmp_path, plugins=args.plugins).callbacks["Thing"]
    assert (made.items, made.table, made.on_error, made.factor) == ((1, 2), {"a": [1]}, "warn", -4)


def test_an_option_of_an_unknown_plugin_is_refused_with_the_nearest_plugin(packages, tmp_path):
    packages.add(thing(), {CALLBACKS: {"thing": "{pkg}:Thing", "damp_spikes": "{pkg}:Thing"}})
    parser = ArgumentParser(TrainingArguments)
    for name, said in (
        ("thng.factor", "the plugin 'thng' is not installed; did you mean 'thing'"),
        ("thing", "it is a plugin. Name it in `plugins`: {'thing': "),
        ("damp-spikes", "it is a plugin. Name it in `plugins`: {'damp_spikes': "),
    ):
        with pytest.raises(ArgumentError, match=said):
            parser.parse_dict({"output_dir": str(tmp_path), name: 3})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("thing(factr=2)", "`thing` has no option 'factr'; did you mean 'factor'?"),
        ("thing(factor='high')", "`thing`: factor is 'high'; it takes a float"),
        ("thing(factor=[1])", "factor is [1]"),
        ("thing(2)", "Write `option=value`"),
        ("thing(factor=open('x'))", "has a value without the name of an option"),
        ("thng", "did you mean 'thing'"),
        ("no:thng", "did you mean 'thing'"),
        ("thing(factor=2", "cannot be parsed|is not a callback"),
    ],
)
def test_wrong_options_are_refused_with_the_remedy(text, said, packages, tmp_path):
    offer(packages, thing())
    with pytest.raises(TrainbusError) as raised:
        net_trainer(tmp_path, plugins=[text])
    assert any(part in str(raised.value) for part in said.split("|"))


def test_no_prefix_wins_over_auto_names_and_the_environment(packages, tmp_path, monkeypatch):
    offer(packages, thing())
    for plugins in (["no:thing"], ["thing", "no:thing"], ["no:thing", "thing(factor=3)"]):
        trainer = net_trainer(tmp_path, plugins=plugins)
        assert "Thing" not in trainer.callbacks
        assert not any(line.startswith("thing") for line in trainer.plugins)
    words = ["--output_dir", str(tmp_path), "-p", "no:thing", "--thing.factor", "3"]
    [args] = ArgumentParser(TrainingArguments).parse_args_into_dataclasses(words, look_for_args_file=False)
    assert "no:thing" in args.plugins
    monkeypatch.setenv("TRAINBUS_PLUGINS", "thing")
    assert "Thing" not in net_trainer(tmp_path, plugins=["no:thing"]).callbacks


# Manifests.

GARBAGE = [3, None, "text", [], {}, {"factor": 3}, {"factor": {"type": "float"}}, True]


@pytest.mark.parametrize(
    "key", ["value", "doc", "auto", "stage", "handlers", "events", "options", "requires", "conflicts"]
)
def test_a_garbled_manifest_breaks_neither_the_list_nor_a_run(key, packages, tmp_path, capsys):
    package = offer(packages, thing())
    assert main(["plugins", "manifest", package]) == 0
    path = packages.folder / package / MANIFEST
    whole = json.loads(path.read_text(encoding="utf-8"))
    for value in GARBAGE:
        path.write_text(json.dumps({**whole, "plugins": {"thing": {**whole["plugins"]["thing"], key: value}}}))
        assert main(["plugins"]) == 0
        assert main(["plugins", "--json"]) == 0
        ArgumentParser(TrainingArguments).format_help()
    capsys.readouterr()
    for value in (3, [], {"thing": 3}, {"thing": []}, {"other": {}}):
        path.write_text(json.dumps({**whole, "plugins": value}))
        assert main(["plugins"]) == 0
    assert net_trainer(tmp_path, plugins=["thing"]).callbacks["Thing"].factor == 1.0
    sys.modules.pop(package, None)


def test_the_check_reports_a_manifest_that_disagrees_with_the_code(packages, tmp_path, capsys):
    package = offer(packages, thing())
    assert main(["plugins", "manifest", package]) == 0
    path = packages.folder / package / MANIFEST
    path.write_text(path.read_text().replace('"auto": true', '"auto": false').replace('"factor"', '"other"'))
    assert "Thing" not in net_trainer(tmp_path, plugins=[]).callbacks, "the manifest says who joins"
    assert net_trainer(tmp_path, plugins=["thing(factor=2)"]).callbacks["Thing"].factor == 2, "the code has the options"
    capsys.readouterr()
    assert main(["plugins", "--check"]) == 1
    assert f"its manifest is outdated: run `trainbus plugins manifest {package}`" in capsys.readouterr().out


# Commands.


def test_the_list_reports_commands_with_a_taken_name(packages, capsys):
    packages.add("", {COMMANDS: {"plan": "{pkg}:add", "greet": "{pkg}:add"}}, name="acme")
    packages.add("", {COMMANDS: {"greet": "{pkg}:add"}}, name="other")
    assert main(["plugins"]) == 0
    assert main(["plugins", "--check"]) == 1
    said = capsys.readouterr().out
    assert "trainbus has a command of this name, so this one is never called" in said
    assert "offers the same command: uninstall one of the two" in said


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise RuntimeError('broken')", "cannot be loaded: RuntimeError: broken"),
        ("def add_to(commands): raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
        ("def add_to(commands): commands.add_parser('other')", "adds no parser of its name"),
        ("def add_to(commands): commands.add_parser('greet').set_defaults(do=3)", "does nothing"),
        ("def add_to(commands): commands.add_parser('greet').set_defaults(do=lambda options: 'x')", "returned 'x'"),
    ],
)
def test_a_faulty_command_is_an_error_with_its_name(source, said, packages, capsys):
    packages.add(source + "\n", {COMMANDS: {"greet": "{pkg}:add_to"}}, name="acme")
    assert main(["greet"]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert "'greet'" in message
    assert "TRAINBUS_DISABLE" not in message
    assert main(["plugins", "--check"]) == (0 if "returned" in said else 1)  # the check does not call it
    assert said in capsys.readouterr().out or "returned" in said
