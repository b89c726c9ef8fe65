"""Checkpoints that a thread writes during training: one at a time, exact, and complete."""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import trainbus
from support.checkpoints import names_in, saving
from support.data import points, sentences
from support.models import Regression, bert
from support.outcomes import same_weights, weights
from support.trainers import regression_trainer
from trainbus import Stage, order
from trainbus.engine.checkpoint.read.listing import survey
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.engine.checkpoint.read.verify import problems
from trainbus.engine.checkpoint.write import commit as committing
from trainbus.events import CheckpointError

PATIENCE = 30.0
"""Seconds after which a test that waits has failed."""

BROKEN = OSError(errno.EIO, "Input/output error")


class Disk:
    """Holds up, and then fails, the write of chosen steps; notes which thread wrote what, and how many at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slow: set[int] = set()
        self.broken: dict[int, Exception] = {}
        self.opened = threading.Event()
        self.threads: list[str] = []
        self.most = self._now = 0
        really = committing.Staging.flush

        def flush(staging: committing.Staging) -> None:
            self._now += 1
            self.most = max(self.most, self._now)
            self.threads.append(threading.current_thread().name)
            try:
                if staging.name.step in self.slow:
                    assert self.opened.wait(PATIENCE), "nobody waited for the disk"
                if staging.name.step in self.broken:
                    raise self.broken[staging.name.step]
                really(staging)
            finally:
                self._now -= 1

        monkeypatch.setattr(committing.Staging, "flush", flush)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def saving_at(folder: Path, step: int, *callbacks: Any, steps: int = 6, **args: Any) -> Any:
    """A trainer that saves after one step, in the middle of the run, and nowhere else."""
    run = saving(folder, steps, *callbacks, **{"save_steps": 1000, **args})
    run.on("on_step_end", lambda control: control.request("save", "for the test"), once=step, id="asks")
    # The save that ends every run is none of the test's business.
    run.on(
        "on_save_begin", lambda state, control: state.global_step == steps and control.veto("save", "no"), id="vetoes"
    )
    return run


def whole(folder: Path) -> list[str]:
    """The names of the checkpoints in a folder, each of which is good."""
    assert [problems(found.path, full=True) for found in survey(folder)] == [[] for _ in survey(folder)]
    return names_in(folder)


# Training goes on.


def test_training_continues_while_the_disk_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By the calls themselves: every fsync of the checkpoint of step 2 waits until step 5 is done."""
    really, opened = os.fsync, threading.Event()
    waited: list[bool] = []

    def slow(file: int) -> None:
        # The main thread synchronises a file too, when it checks before training that the folder is writable.
        if threading.current_thread() is not threading.main_thread():
            waited.append(opened.wait(PATIENCE))
        really(file)

    monkeypatch.setattr(os, "fsync", slow)
    done: list[tuple[int, bool]] = []

    def look(state: Any) -> None:
        done.append((state.global_step, (tmp_path / "checkpoint-2").exists()))
        if state.global_step == 5:
            opened.set()

    run = saving_at(tmp_path, 2)
    run.on("on_step_end", look)
    run.train()
    assert [step for step, there in done if step > 2 and not there][:3] == [3, 4, 5]
    assert whole(tmp_path) == ["checkpoint-2"]
    assert waited
    assert all(waited)


def test_one_checkpoint_is_written_at_a_time_and_the_next_save_waits(tmp_path: Path, disk: Disk):
    taken: list[tuple[int, list[str]]] = []
    run = saving(tmp_path, 4)
    disk.slow = {1, 2, 3, 4}
    run.on("on_save_due", disk.opened.set, stage=Stage.PREPARE, id="opens")  # where the saving begins by waiting
    run.on(
        "on_save_begin",
        lambda checkpoint: taken.append((checkpoint.step, names_in(tmp_path))) if disk.threads else None,
    )
    run.on("on_step_begin", disk.opened.clear, id="closes")
    run.train()
    assert taken == [(step, [f"checkpoint-{before}" for before in range(1, step)]) for step in (2, 3, 4)]
    assert disk.most == 1
    assert len(disk.threads) == 4
    assert whole(tmp_path) == [f"checkpoint-{step}" for step in (1, 2, 3, 4)]


