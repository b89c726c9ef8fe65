"""Skip a step whose loss is a spike, and roll the weights and the optimizer back to the last good weights and state."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import torch

from trainbus import Callback, Run, Stage, TrainerControl, order


def is_spike(loss: float, usual: float, factor: float) -> bool:
    """Return whether a loss is not finite, or above `factor` times `usual`. `usual` is NaN if none is known."""
    return not math.isfinite(loss) or loss > factor * usual


@dataclass
class SpikeRollback(Callback):
    """Skips the update of a step with a loss spike, and restores the weights and the optimizer of the last snapshot."""

    factor: float = 3.0
    """The ratio to the usual loss above which a loss is a spike."""
    every: int = 10
    """The steps between two snapshots."""
    rollbacks: int = field(default=0, init=False, compare=False)
    """The number of rollbacks in this run."""
    _usual: float = field(default=math.nan, init=False, repr=False, compare=False)
    _loss: float = field(default=0.0, init=False, repr=False, compare=False)
    _good: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self.rollbacks, self._usual, self._loss, self._good = 0, math.nan, 0.0, {}

    def on_step_begin(self) -> None:
        self._loss = 0.0

    def on_loss(self, loss: torch.Tensor) -> None:
        self._loss += float(loss.detach())

    def on_pre_optimizer_step(self, run: Run, control: TrainerControl) -> None:
        # The mean over the ranks, so that all ranks decide the same.
        loss = float(run.ranks.gather(torch.tensor(self._loss)).mean())
        if is_spike(loss, self._usual, self.factor):
            control.request("skip_update", f"the loss is {loss:.4g}, usually {self._usual:.4g}")
            self._roll_back(run)
        else:
            self._usual = loss if math.isnan(self._usual) else 0.9 * self._usual + 0.1 * loss

    @order(Stage.MEASURE)
    def on_step_end(self, run: Run) -> None:
        if not self._good or run.state.global_step % self.every == 0:
            weights = {name: tensor.detach().clone() for name, tensor in run.model.state_dict().items()}
            self._good = {"weights": weights, "optimizer": copy.deepcopy(run.optimizer.state_dict())}

    def _roll_back(self, run: Run) -> None:
        if self._good:
            self.rollbacks += 1
            run.model.load_state_dict(self._good["weights"])
            rates = [group["lr"] for group in run.optimizer.param_groups]
            run.optimizer.load_state_dict(copy.deepcopy(self._good["optimizer"]))
            for group, rate in zip(run.optimizer.param_groups, rates):
                group["lr"] = rate  # the schedule continues

    def state_dict(self) -> dict[str, Any]:
        return {"usual": self._usual, "rollbacks": self.rollbacks, "good": self._good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._usual, self.rollbacks, self._good = state["usual"], state["rollbacks"], state["good"]
