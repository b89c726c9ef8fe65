"""MLflow with its real package: a folder as the store, and its server on this machine."""

from __future__ import annotations

import importlib.util
import os
import signal
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


class Server:
    """The server of MLflow on loopback, with a database in a folder. It keeps its port over restarts."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        self.url, self.process = f"http://127.0.0.1:{port}", None
        self.command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", port]
        self.command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
        self.command += ["--artifacts-destination", str(folder / "artifacts")]

    def start(self):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(self.command, start_new_session=True, **quiet)
        deadline = time.monotonic() + 180
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.2)

    def kill(self):
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)  # its workers too
            self.process.wait()
            self.process = None


@pytest.fixture
def server(client, tmp_path):
    if importlib.util.find_spec("flask") is None:
        pytest.skip("the server is not installed")
    server = Server(tmp_path)
    try:
        server.start()
        mlflow.set_tracking_uri(server.url)
        yield server
    finally:
        server.kill()


def steps_on(run_id, name="loss"):
    return [metric.step for metric in mlflow.MlflowClient().get_metric_history(run_id, name)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_server_has_every_row_once_after_a_crash_and_a_resume(server, tmp_path):
    first = build(tmp_path)

    def crash(state):
        if state.global_step == 7:
            raise RuntimeError("planned")

    first.on("on_step_end", crash)
    with pytest.raises(RuntimeError, match="planned"):
        first.train()
    run_id = first.callbacks["MLflow"].run_id
    assert steps_on(run_id) == [2, 4, 6]
    resumed = build(tmp_path)
    resumed.train(resume_from_checkpoint="auto")
    assert resumed.callbacks["MLflow"].run_id == run_id
    assert steps_on(run_id) == [2, 4, 6, 8]
    assert steps_on(run_id, "eval_loss") == [4, 8]
    assert run_of(mlflow.MlflowClient(), resumed).info.status == "FINISHED"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rows_wait_while_the_server_is_down(server, tmp_path):
    built = build(tmp_path)

    def restart(state):
        if state.global_step == 3:
            server.kill()
        if state.global_step == 7:
            server.start()

    built.on("on_step_begin", restart)
    built.train()
    assert steps_on(built.callbacks["MLflow"].run_id) == [2, 4, 6, 8]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_that_is_killed_in_mid_run_ends_neither_the_training_nor_changes_it(server, tmp_path, caplog):
    plain = build(tmp_path / "plain", report_to="none")
    plain.train()
    built = build(tmp_path)

    def kill(state):
        if state.global_step == 4:
            deadline = time.monotonic() + 60
            while not (arrived := steps_on(built.callbacks["MLflow"].run_id)) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert arrived == [2]
            server.kill()

    built.on("on_step_begin", kill)
    began = time.monotonic()
    built.train()
    built.end()
    assert time.monotonic() - began < 60 + 60  # the end waits for 60 s, and the test for the first row
    assert built.state.global_step == 8
    assert "MLflow did not receive" in caplog.text
    for one, other in zip(plain.model.parameters(), built.model.parameters(), strict=True):
        assert torch.equal(one, other)
    server.start()
    arrived = steps_on(built.callbacks["MLflow"].run_id)  # the client may still retry
    assert arrived == [2, 4, 6, 8][: len(arrived)] != []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "/a", "a//b", "a/./b", "a/", "é!", "a.b/c d", "train/", "eval/"]
)
def test_a_metric_has_a_name_that_mlflow_accepts(name):
    from mlflow.utils.validation import _validate_metric_name

    from trainbus.integrations.mlflow import _name

    for column in (name, f"train/{name}", f"eval/{name}"):
        _validate_metric_name(_name(column))
    assert _name("train/a.b/c d") == "a.b/c d"
