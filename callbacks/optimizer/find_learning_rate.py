"""Learning-rate range test: a short run with an increasing learning rate, and the learning rate that its losses
suggest.

Smith, "Cyclical learning rates for training neural networks", arXiv:1506.01186, section 3.3.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...engine.checkpoint.format.sharded import is_lazy
from ...engine.checkpoint.write.model_files import copies_of
from ...engine.loss.loss_window import LossWindow
from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.composition import provides
from ...events.control import TrainerControl
from ...events.errors import ArgumentError, NonFiniteError
from ...events.stages import Stage, order


def steepest(rates: list[float], losses: list[float]) -> float:
    """Return the learning rate at which the loss falls fastest on a logarithmic scale of rates.

    The function considers only the steps up to the lowest loss.

    Args:
        rates: the learning rate of each step.
        losses: the loss of each step.

    Raises:
        NonFiniteError: if there are fewer than 4 losses, or if one of the first two losses is the lowest.
    """
    lowest = min(range(len(losses)), key=lambda index: losses[index], default=0)
    slopes = {
        index: (losses[index + 1] - losses[index - 1]) / math.log(rates[index + 1] / rates[index - 1])
        for index in range(1, min(lowest + 1, len(losses) - 1))
    }
    if len(slopes) < 2:
        raise NonFiniteError(
            f"The losses of {len(losses)} steps suggest no learning rate. Set a lower `start` or more `steps`."
        )
    return rates[min(slopes, key=lambda index: slopes[index])]


@dataclass
class FindLearningRate(Callback):
    """Turns a training into a learning-rate range test. The learning rate grows exponentially from `start` to `end`.

    Add the callback to the trainer, call `train()`, remove the callback, and read `suggestion`:

        finder = FindLearningRate()
        trainer.add_callback(finder)
        trainer.train()
        trainer.remove_callback(finder)
        print(finder.suggestion)

    During the test, the callback vetoes evaluations and checkpoints. At the end of the test, the callback restores the
    weights that the model and the loss module had before the test. If an error or Ctrl-C ends the test, the callback
    restores the weights too, except sharded weights.

    Raises:
        ArgumentError: if a field is outside of its range.
        NonFiniteError: when you read `suggestion`, if there are fewer than 4 losses, or if one of the first two losses
            is the lowest.
    """

    start: float = 1e-7
    """The learning rate of the first step."""
    end: float = 10.0
    """The learning rate of the last step."""
    steps: int = 100
    """The largest number of steps of the test. If the run has fewer steps, the test ends with the run. Set 4 or
    more."""
    smoothing: float = 0.95
    """The factor of the old running mean when a new loss is added, in [0, 1). Higher values make `losses` smoother."""
    diverged: float = 4.0
    """The test stops if the smoothed loss is more than this many times the lowest smoothed loss so far. Set a number
    above 1."""
    rates: list[float] = field(default_factory=list, init=False)
    """The learning rate of each step so far. If the loss of the last step is not finite, this step is left out."""
    losses: list[float] = field(default_factory=list, init=False)
    """The smoothed training loss of each step in `rates`."""
    _mean: float = field(default=0.0, init=False, repr=False, compare=False)
    _window: LossWindow | None = field(default=None, init=False, repr=False, compare=False)
    _holders: list[tuple[Callback, dict[str, Any]]] = field(default_factory=list, init=False, repr=False, compare=False)
    _weights: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (0 < self.start < self.end and self.steps >= 4 and 0 <= self.smoothing < 1 and self.diverged > 1):
            raise ArgumentError(
                f"{self!r} is not valid. Set 0 < start < end, steps >= 4, 0 <= smoothing < 1 and diverged > 1."
            )

    @property
    def suggestion(self) -> float:
        """The learning rate with the steepest fall of the loss.

        Raises:
            NonFiniteError: if there are fewer than 4 losses, or if one of the first two losses is the lowest.
        """
        return steepest(self.rates, self.losses)

    def on_train_begin(self, run: Run) -> None:
        self.rates, self.losses, self._mean = [], [], 0.0
        self._window = run.losses.open(run.state.global_step)
        self._weights = copies_of(_with_shapes(run.model.state_dict()), lambda name, value: value.detach().clone())
        # Such as a criterion with parameters of its own.
        self._holders = [(each, copy.deepcopy(each.state_dict())) for each in _holders_of(run)]

    @order(Stage.PREPARE)
    def on_step_begin(self, run: Run) -> None:
        rate = self.start * (self.end / self.start) ** (len(self.rates) / (self.steps - 1))
        for group in run.optimizer.param_groups:
            group["lr"] = rate
        self.rates.append(rate)

    @order(Stage.MEASURE)
    def on_step_end(self, run: Run, control: TrainerControl) -> None:
        for work in ("evaluate", "save"):
            control.veto(work, "the run is a learning-rate range test")
        assert self._window is not None
        loss = self._window.read(run.state.global_step)
        if not math.isfinite(loss):
            self.rates.pop()
            control.request("training_stop", "the loss is not finite")
            return
        self._mean = self.smoothing * self._mean + (1 - self.smoothing) * loss
        self.losses.append(self._mean / (1 - self.smoothing ** len(self.rates)))
        if self.losses[-1] > self.diverged * min(self.losses):
            control.request("training_stop", f"the loss diverges at a learning rate of {self.rates[-1]:.3g}")
        elif len(self.rates) == self.steps:
            control.request("training_stop", f"all {self.steps} learning rates are tested")

    def on_epoch_end(self, control: TrainerControl) -> None:
        for work in ("evaluate", "save"):
            control.veto(work, "the run is a learning-rate range test")

    @order(Stage.RELEASE)
    def on_train_end(self, run: Run) -> None:
        self._restore(run)

    def on_exception(self, run: Run) -> None:
        # Loading sharded weights may need all ranks, and the others may have ended.
        if self._weights and not provides(run.bus.subscribers.values(), Capability.SHARDS_MODEL):
            self._restore(run)

    def on_close(self) -> None:
        self._weights, self._holders = {}, []

    def _restore(self, run: Run) -> None:
        run.model.load_state_dict(self._weights, strict=False)  # lazy weights had no values
        for holder, state in self._holders:
            holder.load_state_dict(state)
        self._weights, self._holders = {}, []


def _with_shapes(weights: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in weights.items() if not is_lazy(value)}


def _holders_of(run: Run) -> list[Callback]:
    """Return the callbacks with trained weights of their own, such as the callback that trains a loss module."""
    attached = run.bus.subscribers.values()
    return [each for each in attached if isinstance(each, Callback) and each.has(Capability.HOLDS_WEIGHTS)]