def test_the_last_is_waited_for_before_anybody_looks_for_it(tmp_path: Path, disk: Disk):
    there: list[list[str]] = []
    run = saving(tmp_path, 2)
    disk.slow = {2}
    run.on("on_train_end", disk.opened.set, stage=Stage.PREPARE, before="Checkpoint", id="opens")
    run.on(
        "on_train_end", lambda: there.append(names_in(tmp_path)), stage=Stage.PREPARE, after="Checkpoint", id="looks"
    )
    run.train()
    assert there == [["checkpoint-1", "checkpoint-2"]]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


# What is written is what was there.


class Tied(nn.Module):
    """A model with one weight under two names, and another that is never used."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Linear(3, 3)
        self.again = nn.Linear(3, 3)
        self.again.weight = self.body.weight
        self.head = nn.Linear(3, 1)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        if self.training:
            self.steps += 1
        predicted = self.head(self.again(torch.tanh(self.body(x)))).squeeze(-1)
        return {"loss": nn.functional.mse_loss(predicted, labels), "logits": predicted}


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "plain": (lambda: Regression(dropout=0.3), lambda: points(20)),
    "tied": (Tied, lambda: points(20)),
    "of transformers": (bert, lambda: sentences(20)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_an_async_save_equals_a_synchronous_save(kind: str, tmp_path: Path, disk: Disk):
    """To the bit, although the model, the optimizer and the random numbers have gone on by then."""
    make, data = MODELS[kind]
    folders: dict[bool, Path] = {}
    for later in (True, False):
        folders[later] = tmp_path / str(later)
        args = {"max_steps": 5, "save_steps": 2, "async_save": later, "save_strategy": "steps", "data_seed": 3}
        run = regression_trainer(folders[later], make(), args=args, train_dataset=data())
        disk.slow = {2} if later else set()
        run.on("on_step_end", disk.opened.set, once=4)
        run.train()
    assert set(disk.threads[:3]) == {"checkpoint_0"}
    assert set(disk.threads[3:]) == {"MainThread"}
    for step in (2, 4):
        here, there = (folders[later] / f"checkpoint-{step}" for later in (True, False))
        assert names_in(here) == names_in(there)
        for name in {path.name for path in here.glob("*.safetensors")} - {"callbacks.safetensors"}:  # it knows the time
            assert read(here / name) == read(there / name), name


def read(path: Path) -> dict[str, Any]:
    """All that a file of tensors holds, to the bit; the order of its metadata is of no account."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dict
        kinds = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
        bits = {name: tensor.reshape(-1).view(torch.uint8).tolist() for name, tensor in tensors.items()}
        return {"metadata": file.metadata(), "kinds": kinds, "bits": bits}


def test_a_run_resumed_from_an_async_save_equals_the_uninterrupted_run(tmp_path: Path, disk: Disk):
    run = saving_at(tmp_path, 2)
    disk.slow = {2}
    at_two: dict[str, torch.Tensor] = {}
    run.on("on_step_end", lambda model: at_two.update(weights(model)), once=2)
    run.on("on_step_end", disk.opened.set, once=5)
    run.train()
    assert same_weights(load_file(tmp_path / "checkpoint-2" / "model.safetensors"), at_two)
    again = saving(tmp_path, 6, seed=1, save_strategy="no")
    again.train(resume_from_checkpoint=True)
    assert same_weights(weights(again.model), weights(run.model))


