"""Find a learning rate: a short run whose rate climbs from tiny to huge, and what its losses say.

Smith, "Cyclical learning rates for training neural networks", arXiv:1506.01186, section 3.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from ...engine.loss.loss_window import LossWindow
from ...engine.run import Run
from ...events.callback import Callback
from ...events.control import TrainerControl
from ...events.errors import ArgumentError, NonFiniteError
from ...events.stages import Stage, order


def steepest(rates: list[float], losses: list[float]) -> float:
    """Return the rate at which the loss falls most steeply over the logarithm of the rate, before its minimum.

    Raises:
        NonFiniteError: if there are fewer than 2 slopes to choose from.
    """
    lowest = min(range(len(losses)), key=lambda index: losses[index], default=0)
    slopes = {
        index: (losses[index + 1] - losses[index - 1]) / math.log(rates[index + 1] / rates[index - 1])
        for index in range(1, min(lowest + 1, len(losses) - 1))
    }
    if len(slopes) < 2:
        raise NonFiniteError(
            f"The losses of {len(losses)} steps tell no learning rate: begin lower (`start`), or take more `steps`."
        )
    return rates[min(slopes, key=lambda index: slopes[index])]


@dataclass
class FindLearningRate(Callback):
    """Makes a training a search for its learning rate: the rate climbs, and at the end the weights are as they were.

    Add it to the trainer as it is, call `train()`, and read `suggestion`; then take it out. Nothing is evaluated or
    saved on the way.
    """

    start: float = 1e-7
    """The rate of the first step."""
    end: float = 10.0
    """The rate of the last step."""
    steps: int = 100
    """Optimizer steps to take, at most; the run may be shorter, and is no longer."""
    smoothing: float = 0.95
    """How much of the running mean of the losses is kept at each step, in [0, 1)."""
    diverged: float = 4.0
    """Stop when the smoothed loss is this many times the least so far."""
    rates: list[float] = field(default_factory=list, init=False)
    """The rate of each step."""
    losses: list[float] = field(default_factory=list, init=False)
    """The smoothed training loss of each step."""
    _mean: float = field(default=0.0, init=False, repr=False, compare=False)
    _window: LossWindow | None = field(default=None, init=False, repr=False, compare=False)
    _weights: dict[str, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (0 < self.start < self.end and self.steps >= 4 and 0 <= self.smoothing < 1 and self.diverged > 1):
            raise ArgumentError(
                f"{self!r}: it takes 0 < start < end, at least 4 steps, 0 <= smoothing < 1 and diverged > 1."
            )

    @property
    def suggestion(self) -> float:
        """The rate at which the loss falls most steeply.

        Raises:
            NonFiniteError: if the losses do not tell.
        """
        return steepest(self.rates, self.losses)

    def on_train_begin(self, run: Run) -> None:
        self.rates, self.losses, self._mean = [], [], 0.0
        self._window = run.losses.open(run.state.global_step)
        self._weights = {name: value.detach().clone() for name, value in run.model.state_dict().items()}

    @order(Stage.PREPARE)
    def on_step_begin(self, run: Run) -> None:
        rate = self.start * (self.end / self.start) ** (len(self.rates) / (self.steps - 1))
        for group in run.optimizer.param_groups:
            group["lr"] = rate
        self.rates.append(rate)

    @order(Stage.MEASURE)
    def on_step_end(self, run: Run, control: TrainerControl) -> None:
        for work in ("evaluate", "save"):
            control.veto(work, "the run searches for a learning rate")
        assert self._window is not None
        loss = self._window.read(run.state.global_step)
        if not math.isfinite(loss):
            self.rates.pop()
            control.request("training_stop", "the loss is not finite any more")
            return
        self._mean = self.smoothing * self._mean + (1 - self.smoothing) * loss
        self.losses.append(self._mean / (1 - self.smoothing ** len(self.rates)))
        if self.losses[-1] > self.diverged * min(self.losses):
            control.request("training_stop", f"the loss diverges at a learning rate of {self.rates[-1]:.3g}")
        elif len(self.rates) == self.steps:
            control.request("training_stop", f"all {self.steps} rates are tried")

    def on_epoch_end(self, control: TrainerControl) -> None:
        for work in ("evaluate", "save"):
            control.veto(work, "the run searches for a learning rate")

    @order(Stage.RELEASE)
    def on_train_end(self, run: Run) -> None:
        run.model.load_state_dict(self._weights)
        self._weights = {}
