"""Limits of batches, trial runs, and learning rates of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.callbacks import stop_at
from support.data import Stream, net_samples
from support.models import Net
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import Checkpoint, TrainingArguments, every
from trainbus.engine.data.plan import limited
from trainbus.events.errors import ArgumentError


def seen(trainer: Any, event: str = "on_batch") -> list[list[float]]:
    """Record the labels of each batch."""
    batches: list[list[float]] = []
    trainer.on(event, lambda batch: batches.append(batch["labels"].tolist()))
    return batches


@pytest.mark.parametrize("limit", [3, 0.75])
def test_a_limited_epoch_is_the_start_of_the_whole_epoch(tmp_path: Path, limit: float) -> None:
    whole = net_trainer(tmp_path / "whole", max_steps=-1, num_train_epochs=2)
    part = net_trainer(tmp_path / "part", max_steps=-1, num_train_epochs=2, limit_train_batches=limit)
    all_batches, some = seen(whole), seen(part)
    whole.train()
    summary = part.train()
    assert some == [*all_batches[0:3], *all_batches[4:7]]
    assert (part.state.global_step, part.state.max_steps, part.state.epoch) == (6, 6, 2.0)
    assert summary.metrics["train_samples_per_second"] * summary.metrics["train_runtime"] == pytest.approx(24, rel=0.1)


def test_the_last_step_of_a_limited_epoch_is_partial(tmp_path: Path) -> None:
    options = {"max_steps": -1, "num_train_epochs": 2, "gradient_accumulation_steps": 2, "limit_train_batches": 3}
    trainer = net_trainer(tmp_path, **options)
    batches = seen(trainer)
    trainer.train()
    assert (trainer.state.global_step, len(batches)) == (4, 6)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_limited_run_resumes_exactly(tmp_path: Path, workers: int) -> None:
    options = {"max_steps": -1, "num_train_epochs": 3, "limit_train_batches": 3, "dataloader_num_workers": workers}
    unbroken = net_trainer(tmp_path / "unbroken", **options)
    unbroken.train()
    for step in (2, 3):
        folder = tmp_path / f"broken{step}"
        broken = net_trainer(folder, Checkpoint(every(1)), **options)
        broken.on("on_step_end", stop_at(step))
        broken.train()
        resumed = net_trainer(folder, **options)
        resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
        assert resumed.state.global_step == 9
        assert same_weights(weights(resumed.model), weights(unbroken.model))


def test_a_limited_evaluation_equals_one_of_the_first_samples(tmp_path: Path) -> None:
    def metrics(prediction: Any) -> dict[str, float]:
        return {"rows": len(prediction.label_ids), "sum": float(prediction.label_ids.sum())}

    rows, size = net_samples(10, seed=1), {"per_device_eval_batch_size": 3}
    first = net_trainer(tmp_path, eval_dataset=rows[:6], compute_metrics=metrics, **size).evaluate()
    for limit in (2, 0.5):
        limits = {"limit_eval_batches": limit, **size}
        part = net_trainer(tmp_path, eval_dataset=rows, compute_metrics=metrics, **limits)
        found = part.evaluate()
        assert {name: found[name] for name in ("eval_loss", "eval_rows", "eval_sum")} == {
            name: first[name] for name in ("eval_loss", "eval_rows", "eval_sum")
        }
        assert len(part.predict(rows).label_ids) == 10


def test_a_limited_evaluation_of_grouped_samples_and_of_a_stream(tmp_path: Path) -> None:
    limits = {"limit_eval_batches": 2, "per_device_eval_batch_size": 3}
    rows = net_samples(10, seed=1)
    stream = net_trainer(tmp_path, eval_dataset=Stream(rows), **limits)
    batches = seen(stream, "on_prediction_step")
    stream.evaluate()
    assert batches == [[row["labels"].item() for row in rows[start : start + 3]] for start in (0, 3)]


def test_limits_that_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="`limit_train_batches` is 0; set it to a whole number of batches"):
        TrainingArguments(limit_train_batches=0)
    streamed = net_trainer(tmp_path, train_dataset=Stream(net_samples()), limit_train_batches=2)
    with pytest.raises(ArgumentError, match=r"needs a dataset with a length, but Stream is a stream\. Set `max_steps`"):
        streamed.train()
    own = net_trainer(tmp_path, limit_train_batches=2)
    own.get_train_dataloader = lambda: torch.utils.data.DataLoader(net_samples(), batch_size=4)  # type: ignore[method-assign]
    with pytest.raises(ArgumentError, match="does not limit a loader of your own, here a DataLoader"):
        own.train()
    with pytest.raises(ArgumentError, match="a fraction of the batches, but the data has no length"):
        limited(0.5, None)
    assert limited(5, 4) is None


def test_a_trial_run_makes_its_steps_and_leaves_nothing(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 1, "load_best_model_at_end": True, "eval_strategy": "epoch"}
    trainer = net_trainer(tmp_path / "run", fast_dev_run=2, max_steps=500, **options)
    assert trainer.args.load_best_model_at_end is False
    batches = seen(trainer, "on_prediction_step")
    trainer.train()
    assert trainer.state.global_step == 2
    assert len(batches) == 1  # 8 samples are one batch
    assert any("eval_loss" in entry for entry in trainer.state.log_history)
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_a_trial_run_keeps_the_arguments_of_the_user(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), fast_dev_run=True, max_steps=7)
    from trainbus import Trainer

    trainer = Trainer(Net(), args, train_dataset=net_samples())
    trainer.train()
    assert (trainer.state.global_step, args.max_steps, args.fast_dev_run) == (1, 7, True)


# Learning rates of their own.


def test_own_learning_rates_train_as_a_raw_optimizer(tmp_path: Path) -> None:
    model = Net()
    groups = [
        {"params": [model.blocks[0].linear.weight], "weight_decay": 0.1, "lr": 0.02},
        {"params": [model.blocks[0].linear.bias], "weight_decay": 0.0, "lr": 0.02},
        {"params": [model.blocks[1].linear.weight], "weight_decay": 0.1, "lr": 0.003},
        {"params": [model.blocks[1].linear.bias], "weight_decay": 0.0, "lr": 0.003},
        {"params": [model.head.weight], "weight_decay": 0.1},
        {"params": [model.head.bias], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.05, fused=True)
    raw = net_trainer(tmp_path / "raw", model=model, optimizers=(optimizer, None))
    raw.train()
    rates = {"blocks.0": 0.02, r"blocks\.\d": 0.003}
    named = net_trainer(tmp_path / "named", learning_rates=rates, weight_decay=0.1)
    named.train()
    assert same_weights(weights(named.model), weights(raw.model))
    assert named.optimizer.param_groups[0]["initial_lr"] == 0.05


def test_own_learning_rates_resume_exactly(tmp_path: Path) -> None:
    options = {"learning_rates": {"head": 0.5}, "max_steps": 6}
    unbroken = net_trainer(tmp_path / "unbroken", **options)
    unbroken.train()
    broken = net_trainer(tmp_path / "broken", Checkpoint(every(3)), **options)
    broken.on("on_step_end", stop_at(3))
    broken.train()
    resumed = net_trainer(tmp_path / "broken", **options)
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(resumed.model), weights(unbroken.model))


def test_a_pattern_without_effect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"has 'haed', and no trainable parameter.*did you mean 'head'"):
        net_trainer(tmp_path, learning_rates={"haed": 0.1}).train()
    with pytest.raises(ArgumentError, match="list it before wider ones"):
        net_trainer(tmp_path, learning_rates={"blocks": 0.1, "blocks.0": 0.2}).train()
    with pytest.raises(ArgumentError, match="has -1 for 'head'"):
        TrainingArguments(learning_rates={"head": -1})
    with pytest.raises(ArgumentError, match="which groups its parameters itself"):
        TrainingArguments(learning_rates={"head": 1.0}, optim="galore_adamw", optim_target_modules="all-linear")
