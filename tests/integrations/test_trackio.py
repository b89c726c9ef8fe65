"""Trackio, with a fake that stores all reports, compared with the callback of transformers."""

from __future__ import annotations

import sys
import types
from importlib.machinery import ModuleSpec

import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Trainer, TrainingArguments
from trainbus.events.errors import ArgumentError


class Package(types.ModuleType):
    """Keeps runs by name; refuses to log without one that is open, as the real one does."""

    def __init__(self, space=None):
        super().__init__("trackio")
        self.__spec__ = ModuleSpec("trackio", None)  # by which others see whether it is installed
        self.runs, self.inits, self.frozen, self.finished, self.current = {}, [], [], 0, None
        self.space, self.config, self.__version__ = space, {}, "0.43.0"
        self.context_vars = types.SimpleNamespace(
            current_space_id=types.SimpleNamespace(get=lambda: self.space),
            current_run=types.SimpleNamespace(set=lambda run: None),
        )

    def init(self, **options):
        assert self.current is None, "the run before is not finished"
        self.inits.append(options)
        name = options["name"] or f"made-up-{len(self.runs)}"
        self.current = self.runs.setdefault(name, [])
        return types.SimpleNamespace(name=name, _next_step=max((s + 1 for s, _ in self.current), default=0))

    def log(self, metrics, step=None):
        self.current.append((step, metrics))

    def finish(self):
        assert self.current is not None, "no run is open"
        self.current, self.finished = None, self.finished + 1

    def freeze(self, **options):
        assert self.current is None
        self.frozen.append(options)


@pytest.fixture
def package(monkeypatch):
    module = Package()
    monkeypatch.setitem(sys.modules, "trackio", module)
    sys.modules.pop("trainbus.integrations.trackio", None)
    yield module
    sys.modules.pop("trainbus.integrations.trackio", None)


def build(tmp_path, **options):
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    given = {"max_steps": 8, "logging_steps": 2, "save_steps": 4, "eval_strategy": "steps", "eval_steps": 4}
    args = TrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True, report_to="trackio", **given, **options)
    return Trainer(nn.Linear(4, 2), args, train_dataset=data, eval_dataset=data, criterion=nn.CrossEntropyLoss())


def test_logs_go_to_one_run_that_ends_with_the_training(package, tmp_path):
    built = build(tmp_path, run_name="tried", project="demo")
    built.train()
    assert list(package.runs) == ["tried"]
    expected = built.state.log_history
    assert [step for step, _ in package.runs["tried"]] == [2, 4, 6, 8]
    losses = [metrics["train/loss"] for _, metrics in package.runs["tried"] if "train/loss" in metrics]
    assert losses == [entry["loss"] for entry in expected if "loss" in entry]
    assert package.finished == 1
    built.end()
    assert package.finished == 1


def test_the_names_are_those_of_transformers(package, tmp_path, monkeypatch):
    built = build(tmp_path)
    built.train()
    [ours] = package.runs.values()
    package.runs.clear()
    monkeypatch.setattr("transformers.integrations.integration_utils.is_trackio_available", lambda: True)
    theirs = transformers.integrations.TrackioCallback()
    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    state = transformers.TrainerState(is_world_process_zero=True)
    theirs.on_train_begin(args, state, None, model=nn.Linear(4, 2))
    for entry in built.state.log_history:
        state.global_step = entry["step"]
        theirs.on_log(args, state, None, logs={name: value for name, value in entry.items() if name != "step"})
    [said] = package.runs.values()
    rows = {}
    for step, metrics in said:  # transformers writes each log of a step as a row of its own
        rows.setdefault(step if step is not None else metrics["train/global_step"], {}).update(metrics)
    assert dict(ours) == rows
    shared = ("project", "space_id", "bucket_id", "private", "resume")
    assert [package.inits[0][name] for name in shared] == [package.inits[1][name] for name in shared]
    assert package.inits[0]["config"]["max_steps"] == 8
    assert package.inits[0]["config"]["model/num_parameters"] == 10


def test_later_evaluations_and_resumed_trainings_go_to_the_same_run(package, tmp_path):
    built = build(tmp_path)
    built.train()
    built.evaluate()
    assert list(package.runs) == ["made-up-0"]
    built.end()
    assert package.finished == 2
    resumed = build(tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.callbacks["Trackio"].run_id == "made-up-0"
    assert "made-up-0" in [options["name"] for options in package.inits[2:]]
    another = build(tmp_path)
    another.train()
    assert another.callbacks["Trackio"].run_id != "made-up-0"


def test_a_training_that_fails_finishes_its_run(package, tmp_path):
    built = build(tmp_path)

    def fail(state):
        raise RuntimeError("as planned")

    built.on("on_step_end", fail)
    with pytest.raises(RuntimeError, match="as planned"):
        built.train()
    assert package.current is None


@pytest.mark.parametrize(
    ("space", "static", "frozen"), [(None, None, []), ("me/demo", None, [None]), ("me/demo", "mine", ["mine"])]
)
def test_a_space_is_copied_after_training(package, tmp_path, space, static, frozen):
    package.space = space
    build(tmp_path, trackio_space_id=space, trackio_static_space_id=static, trackio_bucket_id="b").train()
    assert [options["new_space_id"] for options in package.frozen] == frozen
    assert all(options["space_id"] == "me/demo" for options in package.frozen)
    assert (package.inits[0]["space_id"], package.inits[0]["bucket_id"]) == (space, "b")


def test_no_copy_is_made_if_it_is_not_wanted(package, tmp_path):
    package.space = "me/demo"
    build(tmp_path, trackio_static_space_id=False).train()
    assert package.frozen == []


def test_true_names_no_space(package, tmp_path):
    with pytest.raises(ArgumentError, match="trackio_static_space_id"):
        build(tmp_path, trackio_static_space_id=True)


def test_a_tracker_that_fails_does_not_stop_the_training(package, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(package, "init", lambda **options: (_ for _ in ()).throw(OSError("no network")))
    built = build(tmp_path)
    built.train()
    assert built.state.global_step == 8
    assert "the training continues: OSError: no network" in caplog.text
    assert "no network" in caplog.text
