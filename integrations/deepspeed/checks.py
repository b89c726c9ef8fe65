"""Checks that refuse settings and callbacks that do not work with DeepSpeed, before anything is built."""

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

from ...callbacks.model.averaged_weights import AveragedWeights
from ...callbacks.optimizer.schedule_free import has_two_modes
from ...callbacks.parallel.wrapping import trainable
from ...engine.optim.registry import is_shape_dependent
from ...engine.run import Run
from ...events.errors import ArgumentError, nearest
from .config import precision_of, stage_of
from .config_schema import unknown_keys

SECTION_MODELS = {"zero_optimization": DeepSpeedZeroConfig, "bf16": DeepSpeedBF16Config, "fp16": DeepSpeedFP16Config}
"""The classes of DeepSpeed that define the keys of each section."""

BY_SHAPE = "depends on the shape or norm of each weight"
"""The reason why stages 1 to 3 refuse an optimizer. These stages flatten the weights."""


def check_config(config: dict[str, Any], run: Run) -> None:
    """Check that a configuration fits the device, the run, and the names that DeepSpeed knows.

    Args:
        config: the result of `complete_config`.
        run: the run.

    Raises:
        ArgumentError: if there is a problem. The error lists all problems, and says how to fix each of them.
    """
    problems = [*_device_problems(config, run), *_name_problems(config), *_run_problems(config, run)]
    if problems:
        single = len(problems) == 1
        raise ArgumentError(problems[0] if single else "DeepSpeed cannot run:\n- " + "\n- ".join(problems))


def check_optimizer(optimizer: Optimizer, config: dict[str, Any]) -> None:
    """Check that an optimizer gives the same results with the ZeRO stage of the configuration as without DeepSpeed.

    With stage 0, the results are the same for all optimizers. With stages 1 to 3, these optimizers do not work:

    - Optimizers that depend on the shape or norm of each weight, because stages 1 to 3 flatten the weights.
    - Optimizers with train and eval modes.
    - torch's Adagrad.

    Raises:
        ArgumentError: if the optimizer does not work. The error gives the reason, and says what to do.
    """
    kind, stage = type(optimizer).__name__, stage_of(config)
    if stage == 0:
        return
    why = BY_SHAPE if is_shape_dependent(kind) else ""
    if not why and has_two_modes(optimizer):
        why = "swaps the weights for evaluation and saving, which DeepSpeed does not see"
    if not why and isinstance(optimizer, torch.optim.Adagrad):
        why = "is rebuilt by DeepSpeed with a single parameter group"
    if why:
        raise ArgumentError(
            f"{kind} {why}: with stage {stage} of DeepSpeed it would train other weights. Use another optimizer, "
            'or {"zero_optimization": {"stage": 0}}.'
        )


def check_trainable(model: nn.Module, before: list[bool], config: dict[str, Any]) -> None:
    """Raise an error if `requires_grad` changed after DeepSpeed built its engine.

    Stages 1 to 3 ignore such a change.

    Args:
        model: the model.
        before: `requires_grad` of each parameter when DeepSpeed built its engine.
        config: the result of `complete_config`.

    Raises:
        ArgumentError: if `requires_grad` of a parameter changed and the stage is not 0. The error names the first
            changed parameter, and says what to do.
    """
    stage, now = stage_of(config), trainable(model.parameters())
    if stage == 0 or now == before:
        return
    names = [name for name, _ in model.named_parameters()]
    first, *others = [(name, flag) for name, flag, was in zip(names, now, before) if flag != was]
    raise ArgumentError(
        f"{first[0]} and {len(others)} other weights were {'unfrozen' if first[1] else 'frozen'} after DeepSpeed built "
        f"its engine. Stage {stage} ignores this change. Set `requires_grad` before training, and use a new trainer to "
        'change it. Or use {"zero_optimization": {"stage": 0}}.'
    )


