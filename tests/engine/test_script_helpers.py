"""Functions that scripts import: schedules, the last checkpoint, seeds, a collator."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import optimization

import trainbus
from trainbus.engine.optim import schedule_functions

SCHEDULES: dict[str, dict[str, Any]] = {
    "get_constant_schedule": {},
    "get_constant_schedule_with_warmup": {"num_warmup_steps": 3},
    "get_linear_schedule_with_warmup": {"num_warmup_steps": 3, "num_training_steps": 12},
    "get_cosine_schedule_with_warmup": {"num_warmup_steps": 3, "num_training_steps": 12, "num_cycles": 1.5},
    "get_cosine_with_hard_restarts_schedule_with_warmup": {
        "num_warmup_steps": 3, "num_training_steps": 12, "num_cycles": 2,
    },
    "get_polynomial_decay_schedule_with_warmup": {
        "num_warmup_steps": 3, "num_training_steps": 12, "lr_end": 1e-3, "power": 2.0,
    },
    "get_inverse_sqrt_schedule": {"num_warmup_steps": 3, "timescale": 5},
    "get_cosine_with_min_lr_schedule_with_warmup": {
        "num_warmup_steps": 3, "num_training_steps": 12, "min_lr": 0.01, "num_cycles": 1.0,
    },
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate": {
        "num_warmup_steps": 3, "num_training_steps": 12, "min_lr_rate": 0.1, "warmup_lr_rate": 0.2,
    },
    "get_wsd_schedule": {
        "num_warmup_steps": 3, "num_decay_steps": 4, "num_training_steps": 12, "min_lr_ratio": 0.1,
        "warmup_type": "cosine", "decay_type": "1-sqrt",
    },
    "get_reduce_on_plateau_schedule": {"patience": 1, "factor": 0.5},
    "get_greedy_schedule": {"patience": 1, "min_lr": 1e-3},
}  # fmt: skip


def rates(schedule: Any, **settings: Any) -> list[float]:
    """The learning rates of fifteen updates, from 0.1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = schedule(optimizer, **settings)
    seen = []
    for update in range(15):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step(*([1.0 + update // 4] if "metrics" in inspect.signature(scheduler.step).parameters else []))
    return seen


def test_every_schedule_of_transformers_is_there() -> None:
    theirs = {name for name in vars(optimization) if name.startswith("get_") and "_schedule" in name}
    assert {*SCHEDULES} == theirs - {"get_scheduler", "get_adafactor_schedule"}
    assert {*SCHEDULES} < {*trainbus.__all__}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_have_the_rates_of_transformers(name: str) -> None:
    ours, theirs = getattr(trainbus, name), getattr(optimization, name)
    assert ours is getattr(schedule_functions, name)
    assert rates(ours, **SCHEDULES[name]) == rates(theirs, **SCHEDULES[name])


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_have_the_parameters_of_transformers(name: str) -> None:
    ours, theirs = (inspect.signature(of).parameters for of in (getattr(trainbus, name), getattr(optimization, name)))
    assert [(key, of.default) for key, of in ours.items()] == [(key, of.default) for key, of in theirs.items()]


def test_settings_of_a_schedule_may_come_in_one_mapping() -> None:
    settings = {"num_warmup_steps": 3, "num_training_steps": 12, "scheduler_specific_kwargs": {"num_cycles": 1.5}}
    ours, theirs = (
        rates(lambda optimizer, of=of: of("cosine", optimizer, **settings))
        for of in (trainbus.get_scheduler, transformers.get_scheduler)
    )
    assert ours == theirs
    with pytest.raises(trainbus.TrainbusError, match="did you mean 'num_cycles'"):
        rates(lambda optimizer: trainbus.get_scheduler("cosine", optimizer, 3, 12, {"num_cycle": 1}))


def test_the_last_checkpoint_is_the_newest_good_one(tmp_path: Path) -> None:
    assert trainbus.get_last_checkpoint(tmp_path) is None
    assert trainbus.get_last_checkpoint(tmp_path / "nowhere") is None

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": ((self.layer(x) - labels) ** 2).mean()}

    args = trainbus.TrainingArguments(
        str(tmp_path), max_steps=4, save_steps=2, per_device_train_batch_size=1, use_cpu=True, disable_tqdm=True
    )
    rows = [{"x": [float(index)], "labels": [1.0]} for index in range(4)]
    trainbus.Trainer(Line(), args, train_dataset=rows).train()
    last = trainbus.get_last_checkpoint(str(tmp_path))
    assert last == str(tmp_path / "checkpoint-4") == transformers.trainer_utils.get_last_checkpoint(str(tmp_path))
    (tmp_path / "checkpoint-4" / "model.safetensors").write_bytes(b"cut off")
    assert trainbus.get_last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-2")


def test_full_determinism_seeds_and_refuses_nondeterministic_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "FLASH_ATTENTION_DETERMINISTIC"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    benchmark, deterministic = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    try:
        trainbus.enable_full_determinism(7)
        drawn = torch.rand(3)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] in (":4096:8", ":16:8")
        transformers.enable_full_determinism(7)
        assert torch.equal(drawn, torch.rand(3))
        trainbus.enable_full_determinism(7, warn_only=True)
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = benchmark, deterministic
        for name in ("ASCEND_LAUNCH_BLOCKING", "HCCL_DETERMINISTIC"):
            os.environ.pop(name, None)


def test_the_collator_object_equals_the_function() -> None:
    rows = [{"x": [1, 2], "label": 0}, {"x": [3, 4], "label": 1}]
    ours, theirs = trainbus.DefaultDataCollator()(rows), transformers.DefaultDataCollator()(rows)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    with pytest.raises(trainbus.TrainbusError, match="'tf'"):
        trainbus.DefaultDataCollator(return_tensors="tf")(rows)
    with pytest.raises(trainbus.TrainbusError, match="'tf'"):
        trainbus.DefaultDataCollator()(rows, return_tensors="tf")


@pytest.mark.parametrize("name", ["EvalLoopOutput", "PredictionOutput", "TrainOutput"])
def test_the_result_has_the_fields_of_transformers(name: str) -> None:
    assert getattr(trainbus, name)._fields == getattr(transformers.trainer_utils, name)._fields
