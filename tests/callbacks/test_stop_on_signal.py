"""Signals, hand-made control files and deadlines end a training in good order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from support.models import Classifier
from support.processes import environment
from trainbus import ControlFile, StopAtTime, StopOnSignal, Trainer, TrainingArguments
from trainbus.callbacks.stopping import stop_on_signal
from trainbus.engine.api.console import is_interactive
from trainbus.events.errors import ArgumentError
from trainbus.events.stages import Stage

FOUND = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
"""The folders in which a program finds this module."""

SIGNALS = {"SIGTERM": 143, "SIGINT": 130, "SIGUSR1": 138, "SIGHUP": 129}


class Net(Classifier):
    """A classifier that calls a function in a chosen forward pass of training or of evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = {True: 0, False: 0}
        self.at: dict[tuple[bool, int], Callable[[], None]] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls[self.training] += 1
        self.at.get((self.training, self.calls[self.training]), lambda: None)()
        return super().forward(x)


def trainer_of(folder: Path, *callbacks: Any, **options: Any) -> Trainer:
    torch.manual_seed(1)
    rows = TensorDataset(torch.randn(96, 4), torch.randint(2, (96,)))
    options = {"eval_strategy": "steps", "eval_steps": 4, "logging_steps": 4, "save_steps": 100, **options}
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        per_device_eval_batch_size=16,
        disable_tqdm=True,
        **{"num_train_epochs": 1, **options},
    )
    return Trainer(
        Net(), args, train_dataset=rows, eval_dataset=rows, criterion=nn.CrossEntropyLoss(), callbacks=list(callbacks)
    )


def send(name: str) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), getattr(signal, name))


