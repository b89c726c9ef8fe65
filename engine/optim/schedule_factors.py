"""Learning rate factors: pure functions of the step that multiply the initial learning rate.

A factor has no unit and depends only on its arguments, so a run can be previewed without a model. Steps are optimizer
steps, counted from 0: the first step uses `factor(0)`. `num_warmup_steps` and `num_training_steps` are lengths in
optimizer steps. The functions perform the float operations of transformers 5.23 in the same order, so results are equal
bit for bit.

In the formulas, t is the step, W is `num_warmup_steps`, T is `num_training_steps`, and
p = (t - W) / (T - W) is the progress after the warmup. During the warmup (t < W) the factor is t / W unless stated
otherwise.
"""

from __future__ import annotations

import math

from ...events.errors import ArgumentError

RAMPS = ("linear", "cosine", "1-sqrt")
"""Shapes of the warmup and the decay of `warmup_stable_decay`."""


def _warmup(step: int, num_warmup_steps: int) -> float:
    """Return the completed fraction of the warmup: 0 at step 0, 1 at `num_warmup_steps`."""
    return float(step) / float(max(1, num_warmup_steps))


def _progress(step: int, num_warmup_steps: int, num_training_steps: int) -> float:
    """Return the progress after the warmup: 0 at the end of the warmup, 1 at `num_training_steps`, then above 1."""
    return float(step - num_warmup_steps) / float(max(1, num_training_steps - num_warmup_steps))


def constant(step: int) -> float:
    """Return 1 at every step."""
    return 1.0


def constant_with_warmup(step: int, *, num_warmup_steps: int) -> float:
    """Return the factor of a linear warmup, then 1."""
    return _warmup(step, num_warmup_steps) if step < num_warmup_steps else 1.0


def linear(step: int, *, num_warmup_steps: int, num_training_steps: int) -> float:
    """Return the factor of a linear warmup, then a linear decay to 0: max(0, (T - t) / (T - W)).

    t is the step, W is `num_warmup_steps`, and T is `num_training_steps`. Source: BERT, arXiv:1810.04805, appendix A.2.
    """
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps)
    return max(0.0, float(num_training_steps - step) / float(max(1, num_training_steps - num_warmup_steps)))


def cosine(step: int, *, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5) -> float:
    """Return the factor of a linear warmup, then a cosine decay: (1 + cos(2 pi p num_cycles)) / 2.

    p is the progress after the warmup: 0 at the end of the warmup, 1 at `num_training_steps`. After the last step the
    cosine continues. Source: SGDR without restarts, arXiv:1608.03983, equation 5.

    Args:
        num_cycles: Number of cosine waves. The default, half a wave, ends at 0.
    """
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps)
    progress = _progress(step, num_warmup_steps, num_training_steps)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * float(num_cycles) * 2.0 * progress)))


def cosine_with_restarts(step: int, *, num_warmup_steps: int, num_training_steps: int, num_cycles: int = 1) -> float:
    """Return the factor of a linear warmup, then `num_cycles` cosine decays from 1 to 0.

    A decay is (1 + cos(pi ((p num_cycles) mod 1))) / 2. p is the progress after the warmup: 0 at the end of the warmup,
    1 at `num_training_steps`. After the last step the factor is 0. Source: SGDR, arXiv:1608.03983, equation 5.
    """
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps)
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
    """Return the factor of a warmup, then a polynomial decay: ((lr_init - lr_end) (1 - p) ** power + lr_end) / lr_init.

    p is the progress after the warmup: 0 at the end of the warmup, 1 at `num_training_steps`. After the last step the
    learning rate is `lr_end`. Source: the optimizers of BERT (github.com/google-research/bert) and fairseq.

    Args:
        lr_init: Initial learning rate. `get_scheduler` reads this value from the optimizer.
        lr_end: Final learning rate.
        power: 1 gives a straight line.

    Raises:
        ArgumentError: `lr_end` is not below `lr_init`.
    """
    if not lr_init > lr_end:
        raise ArgumentError(
            f"lr_scheduler_type='polynomial': lr_end={lr_end} is not below the learning rate {lr_init}. Set a lower "
            "lr_end in lr_scheduler_kwargs, or a higher learning_rate."
        )
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps)
    decay_steps = num_training_steps - num_warmup_steps
    # If the warmup takes the whole run, there is no decay to compute: the run ends at lr_end.
    if step > num_training_steps or decay_steps == 0:
        return lr_end / lr_init
    remaining = 1 - (step - num_warmup_steps) / decay_steps
    # Compute the learning rate and divide last, because the scheduler multiplies by lr_init again.
    rate = (lr_init - lr_end) * float(remaining**power) + lr_end
    return rate / lr_init


def inverse_sqrt(step: int, *, num_warmup_steps: int, timescale: int | None = None) -> float:
    """Return the factor of a warmup, then an inverse square root decay: 1 / sqrt((t - W + timescale) / timescale).

    t is the step, and W is `num_warmup_steps`. Source: `rsqrt` of big_vision (Scaling Vision Transformers,
    arXiv:2106.04560, section 3.5).

    Args:
        timescale: The constant of the formula, in steps. Default: `num_warmup_steps`, or 10 000 without a warmup.

    Raises:
        ArgumentError: `timescale` is not positive.
    """
    if timescale is None:
        timescale = num_warmup_steps or 10_000
    if timescale <= 0:
        raise ArgumentError(
            f"lr_scheduler_type='inverse_sqrt': timescale={timescale} is not positive. Set it to 1 step or more."
        )
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps)
    return 1.0 / math.sqrt((step + (timescale - num_warmup_steps)) / timescale)


