"""MLflow with its real package: a folder as the store, and its server on this machine."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Trainer, TrainingArguments

mlflow = pytest.importorskip("mlflow")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setattr("mlflow.tracking.fluent._active_experiment_id", None)
    mlflow.set_tracking_uri(f"file://{tmp_path / 'mlruns'}")
    yield mlflow.MlflowClient()
    mlflow.set_tracking_uri(None)


def build(folder, **options):
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    given = {"max_steps": 8, "logging_steps": 2, "save_steps": 4, "eval_strategy": "steps", "eval_steps": 4}
    given |= {"use_cpu": True, "disable_tqdm": True, "report_to": "mlflow", **options}
    args = TrainingArguments(str(folder / "out"), **given)
    return Trainer(nn.Linear(4, 2), args, train_dataset=data, eval_dataset=data, criterion=nn.CrossEntropyLoss())


def run_of(client, trainer):
    return client.get_run(trainer.callbacks["MLflow"].run_id)


def test_logs_go_to_one_run_that_ends_with_the_training(client, tmp_path):
    built, active = build(tmp_path, run_name="tried", project="mine"), []
    built.on("on_step_end", lambda state: active.append(mlflow.active_run().info.run_id))
    built.train()
    run = run_of(client, built)
    losses = {entry["step"]: entry["loss"] for entry in built.state.log_history if "loss" in entry}
    history = client.get_metric_history(run.info.run_id, "loss")
    assert {metric.step: metric.value for metric in history} == losses
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "eval_loss")] == [4, 8]
    assert (run.info.run_name, run.info.status) == ("tried", "FINISHED")
    assert client.get_experiment(run.info.experiment_id).name == "mine"
    assert run.data.params["max_steps"] == "8"
    assert run.data.params.keys() == built.args.to_sanitized_dict().keys()
    assert "all 8 steps are done" in run.data.tags["stopped"]
    assert run.data.metrics["train_loss"] > 0
    assert set(active) == {run.info.run_id}
    assert mlflow.active_run() is None


def test_the_experiment_is_the_environment_variable(client, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "b")
    built = build(tmp_path)
    built.train()
    assert client.get_experiment(run_of(client, built).info.experiment_id).name == "b"


def test_later_evaluations_and_resumed_trainings_go_to_the_same_run(client, tmp_path):
    built = build(tmp_path)
    built.train()
    built.evaluate()
    built.end()
    resumed = build(tmp_path, logging_steps=1)  # another setting than the run has
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    run = run_of(client, resumed)
    assert run.info.run_id == built.callbacks["MLflow"].run_id
    assert run.info.status == "FINISHED"
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "eval_loss")] == [4, 8, 8]


def test_a_run_that_is_active_is_used_and_left_active(client, tmp_path):
    with mlflow.start_run(run_name="mine") as mine:
        built = build(tmp_path)
        built.train()
        assert built.callbacks["MLflow"].run_id == mine.info.run_id
        assert mlflow.active_run().info.run_id == mine.info.run_id
        assert client.get_run(mine.info.run_id).info.status == "RUNNING"
    assert client.get_metric_history(mine.info.run_id, "loss")


@pytest.mark.parametrize(("error", "status"), [(RuntimeError("planned"), "FAILED"), (KeyboardInterrupt(), "KILLED")])
def test_a_training_that_fails_is_marked(client, tmp_path, error, status):
    built = build(tmp_path)

    def fail(state):
        raise error

    built.on("on_step_end", fail)
    with pytest.raises(type(error)):
        built.train()
    assert run_of(client, built).info.status == status
    assert mlflow.active_run() is None


def test_names_that_mlflow_does_not_take_are_changed(client, tmp_path):
    built = build(tmp_path)
    built.log({"top@5 (é)": 0.5, "note": "text"})
    built.end()
    run = run_of(client, built)
    assert run.data.metrics == {"top_5 ___": 0.5, "epoch": 0.0}
    assert run.info.status == "FINISHED"


@pytest.mark.slow
def test_the_server_has_the_rows(client, tmp_path):
    if importlib.util.find_spec("flask") is None:
        pytest.skip("the server is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "mlflow", "server", "--port", address.rpartition(":")[2], "--workers", "1"]
    server = subprocess.Popen([*command, "--backend-store-uri", f"sqlite:///{tmp_path / 'mlflow.db'}"])
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        mlflow.set_tracking_uri(address)
        built = build(tmp_path)
        built.train()
        history = mlflow.MlflowClient().get_metric_history(built.callbacks["MLflow"].run_id, "loss")
        assert [metric.step for metric in history] == [2, 4, 6, 8]
    finally:
        server.terminate()
        server.wait()
