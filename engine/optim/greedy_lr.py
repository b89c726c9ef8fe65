"""GreedyLR: raises the learning rate while a metric improves, and lowers it otherwise (arXiv:2512.14527)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, SupportsFloat

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...events.errors import ArgumentError
from ..api.console import say

logger = logging.getLogger(__name__)


class WindowMean:
    """Mean of the last `window_size` values, from a running sum.

    The running sum rounds as in transformers, so `GreedyLR` gives the learning rates of transformers, bit for bit.
    """

    def __init__(self, window_size: int) -> None:
        self.window_size = window_size
        self.values: list[float] = []
        self.sum = 0.0

    def add(self, value: float) -> float:
        """Add a value, and return the mean of the last `window_size` values."""
        self.values.append(value)
        self.sum += value
        if len(self.values) > self.window_size:
            self.sum -= self.values.pop(0)
        return self.sum / len(self.values)


class GreedyLR(LRScheduler):
    """Raises the learning rates after a streak of improvements, and lowers them after a streak without improvement.

    A streak is a number of metrics in a row. A streak of more than `patience` metrics changes the learning rates. The
    number `factor` is below 1. A reduction multiplies the learning rates by `factor`. The schedule then ignores
    `cooldown` metrics. A raise divides the learning rates by `factor`. The schedule then ignores `warmup` metrics.

    After each reduction, the schedule checks the learning rates. If none of them is above `min_lr`, the schedule adds 1
    to a count, even if the reduction changed no learning rate. A raise sets the count to 0. When the count reaches
    `reset_start`, the schedule starts again with the initial learning rates.

    Source: arXiv:2512.14527. `GreedyLR` decides and computes as the `GreedyLR` of transformers 5.23 does. Each of the
    two classes can load the state of the other class.

    Args:
        optimizer: The optimizer whose groups change.
        mode: "min" if a smaller metric is better, "max" if a larger one is.
        factor: Divisor of a raise and multiplier of a reduction, above 0 and below 1.
        patience: Longest streak that does not change the learning rates.
        threshold: An improvement counts only if it is larger than this number.
        threshold_mode: "abs": the threshold is an absolute number. "rel": it is a fraction of the best metric.
        cooldown: Number of metrics to ignore after a reduction.
        warmup: Number of metrics to ignore after a raise.
        min_lr: Lowest learning rate, one value or one per group. The default, 1e-3, suits learning rates near 0.1. If
            your learning rate is below `min_lr`, as in fine-tuning, set a lower `min_lr`. Otherwise the schedule can
            only raise the learning rate.
        max_lr: Highest learning rate, one value or one per group.
        eps: Smallest change of a learning rate. Smaller changes are skipped.
        verbose: Print a line for each change.
        smooth: Use the mean of the last `window_size` metrics instead of the metric.
        window_size: Number of metrics in the mean of `smooth`.
        reset_start: The count at which the schedule starts again.

    Raises:
        ArgumentError: A number is outside of its range, a mode is unknown, or the number of values in `min_lr` or
            `max_lr` differs from the number of groups.
        TypeError: `optimizer` is not an optimizer.
    """

    best: float
    num_good_epochs: int
    num_bad_epochs: int
    cooldown_counter: int
    warmup_counter: int
    reset_start: int
    _window: WindowMean | None

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.95,
        patience: int = 10,
        threshold: float = 1e-6,
        threshold_mode: str = "abs",
        cooldown: int = 0,
        warmup: int = 0,
        min_lr: float | Sequence[float] = 1e-3,
        max_lr: float | Sequence[float] = 1.0,
        eps: float = 1e-8,
        verbose: bool = False,
        smooth: bool = False,
        window_size: int = 50,
        reset_start: int = 500,
    ) -> None:
        # LRScheduler.__init__ would take a first step. torch's ReduceLROnPlateau does not call it either.
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"greedy: {type(optimizer).__name__} is not an Optimizer. Give a torch.optim.Optimizer.")
        if not 0.0 < factor < 1.0:
            raise ArgumentError(
                f"greedy: factor={factor} is not above 0 and below 1. Set it between 0 and 1, for example 0.95."
            )
        numbers = {"patience": patience, "threshold": threshold, "cooldown": cooldown, "warmup": warmup, "eps": eps}
        for name, number in numbers.items():
            if not number >= 0:
                raise ArgumentError(f"greedy: {name}={number} is below 0. Set it to 0 or more.")
        if not window_size >= 1:
            raise ArgumentError(f"greedy: window_size={window_size} is below 1. Set it to 1 or more.")
        if mode not in ("min", "max"):
            raise ArgumentError(f"greedy: mode={mode!r} is unknown. Set it to 'min' or 'max'.")
        if threshold_mode not in ("rel", "abs"):
            raise ArgumentError(f"greedy: threshold_mode={threshold_mode!r} is unknown. Set it to 'rel' or 'abs'.")
        self.optimizer = optimizer
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.warmup = warmup
        self.min_lrs = self._per_group("min_lr", min_lr)
        self.max_lrs = self._per_group("max_lr", max_lr)
        self.eps = eps
        self.verbose = verbose
        self.smooth = smooth
        self.window_size = window_size
        self.reset_start_original = reset_start
        self.last_epoch = 0
        self._init_lrs = self._rates()
        self._last_lr = self._rates()
        self._reset()
        if all(rate < low for rate, low in zip(self._init_lrs, self.min_lrs)):
            logger.warning(
                "greedy: all learning rates (%s) are below min_lr (%s) and cannot be reduced. Set a lower min_lr.",
                self._init_lrs,
                self.min_lrs,
            )

    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:  # type: ignore[override]
        """Add a metric. After more than `patience` improvements in a row, raise the learning rates.

        After more than `patience` metrics in a row without improvement, lower the learning rates.

        Args:
            metrics: The metric, as a number or a one-element tensor.
            epoch: New value of `last_epoch`. None: `last_epoch` plus 1.
        """
        current = float(metrics)
        if self._window is not None:
            current = self._window.add(current)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch

        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_good_epochs = self.num_bad_epochs = 0
        elif self.warmup_counter > 0:
            self.warmup_counter -= 1
            self.num_good_epochs = self.num_bad_epochs = 0
        else:
            self._update(current)
        self._last_lr = self._rates()

    def is_better(self, current: float, best: float) -> bool:
        """Return whether `current` is better than `best` by more than the threshold.

        With `threshold_mode="rel"`, the threshold is a fraction of `best`.
        """
        if self.mode == "min":
            return current < (best * (1.0 - self.threshold) if self.threshold_mode == "rel" else best - self.threshold)
        return current > (best * (1.0 + self.threshold) if self.threshold_mode == "rel" else best + self.threshold)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data, without the optimizer."""
        state = {key: value for key, value in vars(self).items() if key not in ("optimizer", "_window")}
        if self._window is not None:
            state["_streaming_avg"] = vars(self._window)
        return {key: _copied(value) for key, value in state.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state, and set the learning rates of the optimizer to the saved learning rates."""
        state = {key: _copied(value) for key, value in state_dict.items()}
        window = state.pop("_streaming_avg", None)
        vars(self).update(state)
        if window is not None:
            self._window = WindowMean(self.window_size)
            vars(self._window).update(window)
        if "_last_lr" in state:
            for group, rate in zip(self.optimizer.param_groups, self._last_lr):
                group["lr"] = rate

    def _update(self, current: float) -> None:
        if self.is_better(current, self.best):
            self.best = current
            self.num_good_epochs += 1
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
            self.num_good_epochs = 0

        if self.num_good_epochs > self.patience:
            self._raise_rates()
            self.warmup_counter = self.warmup
            self.num_good_epochs = 0
        elif self.num_bad_epochs > self.patience:
            self._lower_rates()
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0

    def _raise_rates(self) -> None:
        for index, group in enumerate(self.optimizer.param_groups):
            old = float(group["lr"])
            new = min(old / self.factor, self.max_lrs[index])
            if new - old > self.eps:
                self._set_rate(index, new)
        self.reset_start = self.reset_start_original

    def _lower_rates(self) -> None:
        for index, group in enumerate(self.optimizer.param_groups):
            old = float(group["lr"])
            new = max(old * self.factor, self.min_lrs[index])
            if old - new > self.eps:
                self._set_rate(index, new)
        if all(group["lr"] <= low for group, low in zip(self.optimizer.param_groups, self.min_lrs)):
            self.reset_start -= 1
            if self.reset_start <= 0:
                self._reset()
                for index, rate in enumerate(self._init_lrs):
                    self._set_rate(index, rate)

    def _set_rate(self, index: int, rate: float) -> None:
        group = self.optimizer.param_groups[index]
        if self.verbose:
            say(f"greedy, metric {self.last_epoch}: learning rate of group {index} {group['lr']:.4e} -> {rate:.4e}")
        group["lr"] = rate

    def _reset(self) -> None:
        """Reset the streaks, the counters and the best metric."""
        self.best = float("inf") if self.mode == "min" else float("-inf")
        self.num_good_epochs = self.num_bad_epochs = 0
        self.cooldown_counter = self.warmup_counter = 0
        self.reset_start = self.reset_start_original
        self._window = WindowMean(self.window_size) if self.smooth else None

    def _rates(self) -> list[Any]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def _per_group(self, argument: str, value: float | Sequence[float]) -> list[float]:
        groups = len(self.optimizer.param_groups)
        values = list(value) if isinstance(value, Sequence) else [value] * groups
        if not all(each >= 0 for each in values):
            raise ArgumentError(f"greedy: {argument}={value} is below 0. Set it to 0 or more.")
        if len(values) != groups:
            raise ArgumentError(
                f"greedy: {argument} has {len(values)} values for {groups} parameter groups. Give one value per group, "
                "or a single number."
            )
        return values


def _copied(value: Any) -> Any:
    """Copy the lists and dicts in a value of a state, so that the run does not change a saved state."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return list(value) if isinstance(value, list) else value
