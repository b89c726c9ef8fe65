"""Learning rate schedules: twelve names, each a pure function of the step or a scheduler driven by a metric.

A factor multiplies every group's initial learning rate; it has no unit and depends on nothing but its arguments, so
that a run can be previewed without a model. Steps are optimizer updates, counted from 0: the first update is made
with `factor(0)`. The float operations are those of transformers 5.23, in the same order, hence the same bits.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from ...events.errors import ArgumentError, nearest
from .greedy_lr import GreedyLR

SHAPES = ("linear", "cosine", "1-sqrt")


def _rise(step: int, num_warmup_steps: int) -> float:
    """The share of the warmup done: 0 at step 0, 1 at `num_warmup_steps`."""
    return float(step) / float(max(1, num_warmup_steps))


def _progress(step: int, num_warmup_steps: int, num_training_steps: int) -> float:
    """The share done of what follows the warmup: 0 at its end, 1 at `num_training_steps`, above 1 past the end."""
    return float(step - num_warmup_steps) / float(max(1, num_training_steps - num_warmup_steps))


def constant(step: int) -> float:
    """Always 1."""
    return 1.0


def constant_with_warmup(step: int, *, num_warmup_steps: int) -> float:
    """Rises linearly from 0 to 1 over the warmup, then stays."""
    return _rise(step, num_warmup_steps) if step < num_warmup_steps else 1.0


def linear(step: int, *, num_warmup_steps: int, num_training_steps: int) -> float:
    """Rises linearly to 1, then falls linearly to 0 at the last step (BERT, arXiv:1810.04805, appendix A.2)."""
    if step < num_warmup_steps:
        return _rise(step, num_warmup_steps)
    return max(0.0, float(num_training_steps - step) / float(max(1, num_training_steps - num_warmup_steps)))


def cosine(step: int, *, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5) -> float:
    """Rises linearly to 1, then follows a cosine (SGDR without restarts, arXiv:1608.03983, equation 5).

    `num_cycles` counts whole waves: the default, half a wave, ends at 0. Past the end the wave goes on.
    """
    if step < num_warmup_steps:
        return _rise(step, num_warmup_steps)
    progress = _progress(step, num_warmup_steps, num_training_steps)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * float(num_cycles) * 2.0 * progress)))


def cosine_with_restarts(step: int, *, num_warmup_steps: int, num_training_steps: int, num_cycles: int = 1) -> float:
    """Rises linearly to 1, then falls to 0 along half a cosine, `num_cycles` times over (SGDR, arXiv:1608.03983).

    Each fall starts from 1 again; past the end the factor is 0.
    """
    if step < num_warmup_steps:
        return _rise(step, num_warmup_steps)
    progress = _progress(step, num_warmup_steps, num_training_steps)
    if progress >= 1.0:
        return 0.0
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((float(num_cycles) * progress) % 1.0))))


def polynomial(
    step: int,
    *,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_init: float,
    lr_end: float = 1e-7,
    power: float = 1.0,
) -> float:
    """Rises linearly to 1, then falls as `(1 - progress) ** power` to the learning rate `lr_end`.

    The formula is that of BERT's and fairseq's optimizers; `power=1` is a straight line. `lr_end` and `lr_init` (the
    optimizer's own, filled in by `get_scheduler`) are learning rates, not factors.

    Raises:
        ArgumentError: `lr_end` is not below `lr_init`.
    """
    if not lr_init > lr_end:
        raise ArgumentError(f"polynomial: lr_end={lr_end} must be below the learning rate, which is {lr_init}")
    if step < num_warmup_steps:
        return _rise(step, num_warmup_steps)
    decay_steps = num_training_steps - num_warmup_steps
    # Where the warmup fills the whole run there is no fall to share out: the run ends at lr_end.
    if step > num_training_steps or decay_steps == 0:
        return lr_end / lr_init
    remaining = 1 - (step - num_warmup_steps) / decay_steps
    # A learning rate is computed first and divided last: the scheduler multiplies by lr_init again.
    rate = (lr_init - lr_end) * float(remaining**power) + lr_end
    return rate / lr_init


def inverse_sqrt(step: int, *, num_warmup_steps: int, timescale: int | None = None) -> float:
    """Rises linearly to 1, then falls as `sqrt(timescale / t)`, with `t = timescale` where the warmup ends.

    From big_vision's `rsqrt` (Scaling Vision Transformers, arXiv:2106.04560, section 3.5). `timescale` is in steps and
    defaults to the warmup, or to 10 000 without one.

    Raises:
        ArgumentError: `timescale` is not positive.
    """
    if timescale is None:
        timescale = num_warmup_steps or 10_000
    if timescale <= 0:
        raise ArgumentError(f"inverse_sqrt: timescale={timescale} must be positive: it is a number of steps")
    if step < num_warmup_steps:
        return _rise(step, num_warmup_steps)
    return 1.0 / math.sqrt((step + (timescale - num_warmup_steps)) / timescale)


def _floor(name: str, lr_init: float, min_lr: float | None, min_lr_rate: float | None) -> float:
    """The lowest factor, from exactly one of a learning rate and a share of the initial one."""
    if min_lr is None and min_lr_rate is not None:
        return min_lr_rate
    if min_lr is not None and min_lr_rate is None:
        return min_lr / lr_init
    problem = "got neither" if min_lr is None else "got both"
    raise ArgumentError(
        f"{name} takes one of min_lr (a learning rate) and min_lr_rate (a share of the initial one), {problem}; "
        f"for example lr_scheduler_kwargs={{'min_lr_rate': 0.1}}"
    )


def cosine_with_min_lr(
    step: int,
    *,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_init: float,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> float:
    """`cosine`, falling to a lowest learning rate instead of 0 (eta_min of SGDR, arXiv:1608.03983, equation 5).

    Exactly one of `min_lr` (a learning rate) and `min_lr_rate` (a share of the initial one) is needed.

    Raises:
        ArgumentError: neither or both of them are given.
    """
    floor = _floor("cosine_with_min_lr", lr_init, min_lr, min_lr_rate)
    if step < num_warmup_steps:
        return _rise(step, num_warmup_steps)
    progress = _progress(step, num_warmup_steps, num_training_steps)
    factor = 0.5 * (1.0 + math.cos(math.pi * float(num_cycles) * 2.0 * progress))
    return max(0.0, factor * (1 - floor) + floor)


def cosine_warmup_with_min_lr(
    step: int,
    *,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_init: float,
    num_cycles: float = 0.5,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> float:
    """`cosine_with_min_lr` counted from 1, so that no update is made with a learning rate of 0.

    The warmup starts at the share `warmup_lr_rate` of the initial learning rate and reaches all of it at its last
    step; by default it starts at `1 / num_warmup_steps`. Formula: transformers, `cosine_warmup_with_min_lr`.

    Raises:
        ArgumentError: neither or both of `min_lr` and `min_lr_rate` are given.
    """
    floor = _floor("cosine_warmup_with_min_lr", lr_init, min_lr, min_lr_rate)
    now, warmup, total = float(step), float(num_warmup_steps), float(num_training_steps)
    if now < warmup:
        if warmup_lr_rate is None:
            return (now + 1.0) / max(1.0, warmup)
        first = float(warmup_lr_rate)
        return first + (1.0 - first) * now / max(1.0, warmup - 1)
    progress = (now - warmup + 1.0) / max(1.0, total - warmup)
    factor = 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * progress))
    return max(0.0, factor * (1 - floor) + floor)


def warmup_stable_decay(
    step: int,
    *,
    num_warmup_steps: int,
    num_decay_steps: int,
    num_training_steps: int | None = None,
    num_stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
) -> float:
    """Rises from `min_lr_ratio` to 1, stays, falls to `min_lr_ratio` and stays (MiniCPM's WSD, arXiv:2404.06395).

    The stable phase is what warmup and decay leave of `num_training_steps`, unless `num_stable_steps` gives it; that
    one wins where both are known. `warmup_type` and `decay_type` are "linear", "cosine" or "1-sqrt" (the cooldown of
    arXiv:2405.18392); `num_cycles` counts the waves of a cosine decay, half a wave falling once.

    Raises:
        ArgumentError: an unknown type, or neither `num_training_steps` nor `num_stable_steps`.
    """
    for argument, shape in (("warmup_type", warmup_type), ("decay_type", decay_type)):
        if shape not in SHAPES:
            raise ArgumentError(f"warmup_stable_decay: {argument}={shape!r} is none of {', '.join(SHAPES)}")
    if num_stable_steps is None:
        if num_training_steps is None:
            raise ArgumentError("warmup_stable_decay needs num_training_steps or num_stable_steps")
        num_stable_steps = num_training_steps - num_warmup_steps - num_decay_steps

    if step < num_warmup_steps:
        done = _rise(step, num_warmup_steps)
        if warmup_type == "linear":
            factor = done
        elif warmup_type == "cosine":
            factor = 0.5 * (1.0 - math.cos(math.pi * done))
        else:
            factor = 1.0 - math.sqrt(1.0 - done)
        return max(0.0, factor * (1.0 - min_lr_ratio) + min_lr_ratio)
    if step < num_warmup_steps + num_stable_steps:
        return 1.0
    if step < num_warmup_steps + num_stable_steps + num_decay_steps:
        done = float(step - num_warmup_steps - num_stable_steps) / float(max(1, num_decay_steps))
        if decay_type == "linear":
            factor = 1.0 - done
        elif decay_type == "cosine":
            factor = 0.5 * (1.0 + math.cos(math.pi * float(num_cycles) * 2.0 * done))
        else:
            factor = 1.0 - math.sqrt(done)
        return max(0.0, factor * (1.0 - min_lr_ratio) + min_lr_ratio)
    return min_lr_ratio


SCHEDULES: dict[str, Callable[..., Any]] = {
    "linear": linear,
    "cosine": cosine,
    "cosine_with_restarts": cosine_with_restarts,
    "polynomial": polynomial,
    "constant": constant,
    "constant_with_warmup": constant_with_warmup,
    "inverse_sqrt": inverse_sqrt,
    "reduce_lr_on_plateau": ReduceLROnPlateau,
    "cosine_with_min_lr": cosine_with_min_lr,
    "cosine_warmup_with_min_lr": cosine_warmup_with_min_lr,
    "warmup_stable_decay": warmup_stable_decay,
    "greedy": GreedyLR,
}
"""Every schedule by name: a factor of the step, or the class of a scheduler that steps on a metric."""

METRIC_SCHEDULES = frozenset(name for name, entry in SCHEDULES.items() if isinstance(entry, type))
"""The names whose scheduler waits for a metric, so that a run with them needs an evaluation."""

# What get_scheduler fills in itself; everything else in a signature is the user's to set.
_FILLED_IN = frozenset({"step", "optimizer", "num_warmup_steps", "num_training_steps", "lr_init"})


def accepted_kwargs(name: str) -> tuple[str, ...]:
    """Return the names that `lr_scheduler_kwargs` may hold for the schedule `name`, in the order of its signature.

    Raises:
        ArgumentError: no schedule has this name.
    """
    own = tuple(p for p in inspect.signature(_find(name)).parameters if p not in _FILLED_IN)
    return own if name in METRIC_SCHEDULES else (*own, "last_epoch")


def get_scheduler(
    name: str,
    optimizer: Optimizer,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> LRScheduler:
    """Build the learning rate scheduler called `name` on `optimizer`.

    Args:
        name: One of `SCHEDULES` (a string enum with such a value will do).
        optimizer: Its groups' learning rates become the initial ones; `optimizer.defaults["lr"]` is the one that
            `lr_end` and `min_lr` are measured against.
        num_warmup_steps: Length of the warmup in updates; the schedules without one ignore it.
        num_training_steps: Length of the run in updates; the schedules without an end ignore it.
        scheduler_specific_kwargs: The same as `kwargs`, in one mapping, as Transformers takes them.
        kwargs: The schedule's own settings, see `accepted_kwargs`, and `last_epoch` (default -1: a new run); where
            a name stands in both, this one counts.

    Returns:
        A `LambdaLR` to step after every update, or a `ReduceLROnPlateau` or `GreedyLR` to step with a metric after
        every evaluation: `needs_metric` tells which. The `state_dict()` of each is plain data. After a load, a
        `LambdaLR` computes from the arguments given here, so build it with the same ones.

    Raises:
        ArgumentError: an unknown name or setting, a missing number of steps, or settings that exclude each other.
    """
    name = str(getattr(name, "value", name))
    kwargs = {**(scheduler_specific_kwargs or {}), **kwargs}
    entry = _find(name)
    accepted = accepted_kwargs(name)
    for key in kwargs:
        if key not in accepted:
            raise ArgumentError(
                f"lr_scheduler_type={name!r} has no setting {key!r}{nearest(key, accepted)} "
                f"Its lr_scheduler_kwargs are {', '.join(accepted)}."
            )
    if name in METRIC_SCHEDULES:
        scheduler: LRScheduler = entry(optimizer, **kwargs)
        return scheduler

    last_epoch = kwargs.pop("last_epoch", -1)
    given = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    settings = {"lr_init": optimizer.defaults.get("lr"), **given, **kwargs}
    parameters = inspect.signature(entry).parameters
    settings = {key: value for key, value in settings.items() if key in parameters}
    for key, parameter in parameters.items():
        if key != "step" and parameter.default is parameter.empty and settings.get(key) is None:
            where = "" if key in _FILLED_IN else f", passed as lr_scheduler_kwargs={{{key!r}: ...}}"
            raise ArgumentError(f"lr_scheduler_type={name!r} needs {key}{where}")
    # A partial, not a closure: it pickles, and LambdaLR stores nothing of it in its state.
    return LambdaLR(optimizer, partial(entry, **settings), last_epoch)


def needs_metric(scheduler: object) -> bool:
    """Whether `scheduler.step` must be given a metric: it steps after evaluations instead of after updates.

    Asked of the signature, so that a scheduler from elsewhere (`torch`, `transformers`, the user) answers too.
    """
    step = getattr(scheduler, "step", None)
    return callable(step) and "metrics" in inspect.signature(step).parameters


def _find(name: str) -> Callable[..., Any]:
    if name not in SCHEDULES:
        raise ArgumentError(
            f"lr_scheduler_type={name!r} is unknown{nearest(name, SCHEDULES)} Known: {', '.join(SCHEDULES)}."
        )
    return SCHEDULES[name]
