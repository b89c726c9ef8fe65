"""The speed and the time that is left, as progress shows them."""

from __future__ import annotations

import pytest

from support.trainers import net_trainer
from trainbus import Checkpoint, Evaluate, Progress, TrainerState, every
from trainbus.callbacks.monitor.pace import Pace, pace_of
from trainbus.callbacks.monitor.progress import in_one_line


def test_evaluations_are_priced_apart():
    pace = Pace(steps=100, remaining=900, seconds=30.0, evaluating=20.0, evaluations=2)
    assert pace.rate == pytest.approx(10.0)
    assert pace.evaluations_left == pytest.approx(18 * 10.0)
    assert pace.left == pytest.approx(90 + 180)
    assert str(pace) == "10 steps/s  4 min 30 s left, 3 min 0 s of it evaluations"
    assert str(Pace(10, 90, 40.0)) == "4 s/step  6 min 0 s left"
    assert str(Pace(10, 0, 40.0)) == "4 s/step"
    assert str(Pace(100, 4, 10.0)) == "10 steps/s  under 1 s left"


def test_nothing_is_promised_before_there_is_something_to_go_by():
    assert str(Pace(0, 100, 5.0)) == ""
    assert str(Pace(10, 100, 0.5)) == ""
    assert Pace(0, 100, 5.0).left is None


def test_a_resumed_session_counts_its_own_steps_only(tmp_path):
    net_trainer(tmp_path, Checkpoint(every(4)), max_steps=4).train()
    built, seen = net_trainer(tmp_path, Evaluate(every(1)), max_steps=6), []
    built.on("on_step_end", lambda run: seen.append(pace_of(run)))
    built.train(resume_from_checkpoint=True)
    assert [(pace.steps, pace.remaining) for pace in seen] == [(1, 1), (2, 0)]
    assert seen[1].evaluations == 1
    assert 0 < seen[1].evaluating < seen[1].seconds


def test_lines_are_aligned_and_leave_speeds_out():
    widths: dict[str, int] = {}
    first = TrainerState(global_step=9, max_steps=100, epoch=0.5)
    second = TrainerState(global_step=10, max_steps=100, epoch=1)
    long = in_one_line({"loss": 0.123456, "learning_rate": 1e-5}, first, widths)
    short = in_one_line({"loss": 1.0, "learning_rate": 1e-5}, second, widths)
    assert long == "step 9/100    epoch 0.5  loss 0.1235  learning_rate 1e-05"
    assert short == "step 10/100   epoch 1    loss 1       learning_rate 1e-05"
    evaluated = in_one_line({"eval_loss": 0.5, "eval_samples_per_second": 11140.0, "eval_steps_per_second": 2.0}, first)
    assert evaluated == "step 9/100  epoch 0.5  eval_loss 0.5"
    assert in_one_line({"train_runtime": 2.0, "train_samples_per_second": 11140.0}, first).endswith(
        "train_samples_per_second 11,140"
    )


def test_a_line_has_the_pace(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("trainbus.callbacks.monitor.pace.TOO_SHORT", 0.0)
    net_trainer(tmp_path, Progress(), logging_strategy="steps", logging_steps=2).train()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step 2/6")]
    assert "steps/s" in lines[0]
    assert " left" in lines[0]