@pytest.mark.parametrize("later", [True, False])
def test_tied_weights_are_written_once(later: bool, tmp_path: Path):
    run = regression_trainer(tmp_path, Tied(), args={"max_steps": 1, "save_strategy": "steps", "async_save": later})
    run.train()
    with safe_open(tmp_path / "checkpoint-1" / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert names == {"body.weight", "body.bias", "again.bias", "head.weight", "head.bias", "steps"}
    read = Tied(seed=1)
    SavedCheckpoint.open(tmp_path / "checkpoint-1").load_weights(read)
    assert same_weights(weights(read), weights(run.model))
    assert read.again.weight is read.body.weight


# Who hears of it.


def test_handlers_of_on_save_find_the_checkpoint(tmp_path: Path, disk: Disk):
    found: list[list[str]] = []
    run = saving(tmp_path, 3)
    run.on("on_save", lambda checkpoint: found.append(problems(checkpoint.path, full=True)))
    run.train()
    assert found == [[], [], []]
    assert set(disk.threads) == {"MainThread"}


def test_a_blinker_receiver_is_treated_like_a_handler(tmp_path: Path, disk: Disk):
    found: list[list[str]] = []

    def receiver(run: Any, **values: Any) -> None:
        found.append(problems(run.checkpoint.path, full=True))

    run = saving(tmp_path, 2)
    run.bus.signals["on_save"].connect(receiver)
    run.train()
    assert found == [[], []]


# Who does not want it, and what cannot be done.


class OwnSaving(trainbus.Trainer):
    """Writes the model in its own way, and notes what it wrote."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        self.wrote = [*getattr(self, "wrote", []), (threading.current_thread().name, self.state.global_step)]
        super().save_model(output_dir)
        Path(str(output_dir), "mine.txt").write_text(f"step {self.state.global_step}")


def test_an_overridden_save_model_runs_in_the_training_thread(tmp_path: Path):
    args = trainbus.TrainingArguments(str(tmp_path), max_steps=2, save_steps=1, use_cpu=True, disable_tqdm=True)
    run = OwnSaving(Regression(), args, train_dataset=points(8))
    run.train()
    assert run.wrote == [("MainThread", 1), ("MainThread", 2)]
    for step in (1, 2):
        assert (tmp_path / f"checkpoint-{step}" / "mine.txt").read_text() == f"step {step}"
    assert whole(tmp_path) == ["checkpoint-1", "checkpoint-2"]


class WritesItself(Regression):
    """A model that cannot be told which weights to write."""

    def save_pretrained(self, folder: Any) -> None:
        torch.save(self.state_dict(), Path(folder) / "own.bin")


def test_a_model_that_can_only_write_itself_is_written_in_step(tmp_path: Path, disk: Disk):
    args = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "save_only_model": True}
    regression_trainer(tmp_path, WritesItself(), args=args).train()
    assert set(disk.threads) == {"MainThread"}
    first, second = (torch.load(tmp_path / f"checkpoint-{step}" / "own.bin", weights_only=True) for step in (1, 2))
    assert not same_weights(first, second)


# Errors of the disk.

STEPS = {"next step": 3, "next save": 4, "end": 6}
"""Where an error of the thread is met, and after which step that is."""


def failing(folder: Path, disk: Disk, moment: str, **args: Any) -> Any:
    """A trainer of 6 steps whose checkpoint of step 2 fails on the thread, at a moment at which it is noticed."""
    disk.broken = {2: BROKEN}
    run = saving_at(folder, 2, **args)
    if moment == "next step":
        writer = next(
            callback for callback in run.callbacks.values() if isinstance(callback, trainbus.Checkpoint)
        )._writer
        run.on("on_step_begin", lambda: wait_until(lambda: writer.done), once=3)
        return run
    disk.slow = {2}
    if moment == "next save":
        run.on("on_step_end", lambda control: control.request("save", "again"), once=4, id="asks again")
        run.on(
            "on_save_due", lambda state: state.global_step == 4 and disk.opened.set(), stage=Stage.PREPARE, id="opens"
        )
    else:
        run.on("on_train_end", disk.opened.set, stage=Stage.PREPARE, before="Checkpoint", id="opens")
        run.on(
            "on_save_due",
            lambda state: state.global_step == 6 and disk.opened.set(),
            stage=Stage.PREPARE,
            id="opens too",
        )
    return run


def wait_until(happened: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.001)


@pytest.mark.parametrize("moment", STEPS)
def test_an_error_of_the_thread_ends_the_run_where_it_is_met(moment: str, tmp_path: Path, disk: Disk):
    run = failing(tmp_path, disk, moment)
    with pytest.raises(CheckpointError, match=r"step 2 cannot be written .*Input/output error") as caught:
        run.train()
    assert caught.value.__cause__ is BROKEN
    assert run.state.global_step == STEPS[moment]
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("moment", STEPS)
def test_a_warning_does_not_change_the_run(moment: str, tmp_path: Path, disk: Disk, caplog):
    unbroken = saving(tmp_path / "unbroken", 6, save_strategy="no")
    unbroken.train()
    run = failing(tmp_path / "run", disk, moment, on_save_error="warn")
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        run.train()
    told = [message for message in caplog.messages if "vetoed" not in message]
    assert len(told) == 1
    assert told[0].startswith("The checkpoint of step 2 cannot be written")
    assert told[0].endswith("Training continues.")
    assert same_weights(weights(run.model), weights(unbroken.model))
    assert whole(tmp_path / "run") == (["checkpoint-4"] if moment == "next save" else [])


@pytest.mark.parametrize("error", [RuntimeError("a bug"), MemoryError("no memory")])
@pytest.mark.parametrize("policy", ["raise", "warn"])
def test_an_error_other_than_a_disk_error_is_raised_unchanged(
    error: Exception, policy: str, tmp_path: Path, disk: Disk
):
    run = saving(tmp_path, 3, on_save_error=policy)
    disk.broken = {2: error}
    with pytest.raises(type(error)) as caught:
        run.train()
    assert caught.value is error
    assert whole(tmp_path) == ["checkpoint-1"]


def test_a_best_model_whose_write_failed_late_is_not_loaded(tmp_path: Path, disk: Disk, caplog):
    """It fails when the evaluation after the next one has been made."""
    losses = [3.0, 1.0, 2.0, 4.0]
    disk.slow, disk.broken = {2}, {2: BROKEN}
    keeping = [trainbus.KeepBest("loss"), trainbus.Checkpoint(trainbus.never(), on_save_error="warn")]
    args = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps"}
    run = regression_trainer(tmp_path, args=args, eval_dataset=points(4), callbacks=keeping)
    run.on("on_evaluate_dataset", lambda metrics: metrics.update(eval_loss=losses.pop(0)), id="measured")
    run.on("on_step_end", disk.opened.set, once=4)
    run.train()
    assert run.state.best_global_step == 2
    assert run.state.best_model_checkpoint == str(tmp_path / "checkpoint-1")
    assert "The best model, of step 2, was not saved. Loaded" in caplog.text
    assert same_weights(weights(run.model), load_file(tmp_path / "checkpoint-1" / "model.safetensors"))


def test_the_second_best_model_stays_if_the_first_write_fails_late(tmp_path: Path, disk: Disk):
    losses = [3.0, 2.0, 1.0, 4.0]
    disk.slow, disk.broken = {2}, {2: BROKEN}
    keeping = [trainbus.KeepBest("loss"), trainbus.Checkpoint(trainbus.never(), on_save_error="warn")]
    args = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps"}
    run = regression_trainer(tmp_path, args=args, eval_dataset=points(4), callbacks=keeping)
    run.on("on_evaluate_dataset", lambda metrics: metrics.update(eval_loss=losses.pop(0)), id="measured")
    run.on("on_save_due", lambda state: state.global_step == 3 and disk.opened.set(), stage=Stage.PREPARE, id="opens")
    run.train()
    assert run.state.best_model_checkpoint == str(tmp_path / "checkpoint-3")
    assert whole(tmp_path) == ["checkpoint-1", "checkpoint-3"]


# A run that ends in the middle of it.


class Boom(Exception):
    """Raised by nobody else."""


def raise_boom() -> None:
    raise Boom


def test_a_run_that_fails_meanwhile_leaves_the_checkpoint_whole(tmp_path: Path, disk: Disk):
    run = saving_at(tmp_path, 2)
    disk.slow = {2}
    run.on("on_step_begin", raise_boom, once=4)
    run.on("on_exception", disk.opened.set, id="opens")
    with pytest.raises(Boom):
        run.train()
    assert whole(tmp_path) == ["checkpoint-2"]


def test_the_error_of_the_run_wins_over_that_of_the_thread(tmp_path: Path, disk: Disk, caplog):
    run = saving_at(tmp_path, 2)
    disk.slow, disk.broken = {2}, {2: BROKEN}
    run.on("on_step_begin", raise_boom, once=4)
    run.on("on_exception", disk.opened.set, id="opens")
    with pytest.raises(Boom):
        run.train()
    assert "on_close failed while the run was ending with Boom()" in caplog.text
    assert "step 2 cannot be written" in caplog.text
    assert names_in(tmp_path) == []
    run.bus.detach("raise_boom")
    disk.slow, disk.broken = set(), {}
    run.train()  # and the next session begins with a thread of its own, and without that error


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGUSR1", 138)])
@pytest.mark.parametrize("while_waiting", [False, True], ids=["in a step", "while it is waited for"])
def test_a_signal_while_one_is_written_ends_the_run_with_both(
    name: str, code: int, while_waiting: bool, tmp_path: Path, disk: Disk
):
    """While training goes on beside the write, and while the run does nothing but wait for it."""

    def send() -> None:
        os.kill(os.getpid(), getattr(signal, name))

    run = saving_at(tmp_path, 2)
    disk.slow = {2}
    threads: list[threading.Thread] = []

    def later() -> None:
        time.sleep(0.05)
        send()
        time.sleep(0.05)
        disk.opened.set()

    def begin() -> None:
        threads.append(threading.Thread(target=later))
        threads[0].start()

    if while_waiting:
        run.on("on_train_end", begin, stage=Stage.PREPARE, before="Checkpoint", id="begins")
        run.callbacks["Checkpoint"].trigger = trainbus.never()  # or the end itself would save, and wait for it there
    else:
        run.on("on_loss", send, once=4)
        run.on(
            "on_save_due", lambda state: state.global_step == 4 and disk.opened.set(), stage=Stage.PREPARE, id="opens"
        )
    with pytest.raises(SystemExit) as ended:
        run.train()
    for thread in threads:
        thread.join()
    assert ended.value.code == code
    assert whole(tmp_path) == (["checkpoint-2"] if while_waiting else ["checkpoint-2", "checkpoint-4"])


def test_it_is_turned_off_by_its_argument(tmp_path: Path, disk: Disk):
    there: list[list[str]] = []
    run = saving(tmp_path, 3, async_save=False)
    run.on("on_step_begin", lambda: there.append(names_in(tmp_path) if tmp_path.exists() else []))
    run.train()
    assert there == [[], ["checkpoint-1"], ["checkpoint-1", "checkpoint-2"]]
    assert set(disk.threads) == {"MainThread"}


class Changes(trainbus.Callback):
    """Adds a tensor of its own to a checkpoint, and goes on changing it."""

    def __init__(self) -> None:
        self.mine = torch.zeros(3)

    @order(Stage.ACT)
    def on_step_end(self) -> None:
        self.mine += 1

    def on_save_begin(self, checkpoint: Any) -> None:
        checkpoint.extra["mine"] = self.mine

    def state_dict(self) -> dict[str, Any]:
        return {"also": self.mine}


def test_callback_states_are_copied_too(tmp_path: Path, disk: Disk):
    run = saving_at(tmp_path, 2, Changes())
    disk.slow = {2}
    run.on("on_step_end", disk.opened.set, once=5)
    run.train()
    held = load_file(tmp_path / "checkpoint-2" / "callbacks.safetensors")
    assert [tensor.tolist() for tensor in held.values() if tensor.shape == (3,)] == [[2.0] * 3] * 2
