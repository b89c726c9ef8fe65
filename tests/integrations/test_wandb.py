"""A real offline run of Weights & Biases, read back from its file."""

import json
import struct

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Evaluate, Log, Trainer, TrainingArguments, every

wandb = pytest.importorskip("wandb")

from wandb.proto import wandb_internal_pb2  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def service():
    """What wandb leaves in a process ends with these tests: a service, threads, and a variable for its children."""
    yield
    wandb.teardown()


@pytest.fixture
def data():
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    return TensorDataset(x, (x.sum(1) > 0).long())


def train(tmp_path, data, callback, **options):
    trainer = Trainer(
        nn.Linear(4, 2),
        TrainingArguments(str(tmp_path / "out"), max_steps=8, save_steps=4, use_cpu=True, run_name="tried"),
        train_dataset=data,
        eval_dataset=data,
        criterion=nn.CrossEntropyLoss(),
        callbacks=[callback, Log(every(2)), Evaluate(every(4))],
    )
    trainer.train(**options)
    return trainer


def offline(tmp_path):
    from trainbus import Wandb

    return Wandb(project="demo", mode="offline", options={"dir": str(tmp_path)})


def records(data):
    """Return the records of a wandb file: LevelDB's log format behind a header of 7 bytes, in blocks of 32 KiB.

    Each chunk is a checksum (4 bytes), a length (2), a kind (1: whole, 2: first, 3: middle, 4: last) and its bytes.
    """
    position, parts = 7, []
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        parts.append(data[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):
            yield b"".join(parts)
            parts = []


def read(tmp_path):
    """Return the rows of history, the config and the summary of the newest offline run in a folder."""
    wandb.teardown()  # its service writes the file in the background
    path = max(tmp_path.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    rows, config, summary, run_id = [], {}, {}, None
    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            rows.append({(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item})
        if record.HasField("run"):
            run_id = record.run.run_id
            config.update({i.key: json.loads(i.value_json) for i in record.run.config.update})
        if record.HasField("config"):
            config.update({i.key: json.loads(i.value_json) for i in record.config.update})
        if record.HasField("summary"):
            summary.update({(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in record.summary.update})
    return rows, config, summary, run_id


def test_what_was_logged_is_in_the_file_at_its_step(tmp_path, data):
    trainer = train(tmp_path, data, offline(tmp_path))
    trainer.end()
    rows, config, summary, _ = read(tmp_path)
    logged = {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}
    assert logged == {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    evaluated = [row["eval/loss"] for row in rows if "eval/loss" in row]
    assert evaluated == [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert config["max_steps"] == 8
    assert "all 8 steps are done" in summary["stopped"]


def test_a_later_evaluation_goes_to_the_same_run_and_a_resumed_training_too(tmp_path, data):
    callback = offline(tmp_path)
    trainer = train(tmp_path, data, callback)
    before = callback.run_id
    trainer.evaluate()
    trainer.end()
    rows, _, _, run_id = read(tmp_path)
    assert sum("eval/loss" in row for row in rows) == 3
    assert run_id == before

    second = offline(tmp_path)
    resumed = train(tmp_path, data, second, resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    resumed.end()
    assert second.run_id == before


def test_a_failed_training_finishes_its_run(tmp_path, data):
    callback = offline(tmp_path)

    def fail(state):
        if state.global_step == 3:
            raise RuntimeError("as planned")

    trainer = Trainer(
        nn.Linear(4, 2),
        TrainingArguments(str(tmp_path / "out"), max_steps=8, use_cpu=True),
        train_dataset=data,
        criterion=nn.CrossEntropyLoss(),
        callbacks=[callback],
    )
    trainer.on("on_step_end", fail)
    with pytest.raises(RuntimeError, match="as planned"):
        trainer.train()
    assert wandb.run is None or wandb.run.id != callback.run_id


def test_a_tracker_that_fails_does_not_stop_the_training(tmp_path, data, monkeypatch, caplog):
    monkeypatch.setattr(wandb, "init", lambda **options: (_ for _ in ()).throw(OSError("no network")))
    trainer = train(tmp_path, data, offline(tmp_path))
    assert trainer.state.global_step == 8
    assert "no network" in caplog.text


def test_report_to_spells_it(tmp_path, data, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    args = TrainingArguments(str(tmp_path), max_steps=1, report_to="wandb", run_name="mine", use_cpu=True)
    trainer = Trainer(nn.Linear(4, 2), args, train_dataset=data, criterion=nn.CrossEntropyLoss())
    assert trainer.callbacks["Wandb"].name == "mine"
