"""Average the weights over the last part of a run, with equal shares, and evaluate and save the average."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from ...engine.data.batches import to_device
from ...engine.distributed.ranks import Ranks
from ...engine.run import Run
from ...events.errors import ArgumentError
from ...events.stages import Stage, order
from ...events.trigger_fields import check_triggers
from ...events.triggers import Moment, Place, Trigger, every
from .averaged_weights import AveragedWeights

logger = logging.getLogger(__name__)


@dataclass
class SWA(AveragedWeights):
    """Averages the weights of the last part of a run, with equal shares (stochastic weight averaging).

    `SWA(start=0.75, learning_rate=1e-3)` adds the weights to the average at the end of each epoch in the last quarter
    of the run. In this quarter, the learning rate is constant. The average replaces the weights during evaluations, in
    the model file of checkpoints, and after training. The callback state in checkpoints has the trained weights, so a
    resumed run continues with the trained weights. The average covers floating-point parameters, and no buffers.

    At the end of training, the callback measures the running statistics of BatchNorm layers again, in one pass over the
    training data. Paper: arXiv:1803.05407.

    Raises:
        ArgumentError: if `start` is not in [0, 1), if `learning_rate` is negative, or if another callback of the run
            also averages the weights.
    """

    start: float = 0.75
    """The share of the steps of the run after which the average begins, in [0, 1)."""
    trigger: Trigger = field(default_factory=lambda: every(1, "epoch"))
    """When the callback adds the weights to the average, at the end of a step or epoch. Default: at the end of each
    epoch."""
    learning_rate: float | None = None
    """The learning rate of all parameters after `start`. Default: the rate of the schedule."""
    update_batchnorm: bool = True
    """Whether to measure the running statistics of BatchNorm layers again at the end of training."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    _last: Moment | None = field(default=None, init=False, repr=False, compare=False)
    count: int = field(default=0, init=False)
    """How many times the callback added the weights to the average in this run."""

    def __post_init__(self) -> None:
        check_triggers(self)
        if not 0 <= self.start < 1:
            raise ArgumentError(f"SWA(start={self.start}): set a share of the run of at least 0 and below 1.")
        if self.learning_rate is not None and not self.learning_rate >= 0:
            raise ArgumentError(f"SWA(learning_rate={self.learning_rate}): set a rate of 0 or more.")

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        if run.mode == "train":
            self.count, self._last = 0, None

    def _averages(self, run: Run) -> bool:
        return run.state.global_step >= self.start * run.state.max_steps

    @order(Stage.PREPARE)
    def on_pre_optimizer_step(self, run: Run, optimizer: Optimizer) -> None:
        if self.learning_rate is not None and self._averages(run):
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate

    @order(Stage.MEASURE)
    def on_step_end(self, run: Run) -> None:
        self._add_if_due(run, "step")

    @order(Stage.MEASURE)
    def on_epoch_end(self, run: Run) -> None:
        self._add_if_due(run, "epoch")

    def _add_if_due(self, run: Run, place: Place) -> None:
        now = run.moment(place)
        if not self._averages(run) or not self.trigger.due_again(now, self._last):
            return
        self._last = now
        if not self._average:
            self.begin_average(run.model)
        else:
            self.move_average(run.model, 1 / (self.count + 1))
        self.count += 1

    @order(Stage.PREPARE)
    def on_train_end(self, run: Run, model: nn.Module) -> None:
        averaged = bool(self._average)
        super().on_train_end(run, model)
        if not averaged:
            first = int(self.start * run.state.max_steps)
            logger.warning("SWA averaged no weights: %r was not due after step %d.", self.trigger, first)
        elif self.update_batchnorm:
            measure_batchnorm(run)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "count": self.count, **self._last_due()}

    def _last_due(self) -> dict[str, Any]:
        return {} if self._last is None else {"last_step": self._last.step, "last_seconds": self._last.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.count = state["count"]
        if "last_step" in state:  # a checkpoint of an earlier version lacks it
            self._last = Moment("step", state["last_step"], 0.0, 0, state["last_seconds"])


@torch.no_grad()
def measure_batchnorm(run: Run) -> None:
    """Measure the running statistics of BatchNorm layers again, in one pass over the training data.

    The forwards run in train mode. Each statistic becomes the mean over all batches of the pass, on all ranks. If the
    model has no BatchNorm layers, do nothing.
    """
    layers = [
        module
        for module in run.model.modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None
    ]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a mean over all batches with equal shares
    mode = run.model.training
    run.model.train()
    batches = None if run.plan is None else run.plan.batches_per_epoch  # a stream may have no end
    for batch in islice(run.train_dataloader, batches):
        run.services.compute_loss(run.model, to_device(batch, run.args.device))
    run.model.train(mode)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        if not run.ranks.single_process:
            _average_over_ranks(layer, run.ranks)


def _average_over_ranks(layer: Any, ranks: Ranks) -> None:
    batches = ranks.sum(layer.num_batches_tracked)
    for statistic in (layer.running_mean, layer.running_var) if batches else ():
        statistic.copy_(ranks.sum(statistic * layer.num_batches_tracked) / batches)
