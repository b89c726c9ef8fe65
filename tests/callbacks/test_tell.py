"""`trainbus tell` and `trainbus status`: a running training is asked and watched from another process."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from support.trainers import net_trainer
from trainbus import ControlFile
from trainbus.engine.commands import status as status_command
from trainbus.engine.commands.main import main
from trainbus.engine.commands.requests import FILE, parse, receive, send
from trainbus.engine.optim.set_rate import set_learning_rate
from trainbus.events.errors import ArgumentError

NEVER = {"eval_strategy": "no", "save_strategy": "no", "logging_strategy": "no"}


def noting(steps: list[int]) -> Any:
    """Return a handler that notes the steps of its calls."""
    return lambda state: steps.append(state.global_step)


def told(folder: Path, step: int, *words: str, **options: Any) -> Any:
    """Train with a request that another process sends in a step."""
    trainer = net_trainer(folder, ControlFile(seconds=0.0), **{**NEVER, **options})
    heard = trainer.heard = {"on_save": [], "on_log": [], "on_evaluate": []}
    for event in heard:
        trainer.on(event, noting(heard[event]))
    trainer.on("on_step_begin", lambda: main(["tell", str(folder), *words, "--wait", "0"]), once=step)
    return trainer


@pytest.mark.parametrize(
    ("word", "event"), [("save", "on_save"), ("checkpoint", "on_save"), ("log", "on_log"), ("eval", "on_evaluate")]
)
def test_a_request_is_served_at_the_end_of_the_step(word: str, event: str, tmp_path: Path) -> None:
    trainer = told(tmp_path, 2, word)
    trainer.train()
    assert trainer.heard[event][0] == 2
    assert not (tmp_path / FILE).exists()
    entries = [str(entry) for entry in trainer.control.ledger if "trainbus tell" in entry.reason]
    assert entries[0].startswith("step 2: ControlFile request")


def test_a_told_stop_ends_the_training_with_its_author(tmp_path: Path) -> None:
    trainer = told(tmp_path, 3, "stop")
    trainer.train()
    assert trainer.state.global_step == 3
    assert (
        "stopped at step 3 by ControlFile: trainbus tell: stop"
        in json.loads((tmp_path / "run_status.json").read_text())["reason"]
    )


def test_a_told_learning_rate_holds_from_the_next_step_and_after_a_resume(tmp_path: Path) -> None:
    rates: dict[int, float] = {}
    options = {"lr_scheduler_type": "linear", "learning_rate": 0.1, "save_strategy": "steps", "save_steps": 4}
    trainer = told(tmp_path, 2, "lr=0.01", **options)
    trainer.on("on_step_end", lambda state, learning_rate: rates.update({state.global_step: learning_rate}))
    trainer.train()
    shape = {step: 1 - (step - 1) / 6 for step in range(1, 7)}
    assert rates == pytest.approx({step: (0.1 if step <= 2 else 0.01) * shape[step] for step in shape})
    resumed = net_trainer(tmp_path, **{**NEVER, **options})
    again: dict[int, float] = {}
    resumed.on("on_step_end", lambda state, learning_rate: again.update({state.global_step: learning_rate}))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert again == {step: rates[step] for step in (5, 6)}


def test_a_told_interval_holds_from_the_next_step_and_after_a_resume(tmp_path: Path) -> None:
    trainer = told(tmp_path, 1, "every", "save", "2", "every", "eval", "3")
    trainer.train()
    assert trainer.heard["on_save"] == [2, 4, 6]
    assert trainer.heard["on_evaluate"] == [3, 6]
    resumed = told(tmp_path, 99, "log")
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert resumed.heard["on_save"] == [4, 6]
    assert resumed.heard["on_evaluate"] == [3, 6]


def test_a_veto_delays_a_told_setting(tmp_path: Path) -> None:
    trainer = told(tmp_path, 1, "every", "save", "2")
    trainer.on("on_step_end", lambda state, control: state.global_step < 3 and control.veto("log", "not now"))
    trainer.train()
    assert trainer.heard["on_save"] == [4, 6]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sve"], "'sve' is not a request; did you mean 'save'?"),
        (["lr=fast"], "'lr=fast' is not a learning rate"),
        (["lr=-1", "stp"], "'stp' is not a request"),
        (["every", "sleep", "2"], "every 'sleep': unknown"),
        (["every", "save"], "`every` needs what and how often"),
        (["every", "save", "0"], "the interval is not above 0"),
        (["every", "save", "3parsecs"], "parsecs"),
    ],
)
def test_words_that_are_no_request_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ArgumentError, match="Requests are: save, evaluate, log, stop") as refusal:
        parse(words)
    assert message in str(refusal.value)


def test_requests_of_several_processes_are_all_received_once(tmp_path: Path) -> None:
    send(tmp_path, ["save"])
    send(tmp_path, parse(["every", "eval", "1epoch", "lr=1e-4"]))
    with (tmp_path / FILE).open("a") as file:
        file.write('no json\n["nonsense"]\n')
    assert receive(tmp_path) == ["save", "every evaluate 1 epoch", "lr=1e-4"]
    assert receive(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_sent_where_no_training_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tell", str(tmp_path), "save"]) == 2
    assert "There is no run_status.json" in capsys.readouterr().err
    net_trainer(tmp_path, **NEVER).train()
    assert main(["tell", str(tmp_path), "save"]) == 2
    assert "it is done. Nothing was sent." in capsys.readouterr().err
    assert not (tmp_path / FILE).exists()


def test_the_status_shows_progress_metrics_and_decisions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []

    def look() -> None:
        capsys.readouterr()
        assert main(["status", str(tmp_path)]) == 0
        shown.append(capsys.readouterr().out)

    trainer = net_trainer(tmp_path, **{**NEVER, "logging_strategy": "steps", "logging_steps": 1})
    trainer.callbacks["StatusFile"].seconds = 0.0
    trainer.on("on_step_end", look, once=4)
    trainer.train()
    lines = dict(line.split(None, 1) for line in shown[0].splitlines() if line[:1].strip())
    assert lines["status"] == "running"
    assert lines["step"].startswith("3 of 6 (50%)")
    assert float(lines["loss"]) > 0
    assert "seconds" not in lines
    assert "time left" in shown[0]
    assert "Log request log" in shown[0]
    capsys.readouterr()
    main(["status", str(tmp_path), "--json"])
    final = json.loads(capsys.readouterr().out)
    assert (final["status"], final["step"], final["max_steps"]) == ("done", 6, 6)
    assert final["steps_per_second"] > 0


def test_the_status_of_a_killed_run_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    net_trainer(tmp_path, **NEVER).train()
    file = tmp_path / "run_status.json"
    alive = {**json.loads(file.read_text()), "status": "running"}
    file.write_text(json.dumps(alive))
    assert status_command.ended(alive) == ""
    file.write_text(json.dumps({**alive, "pid": 2**22 + 1}))  # above the largest pid of Linux
    main(["status", str(tmp_path)])
    assert "killed" in capsys.readouterr().out
    monkeypatch.setattr(status_command.socket, "gethostname", lambda: "another")
    assert status_command.ended({**alive, "pid": 2**22 + 1}) == ""


@pytest.mark.parametrize(
    ("changes", "alive", "text"),
    [
        ({}, True, ", which runs"),
        ({"pid": 2**22 + 1}, False, "which has ended"),
        ({"host": "another"}, None, "on another by process"),
    ],
)
def test_the_status_says_whether_its_process_exists(
    changes: dict[str, Any], alive: bool | None, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that fails before `train()` leaves the status of the earlier training."""
    net_trainer(tmp_path, **NEVER).train()
    file = tmp_path / "run_status.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "time": time.time() - 7200, **changes}))
    with pytest.raises(ArgumentError):
        net_trainer(tmp_path, optim="none")
    capsys.readouterr()
    main(["status", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "updated" in shown
    assert "2:00:0" in shown
    assert text in shown
    assert ("A later program that fails before `train()`" in shown) == (alive is not True)
    main(["status", str(tmp_path), "--json"])
    assert json.loads(capsys.readouterr().out)["alive"] is alive


def test_a_status_that_cannot_be_written_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if "run_status" in str(target):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    net_trainer(tmp_path, **{**NEVER, "save_strategy": "steps", "save_steps": 99}).train()
    assert caplog.text.count("The status of the run cannot be written") == 1


def optimizer_of(*rates: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates])


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: None,
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1)),
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2),
        lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
        lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
                torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
            ],
            [3],
        ),
    ],
    ids=["none", "lambda", "cosine", "step", "plateau", "sequential"],
)
def test_a_set_rate_scales_the_rest_of_the_schedule(schedule: Any) -> None:
    def rates(change_at: int) -> list[list[float]]:
        optimizer = optimizer_of(0.1, 0.02)
        made = schedule(optimizer)
        seen = []
        for step in range(8):
            if step == change_at:
                set_learning_rate(optimizer, made, 0.05)
            seen.append([group["lr"] for group in optimizer.param_groups])
            optimizer.step()
            if isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau):
                made.step(1.0)
            elif made is not None:
                made.step()
        return seen

    plain, changed = rates(99), rates(2)
    assert changed[:2] == plain[:2]
    for before, after in zip(plain[2:], changed[2:]):
        assert after == pytest.approx([rate / 2 for rate in before])


