"""What reaches beyond callbacks: options, commands, trackers, events, seams, triggers and checkpoints of packages."""

import json
import logging
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch
from torch import nn

from support.trainers import net_trainer, regression_trainer
from trainbus import ArgumentParser, Trainer, TrainingArguments
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.engine.commands.main import main
from trainbus.events import ArgumentError, SubscriptionError
from trainbus.events.installed import MANIFEST

CALLBACKS, COMMANDS = "trainbus.callbacks", "trainbus.commands"

SPIKES = '''
"""Spikes."""
from dataclasses import dataclass, field
from typing import Literal
from trainbus import EMA, Callback, Event, Stage, Trigger, every, order
from trainbus.events import Conflict, Param

@dataclass
class Spikes(Callback):
    """Counts spikes of the loss."""

    factor: float = 10.0
    """How many times larger."""
    mode: Literal["skip", "stop"] = "skip"
    trigger: Trigger = field(default_factory=lambda: every(1))
    verbose: bool = False

    stage = Stage.MEASURE
    requires = ">=1,<2"
    events = (Event("on_spike", "The loss is large.", (Param("height", "float", "How large."),)),)
    conflicts_with = (Conflict(EMA, "it is for the test."),)

    @order(Stage.REPORT)
    def on_step_end(self, run, loss):
        if self.trigger.due(run.moment("step")):
            run.announce("on_spike", height=float(loss) * self.factor)
'''
HEARING = """
from trainbus import Callback

class Hearing(Callback):
    heard = ()

    def on_spike(self, height: float) -> None:
        self.heard = (*self.heard, height)
"""
BROKEN = "raise RuntimeError('broken at import')\n"
COMMAND = """
def add_to(commands):
    parser = commands.add_parser("greet", help="greet somebody")
    parser.add_argument("name")
    parser.set_defaults(do=lambda options: print("hello", options.name))
"""


def spikes(packages, **options):
    return packages.add(SPIKES, {CALLBACKS: {"spikes": "{pkg}:Spikes"}}, **options)


def parse(*words):
    return ArgumentParser(TrainingArguments).parse_args_into_dataclasses(list(words), look_for_args_file=False)[0]


# The list of plugins.


