"""The learning rate schedules as functions, one each, under the names and with the parameters of Transformers.

Each builds what `get_scheduler` builds under the schedule's name; the factors are explained in `schedules`. In all of
them `last_epoch` is the index of the last update made, -1 in a new run.
"""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .schedules import get_scheduler


def get_constant_schedule(optimizer: Optimizer, last_epoch: int = -1) -> LRScheduler:
    """Keep the learning rate."""
    return get_scheduler("constant", optimizer, last_epoch=last_epoch)


def get_constant_schedule_with_warmup(optimizer: Optimizer, num_warmup_steps: int, last_epoch: int = -1) -> LRScheduler:
    """Climb from 0 over `num_warmup_steps` updates, then stay."""
    return get_scheduler("constant_with_warmup", optimizer, num_warmup_steps, last_epoch=last_epoch)


def get_linear_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, last_epoch: int = -1
) -> LRScheduler:
    """Climb from 0 over `num_warmup_steps` updates, then fall along a line to 0 at `num_training_steps`."""
    return get_scheduler("linear", optimizer, num_warmup_steps, num_training_steps, last_epoch=last_epoch)


def get_cosine_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LRScheduler:
    """Climb from 0, then follow `num_cycles` waves of a cosine: half a wave falls to 0 once."""
    return get_scheduler(
        "cosine", optimizer, num_warmup_steps, num_training_steps, num_cycles=num_cycles, last_epoch=last_epoch
    )


def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: int = 1,
    last_epoch: int = -1,
) -> LRScheduler:
    """Climb from 0, then fall to 0 along half a cosine, `num_cycles` times over."""
    return get_scheduler(
        "cosine_with_restarts",
        optimizer,
        num_warmup_steps,
        num_training_steps,
        num_cycles=num_cycles,
        last_epoch=last_epoch,
    )


def get_polynomial_decay_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_end: float = 1e-7,
    power: float = 1.0,
    last_epoch: int = -1,
) -> LRScheduler:
    """Climb from 0, then fall as a power of what is left of the run to the learning rate `lr_end`.

    Raises:
        ArgumentError: `lr_end` is not below the optimizer's learning rate, once the schedule steps.
    """
    return get_scheduler(
        "polynomial",
        optimizer,
        num_warmup_steps,
        num_training_steps,
        lr_end=lr_end,
        power=power,
        last_epoch=last_epoch,
    )


def get_inverse_sqrt_schedule(
    optimizer: Optimizer, num_warmup_steps: int, timescale: int | None = None, last_epoch: int = -1
) -> LRScheduler:
    """Climb from 0, then fall with the inverse square root of the update; `timescale` defaults to the warmup."""
    return get_scheduler("inverse_sqrt", optimizer, num_warmup_steps, timescale=timescale, last_epoch=last_epoch)


def get_cosine_with_min_lr_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> LRScheduler:
    """Climb from 0, then fall along a cosine to `min_lr`, or to the share `min_lr_rate` of the learning rate.

    Raises:
        ArgumentError: neither or both of the two are given.
    """
    return get_scheduler(
        "cosine_with_min_lr",
        optimizer,
        num_warmup_steps,
        num_training_steps,
        num_cycles=num_cycles,
        last_epoch=last_epoch,
        min_lr=min_lr,
        min_lr_rate=min_lr_rate,
    )


def get_cosine_with_min_lr_schedule_with_warmup_lr_rate(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> LRScheduler:
    """The same, climbing from the share `warmup_lr_rate` of the learning rate rather than from 0.

    Raises:
        ArgumentError: neither or both of `min_lr` and `min_lr_rate` are given.
    """
    return get_scheduler(
        "cosine_warmup_with_min_lr",
        optimizer,
        num_warmup_steps,
        num_training_steps,
        num_cycles=num_cycles,
        last_epoch=last_epoch,
        min_lr=min_lr,
        min_lr_rate=min_lr_rate,
        warmup_lr_rate=warmup_lr_rate,
    )


def get_wsd_schedule(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_decay_steps: int,
    num_training_steps: int | None = None,
    num_stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LRScheduler:
    """Climb, stay for `num_stable_steps` or what the others leave of the run, then fall over `num_decay_steps`.

    Raises:
        ArgumentError: an unknown type, or neither `num_training_steps` nor `num_stable_steps`.
    """
    return get_scheduler(
        "warmup_stable_decay",
        optimizer,
        num_warmup_steps,
        num_training_steps,
        num_decay_steps=num_decay_steps,
        num_stable_steps=num_stable_steps,
        warmup_type=warmup_type,
        decay_type=decay_type,
        min_lr_ratio=min_lr_ratio,
        num_cycles=num_cycles,
        last_epoch=last_epoch,
    )


def get_reduce_on_plateau_schedule(optimizer: Optimizer, **kwargs: Any) -> LRScheduler:
    """Lower the learning rate when a metric stops improving; `kwargs` are those of torch's `ReduceLROnPlateau`."""
    return get_scheduler("reduce_lr_on_plateau", optimizer, **kwargs)


def get_greedy_schedule(optimizer: Optimizer, **kwargs: Any) -> LRScheduler:
    """Raise the learning rate while a metric improves and lower it while not; `kwargs` are those of `GreedyLR`."""
    return get_scheduler("greedy", optimizer, **kwargs)
