"""MLflow, with a stand-in for the package that keeps runs as the real one does, refusals included."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Trainer, TrainingArguments


class Package(types.ModuleType):
    """Keeps runs by id."""

    def __init__(self):
        super().__init__("mlflow")
        self.runs, self.current, self.experiment = {}, None, "Default"

    def set_experiment(self, name):
        self.experiment = name

    def active_run(self):
        return self.current

    def start_run(self, run_id=None, run_name=None):
        assert self.current is None, "a run is active"
        kept = {"name": run_name, "experiment": self.experiment, "params": {}, "metrics": [], "tags": {}}
        run_id = run_id or f"id-{len(self.runs)}"
        self.runs.setdefault(run_id, kept)["status"] = "RUNNING"
        self.current = types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id))
        return self.current

    def end_run(self, status="FINISHED"):
        self.run["status"], self.current = status, None

    @property
    def run(self):
        return self.runs[self.current.info.run_id]

    def log_params(self, params):
        assert len(params) <= 100, "too many at once"
        changed = {name for name, value in params.items() if self.run["params"].get(name, value) != value}
        assert not changed, f"a parameter cannot be changed: {changed}"
        self.run["params"].update(params)

    def log_metrics(self, metrics, step):
        for name, value in metrics.items():
            assert all(letter.isalnum() or letter in "_-. :/" for letter in name), f"{name} is not allowed"
            self.run["metrics"].append((step, name, value))

    def set_tag(self, key, value):
        self.run["tags"][key] = value


@pytest.fixture
def package(monkeypatch):
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    module = Package()
    monkeypatch.setitem(sys.modules, "mlflow", module)
    sys.modules.pop("trainbus.integrations.mlflow", None)
    yield module
    sys.modules.pop("trainbus.integrations.mlflow", None)


def build(tmp_path, **options):
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    given = {"max_steps": 8, "logging_steps": 2, "save_steps": 4, "eval_strategy": "steps", "eval_steps": 4}
    given |= {"use_cpu": True, "disable_tqdm": True, "report_to": "mlflow", **options}
    args = TrainingArguments(str(tmp_path), **given)
    return Trainer(nn.Linear(4, 2), args, train_dataset=data, eval_dataset=data, criterion=nn.CrossEntropyLoss())


def test_what_is_logged_reaches_one_run_which_ends_with_the_training(package, tmp_path):
    built = build(tmp_path, run_name="tried")
    built.train()
    [run] = package.runs.values()
    logged = [
        (entry["step"], name, value)
        for entry in built.state.log_history
        for name, value in entry.items()
        if name != "step" and isinstance(value, (int, float))
    ]
    assert run["metrics"] == logged
    assert (run["name"], run["experiment"], run["status"]) == ("tried", "Default", "FINISHED")
    assert run["params"]["max_steps"] == 8
    assert run["params"].keys() == built.args.to_sanitized_dict().keys()
    assert "all 8 steps are done" in run["tags"]["stopped"]


@pytest.mark.parametrize(("project", "variable", "experiment"), [("a", "b", "a"), (None, "b", "b")])
def test_the_experiment_is_the_project_or_what_the_environment_says(
    package, tmp_path, monkeypatch, project, variable, experiment
):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", variable)
    build(tmp_path, project=project).train()
    assert package.runs["id-0"]["experiment"] == experiment


def test_later_evaluations_and_resumed_trainings_go_to_the_same_run(package, tmp_path):
    built = build(tmp_path)
    built.train()
    built.evaluate()
    resumed = build(tmp_path, logging_steps=1)  # another setting than the run has
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert list(package.runs) == ["id-0"]
    assert sum(name == "eval_loss" for _, name, _ in package.runs["id-0"]["metrics"]) == 4
    assert package.runs["id-0"]["status"] == "FINISHED"


def test_a_run_that_is_active_is_used_and_left_active(package, tmp_path):
    package.start_run(run_name="mine")
    build(tmp_path).train()
    assert list(package.runs) == ["id-0"]
    assert package.run["status"] == "RUNNING"
    assert package.run["metrics"]


def test_a_training_that_fails_is_marked(package, tmp_path):
    built = build(tmp_path)

    def fail(state):
        raise RuntimeError("as planned")

    built.on("on_step_end", fail)
    with pytest.raises(RuntimeError, match="as planned"):
        built.train()
    assert package.runs["id-0"]["status"] == "FAILED"


def test_names_that_mlflow_does_not_take_are_changed(package, tmp_path):
    built = build(tmp_path)
    built.log({"top@5 (é)": 0.5, "note": "text"})
    assert package.run["metrics"] == [(0, "top_5 ___", 0.5), (0, "epoch", 0.0)]
    built.end()
    assert package.runs["id-0"]["status"] == "FINISHED"
