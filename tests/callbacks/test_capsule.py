"""Capsules of failed steps, and `trainbus rerun`, which makes such a step again."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from support.trainers import net_trainer
from trainbus import Callback, Capsule, Stage, order
from trainbus.callbacks.base.step_capture import TRIED, StepCapture
from trainbus.callbacks.monitor import capsule as capsule_module
from trainbus.engine.commands.main import main
from trainbus.events import ArgumentError

PROGRAM = """
import sys

import torch
from torch import nn

from trainbus import Capsule, Trainer, TrainingArguments

kind, seed, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
capsule = {"capsule": True, "": False}.get(sys.argv[4], sys.argv[4])
torch.manual_seed(seed)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        norm = [] if kind == "spike" else [nn.BatchNorm1d(width)]
        self.register_buffer("calls", torch.ones(()), persistent=False)
        self.body = nn.Sequential(nn.Linear(4, width), *norm, nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(width, 1)

    def forward(self, x, labels):
        if kind == "error" and (x.abs() > 1e6).any():
            raise ValueError("a value is too large")
        self.calls += 1
        return {"loss": nn.functional.mse_loss(self.head(self.body(x)).squeeze(1) * (1 + self.calls / 1000), labels)}


x = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
labels = x.sum(1)
x[77] = float("nan") if kind == "nan" else 1e7
if kind == "label":
    labels[77] = 1e4
args = TrainingArguments(
    "out", max_steps=40, seed=seed, per_device_train_batch_size=4, gradient_accumulation_steps=2, report_to="none",
    use_cpu=True, disable_tqdm=True, capsule=capsule, save_strategy="no", learning_rate=1e-4,
)
trainer = Trainer(Net(), args, train_dataset=[{"x": a, "labels": b} for a, b in zip(x, labels)])
print("the program starts")
trainer.train()
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that runs the program with arguments, and returns its trainer."""
    monkeypatch.chdir(tmp_path)
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, [*getattr(sys, name)])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    Path("program.py").write_text(PROGRAM)

    def run(kind: str, seed: int = 5, width: int = 16, debug: str = "capsule") -> Any:
        monkeypatch.setattr(sys, "argv", ["program.py", kind, str(seed), str(width), debug])
        module = {"__name__": "program"}
        exec(compile(PROGRAM, "program.py", "exec"), module)
        return module["trainer"]

    return run


def rerun(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Rerun the only capsule, and return the exit status and the JSON."""
    [capsule] = Path("out/capsules").iterdir()
    capsys.readouterr()
    before = sys.argv, [*sys.path], sys.modules["__main__"]
    code = main(["rerun", str(capsule), "--json", *words])
    said = capsys.readouterr()
    assert "the program starts" in said.err
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    return code, json.loads(said.out or "{}")


@pytest.mark.parametrize("kind", ["nan", "spike", "label", "error"])
def test_the_step_of_a_capsule_fails_again_bit_for_bit(
    kind: str, program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "error":
        with pytest.raises(ValueError, match="too large"):
            program(kind)
    else:
        program(kind)
    # Another seed of the program: weights, order of the data and dropout come from the capsule.
    code, found = rerun(capsys, "program.py", kind, "6", "16", "")
    assert code == 0
    capsule, now = found["capsule"], found["found"]
    assert any(77 in batch for batch in capsule["samples"])
    assert (capsule["arguments"], capsule["step"] > 1) == ([kind, "5", "16", "capsule"], True)
    if kind == "error":
        assert now["error"]["message"] == "ValueError: a value is too large"
    else:
        assert now["losses"] == capsule["losses"]
        assert len(now["losses"]) == 2
        assert now["grad_norm"] == capsule["grad_norm"]
    assert now["module"] == ("body.0 (Linear)" if kind == "nan" else "")


def test_a_capsule_changes_no_weights_and_one_is_written_for_failures_in_a_row(program: Any) -> None:
    with_capsule, without = (program("nan", debug=debug).model.state_dict() for debug in ("capsule", ""))
    assert all(torch.allclose(one, with_capsule[name], 0, 0, equal_nan=True) for name, one in without.items())
    with_capsule, without = (program("spike", seed=8, debug=debug).model.state_dict() for debug in ("capsule", ""))
    assert all(torch.equal(one, with_capsule[name]) for name, one in without.items())
    assert len([*Path("out/capsules").iterdir()]) == 2


def test_a_repaired_program_does_not_fail_and_another_model_is_refused(
    program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="too large"):
        program("error")
    code, found = rerun(capsys, "program.py", "repaired", "5", "16", "")
    assert (code, found["reproduced"], found["found"]["error"]) == (1, False, None)
    assert all(math.isfinite(loss) for loss in found["found"]["losses"])
    [capsule] = Path("out/capsules").iterdir()
    assert main(["rerun", str(capsule), "program.py", "error", "5", "17", ""]) == 2
    assert "another model than the capsule has" in capsys.readouterr().err


@pytest.mark.parametrize("cause", ["size", "disk"])
def test_a_capsule_that_cannot_be_written_is_a_warning(
    cause: str, program: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    if cause == "disk":
        monkeypatch.setattr("trainbus.engine.checkpoint.write.capsule_files.save_weights", full)
    else:
        monkeypatch.setattr(Capsule, "max_gigabytes", 1e-9)
        monkeypatch.setattr(Capsule, "from_arguments", classmethod(lambda cls, args: cls(max_gigabytes=1e-9)))
    with caplog.at_level(logging.WARNING):
        assert program("nan").state.global_step == 40
    expected = "No space left on device" if cause == "disk" else r"Set Capsule(max_gigabytes="
    assert expected in caplog.text
    assert [*Path("out").glob("capsules/*"), *Path("out").glob("capsules/.*")] == []


def test_wrong_settings_and_wrong_folders_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArgumentError, match=r"Capsule\(limit=0\)"):
        Capsule(limit=0)
    assert main(["rerun", str(tmp_path)]) == 2
    assert "holds no capsule" in capsys.readouterr().err


def capsules() -> list[str]:
    return sorted(path.name for path in Path("out/capsules").glob("*"))


def test_every_training_on_a_cpu_captures_a_failure_in_its_first_steps(program: Any) -> None:
    with pytest.raises(ValueError, match="too large"):
        program("error", debug="auto")
    [first] = capsules()
    with pytest.raises(ValueError, match="too large"):
        program("error", debug="")
    assert capsules() == [first]


@dataclass
class Cost(Callback):
    """Makes each forward take a part of a processor."""

    seconds: float

    @order(Stage.RELEASE)
    def on_batch(self) -> None:
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            pass


@pytest.mark.parametrize(("seconds", "stays"), [(0.06, True), (0.0, False)])
def test_an_automatic_capsule_ends_if_its_share_of_the_time_is_noticed(
    seconds: float, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = net_trainer("out", Cost(seconds), max_steps=30, save_strategy="no", capsule="auto", logging_steps=100)
    captured: list[int] = []
    trainer.on("on_step_end", lambda state: captured.append(state.global_step), once=TRIED + 5)

    def spoil(state: Any, batch: Any) -> None:
        if state.global_step == TRIED + 5:
            batch["x"].fill_(float("nan"))

    trainer.on("on_batch", spoil)
    trainer.train()
    assert captured == [TRIED + 5]
    assert capsules() == ([f"step-{TRIED + 6}"] if stays else [])


def test_a_search_and_a_noise_of_small_losses_write_no_automatic_capsule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quiet, watchful = (StepCapture(10.0, automatic, print, print) for automatic in (True, False))
    for each in (quiet, watchful):
        for loss in (*[1.0] * 10, *[0.001] * 20):
            each.note_usual(loss, 1.0)
    assert quiet.problem(0.5, 1.0, scaled=False) == ""
    assert "the loss is 0.5, usually 0.001" in watchful.problem(0.5, 1.0, scaled=False)
    assert "the loss is 3" in quiet.problem(3.0, 1.0, scaled=False)
    trainer = net_trainer("out", max_steps=2, save_strategy="no", auto_find_batch_size=True)
    trainer.on("on_batch", lambda batch: batch["x"].fill_(float("nan")))
    trainer.train()
    assert capsules() == []


def test_the_folder_keeps_the_capsules_of_the_last_session(program: Any) -> None:
    for number in range(3):
        old = Path(f"out/capsules/step-{number + 90}")
        old.mkdir(parents=True)
        os.utime(old, (number, number))
    Path("out/capsules/step-91-rank-1").mkdir()
    with pytest.raises(ValueError, match="too large"):
        program("error")
    own = [name for name in capsules() if name not in ("step-90", "step-91", "step-92", "step-91-rank-1")]
    assert len(own) == 1
    assert set(capsules()) == {*own, "step-92", "step-91-rank-1"}
    written = Path("out/capsules", own[0], "capsule.json").stat().st_mtime_ns
    with pytest.raises(ValueError, match="too large"):
        program("error")
    assert Path("out/capsules", own[0], "capsule.json").stat().st_mtime_ns > written


def test_a_write_that_fails_does_not_count_towards_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "capsules/step-90"
    old.mkdir(parents=True)
    write, full = capsule_module.write_capsule, [True, True, False]

    def write_or_fail(*given: Any) -> None:
        if full.pop(0):
            raise OSError(28, "No space left on device")
        write(*given)

    monkeypatch.setattr(capsule_module, "write_capsule", write_or_fail)
    trainer = net_trainer(tmp_path, Capsule(), max_steps=30)
    trainer.on(
        "on_batch", lambda run, batch: batch["labels"].mul_(1e6 if run.state.global_step in (12, 18, 24) else 1.0)
    )
    trainer.train()
    assert len(full) == 0
    # One capsule is new. The limit of 2 leaves room for the capsule of the earlier session.
    assert old.is_dir()
    assert len([*old.parent.iterdir()]) == 2


def test_losses_that_share_memory_are_kept_apart(tmp_path: Path) -> None:
    """A model that is compiled with CUDA graphs writes the loss of each batch into the same memory."""
    seen: list[list[float]] = []
    capture = StepCapture(10.0, False, lambda run, reason, numbers: seen.append(numbers["losses"]), lambda: None)
    loss = torch.tensor(1.0)
    capture.on_loss(loss)
    capture.on_loss(loss.fill_(math.inf))
    capture.on_pre_optimizer_step(net_trainer(tmp_path).run, 1.0)
    assert seen == [[1.0, math.inf]]