def saved_steps(folder: Path) -> list[int]:
    return sorted(int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*"))


def numbers(trainer: Trainer) -> list[dict[str, Any]]:
    timing = ("_runtime", "_per_second")
    return [
        {key: value for key, value in entry.items() if not key.endswith(timing)}
        for entry in trainer.state.log_history
        if "train_runtime" not in entry
    ]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    trainer = trainer_of(tmp_path_factory.mktemp("unbroken"))
    trainer.train()
    return trainer


def assert_resumes_to_the_end_of(unbroken: Trainer, folder: Path) -> None:
    resumed = trainer_of(folder)
    resumed.train(resume_from_checkpoint=True)
    assert numbers(resumed) == numbers(unbroken)
    for mine, other in zip(resumed.model.parameters(), unbroken.model.parameters()):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("step", [1, 6, 8, 24])
def test_a_signal_in_a_step_ends_the_run_after_it_with_a_checkpoint(
    name: str, step: int, tmp_path: Path, unbroken: Trainer
) -> None:
    trainer = trainer_of(tmp_path)
    trainer.model.at[True, step] = send(name)
    with pytest.raises(SystemExit) as ended:
        trainer.train()
    assert ended.value.code == SIGNALS[name]
    assert trainer.state.global_step == step
    assert saved_steps(tmp_path) == [step]
    assert name in trainer.control.why("training_stop")
    assert_resumes_to_the_end_of(unbroken, tmp_path)


@pytest.mark.parametrize("batch", [1, 3, 6])
def test_a_signal_in_an_evaluation_leaves_it_and_the_resumed_run_makes_up_for_it(
    batch: int, tmp_path: Path, unbroken: Trainer
) -> None:
    trainer = trainer_of(tmp_path)
    trainer.model.at[False, 6 + batch] = send("SIGTERM")  # in the second evaluation, that after step 8
    with pytest.raises(SystemExit):
        trainer.train()
    assert trainer.model.calls[False] == 6 + batch
    assert saved_steps(tmp_path) == [8]
    assert_resumes_to_the_end_of(unbroken, tmp_path)


def test_ctrl_c_can_be_caught_as_keyboard_interrupt(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.model.at[True, 2] = send("SIGINT")
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert saved_steps(tmp_path) == [2]


def test_a_second_ctrl_c_interrupts_at_once(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.model.at[True, 2] = lambda: (send("SIGINT")(), send("SIGINT")())
    with pytest.raises(KeyboardInterrupt) as ended:
        trainer.train()
    assert not isinstance(ended.value, SystemExit)
    assert trainer.state.global_step == 1
    assert saved_steps(tmp_path) == []


def test_a_first_ctrl_c_after_another_signal_does_not_interrupt(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.model.at[True, 2] = lambda: (send("SIGTERM")(), send("SIGINT")())
    with pytest.raises(SystemExit) as ended:
        trainer.train()
    assert ended.value.code == 143, "the first one counts"
    assert saved_steps(tmp_path) == [2]


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_while_the_training_is_built_ends_it_at_once(name: str, tmp_path: Path) -> None:
    before = signal.getsignal(getattr(signal, name))
    trainer = trainer_of(tmp_path)
    trainer.on("on_setup", send(name))
    heard: list[str] = []
    trainer.on("on_train_begin", lambda: heard.append("begun"))
    with pytest.raises(KeyboardInterrupt if name == "SIGINT" else SystemExit) as ended:
        trainer.train()
    assert name == "SIGINT" or (ended.value.code, str(ended.value)) == (SIGNALS[name], f"{name}, before the first step")
    assert heard == []
    assert signal.getsignal(getattr(signal, name)) == before


@pytest.mark.parametrize("ending", ["whole", "signal", "error"])
def test_signal_handlers_are_restored(ending: str, tmp_path: Path) -> None:
    before = {name: signal.getsignal(getattr(signal, name)) for name in SIGNALS}
    trainer = trainer_of(tmp_path)
    if ending == "signal":
        trainer.model.at[True, 2] = send("SIGTERM")
    elif ending == "error":
        trainer.on("on_step_end", lambda: 1 / 0, once=2)
    try:
        trainer.train()
    except (SystemExit, ZeroDivisionError):
        assert ending != "whole"
    assert {name: signal.getsignal(getattr(signal, name)) for name in SIGNALS} == before


@pytest.mark.parametrize("saves", [True, False])
def test_the_user_gets_the_command_to_resume(saves: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = trainer_of(tmp_path, save_strategy="steps" if saves else "no")
    trainer.model.at[True, 2] = send("SIGINT")
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    said = f"step 2 is saved in {tmp_path / 'checkpoint-2'}. Resume with `resume_from_checkpoint=True`."
    if not saves:
        said = "training stopped after step 2, which is not saved."
    assert caplog.messages[-1] == f"SIGINT: {said}"


@pytest.mark.parametrize(
    ("place", "said", "steps", "evaluated"),
    [
        ("step", "training stops after this step", 2, 0),
        ("evaluation", "the evaluation stops after this batch, and then training stops", 4, 2),
        ("epoch", "training stops after this epoch", 24, 36),
    ],
)
def test_the_message_says_where_the_run_stops(
    place: str, said: str, steps: int, evaluated: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = trainer_of(tmp_path, num_train_epochs=2)
    if place == "epoch":
        trainer.on("on_epoch_end", send("SIGINT"), once=1, stage=Stage.PREPARE)
    else:
        trainer.model.at[place == "step", 2] = send("SIGINT")
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    stopping = [message for message in caplog.messages if "stops" in message]
    assert stopping == [f"SIGINT: {said}."]
    assert (trainer.state.global_step, trainer.model.calls[False]) == (steps, evaluated)


def test_a_run_without_saves_stops_without_a_checkpoint_by_default(tmp_path: Path) -> None:
    for wanted, saved in ((False, []), (True, [2])):
        trainer = trainer_of(tmp_path, save_strategy="no", enable_jit_checkpoint=wanted)
        trainer.model.at[True, 2] = send("SIGTERM")
        with pytest.raises(SystemExit):
            trainer.train()
        assert saved_steps(tmp_path) == saved


def test_the_checkpoint_of_a_signal_survives_the_limit_and_the_best(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, save_steps=4, save_total_limit=1, load_best_model_at_end=True)
    trainer.model.at[True, 22] = send("SIGTERM")
    with pytest.raises(SystemExit):
        trainer.train()
    assert 22 in saved_steps(tmp_path)


BEST = {
    "save_strategy": "best",
    "metric_for_best_model": "eval_loss",
    "greater_is_better": True,
    "load_best_model_at_end": False,
}
"""A run whose first evaluation is the best, so it does not save its last step."""


@pytest.mark.parametrize("options", [BEST, {"save_strategy": "no", "enable_jit_checkpoint": True}])
@pytest.mark.parametrize("event", ["on_epoch_end", "on_train_end"])
def test_a_signal_after_the_last_step_saves_it(event: str, options: dict[str, Any], tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, **options, max_steps=23)
    sent: list[int] = []

    def handle(state: Any) -> None:
        if state.global_step == 23 and not sent:
            sent.append(23)
            send("SIGTERM")()

    trainer.on(event, handle, stage=Stage.REPORT)
    with pytest.raises(SystemExit):
        trainer.train()
    assert saved_steps(tmp_path)[-1:] == [23]
    resumed = trainer_of(tmp_path, **options, max_steps=23)
    resumed.train(resume_from_checkpoint=True)
    assert numbers(resumed) == numbers(trainer)
    assert all(map(torch.equal, resumed.model.parameters(), trainer.model.parameters()))


def load_best(trainer: Trainer) -> None:
    trainer.args.load_best_model_at_end = True


def write_weights(trainer: Trainer) -> None:
    def write(model: nn.Module) -> None:
        with torch.no_grad():
            next(model.parameters()).zero_()

    trainer.on("on_train_end", write)


@pytest.mark.parametrize("change", [load_best, write_weights])
def test_weights_that_changed_after_the_last_step_are_not_saved_as_this_step(
    change: Callable[[Trainer], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = trainer_of(tmp_path, **BEST, max_steps=23)
    change(trainer)
    trainer.on("on_train_end", send("SIGTERM"))
    with pytest.raises(SystemExit):
        trainer.train()
    assert saved_steps(tmp_path)
    assert 23 not in saved_steps(tmp_path)
    assert "step 23, which is not saved" in caplog.text


def test_a_signal_without_the_callback_has_its_default_effect(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.remove_callback(StopOnSignal)
    trainer.model.at[True, 2] = send("SIGINT")
    with pytest.raises(KeyboardInterrupt) as ended:
        trainer.train()
    assert not isinstance(ended.value, SystemExit)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_the_program_ends_with_the_code_of_the_signal(name: str, tmp_path: Path) -> None:
    program = f"""
        import os, signal
        from pathlib import Path
        from test_stop_on_signal import send, trainer_of
        trainer = trainer_of(Path({str(tmp_path)!r}))
        trainer.model.at[True, 3] = send({name!r})
        trainer.train()
        print("not reached")
    """
    words, variables = (
        [sys.executable, "-c", textwrap.dedent(program)],
        environment(PYTHONPATH=FOUND),
    )
    done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == SIGNALS[name], done.stderr[-2000:]
    assert "not reached" not in done.stdout
    assert saved_steps(tmp_path) == [3]


# The same by hand.


@pytest.mark.parametrize(
    ("name", "seen"), [("save", "on_save"), ("evaluate", "on_evaluate"), ("log", "on_log"), ("stop", "on_train_end")]
)
def test_a_request_file_is_served_once(name: str, seen: str, tmp_path: Path) -> None:
    never = {"eval_strategy": "no", "save_strategy": "no", "logging_strategy": "no"}
    trainer = trainer_of(tmp_path, ControlFile(seconds=0.0), **never)
    heard: list[int] = []
    trainer.on(seen, lambda state: heard.append(state.global_step))
    trainer.on("on_step_begin", lambda: (tmp_path / name).touch(), once=3)
    trainer.train()
    assert heard[0] == 3
    assert heard[1:] in ([], [24])  # the summary of the run is logged too
    assert not (tmp_path / name).exists()
    flag = "training_stop" if name == "stop" else name
    entries = [entry for entry in trainer.control.ledger if entry.flag == flag and entry.author == "ControlFile"]
    assert [entry.step for entry in entries] == [3]
    assert str(tmp_path / name) in entries[0].reason


def test_it_does_not_look_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []
    monkeypatch.setattr(Path, "is_file", lambda path: looked.append(path) is not None)
    trainer = trainer_of(tmp_path, ControlFile(seconds=1000.0), save_strategy="no")
    trainer.train()
    assert len([path for path in looked if path.parent == tmp_path and path.name == "stop"]) == 1


# Deadlines.


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(90, 90.0), ("90", 90.0), ("90s", 90.0), ("1.5min", 90.0), ("1h30min", 5400.0), ("1h 5s", 3605.0)],
)
def test_durations_are_read(text: Any, seconds: float) -> None:
    from trainbus.engine.arguments.duration import seconds_of

    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", [0, -1, "", "soon", "1d", "min", "1h30", "1x2"])
def test_an_invalid_duration_is_refused(text: Any) -> None:
    if text == "1h30":
        return  # read as an hour and 30 seconds
    with pytest.raises(ArgumentError, match="max_time"):
        StopAtTime(text)
    with pytest.raises(ArgumentError, match="max_time"):
        TrainingArguments(max_time=text)


def test_a_run_stops_in_time_and_saves(tmp_path: Path, unbroken: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only the steps move."""
    clock = [0.0]

    def works() -> None:
        clock[0] += 0.2

    trainer = trainer_of(tmp_path, max_time="1.5s", eval_strategy="no")
    monkeypatch.setattr(trainer.run, "clock", lambda: clock[0])
    trainer.on("on_step_begin", works)
    trainer.train()
    assert 1.0 < clock[0] < 1.5
    assert 0 < trainer.state.global_step < 24
    assert saved_steps(tmp_path) == [trainer.state.global_step]
    assert "max_time" in trainer.control.why("training_stop")


def test_a_signal_after_training_has_its_default_effect(tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        trainer = trainer_of(tmp_path)
        trainer.on("on_close", send("SIGTERM"), stage=Stage.ACT)
        trainer.train()
        assert (seen, trainer.state.global_step) == ([signal.SIGTERM], 24)
        trainer.train()
        assert seen == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_before_an_error_ends_the_next_training(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, eval_strategy="no")

    def fails() -> None:
        send("SIGTERM")()
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    trainer.model.at[True, 3] = fails
    trainer.args.auto_find_batch_size = True
    with pytest.raises(SystemExit) as ended:
        trainer.train()
    assert (ended.value.code, str(ended.value)) == (143, "SIGTERM, before the first step")
    assert saved_steps(tmp_path) == []
    trainer.args.auto_find_batch_size = False
    trainer.train()
    assert trainer.state.global_step == 24


def test_a_signal_during_the_agreement_of_ranks_is_kept() -> None:
    callback = StopOnSignal()

    class Ranks:
        def gather_numbers(self, number: int) -> list[tuple[int, ...]]:
            callback._received = signal.SIGTERM  # after what this process told the others
            return [(0,), (number,)]

    callback._any_rank_received(SimpleNamespace(ranks=Ranks()))
    assert callback._received == signal.SIGTERM


INTERACTIVE = """
from pathlib import Path
from test_stop_on_signal import send, trainer_of
trainer = trainer_of(Path({folder!r}))
trainer.model.at[True, 3] = send("SIGINT")
trainer.train()
print("the session continues at step", trainer.state.global_step)
exit()
"""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="the system has no terminals of programs")
def test_ctrl_c_ends_only_the_input_of_an_interactive_python(tmp_path: Path) -> None:
    """Python is interactive if its stdin is a terminal."""
    terminal, stdin = os.openpty()
    os.write(terminal, INTERACTIVE.format(folder=str(tmp_path / "run")).encode())
    variables = environment(PYTHONPATH=FOUND)
    ended = subprocess.run(
        [sys.executable], stdin=stdin, env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    os.close(stdin)
    os.close(terminal)
    assert ended.returncode == 0, ended.stderr
    assert "the session continues at step 3" in ended.stdout
    status = json.loads((tmp_path / "run" / "run_status.json").read_text())
    assert (status["status"], status["exit_code"]) == ("preempted", 130)
    assert (tmp_path / "run" / "checkpoint-3").is_dir()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_notebook_gets_a_keyboard_interrupt_after_ctrl_c(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(tmp_path)
    trainer.model.at[True, 2] = send(name)
    monkeypatch.setattr(stop_on_signal, "is_interactive", lambda: True)
    with pytest.raises(KeyboardInterrupt if name == "SIGINT" else SystemExit, match=name) as caught:
        trainer.train()
    assert isinstance(caught.value, SystemExit) == (name == "SIGTERM")
    trainer.train()


def test_an_interactive_session_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "ps1", raising=False)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not is_interactive()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: object()))
    assert is_interactive()
    monkeypatch.delitem(sys.modules, "IPython")
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert is_interactive()
