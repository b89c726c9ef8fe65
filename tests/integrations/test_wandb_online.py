"""Runs of Weights & Biases with the real client against a stub of the service on loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
import torch
from torch import nn

from support.processes import TORCHRUN
from trainbus import KeepBest, Log, Trainer, TrainingArguments, every

wandb = pytest.importorskip("wandb")

from wandb_files import Stub, segments, serve  # noqa: E402
from wandb_fixtures import QUIET, build, rows_of  # noqa: E402
from wandb_fixtures import environment as environment  # noqa: E402
from wandb_fixtures import service as service  # noqa: E402

from trainbus import Wandb  # noqa: E402

FAST = {**QUIET, "x_file_stream_transmit_interval": 0.1, "x_file_stream_retry_max": 1, "x_graphql_retry_max": 1}


@pytest.fixture(autouse=True)
def key(environment, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)


def online(folder, url, kind=Wandb, **options):
    settings = {**FAST, "base_url": url, **options.pop("settings", {})}
    given = {"init_timeout": 10.0, "finish_timeout": 5.0, **options}
    return kind(project="p", mode="online", options={"dir": str(folder), "settings": settings}, **given)


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


@pytest.mark.parametrize("log_model", ["checkpoint", "best"])
def test_versions_of_rotated_checkpoints_are_deleted_also_after_a_resume(tmp_path, log_model):
    with serve() as stub:
        for steps in (8, 16):
            tracker = online(tmp_path, stub.url, log_model=log_model, finish_timeout=20.0)
            trainer = build(tmp_path, tracker, KeepBest("eval_loss"), steps=steps, save_total_limit=1)
            trainer.train(resume_from_checkpoint="auto")
            trainer.end()
            stub.existing = True
    best, kept = trainer.state.best_global_step, stub.artifacts.of_state("COMMITTED")
    assert [f"step-{best}" in aliases and "best" in aliases for aliases in kept][-1]
    folders = {path.name.partition("-")[2] for path in (tmp_path / "out").glob("checkpoint-*")}
    named = {alias.partition("-")[2] for aliases in kept for alias in aliases if alias.startswith("step-")}
    assert named == (folders if log_model == "checkpoint" else {str(best)})
    deleted = stub.artifacts.of_state("DELETED")
    assert any("step-8" in aliases for aliases in deleted)  # the first session wrote it, the second rotated it
    assert any(name.endswith("/model.safetensors") for name in stub.artifacts.uploaded)
    assert steps_of(stub.rows) == [2, 4, 6, 8, 10, 12, 14, 16]


def test_versions_of_checkpoints_that_only_another_machine_has_stay(tmp_path):
    with serve() as stub:
        for steps in (8, 12):
            tracker = online(tmp_path, stub.url, log_model="checkpoint", finish_timeout=20.0)
            trainer = build(tmp_path, tracker, steps=steps)
            trainer.train(resume_from_checkpoint="auto")
            trainer.end()
            stub.existing = True
            for folder in (tmp_path / "out").glob("checkpoint-*"):
                if folder.name != f"checkpoint-{steps}":
                    shutil.rmtree(folder)
    assert stub.artifacts.of_state("DELETED") == []
    named = {alias for aliases in stub.artifacts.of_state("COMMITTED") for alias in aliases}
    assert {"step-4", "step-8", "step-12"} <= named


@pytest.mark.slow  # the client asks the service every 15 seconds
def test_the_stop_button_stops_the_training_with_a_checkpoint_and_its_author(tmp_path):
    with serve(Stub(stopped=True)) as stub:
        trainer = build(tmp_path, online(tmp_path, stub.url), steps=400)
        trainer.on("on_step_end", lambda: time.sleep(0.08))
        trainer.train()
        trainer.end()
    step = trainer.state.global_step
    assert step < 400
    assert (tmp_path / "out" / f"checkpoint-{step}").is_dir()
    entries = [entry for entry in trainer.control.ledger if "Stop button" in entry.reason]
    assert "ann (wandb)" in {entry.author for entry in entries}
    assert "Stop button" in stub.summary["stopped"]


@pytest.mark.parametrize("failure", ["refused", "error 500", "error 401", "slow to open"])
def test_a_run_goes_offline_if_the_service_does_not_open_it(tmp_path, failure, caplog):
    misbehaving = {"error 500": Stub(status=500), "error 401": Stub(status=401), "slow to open": Stub(slow_upsert=20)}
    with serve(misbehaving.get(failure)) as stub:
        url = "http://127.0.0.1:9" if failure == "refused" else stub.url
        trainer = build(tmp_path, online(tmp_path, url, init_timeout=2.0))
        trainer.train()
        trainer.end()
    [segment] = segments(tmp_path)
    assert segment.run_id == trainer.run.run_id
    assert segment.steps == [2, 4, 6, 8]
    assert "The run is offline. Upload it later: wandb sync" in caplog.text
    assert ("Check the key and the project" in caplog.text) is (failure == "error 401")
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_agent_of_a_sweep_gives_its_parameters_to_every_rank(tmp_path):
    program = str(Path(__file__).with_name("wandb_agent_program.py"))
    launch = [sys.executable, *TORCHRUN, program]
    values = {"learning_rate": {"value": 0.25}, "max_steps": {"value": 3}, "width": {"value": 7}}
    chosen = {"type": "run", "run_id": "chosen", "program": program, "args": values, "sweep_id": "s"}
    stub = Stub(commands=[chosen], sweep_command=[*launch, str(tmp_path)])
    with serve(stub):
        environment = {**os.environ, "WANDB_BASE_URL": stub.url, "OMP_NUM_THREADS": "1", "WANDB_DIR": str(tmp_path)}
        environment.pop("WANDB_SERVICE", None)
        environment.pop("WANDB_MODE", None)
        agent = [sys.executable, "-m", "wandb", "agent", "--count", "1", "ann/p/s"]
        done = subprocess.run(agent, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1)]
    assert ranks == [{"rate": 0.25, "steps": 3, "run": "chosen"}] * 2
    assert steps_of(stub.rows) == [1, 2, 3]
    assert {upsert["name"] for upsert in stub.upserts} == {"chosen"}


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
    for connection, _ in accepted:
        connection.close()


def trainer_of(folder, tracker, steps, width, period):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
    args = TrainingArguments(str(folder), max_steps=steps, save_strategy="no", use_cpu=True, disable_tqdm=True)
    callbacks = [Log(every(period)), *([] if tracker is None else [tracker])]
    return Trainer(model, args, train_dataset=rows_of(), criterion=nn.CrossEntropyLoss(), callbacks=callbacks)


def train_against(folder, tracker):
    """Train for 100 small steps with a log at each.

    Return the trainer, and for each step but the first: its seconds, and the processor time of the training thread,
    which does not depend on other programs.
    """
    trainer = trainer_of(folder, tracker, 100, 16, 1)
    began, worked = [], []
    trainer.on("on_step_begin", lambda: (began.append(time.perf_counter()), worked.append(time.thread_time())))
    trainer.train()
    return trainer, *([end - begin for begin, end in pairwise(times)][1:] for times in (began, worked))


class TimedStart(Wandb):
    """Measures the start of the training."""

    def on_train_begin(self, run):
        began = time.monotonic()
        super().on_train_begin(run)
        self.seconds = time.monotonic() - began


def test_a_black_holed_service_costs_the_init_timeout_and_changes_no_weight(tmp_path):
    _, _, before = train_against(tmp_path / "before", None)
    with black_hole() as url:
        tracker = online(tmp_path, url, TimedStart, init_timeout=2.0)
        tracked, took, worked = train_against(tmp_path / "hole", tracker)
        tracked.end()
    plain, _, after = train_against(tmp_path / "after", None)
    for one, other in zip(plain.model.parameters(), tracked.model.parameters()):
        assert torch.equal(one, other)
    assert tracker.seconds < 2.0 + 1.0
    assert median(took) < 0.1, "steps wait for the service. A step takes about 1 ms, and on a busy machine 5 ms"
    assert median(worked) < 2 * max(median(before), median(after)) + 1e-3
    [segment] = segments(tmp_path)
    assert segment.steps == list(range(1, 101))


PAIRS = 9


def ratio_of_times(tmp_path, width, period, steps, one, other):
    """Return the least time of steps with a tracker, divided by that with another one. They run in alternation.

    Other programs only make a run longer. The least of several runs is the least disturbed one.

    Args:
        one: makes the tracker, or None for a training without one.
        other: the same, of the trainings that it is compared with.
    """
    times = {one: [], other: []}
    for number in range(PAIRS):
        weights = []
        for make in (one, other) if number % 2 else (other, one):
            trainer = trainer_of(tmp_path / f"{number}-{len(weights)}", make(), steps, width, period)
            began = []
            trainer.on("on_step_begin", lambda began=began: began.append(time.perf_counter()))
            trainer.train()
            trainer.end()
            times[make].append(began[-1] - began[steps // 2])  # the client opens a run during the first steps
            weights.append([weight.detach() for weight in trainer.model.parameters()])
        assert all(torch.equal(left, right) for left, right in zip(*weights, strict=True))
    ratio, step = min(times[one]) / min(times[other]), min(times[other]) / (steps - 1 - steps // 2)
    print(f"step {1e3 * step:.2f} ms, log every {period}: {ratio:.3f} of the time, {PAIRS} pairs")
    return ratio


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("width", "period", "steps"), [(512, 100, 2400), (4096, 1, 100), (2048, 10, 200)])
def test_a_black_holed_service_adds_less_than_two_percent(tmp_path, width, period, steps):
    # There are 50 ms or more between two rows, as docs/wandb.md says.
    with black_hole() as url:

        def tracked():
            return online(tmp_path, url, init_timeout=1.0, finish_timeout=1.0)

        assert ratio_of_times(tmp_path, width, period, steps, tracked, lambda: None) < 1.02


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("width", "period", "steps"), [(16, 10, 3000), (512, 1, 1500), (2048, 1, 200)])
def test_a_black_hole_costs_frequent_rows_no_more_than_an_offline_run(tmp_path, width, period, steps):
    # Each row takes the client 0.2 to 1 ms. With less than 50 ms from row to row, that alone is more than 2 %.
    with black_hole() as url:

        def tracked():
            return online(tmp_path, url, init_timeout=1.0, finish_timeout=1.0)

        def offline():
            options = {"dir": str(tmp_path), "settings": FAST}
            return Wandb(project="p", mode="offline", options=options, finish_timeout=1.0)

        assert ratio_of_times(tmp_path, width, period, steps, tracked, offline) < 1.02