def _device_problems(config: dict[str, Any], run: Run) -> Iterator[str]:
    device = get_accelerator().device_name()
    if device != run.args.device.type:
        yield (
            f"DeepSpeed computes on {device}, but the run is on {run.args.device.type}: set "
            f"DS_ACCELERATOR={run.args.device.type} in the environment of the program."
        )
    if precision_of(config) == "fp16" and not get_accelerator().is_fp16_supported():
        yield (
            f"DeepSpeed does not support fp16 on this device, {device}: use bf16, in the arguments or in DeepSpeed's "
            "configuration, or no half precision."
        )


def _name_problems(config: dict[str, Any]) -> Iterator[str]:
    for section, kind in SECTION_MODELS.items():
        fields = {name for key, field in kind.model_fields.items() for name in (key, field.alias) if name}
        yield from unknown_keys(section, config.get(section, {}), fields)
    name = config.get("optimizer", {}).get("type")
    if name is not None and name.lower() not in DEEPSPEED_OPTIMIZERS and not hasattr(torch.optim, name):
        known = [*DEEPSPEED_OPTIMIZERS, "AdamW", "Adam"]
        yield (
            f"optimizer.type is {name!r}{nearest(name, known)} DeepSpeed has {', '.join(DEEPSPEED_OPTIMIZERS)}, and "
            "the classes of torch.optim work too. Leave the section out to use the optimizer of `optim`."
        )


def _run_problems(config: dict[str, Any], run: Run) -> Iterator[str]:
    precision, stage = precision_of(config), stage_of(config)
    yield from _optimizer_problems(config, stage)
    if stage == 3 and run.args.auto_find_batch_size:
        yield (
            "`auto_find_batch_size` restarts from the first weights, which ZeRO stage 3 has sharded: find the size "
            "with stage 2, or set `per_device_train_batch_size`."
        )
    if config.get("bf16", {}).get("enabled") and config.get("fp16", {}).get("enabled"):
        yield "bf16.enabled and fp16.enabled are both true: enable one of them."
    elif precision and stage == 0:
        yield (
            f"DeepSpeed's configuration enables {precision} without ZeRO. The float32 copies of the weights cannot be "
            'saved then: use {"zero_optimization": {"stage": 1}}.'
        )
    averaging = [type(each).__name__ for each in run.bus.subscribers.values() if isinstance(each, AveragedWeights)]
    if stage == 3 and averaging:
        name = averaging[0]
        yield f"{name} averages full weights, and stage 3 shards them: use stage 1 or 2, or leave {name} out."
    if run.args.gradient_accumulation_schedule:
        yield (
            "`gradient_accumulation_schedule` changes the batches per step, but DeepSpeed uses "
            "one number only: leave it out."
        )
    if run.args.learning_rates and "optimizer" in config:
        yield "`learning_rates` does not reach the optimizer that the configuration builds: remove one of the two."
    if scalars := [name for name, weight in run.model.named_parameters() if _shape(weight) == ()]:
        yield f"DeepSpeed does not support parameters without a dimension, such as {scalars[0]}: use the shape [1]."


def _optimizer_problems(config: dict[str, Any], stage: int) -> Iterator[str]:
    """Yield an error text for each reason why the optimizer of the configuration does not work with a ZeRO stage."""
    name = config.get("optimizer", {}).get("type", "")
    if name.lower() == "muon":
        yield (
            "DeepSpeed's Muon builds parameter groups that a checkpoint cannot restore: set another "
            "`optimizer` in DeepSpeed's configuration, or leave the section out to use the optimizer of `optim`."
        )
    elif stage > 0 and is_shape_dependent(name):
        yield f"{name} {BY_SHAPE}, and stage {stage} flattens the weights: use another optimizer, or stage 0."
    if stage > 0 and name.lower() == "adagrad" and "offload_optimizer" not in config["zero_optimization"]:
        yield "DeepSpeed rebuilds Adagrad with a single parameter group: use another optimizer, or stage 0."


def _shape(weight: Any) -> tuple[int, ...]:
    return tuple(getattr(weight, "ds_shape", weight.shape))
