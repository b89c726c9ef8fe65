"""A closed stdout, a vanished terminal and an interrupted closing lose no training and leave nothing open."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.outcomes import saved_steps
from support.processes import environment
from support.trainers import net_trainer
from trainbus import Callback, Freeze, Progress
from trainbus.callbacks.stopping.stop_on_signal import Stopped

PROGRAM = """
import sys
from support.trainers import net_trainer
from trainbus import Progress
bar = {bar}
net_trainer(sys.argv[1], Progress(bar=bar), logging_steps=1, max_steps=60, save_steps=60, save_strategy="steps").train()
"""


def command(folder: Path, bar: bool) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(bar=bar), str(folder)]


@pytest.mark.parametrize("bar", [False, True])
def test_a_closed_stdout_ends_no_training(bar: bool, tmp_path: Path) -> None:
    variables = environment(OMP_NUM_THREADS="1", TQDM_DISABLE="0")
    with open(tmp_path / "errors", "w") as errors:
        done = subprocess.Popen(command(tmp_path, bar), stdout=subprocess.PIPE, stderr=errors, env=variables)
        assert done.stdout is not None
        done.stdout.readline()
        done.stdout.close()
        code = done.wait()
    assert code == 0, (tmp_path / "errors").read_text()
    assert saved_steps(tmp_path) == [60]


@pytest.mark.parametrize("bar", [False, True])
def test_a_vanished_terminal_ends_no_training(bar: bool, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    variables = environment(OMP_NUM_THREADS="1", TQDM_DISABLE="0")
    child = subprocess.Popen(command(tmp_path, bar), stdout=theirs, stderr=theirs, env=variables)
    os.close(theirs)
    os.read(ours, 10)
    os.close(ours)
    assert child.wait() == 0
    assert saved_steps(tmp_path) == [60]


@pytest.mark.parametrize("bar", [False, True])
@pytest.mark.parametrize("way", ["full", "closed"])
def test_a_full_or_closed_console_ends_no_training(way: str, bar: bool, tmp_path: Path, monkeypatch: Any) -> None:
    with open("/dev/full", "w") as full:
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, full if way == "full" else None)
        run = net_trainer(
            tmp_path, Progress(bar=bar), logging_steps=1, max_steps=6, save_steps=6, save_strategy="steps"
        )
        run.train()
        run.log_metrics("train", {"loss": 1.0})
        run.evaluate()
        monkeypatch.undo()
    assert saved_steps(tmp_path) == [6]


def test_nohup_survives_its_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = net_trainer(tmp_path)
        run.on("on_step_end", lambda: os.kill(os.getpid(), signal.SIGHUP), once=2)
        run.train()
        assert run.state.global_step == 6
    finally:
        signal.signal(signal.SIGHUP, before)


class Interrupts(Callback):
    """Raises KeyboardInterrupt while the run closes, as a second Ctrl-C does."""

    def __init__(self, event: str) -> None:
        setattr(self, event, self.interrupt)

    def interrupt(self) -> None:
        raise KeyboardInterrupt


class Closed(Callback):
    def __init__(self) -> None:
        self.times = 0

    def on_close(self) -> None:
        self.times += 1


@pytest.mark.parametrize("event", ["on_close", "on_train_end"])
def test_everything_is_closed_after_an_interrupt(event: str, tmp_path: Path) -> None:
    first, last = Closed(), Closed()
    run = net_trainer(tmp_path, first, Freeze("blocks"), Interrupts(event), last)
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert (first.times, last.times) == (1, 1)
    assert all(weight.requires_grad for weight in run.model.parameters())


def test_everything_is_closed_if_an_interrupt_follows_an_error(tmp_path: Path) -> None:
    closed = Closed()
    run = net_trainer(tmp_path, closed, Freeze("blocks"), Interrupts("on_exception"))

    def fail() -> None:
        raise ZeroDivisionError

    run.on("on_step_end", fail)
    with pytest.raises(ZeroDivisionError):
        run.train()
    assert closed.times == 1
    assert all(weight.requires_grad for weight in run.model.parameters())


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_while_the_run_closes_closes_the_rest(name: str, tmp_path: Path) -> None:
    first, last = Closed(), Closed()
    run = net_trainer(tmp_path, first, last)

    def late() -> None:
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(0.01)

    run.on("on_close", late)
    expected: Any = KeyboardInterrupt if name == "SIGINT" else Stopped
    with pytest.raises(expected):
        run.train()
    assert (first.times, last.times) == (1, 1)