def _lowest_factor(name: str, lr_init: float, min_lr: float | None, min_lr_rate: float | None) -> float:
    """Return the lowest factor of the schedule `name`: `min_lr_rate`, or else `min_lr / lr_init`.

    Raises:
        ArgumentError: if neither or both of `min_lr` and `min_lr_rate` are set.
    """
    if min_lr is None and min_lr_rate is not None:
        return min_lr_rate
    if min_lr is not None and min_lr_rate is None:
        return min_lr / lr_init
    problem = "got neither" if min_lr is None else "got both"
    raise ArgumentError(
        f"lr_scheduler_type={name!r} needs exactly one of min_lr (a learning rate) and min_lr_rate (a fraction of the "
        f"initial learning rate), and {problem}. Set one, for example lr_scheduler_kwargs={{'min_lr_rate': 0.1}}."
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
    """Return the factor of a linear warmup, then a cosine decay to m: c (1 - m) + m.

    m is `min_lr_rate`, or else min_lr / lr_init. c is the factor of the function `cosine`. Source: eta_min of SGDR,
    arXiv:1608.03983, equation 5.

    Args:
        lr_init: Initial learning rate. `get_scheduler` reads this value from the optimizer.
        num_cycles: Number of cosine waves.
        min_lr: Lowest learning rate.
        min_lr_rate: Lowest learning rate as a fraction of the initial one. Set either `min_lr` or `min_lr_rate`.

    Raises:
        ArgumentError: if neither or both of `min_lr` and `min_lr_rate` are set.
    """
    lowest = _lowest_factor("cosine_with_min_lr", lr_init, min_lr, min_lr_rate)
    if step < num_warmup_steps:
        return _warmup(step, num_warmup_steps)
    progress = _progress(step, num_warmup_steps, num_training_steps)
    factor = 0.5 * (1.0 + math.cos(math.pi * float(num_cycles) * 2.0 * progress))
    return max(0.0, factor * (1 - lowest) + lowest)


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
    """Return the factor of a linear warmup, and then of a cosine decay to a lowest rate.

    In the formulas, t is the step, W is `num_warmup_steps`, and T is `num_training_steps`. m is `min_lr_rate`, or else
    min_lr / lr_init.

    - Decay: c (1 - m) + m, with p = (t - W + 1) / (T - W) and c = (1 + cos(2 pi p num_cycles)) / 2.
    - Warmup: r + (1 - r) t / (W - 1), with r = `warmup_lr_rate`. Without `warmup_lr_rate`: (t + 1) / W.

    Source: `cosine_warmup_with_min_lr` of transformers.

    Args:
        lr_init: Initial learning rate. `get_scheduler` reads this value from the optimizer.
        num_cycles: Number of cosine waves.
        min_lr: Lowest learning rate.
        min_lr_rate: Lowest learning rate as a fraction of the initial one. Set either `min_lr` or `min_lr_rate`.
        warmup_lr_rate: Factor at the first step of the warmup. Default: 1 / num_warmup_steps.

    Raises:
        ArgumentError: if neither or both of `min_lr` and `min_lr_rate` are set.
    """
    lowest = _lowest_factor("cosine_warmup_with_min_lr", lr_init, min_lr, min_lr_rate)
    now, warmup, total = float(step), float(num_warmup_steps), float(num_training_steps)
    if now < warmup:
        if warmup_lr_rate is None:
            return (now + 1.0) / max(1.0, warmup)
        first = float(warmup_lr_rate)
        return first + (1.0 - first) * now / max(1.0, warmup - 1)
    progress = (now - warmup + 1.0) / max(1.0, total - warmup)
    factor = 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * progress))
    return max(0.0, factor * (1 - lowest) + lowest)


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
    """Return the factor: warmup from `min_lr_ratio` to 1, stable at 1, decay to `min_lr_ratio`, then constant.

    d is the completed fraction of the warmup or the decay. A warmup is d ("linear"), (1 - cos(pi d)) / 2 ("cosine") or
    1 - sqrt(1 - d) ("1-sqrt"). A decay is 1 - d ("linear"), (1 + cos(2 pi d num_cycles)) / 2 ("cosine") or 1 - sqrt(d)
    ("1-sqrt"). Warmup and decay are scaled to the range from `min_lr_ratio` to 1.

    Sources: WSD of MiniCPM, arXiv:2404.06395. The "1-sqrt" cooldown is from arXiv:2405.18392.

    Args:
        num_decay_steps: Length of the decay.
        num_stable_steps: Length of the stable phase. Default: `num_training_steps` minus the steps of warmup and decay.
        warmup_type: `linear`, `cosine` or `1-sqrt`.
        decay_type: `linear`, `cosine` or `1-sqrt`.
        min_lr_ratio: Factor at the start of the warmup and after the decay.
        num_cycles: Number of waves of a cosine decay. The default, half a wave, decays once.

    Raises:
        ArgumentError: if `warmup_type` or `decay_type` is unknown, or if both `num_training_steps` and
            `num_stable_steps` are None.
    """
    for argument, ramp in (("warmup_type", warmup_type), ("decay_type", decay_type)):
        if ramp not in RAMPS:
            raise ArgumentError(
                f"lr_scheduler_type='warmup_stable_decay': {argument}={ramp!r} is unknown. Known: {', '.join(RAMPS)}."
            )
    if num_stable_steps is None:
        if num_training_steps is None:
            raise ArgumentError(
                "lr_scheduler_type='warmup_stable_decay' needs num_training_steps or num_stable_steps. Set one of them."
            )
        num_stable_steps = num_training_steps - num_warmup_steps - num_decay_steps

    if step < num_warmup_steps:
        done = _warmup(step, num_warmup_steps)
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
