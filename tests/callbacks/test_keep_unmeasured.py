"""`Keep(best=N)` with a metric that no checkpoint has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.trainers import net_trainer
from trainbus import Checkpoint, Evaluate, Keep, KeepBest, every
from trainbus.events.errors import ArgumentError


def run_of(folder: Path, evaluate: Any, *callbacks: Any, save: int = 1, **options: Any) -> Any:
    checkpoint = Checkpoint(every(save), keep=Keep(best=1), async_save=False)
    return net_trainer(folder, checkpoint, *([Evaluate(evaluate)] if evaluate else []), *callbacks, **options)


def test_a_metric_that_evaluations_lack_is_refused_at_the_first_evaluation(tmp_path: Path) -> None:
    run = run_of(tmp_path, every(2), compute_metrics=lambda _: {"f1": 0.5})
    run.label_names = run.args.label_names = ["target"]  # so there is no loss
    with pytest.raises(ArgumentError, match=r"Checkpoint\(keep=Keep\(best=1\)\) reads the metric 'eval_loss'"):
        run.train()


@pytest.mark.parametrize("evaluate", [None, every(4)])
def test_checkpoints_without_the_metric_log_one_warning(
    evaluate: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_of(tmp_path, evaluate, save=3 if evaluate else 1, max_steps=9).train()
    told = [text for text in caplog.messages if "no checkpoint has this metric" in text]
    assert len(told) == 1
    assert "Keep(best=1) compares eval_loss" in told[0]


@pytest.mark.parametrize("evaluate", [2, 5])
def test_measured_checkpoints_cause_no_warning(evaluate: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_of(tmp_path, every(evaluate), KeepBest(), max_steps=6).train()
    assert "no checkpoint has this metric" not in caplog.text