def test_lists_without_importing_and_in_full_with_a_manifest(packages, capsys):
    package = spikes(packages, name="acme-spikes", version="1.2")
    broken = packages.add(BROKEN, {CALLBACKS: {"bad": "{pkg}.inner:Thing"}}, inner="")
    assert main(["plugins"]) == 0
    said = capsys.readouterr().out
    assert "spikes  acme-spikes 1.2" in said
    assert "no manifest: `trainbus plugins --check` imports it" in said
    assert package not in sys.modules
    assert main(["plugins", "manifest", "acme-spikes"]) == 0
    assert str(packages.folder / package / MANIFEST) in capsys.readouterr().out
    del sys.modules[package]
    assert main(["plugins", "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)["plugins"]}
    assert package not in sys.modules, "a manifest is read without the code"
    assert broken not in sys.modules
    row = found["spikes"]
    assert row["package"], row["version"] == ("acme-spikes", "1.2")
    assert row["file"] == str(packages.folder / package / "__init__.py")
    assert found["bad"]["file"] == str(packages.folder / broken / "inner.py")
    assert (row["stage"], row["handlers"]) == ("MEASURE", {"on_step_end": "REPORT"})
    assert (row["requires"], row["fits"], row["contract"]) == (">=1,<2", True, "1.0")
    assert row["conflicts"] == ["EMA"]
    assert row["events"] == {"on_spike": "The loss is large."}
    assert row["auto"] is False
    assert row["options"]["factor"] == {"type": "float", "required": False, "default": "10.0"}
    assert list(row["options"]) == ["factor", "mode", "trigger", "verbose"]
    assert main(["plugins"]) == 0
    said = capsys.readouterr().out
    assert "handlers: on_step_end (REPORT)" in said
    assert "requires contract >=1,<2" in said


def test_a_manifest_keeps_the_code_of_plugins_out_of_runs_that_do_not_name_them(tmp_path, packages):
    package = spikes(packages)
    assert main(["plugins", "manifest", package]) == 0
    del sys.modules[package]
    Trainer(nn.Linear(2, 2), TrainingArguments(str(tmp_path / "run")))
    assert package not in sys.modules


def test_check_imports_and_names_every_problem(packages, capsys):
    spikes(packages)
    packages.add(BROKEN, {CALLBACKS: {"bad": "{pkg}:Thing"}})
    packages.add(
        "from trainbus import Callback\n"
        "class Odd(Callback):\n    requires = '>=7'\n    def on_step_end(self): ...\n"
        "class Misspelt(Callback):\n    def on_step_edn(self): ...\n"
        "class Unknown(Callback):\n    def on_step_end(self, los): ...\n"
        "number = 3\n",
        {
            CALLBACKS: {
                "misspelt": "{pkg}:Misspelt",
                "number": "{pkg}:number",
                "odd": "{pkg}:Odd",
                "wrong": "{pkg}:Unknown",
            }
        },
    )
    packages.add(HEARING, {CALLBACKS: {"spikes": "{pkg}:Hearing"}})
    assert main(["plugins", "--check", "--json"]) == 1
    found = {row["name"]: row["problems"] for row in json.loads(capsys.readouterr().out)["plugins"]}
    assert found["bad"] == ["cannot be loaded: RuntimeError: broken at import"]
    assert "requires the plugin contract >=7" in found["odd"][0]
    assert "did you mean 'on_step_end'" in found["misspelt"][0]
    assert "'los', which on_step_end does not pass; did you mean 'loss'?" in found["wrong"][0]
    assert "is not a callback class or a function that returns callbacks. Offer one of these" in found["number"][0]
    assert any("offers the same name" in problem for problem in found["spikes"])


def test_check_tells_an_outdated_manifest(packages, capsys):
    package = spikes(packages)
    assert main(["plugins", "manifest", package]) == 0
    assert main(["plugins", "--check"]) == 0
    path = packages.folder / package / MANIFEST
    path.write_text(path.read_text(encoding="utf-8").replace("10.0", "11.0"), encoding="utf-8")
    capsys.readouterr()
    assert main(["plugins", "--check"]) == 1
    assert "its manifest is outdated" in capsys.readouterr().out
    path.write_text("{", encoding="utf-8")
    assert main(["plugins"]) == 0
    assert "no manifest" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("package", "says"), [("nothing-here", "No package 'nothing-here' is installed"), ("torch", "offers no plugin")]
)
def test_a_manifest_of_something_else_is_refused(capsys, package, says):
    assert main(["plugins", "manifest", package]) == 2
    assert says in capsys.readouterr().err


# Options on the command line and in documents.


def test_options_are_flags_under_the_name_of_the_plugin(tmp_path, packages):
    package = spikes(packages, name="acme-spikes")
    words = ("--spikes.factor", "4", "--spikes.mode=stop", "--spikes.verbose", "--spikes.trigger", "every(5)")
    args = parse("--output_dir", str(tmp_path), "--save_strategy", "no", *words)
    callback = regression_trainer(tmp_path, args={"plugins": args.plugins}).callbacks["Spikes"]
    assert (callback.factor, callback.mode, callback.verbose, repr(callback.trigger)) == (4, "stop", True, "every(5)")
    assert parse("--plugins", "spikes(mode='stop', factor=3)", "--spikes.factor", "4").plugins == [
        "spikes(mode='stop', factor=4)"
    ]
    help_text = ArgumentParser(TrainingArguments).format_help()
    assert "Plugin spikes (acme-spikes 1.0)" in help_text
    assert "--spikes.factor" in help_text
    assert main(["plugins", "manifest", "acme-spikes"]) == 0
    del sys.modules[package]
    assert "--spikes.factor" in ArgumentParser(TrainingArguments).format_help()
    assert parse("--spikes.factor", "4").plugins == ["spikes(factor=4)"]
    assert package not in sys.modules


def test_an_unknown_option_is_refused_with_the_nearest(packages, capsys):
    spikes(packages)
    with pytest.raises(SystemExit):
        parse("--spikes.factr", "4")
    assert "did you mean '--spikes.factor'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse("--spike.factor", "4")
    assert "`--spike.factor` is not a flag" in capsys.readouterr().err


@pytest.mark.parametrize(
    "document",
    [
        {"plugins": {"spikes": {"factor": 4}}},
        {"plugins": ["spikes"], "spikes.factor": 4},
        {"spikes.factor": 4, "plugins": ["spikes"]},
        {"spikes.factor": 4},
    ],
)
def test_options_are_keys_of_documents(packages, document):
    spikes(packages)
    [args] = ArgumentParser(TrainingArguments).parse_dict(document)
    assert args.plugins == ["spikes(factor=4)"]


def test_a_broken_plugin_does_not_break_the_help(packages):
    packages.add(BROKEN, {CALLBACKS: {"bad": "{pkg}:Thing"}})
    assert "broken at import" in " ".join(ArgumentParser(TrainingArguments).format_help().split())


# Commands.


def test_a_package_adds_a_command(packages, capsys):
    package = packages.add("", {COMMANDS: {"greet": "{pkg}.cli"}}, cli=COMMAND, name="acme-greet")
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "of acme-greet 1.0" in capsys.readouterr().out
    assert f"{package}.cli" not in sys.modules, "only the chosen command is imported"
    assert main(["greet", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
    assert main(["plugins", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["commands"]
    assert (row["name"], row["value"]) == ("greet", f"{package}.cli")
    with pytest.raises(SystemExit):
        main(["gret", "you"])
    assert "did you mean 'greet'" in capsys.readouterr().err


def test_a_broken_command_is_an_error_when_it_is_used(packages, capsys):
    packages.add("", {COMMANDS: {"bad": "{pkg}.cli", "mute": "{pkg}.mute:add"}}, cli=BROKEN, mute="def add(c): ...")
    assert main(["plugins"]) == 0
    assert main(["bad"]) == 2
    assert "broken at import" in capsys.readouterr().err
    assert main(["mute"]) == 2
    assert "'mute'" in capsys.readouterr().err


def test_no_package_replaces_a_command_of_trainbus(packages, capsys):
    packages.add("", {COMMANDS: {"plan": "{pkg}.cli"}}, cli=COMMAND.replace("greet", "plan"))
    assert main(["plan", "--params", "1b"]) == 0
    assert "1 billion parameters" in capsys.readouterr().out


# Events, triggers, seams, trackers, checkpoints.


@pytest.mark.parametrize("plugins", [["spikes", "hearing"], ["hearing", "spikes"]])
def test_a_plugin_handles_the_event_of_another_plugin_in_any_order(tmp_path, packages, plugins):
    spikes(packages)
    packages.add(HEARING, {CALLBACKS: {"hearing": "{pkg}:Hearing"}})
    trainer = net_trainer(tmp_path, plugins=plugins, report_to="none")
    trainer.train()
    assert len(trainer.callbacks["Hearing"].heard) == 6


def test_annotations_of_own_events_are_checked(tmp_path, packages):
    spikes(packages)
    packages.add(HEARING.replace("height: float", "height: dict"), {CALLBACKS: {"hearing": "{pkg}:Hearing"}})
    with pytest.raises(SubscriptionError, match=r"annotates 'height' as dict, but on_spike passes float"):
        net_trainer(tmp_path, plugins=["spikes", "hearing"])


@pytest.mark.filterwarnings("ignore:Detected call of")  # the step does not call the optimizer
def test_a_package_brings_a_trigger_a_seam_and_files_of_a_checkpoint(tmp_path, packages):
    package = packages.add(
        """
from dataclasses import dataclass, field
import torch
from trainbus import Callback, Stage, Trigger, never

@dataclass(frozen=True)
class Odd(Trigger):
    start: int = 1

    def due(self, now, before=None):
        return now.step >= self.start and now.step % 2 == 1

@dataclass
class Sign(Callback):
    '''Steps by the sign of the gradient.'''

    rate: float = 0.5
    trigger: Trigger = field(default_factory=never)
    stage = Stage.PREPARE
    steps: int = field(default=0, init=False)

    def on_setup(self, run):
        if run.mode == "train":
            run.seams.fill("Sign", step=self.step)

    def step(self, optimizer, *rest, **options):
        self.steps += 1
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.data -= self.rate * weight.grad.sign()
        return True

    def on_step_end(self, run, control):
        if self.trigger.due(run.moment("step")):
            control.request("save", "an odd step")

    def on_save_begin(self, run):
        run.checkpoint.extra["sign"] = {"steps": torch.tensor(self.steps)}

    def on_load(self, checkpoint):
        self.loaded = int(checkpoint.extra["sign"]["steps"])
""",
        {CALLBACKS: {"sign": "{pkg}:Sign"}},
    )
    trainer = net_trainer(tmp_path, plugins=[f"sign(trigger='{package}:Odd(start=2)')"], save_strategy="no")
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.train()
    assert trainer.callbacks["Sign"].steps == 6
    steps = [(now - was) / 0.5 for now, was in zip(trainer.model.parameters(), before)]
    assert all(torch.allclose(step, step.round(), atol=1e-4) for step in steps), "each step moves a weight by the rate"
    assert any(bool(step.round().any()) for step in steps)
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-5"]
    assert int(SavedCheckpoint.open(tmp_path / "checkpoint-5").extra["sign"]["steps"]) == 5
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert trainer.callbacks["Sign"].loaded == 3
    assert trainer.callbacks_as_config()[-1].startswith(f"{package}:Sign(trigger='{package}:Odd(start=2)'")


def test_report_to_names_a_tracker_of_a_package(tmp_path, packages, caplog):
    packages.add(
        """
from dataclasses import dataclass
from typing import ClassVar
from trainbus.callbacks.base.service_tracker import ServiceSession, ServiceTracker

rows = []

class Session(ServiceSession):
    def log(self, values, step):
        rows.append((step, dict(values)))
    def tell(self, name, value): ...
    def close(self, outcome): ...

@dataclass
class Acme(ServiceTracker):
    '''Reports to acme.'''
    service: ClassVar[str] = "Acme"

    def open_session(self, opening, name, config):
        return Session(opening.run_id)
""",
        {CALLBACKS: {"acme": "{pkg}:Acme"}},
        name="offered-acme",
    )
    with pytest.raises(ArgumentError, match="did you mean 'acme'"):
        net_trainer(tmp_path, report_to="acmee", plugins=[])
    options = {"plugins": [], "project": "p", "logging_strategy": "steps", "logging_steps": 2}
    trainer = net_trainer(tmp_path, report_to=["acme", "jsonl"], **options)
    assert trainer.callbacks["Acme"].project == "p"
    with caplog.at_level(logging.INFO, logger="trainbus"):
        trainer.train()
    trainer.end()
    assert [step for step, _ in sys.modules["offered_acme"].rows][:3] == [2, 4, 6]
    assert "Plugin acme (offered-acme 1.0)" in caplog.text


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_package_installed_by_pip_attaches_its_plugin(tmp_path):
    """The same with a package in a fresh environment, in editable mode and as a wheel."""
    source = tmp_path / "acme-spikes"
    (source / "acme_spikes").mkdir(parents=True)
    (source / "acme_spikes" / "__init__.py").write_text(SPIKES, encoding="utf-8")
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "acme-spikes"\nversion = "1.2"\n'
        '[project.entry-points."trainbus.callbacks"]\nspikes = "acme_spikes:Spikes"\n'
        '[tool.setuptools.package-data]\nacme_spikes = ["*.json"]\n',
        encoding="utf-8",
    )
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    site = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (site / "shared.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in shared))

    def run(*words):
        done = subprocess.run([str(python), *words], capture_output=True, text=True, cwd=tmp_path, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    for options in (["--editable"], ["--force-reinstall"]):
        run("-m", "pip", "install", "--no-build-isolation", "--no-deps", "--quiet", *options, str(source))
        found, said = run("-c", EACH_COMMAND).split("---\n")
        [row] = json.loads(found)["plugins"]
        assert (row["name"], row["package"], row["version"]) == ("spikes", "acme-spikes", "1.2")
        assert Path(row["file"]).is_file()
        assert row["described"] is (options != ["--editable"]), "the wheel has the manifest that the first turn wrote"
        assert "own events: on_spike" in said
        assert "Spikes(factor=4)" in said


EACH_COMMAND = """
from trainbus.engine.commands.main import main
assert main(["plugins", "--json"]) == 0
print("---")
assert main(["plugins", "manifest", "acme-spikes"]) == 0
assert main(["plugins", "--check"]) == 0
assert main(["compose", "--spikes.factor", "4"]) == 0
"""