def test_a_rate_is_set_where_all_are_zero_and_in_tensors() -> None:
    optimizer = optimizer_of(0.0, 0.0)
    set_learning_rate(optimizer, None, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    kept = torch.tensor(0.1)
    optimizer.param_groups[0]["lr"] = kept
    set_learning_rate(optimizer, None, 0.2)
    assert kept.item() == pytest.approx(0.04)


def test_a_told_stop_saves_the_step_of_a_run_that_saves(tmp_path: Path) -> None:
    told(tmp_path, 3, "stop", save_strategy="steps", save_steps=100).train()
    assert (tmp_path / "checkpoint-3").is_dir()


def test_a_told_interval_keeps_the_work_at_the_last_step(tmp_path: Path) -> None:
    steps = {"save_strategy": "steps", "save_steps": 5, "eval_strategy": "steps", "eval_steps": 5}
    trainer = told(tmp_path, 1, "every", "save", "4", "every", "eval", "4", **steps)
    trainer.train()
    last = trainer.state.global_step
    assert last % 4
    assert trainer.heard["on_save"] == [4, last]
    assert trainer.heard["on_evaluate"] == [4, last]


@pytest.mark.parametrize("text", ['{"status": "running"}', '{"status": "done", "step": "x", "epoch": null}'])
@pytest.mark.parametrize("words", [["status"], ["tell", "save"]])
def test_a_file_that_no_run_wrote_is_refused(
    text: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run_status.json").write_text(text)
    assert main([words[0], str(tmp_path), *words[1:]]) == 2
    assert "is not the status of a run: it needs" in capsys.readouterr().err
    assert not (tmp_path / FILE).exists()
