"""A signal or a time limit interrupts a run: `at_end()` is not due then. A stop by another callback ends the run."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.callbacks import stop_at
from support.data import net_samples
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import Checkpoint, Log, StopAtTime, at_end, every
from trainbus.events import Callback

STEPS = 10


class Signals(Callback):
    """Sends a signal to this process in a step."""

    def on_step_begin(self, state: Any) -> None:
        if state.global_step == 3:
            os.kill(os.getpid(), signal.SIGTERM)


def logging(folder: Path, *callbacks: Any) -> Any:
    listed = [Log(every(100) | at_end()), Checkpoint(every(100) | at_end()), *callbacks]
    return net_trainer(folder, *listed, max_steps=STEPS)


def losses(run: Any) -> list[tuple[int, float]]:
    return [(entry["step"], entry["loss"]) for entry in run.state.log_history if "loss" in entry]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = logging(tmp_path_factory.mktemp("whole"))
    run.train()
    return run


@pytest.mark.parametrize("interrupts", [Signals, lambda: StopAtTime(0.001)])
def test_an_interruption_is_no_end_of_the_run(interrupts, uninterrupted, tmp_path):
    first = logging(tmp_path, interrupts())
    with contextlib.suppress(SystemExit):
        first.train()
    assert 0 < first.state.global_step < STEPS
    assert losses(first) == []
    resumed = logging(tmp_path)
    resumed.train(resume_from_checkpoint=True)
    assert losses(resumed) == losses(uninterrupted)
    assert same_weights(weights(resumed.model), weights(uninterrupted.model))


@pytest.mark.parametrize("interrupts", [Signals, lambda: StopAtTime(0.001)])
@pytest.mark.parametrize("saves", [{"save_strategy": "epoch"}, {"save_steps": 100}])
def test_the_resumed_run_does_the_work_at_the_end_of_the_epoch(saves, interrupts, tmp_path):
    """The last step of an epoch is saved once. Its loss and its evaluation are logged once, by the resumed run."""

    def epochs_of_one_step(folder: Path, *callbacks: Any) -> Any:
        strategies = {"eval_strategy": "epoch", "logging_strategy": "epoch", **saves}
        built = net_trainer(folder, *callbacks, train_dataset=net_samples(4), max_steps=STEPS, **strategies)
        built.on("on_log", lambda logs, state: done.append((state.global_step, *sorted(logs))), id="logs")
        built.on("on_save_begin", lambda state: done.append((state.global_step, "saved")), id="saves")
        return built

    done: list[Any] = []
    epochs_of_one_step(tmp_path / "whole").train()
    expected, done = done, []
    first = epochs_of_one_step(tmp_path / "run", interrupts())
    with contextlib.suppress(SystemExit):
        first.train()
    last = first.state.global_step
    assert 0 < last < STEPS
    assert done[-2] == (last, "saved")  # the last entry has the totals of the session
    assert done.count((last, "saved")) == 1
    done.pop()
    epochs_of_one_step(tmp_path / "run").train(resume_from_checkpoint=True)
    assert sorted(set(done)) == sorted({*expected, (last, "saved")})
    assert [entry for entry in done if "saved" not in entry] == [each for each in expected if "saved" not in each]


def test_a_stop_of_another_callback_is_the_end_of_the_run(tmp_path):
    run = logging(tmp_path)
    run.on("on_step_end", stop_at(3), id="stops")
    run.train()
    assert [step for step, _ in losses(run)] == [3]
