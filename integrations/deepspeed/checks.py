"""What cannot work with DeepSpeed here, refused before anything is built, with the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from torch import nn
from torch.optim import Optimizer

from ...callbacks.model.ema import EMA
from ...callbacks.optimizer.schedule_free import has_two_modes
from ...callbacks.parallel.wrapping import trainable
from ...engine.optim.registry import is_shape_dependent
from ...engine.run import Run
from ...events.errors import ArgumentError, nearest
from .config import precision_of, stage_of
from .config_schema import unknown

MODELS = {"zero_optimization": DeepSpeedZeroConfig, "bf16": DeepSpeedBF16Config, "fp16": DeepSpeedFP16Config}
"""What DeepSpeed makes of sections."""

BY_SHAPE = "looks at each weight's shape or norm"
"""What is wrong with optimizers that do."""


def check(config: dict[str, Any], run: Run) -> None:
    """Refuse a completed configuration that cannot work here.

    Raises:
        ArgumentError: for everything at once, naming the remedies.
    """
    problems = [*_of_device(config, run), *_of_names(config), *_of_training(config, run)]
    if problems:
        one = len(problems) == 1
        raise ArgumentError(problems[0] if one else "DeepSpeed cannot work like this:\n- " + "\n- ".join(problems))


def check_optimizer(optimizer: Optimizer, config: dict[str, Any]) -> None:
    """Refuse an optimizer to which weights are more than rows of numbers, which the stages from 1 make of them.

    Raises:
        ArgumentError: naming the remedy.
    """
    kind, stage = type(optimizer).__name__, stage_of(config)
    if stage == 0:
        return
    why = BY_SHAPE if is_shape_dependent(kind) else ""
    if not why and has_two_modes(optimizer):
        why = "evaluates and saves other weights than it trains, and writes these where DeepSpeed does not see it"
    if not why and isinstance(optimizer, torch.optim.Adagrad):
        why = "is made anew by DeepSpeed, with one group of parameters"
    if why:
        raise ArgumentError(
            f"{kind} {why}: with stage {stage} of DeepSpeed it would train something else. Give another optimizer, "
            'or {"zero_optimization": {"stage": 0}}.'
        )


def check_flags(model: nn.Module, before: list[bool], config: dict[str, Any]) -> None:
    """Refuse weights that were frozen or thawed since the engine took them, which goes on as before.

    Raises:
        ArgumentError: naming the first of them, and the remedy.
    """
    stage, now = stage_of(config), trainable(model.parameters())
    if stage == 0 or now == before:
        return
    names = [name for name, _ in model.named_parameters()]
    first, *others = [(name, flag) for name, flag, was in zip(names, now, before) if flag != was]
    raise ArgumentError(
        f"{first[0]} and {len(others)} other weights were {'thawed' if first[1] else 'frozen'} after DeepSpeed had "
        f"taken the model: with stage {stage} they would train, or decay, as before. Set `requires_grad` before the "
        'trainer trains, and make a new trainer for another choice; or give {"zero_optimization": {"stage": 0}}.'
    )


def _of_device(config: dict[str, Any], run: Run) -> Iterator[str]:
    device = get_accelerator().device_name()
    if device != run.args.device.type:
        yield (
            f"DeepSpeed computes on {device}, and the run is on {run.args.device.type}: set "
            f"DS_ACCELERATOR={run.args.device.type} in the environment of the program."
        )
    if precision_of(config) == "fp16" and not get_accelerator().is_fp16_supported():
        yield (
            f"DeepSpeed cannot compute in fp16 on this device, {device}: use bf16, by `bf16` "
            "in the arguments or in DeepSpeed's configuration, or no half precision."
        )


def _of_names(config: dict[str, Any]) -> Iterator[str]:
    for section, kind in MODELS.items():
        fields = {name for key, field in kind.model_fields.items() for name in (key, field.alias) if name}
        yield from unknown(section, config.get(section, {}), fields)
    name = config.get("optimizer", {}).get("type")
    if name is not None and name.lower() not in DEEPSPEED_OPTIMIZERS and not hasattr(torch.optim, name):
        known = [*DEEPSPEED_OPTIMIZERS, "AdamW", "Adam"]
        yield (
            f"optimizer.type is {name!r}{nearest(name, known)} DeepSpeed has {', '.join(DEEPSPEED_OPTIMIZERS)}, and "
            "those of torch.optim; leave out the section to use that of `optim`."
        )


def _of_training(config: dict[str, Any], run: Run) -> Iterator[str]:
    precision, stage, name = precision_of(config), stage_of(config), config.get("optimizer", {}).get("type", "")
    if stage == 3 and run.args.auto_find_batch_size:
        yield (
            "`auto_find_batch_size` begins anew from the first weights, which ZeRO stage 3 has split: find the size "
            "with stage 2, or give `per_device_train_batch_size`."
        )
    if name.lower() == "muon":
        yield (
            "DeepSpeed's Muon forms groups of parameters that no checkpoint here can tell: give another `optimizer` in "
            "its configuration, or none for that of `optim`."
        )
    elif stage > 0 and is_shape_dependent(name):
        yield f"{name} {BY_SHAPE}, and stage {stage} joins the weights: give another optimizer, or stage 0."
    if stage > 0 and name.lower() == "adagrad" and "offload_optimizer" not in config["zero_optimization"]:
        yield "DeepSpeed makes Adagrad anew, with one group of parameters: give another optimizer, or stage 0."
    if config.get("bf16", {}).get("enabled") and config.get("fp16", {}).get("enabled"):
        yield "bf16.enabled and fp16.enabled are both true: give one of them."
    elif precision and stage == 0:
        yield (
            f"DeepSpeed's configuration asks for {precision} without ZeRO, whose float32 copies of the weights cannot "
            'be saved: give {"zero_optimization": {"stage": 1}}.'
        )
    if stage == 3 and any(isinstance(callback, EMA) for callback in run.bus.subscribers.values()):
        yield "EMA averages whole weights, and stage 3 has split them: average with stage 1 or 2."
    if single := [name for name, weight in run.model.named_parameters() if _shape(weight) == ()]:
        yield f"DeepSpeed cannot hold parameters without a dimension, as {single[0]}: give it the shape [1]."


def _shape(weight: Any) -> tuple[int, ...]:
    return tuple(getattr(weight, "ds_shape", weight.shape))
