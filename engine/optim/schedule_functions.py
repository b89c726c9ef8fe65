"""One function per learning rate schedule, with the names and the parameters of transformers.

Each function calls `get_scheduler`. `schedule_factors` has the formulas and their sources. `num_warmup_steps` and
`num_training_steps` are in optimizer steps. `last_epoch` is the index of the last step; -1 means a new run.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ...events.errors import ArgumentError
from .schedule_factors import linear
from .schedules import get_scheduler


def get_constant_schedule(optimizer: Optimizer, last_epoch: int = -1) -> LRScheduler:
    """Build a schedule with a constant learning rate."""
    return get_scheduler("constant", optimizer, last_epoch=last_epoch)


def get_constant_schedule_with_warmup(optimizer: Optimizer, num_warmup_steps: int, last_epoch: int = -1) -> LRScheduler:
    """Build a schedule with linear warmup, then a constant learning rate."""
    return get_scheduler("constant_with_warmup", optimizer, num_warmup_steps, last_epoch=last_epoch)


def get_linear_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, last_epoch: int = -1
) -> LRScheduler:
    """Build a schedule with linear warmup, then linear decay to 0 at `num_training_steps`."""
    return get_scheduler("linear", optimizer, num_warmup_steps, num_training_steps, last_epoch=last_epoch)


def get_cosine_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LRScheduler:
    """Build a schedule with linear warmup, then `num_cycles` cosine waves. Half a wave (the default) ends at 0."""
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
    """Build a schedule with linear warmup, then `num_cycles` cosine decays from the peak to 0."""
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
    """Build a schedule with linear warmup, then polynomial decay to the learning rate `lr_end`.

    Raises:
        ArgumentError: `lr_end` is not below the learning rate of the optimizer.
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
    """Build a schedule with linear warmup, then inverse square root decay.

    After the warmup and `3 * timescale` more steps, the learning rate is half of its peak. Default of `timescale`: the
    number of warmup steps, or 10 000 without a warmup.
    """
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
    """Build a schedule with linear warmup, then cosine decay to `min_lr`, or to `min_lr_rate` times the peak.

    Raises:
        ArgumentError: if neither or both of `min_lr` and `min_lr_rate` are set.
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
    """Build a schedule with linear warmup, then cosine decay to `min_lr`, or to `min_lr_rate` times the peak.

    The warmup starts at `warmup_lr_rate` times the peak; if this is None, at the peak divided by `num_warmup_steps`.

    Raises:
        ArgumentError: if neither or both of `min_lr` and `min_lr_rate` are set.
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
    """Build a schedule with warmup, a stable phase, then decay over `num_decay_steps`.

    By default, `num_stable_steps` is `num_training_steps` minus the steps of warmup and decay.

    Raises:
        ArgumentError: if `warmup_type` or `decay_type` is unknown, or if both `num_training_steps` and
            `num_stable_steps` are None.
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
    """Build torch's `ReduceLROnPlateau`, which lowers the learning rate when a metric stops improving.

    `kwargs` are the options of the class.
    """
    return get_scheduler("reduce_lr_on_plateau", optimizer, **kwargs)


def get_greedy_schedule(optimizer: Optimizer, **kwargs: Any) -> LRScheduler:
    """Build a `GreedyLR`, which raises the learning rate while a metric improves, and lowers it otherwise.

    `kwargs` are the options of the class.
    """
    return get_scheduler("greedy", optimizer, **kwargs)


class LinearDecayWithWarmup(LambdaLR):
    """Linear warmup, then linear decay to 0. PaddleNLP has a class with this name.

    `lr_scheduler_type="linear"`, the default of `TrainingArguments`, builds the same schedule. PaddleNLP's class takes
    a learning rate. This class takes an optimizer instead, because in PyTorch the optimizer has the learning rate.

    Args:
        optimizer: The optimizer.
        total_steps: Length of the run in optimizer steps.
        warmup: Length of the warmup: an int in optimizer steps, or a float from 0 to 1 as a fraction of `total_steps`.
        last_epoch: Index of the last step; -1 means a new run.

    Raises:
        ArgumentError: `optimizer` is not an optimizer, or `warmup` is negative or a float above 1.
    """

    def __init__(self, optimizer: Optimizer, total_steps: int, warmup: float = 0, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(
                f"LinearDecayWithWarmup: the first argument is {optimizer!r}, not an optimizer. In PyTorch the "
                "optimizer has the learning rate: write LinearDecayWithWarmup(optimizer, total_steps, warmup)."
            )
        if warmup < 0 or (isinstance(warmup, float) and warmup > 1):
            raise ArgumentError(
                f"LinearDecayWithWarmup: warmup={warmup}. Set a number of steps of 0 or more, or a fraction in [0, 1]."
            )
        steps = int(warmup * total_steps) if isinstance(warmup, float) else warmup
        super().__init__(optimizer, partial(linear, num_warmup_steps=steps, num_training_steps=total_steps), last_epoch)
