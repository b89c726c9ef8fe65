"""Plugins in unusual but valid styles work. Other targets of an entry point are refused with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from support.trainers import net_trainer
from trainbus import ArgumentParser, TrainingArguments
from trainbus.engine.commands.main import main
from trainbus.events import TrainbusError

HEAD = """
import functools
from dataclasses import dataclass, field
from trainbus import Callback

@dataclass
class Thing(Callback):
    factor: float = 1.0
    other: int = 0
    def on_step_end(self): ...

"""

VALID = {
    "a partial of a class": ("target = functools.partial(Thing, factor=3.0)", "", (3.0, 0)),
    "a partial of a class with an option": ("target = functools.partial(Thing, factor=3.0)", "factor=4.0", (4.0, 0)),
    "a partial of a class with a position": ("target = functools.partial(Thing, 3.0)", "other=2", (3.0, 2)),
    "a partial of a function": (
        "def build(args, *, factor=1.0, other=2): return Thing(factor, other)\n"
        "target = functools.partial(build, other=5)",
        "factor=4.0",
        (4.0, 5),
    ),
    "an object that is called": (
        "class Factory:\n    def __call__(self, args, *, factor=1.0): return Thing(factor)\ntarget = Factory()",
        "factor=4.0",
        (4.0, 0),
    ),
    "a lambda": ("target = lambda args: Thing()", "", (1.0, 0)),
    "a class method": (
        "class House:\n    @classmethod\n    def build(cls, args, *, factor=1.0): return Thing(factor)\n"
        "target = House.build",
        "factor=2.0",
        (2.0, 0),
    ),
    "a function with any option": ("def target(args, **options): return Thing(**options)", "factor=2.0", (2.0, 0)),
    "a frozen dataclass": (
        "@dataclass(frozen=True)\nclass target(Callback):\n    factor: float = 1.0\n    other: int = 0\n"
        "    def on_step_end(self): ...",
        "factor=2.0, on_error='warn', id='mine'",
        (2.0, 0),
    ),
    "a dataclass with slots": (
        "@dataclass(slots=True)\nclass target:\n    factor: float = 1.0\n    other: int = 0\n"
        "    def on_step_end(self): ...",
        "factor=2.0",
        (2.0, 0),
    ),
    "options with the names of arguments": (
        "@dataclass\nclass target(Callback):\n    args: int = 3\n    seed: int = 9\n    factor: float = 1.0\n"
        "    other: int = 0\n    def on_step_end(self): ...",
        "args=2, seed=4, factor=2.0",
        (2.0, 0),
    ),
}
"""Style -> source, options, and the resulting `factor` and `other`."""


INVALID = {
    "a function without arguments": ("target = lambda: Thing()", "does not take the training arguments"),
    "an async function": ("async def target(args): return Thing()", "target is an async function"),
    "a generator": ("def target(args):\n    yield Thing()", "target is a generator"),
    "an instance": ("target = Thing(3.0)", "is not a callback class"),
    "a module": ("import json as target", "is not a callback class"),
}
"""Style -> source, and the reason."""


@pytest.fixture
def offer(packages: Any) -> Any:
    """Install a plugin and return its name, which is also the name of its package."""

    def install(source: str) -> str:
        packages.add(HEAD + source + "\n", {"trainbus.callbacks": {"odd": "{pkg}:target"}}, name="odd")
        return "odd"

    return install


def of_package(trainer: Any) -> Any:
    [found] = [each for each in trainer.callbacks.values() if type(each).__module__ == "odd"]
    return found


@pytest.mark.parametrize("style", VALID)
def test_a_valid_style_works(style: str, offer: Any, tmp_path: Any, capsys: Any) -> None:
    source, options, expected = VALID[style]
    name = offer(source)
    trainer = net_trainer(tmp_path, plugins=[f"{name}({options})"], max_steps=1)
    trainer.train()
    assert (of_package(trainer).factor, of_package(trainer).other) == expected
    assert main(["plugins", "manifest", name]) == 0
    assert main(["plugins", "--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("style", INVALID)
def test_another_target_is_refused_with_the_reason(style: str, offer: Any, tmp_path: Any, capsys: Any) -> None:
    source, reason = INVALID[style]
    name = offer(source)
    with pytest.raises(TrainbusError, match=reason):
        net_trainer(tmp_path, plugins=[name])
    with pytest.raises(TrainbusError, match="odd:target"):
        net_trainer(tmp_path, callbacks=["odd:target"])
    assert main(["plugins", "--check", "--json"]) == 1
    [row] = json.loads(capsys.readouterr().out)["plugins"]
    assert any(reason in problem for problem in row["problems"])


def test_options_that_all_callbacks_have_reach_a_frozen_dataclass(offer: Any, tmp_path: Any) -> None:
    name = offer(VALID["a frozen dataclass"][0])
    trainer = net_trainer(tmp_path, plugins=[f"{name}(on_error='warn', id='mine')"])
    assert trainer.callbacks["mine"].on_error == "warn"


def test_the_manifest_of_a_partial_has_its_values_as_defaults(offer: Any, capsys: Any) -> None:
    name = offer(VALID["a partial of a class"][0])
    assert main(["plugins", "manifest", name, "--print"]) == 0
    row = json.loads(capsys.readouterr().out)["plugins"][name]
    assert (row["kind"], row["options"]["factor"]["default"], list(row["handlers"])) == (
        "class",
        "3.0",
        ["on_step_end"],
    )


DESCRIBED = {
    "two lines": (
        'class target(Callback):\n    """Counts\n    things.\n\n    More.\n    """\n    def on_log(self): ...',
        "Counts things.",
    ),
    "an inherited docstring": ("class target(Callback):\n    def on_log(self): ...", ""),
    "the docstring of a dataclass": (
        "@dataclass\nclass target(Callback):\n    x: int = 1\n    def on_log(self): ...",
        "",
    ),
    "a foreign class": (
        "import transformers\nclass target(transformers.TrainerCallback):\n"
        "    def on_log(self, args, state, control, **kwargs): ...",
        "",
    ),
    "a class with any option": (
        "class target(Callback):\n    def __init__(self, **options): ...\n    def on_log(self): ...",
        "",
    ),
}
"""Style -> source, and the summary."""


@pytest.mark.parametrize("style", DESCRIBED)
def test_a_plugin_is_described_by_its_own_code(style: str, offer: Any, capsys: Any) -> None:
    """Docstrings and handlers of base classes do not describe a plugin."""
    source, summary = DESCRIBED[style]
    name = offer(source)
    assert main(["plugins", "manifest", name, "--print"]) == 0
    row = json.loads(capsys.readouterr().out)["plugins"][name]
    assert (row["doc"], row["handlers"], row["stage"]) == (summary, {"on_log": "DECIDE"}, "DECIDE")
    assert not {"budget", "id"} & row["options"].keys()


def test_a_manifest_is_the_same_in_each_process(offer: Any) -> None:
    """The address of a default and the order of a set differ in each process."""
    offer(
        "@dataclass(frozen=True)\nclass Rule:\n    allowed: object = (frozenset('abcd'),)\n\n"
        "@dataclass\nclass target(Callback):\n    work: object = lambda: 1\n"
        "    names: frozenset[str] = frozenset('abcdefgh')\n    table: tuple = ({'a': frozenset('efgh')},)\n"
        "    rule: object = Rule()\n    def on_log(self): ..."
    )
    command = "from trainbus.engine.commands.main import main; main(['plugins', 'manifest', 'odd', '--print'])"
    texts = set()
    for seed in ("1", "2"):
        path = os.pathsep.join(each for each in sys.path if each)
        settings = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        done = subprocess.run([sys.executable, "-c", command], env=settings, capture_output=True, text=True, check=True)
        texts.add(done.stdout)
    assert len(texts) == 1
    options = json.loads(texts.pop())["plugins"]["odd"]["options"]
    assert options["work"]["default"] == "<function target.<lambda>>"
    assert options["names"]["default"] == "{'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}"
    assert options["table"]["default"] == "({'a': {'e', 'f', 'g', 'h'}},)"
    assert options["rule"]["default"] == "Rule(allowed=({'a', 'b', 'c', 'd'},))"


def test_the_help_shows_the_summary_of_a_plugin_as_it_is(offer: Any, capsys: Any) -> None:
    name = offer('class target(Callback):\n    """Keeps 2% of %(prog)s rows"""\n    def on_log(self): ...')
    with pytest.raises(SystemExit):
        ArgumentParser(TrainingArguments, prog="train").parse_args(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"Keeps 2% of %(prog)s rows. --plugins {name} or an option lets it join." in said


@pytest.mark.parametrize("error", ["SystemExit(3)", "RuntimeError('no key')", "KeyError('KEY')"])
def test_an_error_of_a_constructor_names_the_plugin(error: str, offer: Any, tmp_path: Any) -> None:
    name = offer(f"class target(Callback):\n    def __init__(self): raise {error}\n    def on_step_end(self): ...")
    with pytest.raises(TrainbusError, match=f"odd.*{error.partition('(')[0]}"):
        net_trainer(tmp_path, plugins=[name])
