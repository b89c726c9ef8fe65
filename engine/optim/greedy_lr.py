"""GreedyLR: a learning rate that rises while a metric improves and falls while it does not (arXiv:2512.14527)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, SupportsFloat

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...events.errors import ArgumentError

logger = logging.getLogger(__name__)


class WindowMean:
    """The mean of the last `window_size` values, kept as a running sum (its rounding is part of the schedule)."""

    def __init__(self, window_size: int) -> None:
        self.window_size = window_size
        self.values: list[float] = []
        self.sum = 0.0

    def add(self, value: float) -> float:
        """Take in one value and return the mean."""
        self.values.append(value)
        self.sum += value
        if len(self.values) > self.window_size:
            self.sum -= self.values.pop(0)
        return self.sum / len(self.values)


class GreedyLR(LRScheduler):
    """Divide the learning rates by `factor` on a streak of improvements, multiply them by it on a streak without.

    A streak is more than `patience` metrics in a row. After a rise the schedule ignores `warmup` metrics, after a
    fall `cooldown`. Once every group has sat at its lowest rate for `reset_start` falls, all start afresh.
    Decisions and arithmetic are those of the paper's implementation in transformers 5.23; a state saved by one
    loads in the other.

    Args:
        optimizer: Whose groups are moved.
        mode: "min" if a smaller metric is better, "max" if a larger one is.
        factor: Between 0 and 1.
        patience: Metrics without (or with) improvement that are tolerated before a move.
        threshold: How much better a metric must be to count, absolute or as a share of the best one.
        threshold_mode: "abs" or "rel".
        cooldown: Metrics ignored after a fall.
        warmup: Metrics ignored after a rise.
        min_lr: Lowest learning rate, one for all groups or one each. The default suits learning rates near 0.1:
            with one below it, as in fine-tuning, the schedule can only rise, so set it.
        max_lr: Highest learning rate, likewise.
        eps: Moves of at most this much are not made.
        verbose: Print a line for each move.
        smooth: Judge the mean of the last `window_size` metrics instead of the metric.
        window_size: Length of that window in metrics.
        reset_start: Falls at the lowest rate before the start afresh.

    Raises:
        ArgumentError: `factor` is not below 1, an unknown mode, or as many `min_lr` or `max_lr` as there are no groups.
        TypeError: `optimizer` is not one.
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
        # Like torch's ReduceLROnPlateau, this does not call LRScheduler.__init__: that one takes a first step.
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        if factor >= 1.0:
            raise ArgumentError(f"greedy: factor={factor} must be below 1: it divides on a rise, multiplies on a fall")
        if mode not in ("min", "max"):
            raise ArgumentError(f"greedy: mode={mode!r} is neither 'min' nor 'max'")
        if threshold_mode not in ("rel", "abs"):
            raise ArgumentError(f"greedy: threshold_mode={threshold_mode!r} is neither 'rel' nor 'abs'")
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
        self._start()
        if all(rate < low for rate, low in zip(self._init_lrs, self.min_lrs)):
            logger.warning(
                "greedy: every learning rate (%s) is below min_lr (%s), so none can ever be reduced; set min_lr",
                self._init_lrs,
                self.min_lrs,
            )

    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:  # type: ignore[override]
        """Take in one metric, and move the learning rates if its streak is long enough.

        Args:
            metrics: The number to judge; a one-element tensor will do.
            epoch: What to set `last_epoch` to; by default it counts the calls.
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
            self._judge(current)
        self._last_lr = self._rates()

    def is_better(self, current: float, best: float) -> bool:
        """Whether `current` beats `best` by the threshold."""
        if self.mode == "min":
            return current < (best * (1.0 - self.threshold) if self.threshold_mode == "rel" else best - self.threshold)
        return current > (best * (1.0 + self.threshold) if self.threshold_mode == "rel" else best + self.threshold)

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the optimizer and its rates' tensors, as plain data."""
        state = {key: value for key, value in vars(self).items() if key not in ("optimizer", "_window")}
        if self._window is not None:
            state["_streaming_avg"] = vars(self._window)
        return {key: _copied(value) for key, value in state.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state, and set the optimizer's learning rates to the ones saved with it."""
        state = {key: _copied(value) for key, value in state_dict.items()}
        window = state.pop("_streaming_avg", None)
        vars(self).update(state)
        if window is not None:
            self._window = WindowMean(self.window_size)
            vars(self._window).update(window)
        if "_last_lr" in state:
            for group, rate in zip(self.optimizer.param_groups, self._last_lr):
                group["lr"] = rate

    def _judge(self, current: float) -> None:
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
                self._move(index, new)
        self.reset_start = self.reset_start_original

    def _lower_rates(self) -> None:
        for index, group in enumerate(self.optimizer.param_groups):
            old = float(group["lr"])
            new = max(old * self.factor, self.min_lrs[index])
            if old - new > self.eps:
                self._move(index, new)
        if all(group["lr"] <= low for group, low in zip(self.optimizer.param_groups, self.min_lrs)):
            self.reset_start -= 1
            if self.reset_start <= 0:
                self._start()
                for index, rate in enumerate(self._init_lrs):
                    self._move(index, rate)

    def _move(self, index: int, rate: float) -> None:
        group = self.optimizer.param_groups[index]
        if self.verbose:
            print(f"greedy, metric {self.last_epoch}: learning rate of group {index} {group['lr']:.4e} -> {rate:.4e}")
        group["lr"] = rate

    def _start(self) -> None:
        """Forget every metric seen."""
        self.best = float("inf") if self.mode == "min" else float("-inf")
        self.num_good_epochs = self.num_bad_epochs = 0
        self.cooldown_counter = self.warmup_counter = 0
        self.reset_start = self.reset_start_original
        self._window = WindowMean(self.window_size) if self.smooth else None

    def _rates(self) -> list[Any]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def _per_group(self, argument: str, value: float | Sequence[float]) -> list[float]:
        groups = len(self.optimizer.param_groups)
        if not isinstance(value, Sequence):
            return [value] * groups
        if len(value) != groups:
            raise ArgumentError(f"greedy: {argument} has {len(value)} values for {groups} parameter groups")
        return list(value)


def _copied(value: Any) -> Any:
    """A copy of the lists and dicts in a state, so that a saved one does not change with the run."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return list(value) if isinstance(value, list) else value
