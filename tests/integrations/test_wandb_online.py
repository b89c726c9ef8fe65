"""Runs of Weights & Biases with the real client against a stub of the service on loopback."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import torch
from test_wandb import QUIET, build, rows_of
from torch import nn

from trainbus import Log, Trainer, TrainingArguments, every

wandb = pytest.importorskip("wandb")

from wandb_files import Stub, segments, serve  # noqa: E402

from trainbus import Wandb  # noqa: E402

FAST = {**QUIET, "x_file_stream_transmit_interval": 0.1, "x_file_stream_retry_max": 1, "x_graphql_retry_max": 1}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_") and name != "WANDB_SERVICE"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)


@pytest.fixture(scope="module", autouse=True)
def service():
    yield
    wandb.teardown()


def online(folder, url, **options):
    settings = {**FAST, "base_url": url, **options.pop("settings", {})}
    given = {"init_timeout": 10.0, "finish_timeout": 5.0, **options}
    return Wandb(project="p", mode="online", options={"dir": str(folder), "settings": settings}, **given)


def steps_of(rows):
    return [row["train/global_step"] for row in rows]


def test_a_run_reaches_the_service_and_a_resume_continues_it(tmp_path):
    with serve() as stub:
        first = build(tmp_path, online(tmp_path, stub.url))
        first.train()
        first.end()
        assert steps_of(stub.rows) == [2, 4, 6, 8]
        assert stub.exit_codes == [0]
        stub.existing = True
        second = build(tmp_path, online(tmp_path, stub.url), max_steps=8)
        second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
        second.end()
    assert steps_of(stub.rows) == [2, 4, 6, 8]  # the resumed training repeats them, and writes none twice
    assert {upsert["name"] for upsert in stub.upserts} == {first.run.run_id}
    assert stub.exit_codes == [0, 0]


@pytest.mark.slow  # the client asks the service every 15 seconds
def test_the_stop_button_stops_the_training_with_a_checkpoint_and_its_author(tmp_path):
    with serve(Stub(stopped=True)) as stub:
        trainer = build(tmp_path, online(tmp_path, stub.url), steps=400)
        trainer.on("on_step_end", lambda: time.sleep(0.02))
        trainer.train()
        trainer.end()
    step = trainer.state.global_step
    assert step < 400
    assert (tmp_path / "out" / f"checkpoint-{step}").is_dir()
    entries = [entry for entry in trainer.control.ledger if "Stop button" in entry.reason]
    assert "ann (wandb)" in {entry.author for entry in entries}
    assert "Stop button" in stub.summary["stopped"]


@pytest.mark.parametrize("failure", ["refused", "error 500", "slow to open"])
def test_a_run_goes_offline_if_the_service_does_not_open_it(tmp_path, failure, caplog):
    misbehaving = {"error 500": Stub(status=500), "slow to open": Stub(slow_upsert=20)}
    with serve(misbehaving.get(failure)) as stub:
        url = "http://127.0.0.1:9" if failure == "refused" else stub.url
        trainer = build(tmp_path, online(tmp_path, url, init_timeout=2.0))
        trainer.train()
        trainer.end()
    [segment] = segments(tmp_path)
    assert segment.run_id == trainer.run.run_id
    assert segment.steps == [2, 4, 6, 8]
    assert "The run is offline. Upload it later: wandb sync" in caplog.text
    assert "wandb sync" in (tmp_path / "out" / "_wandb_sync.sh").read_text()


def test_a_service_that_dies_in_the_middle_neither_stops_nor_delays_the_training(tmp_path):
    with serve() as stub:
        trainer = build(tmp_path, online(tmp_path, stub.url, finish_timeout=2.0), steps=8)

        def die(state):
            if state.global_step == 4:
                stub.status = 500

        trainer.on("on_step_end", die)
        began = time.monotonic()
        trainer.train()
        trained = time.monotonic()
        trainer.end()
        ended = time.monotonic()
    assert trainer.state.global_step == 8
    assert trained - began < 12
    assert ended - trained < 14
    [path] = tmp_path.glob("wandb/run-*/*.wandb")
    from wandb_files import read

    assert read(path).steps == [2, 4, 6, 8]  # nothing is lost: `wandb sync` uploads the file


@contextmanager
def black_hole():
    """A service that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted = []

        def accept():
            while True:
                try:
                    accepted.append(server.accept())
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def train_against(folder, tracker, steps, width):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
    args = TrainingArguments(str(folder), max_steps=steps, save_strategy="no", use_cpu=True, disable_tqdm=True)
    callbacks = [Log(every(10)), *([] if tracker is None else [tracker])]
    trainer = Trainer(model, args, train_dataset=rows_of(), criterion=nn.CrossEntropyLoss(), callbacks=callbacks)
    began = time.process_time(), time.monotonic()
    trainer.train()
    return trainer, time.monotonic() - began[1]


def test_a_black_holed_service_costs_the_init_timeout_and_changes_no_weight(tmp_path):
    plain, alone = train_against(tmp_path / "plain", None, 40, 16)
    with black_hole() as url:
        tracked, seconds = train_against(tmp_path / "hole", online(tmp_path, url, init_timeout=2.0), 40, 16)
        tracked.end()
    for one, other in zip(plain.model.parameters(), tracked.model.parameters()):
        assert torch.equal(one, other)
    assert seconds < 2.0 + 3.0 + 10 * alone
    [segment] = segments(tmp_path)
    assert segment.steps == [10, 20, 30, 40]


@pytest.mark.slow
def test_a_black_holed_service_adds_less_than_two_percent(tmp_path):
    steps, width = 1500, 512
    _, alone = min((train_against(tmp_path / f"plain-{n}", None, steps, width) for n in range(3)), key=lambda r: r[1])
    with black_hole() as url:
        times = []
        for n in range(3):
            tracker = online(tmp_path, url, init_timeout=2.0)
            trainer, seconds = train_against(tmp_path / f"hole-{n}", tracker, steps, width)
            trainer.end()
            times.append(seconds)
    print(f"alone {alone:.2f} s, with a black-holed service {min(times):.2f} s")
    assert min(times) < 2.0 + alone * 1.02
