"""Optimizers of torchao: they store their state in few bits, and can round bfloat16 weights stochastically."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

logger = logging.getLogger(__name__)

_HOOKS: WeakKeyDictionary[Optimizer, tuple[Any, ...]] = WeakKeyDictionary()
"""Optimizer -> the handles of the hooks that seed its rounding noise."""


def is_low_bit(optimizer: Any) -> bool:
    """Return whether an optimizer is of a class of torchao, or of a subclass of one."""
    return any(kind.__module__.partition(".")[0] == "torchao" for kind in type(optimizer).__mro__)


def sharding_refusal(optimizer: Any, sharded_by: str) -> str:
    """Return why an optimizer does not work with a way to shard, and the remedy; an empty string if it does work.

    Args:
        optimizer: the optimizer.
        sharded_by: the id of the callback that shards weights or optimizer state; empty if none does.
    """
    if not sharded_by or not is_low_bit(optimizer):
        return ""
    return (
        f"{type(optimizer).__name__} of torchao does not work with {sharded_by}: its state cannot be gathered or saved "
        "in shards. Use `optim='adamw_torch_fused'`, or leave the way to shard out: DDP works."
    )


def seed_of(seed: int, step: int, call: int) -> int:
    """Return the seed of the rounding noise of one update.

    Args:
        seed: the seed of the run.
        step: the number of steps before this one.
        call: the number of earlier updates in this step.
    """
    return random.Random(f"rounding {seed} {step} {call}").getrandbits(63)


def share_rounding_noise(optimizer: Any, seed: int, step: Callable[[], int]) -> None:
    """Seed the stochastic rounding of an optimizer of torchao, so that all ranks draw the same noise.

    The optimizer draws from torch's global generator. The states of this generator may differ between ranks, and the
    weights of the ranks would then drift apart without an error. Therefore a hook seeds the generator before each
    update, and another hook restores the state of the generator after the update. If no weight is bfloat16, the
    optimizer rounds nothing, and the function logs a warning. For other optimizers the function does nothing.

    Args:
        optimizer: the optimizer.
        seed: the seed of the run, equal on all ranks.
        step: a function that returns the number of finished steps.
    """
    if not (is_low_bit(optimizer) and getattr(optimizer, "bf16_stochastic_round", False)):
        return
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    if not any(weight.dtype is torch.bfloat16 for weight in weights):
        logger.warning(
            "bf16_stochastic_round=True has no effect: no weight that the optimizer updates is bfloat16. Convert the "
            "model with `model.bfloat16()`, or leave the option out."
        )
    for hook in _HOOKS.pop(optimizer, ()):  # of an earlier run
        hook.remove()
    devices = sorted({weight.device.index or 0 for weight in weights if weight.is_cuda})
    last, calls, forks = -1, 0, list[Any]()

    def seed_noise(*_: Any) -> None:
        nonlocal last, calls
        now = step()
        last, calls = now, calls + 1 if now == last else 0
        fork = torch.random.fork_rng(devices)
        fork.__enter__()
        forks.append(fork)
        for generator in (torch.default_generator, *(torch.cuda.default_generators[index] for index in devices)):
            generator.manual_seed(seed_of(seed, now, calls))

    def restore(*_: Any) -> None:
        forks.pop().__exit__(None, None, None)

    _HOOKS[optimizer] = optimizer.register_step_pre_hook(seed_noise), optimizer.register_step_post_hook(restore)
