"""`gradient_accumulation_schedule`: the batches per step change at the start of an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.callbacks import stop_at
from support.data import net_samples
from support.models import Net
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import Checkpoint, HfArgumentParser, TrainingArguments, every
from trainbus.events.errors import ArgumentError

OPTIONS: dict[str, Any] = {
    "max_steps": -1,
    "num_train_epochs": 3,
    "gradient_accumulation_schedule": {1: 2, 2: 3},
    "train_sampling_strategy": "sequential",
}


def test_it_trains_as_a_raw_loop(tmp_path: Path) -> None:
    class Still(Net):
        def __init__(self) -> None:
            super().__init__()
            for block in self.blocks:
                block.dropout.p = 0.0

    plain = {"optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    trainer = net_trainer(tmp_path, model=Still(), **OPTIONS, **plain)
    sizes: list[float] = []
    trainer.on("on_step_end", lambda state: sizes.append(state.epoch))
    trainer.train()
    assert sizes == [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.75, 3.0]
    assert (trainer.state.global_step, trainer.state.max_steps) == (8, 8)

    model, rows = Still(), net_samples()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = [
        {name: torch.stack([row[name] for row in rows[start : start + 4]]) for name in rows[0]}
        for start in range(0, 16, 4)
    ]
    for accumulate in (1, 2, 3):
        for first in range(0, 4, accumulate):
            window = batches[first : first + accumulate]
            for batch in window:
                (model(**batch)["loss"] / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert same_weights(weights(trainer.model), weights(model))


@pytest.mark.parametrize("step", [4, 5, 6, 7])
def test_it_resumes_exactly(tmp_path: Path, step: int) -> None:
    unbroken = net_trainer(tmp_path / "unbroken", **OPTIONS)
    unbroken.train()
    broken = net_trainer(tmp_path / "broken", Checkpoint(every(1)), **OPTIONS)
    broken.on("on_step_end", stop_at(step))
    broken.train()
    resumed = net_trainer(tmp_path / "broken", **OPTIONS)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 8
    assert same_weights(weights(resumed.model), weights(unbroken.model))


@pytest.mark.parametrize(("length", "steps"), [({"max_steps": 7}, 7), ({"num_train_epochs": 1.5}, 5)])
def test_the_length_of_the_run_follows_the_schedule(tmp_path: Path, length: dict[str, Any], steps: int) -> None:
    trainer = net_trainer(tmp_path, **{**OPTIONS, **length})
    trainer.train()
    assert trainer.state.global_step == steps


def test_the_command_line_takes_it_and_mistakes_are_refused() -> None:
    line = ["--output_dir", "out", "--gradient_accumulation_schedule", '{"0": 8, "4": 2}']
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(line)
    assert [args.accumulation_in(epoch) for epoch in (0, 3, 4, 9)] == [8, 8, 2, 2]
    with pytest.raises(ArgumentError, match="has 0: 0; write an epoch from 0"):
        TrainingArguments(gradient_accumulation_schedule={0: 0})


@pytest.mark.parametrize("changed", [{1: 2, 2: 4}, None])
def test_a_resume_with_another_schedule_is_warned_of(
    changed: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stopped = net_trainer(tmp_path, Checkpoint(every(2)), **OPTIONS)
    stopped.on("on_step_end", stop_at(2))
    stopped.train()
    for schedule in (OPTIONS["gradient_accumulation_schedule"], changed):
        caplog.clear()
        again = net_trainer(tmp_path / "again", **{**OPTIONS, "gradient_accumulation_schedule": schedule})
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        expected = "gradient_accumulation_schedule was {'1': 2, '2': 3} and is"
        assert (expected in caplog.text) is (schedule == changed)
