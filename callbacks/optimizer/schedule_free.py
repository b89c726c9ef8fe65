"""Optimizers with separate weights for training and evaluation, such as the optimizers of the package schedulefree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.optim.registry import has_train_eval_modes
from ...engine.run import Run
from ...events.callback import Callback
from ...events.stages import Stage


def has_two_modes(optimizer: Any) -> bool:
    """Return whether an optimizer, or a class of optimizers, has the methods `train` and `eval`."""
    return callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))


@dataclass
class ScheduleFree(Callback):
    """Calls `optimizer.train()` of a schedule-free optimizer before steps, and `optimizer.eval()` before evaluations.

    A schedule-free optimizer also computes an average of the weights (Defazio et al., arXiv:2405.15682). Its `eval()`
    writes the average to the model, and its `train()` writes the weights for training to the model. The callback calls
    `eval()` before each evaluation, before each save and at the end of training. So evaluations, checkpoints and the
    trained model have the averaged weights. If the optimizer lacks the method `train` or `eval`, the callback does
    nothing.

    The trainer adds the callback in two cases: `optim` is one of the names `schedule_free_*`, or you pass a
    schedule-free optimizer to the trainer. Add `ScheduleFree()` to the callbacks if your own `create_optimizer` returns
    such an optimizer.
    """

    stage = Stage.PREPARE

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> ScheduleFree | None:
        return cls() if has_train_eval_modes(args.optim) else None

    @classmethod
    def for_optimizers(cls, args: TrainingArguments, *optimizers: Any) -> ScheduleFree | None:
        """Build the callback if one of `optimizers` has train and eval modes.

        Args:
            args: the training arguments.
            *optimizers: optimizers, classes of optimizers, or None.

        Returns:
            The callback; None if no optimizer has the two modes. Also None if `from_arguments(args)` returns a
            callback, because one callback is enough.
        """
        needed = any(has_two_modes(optimizer) for optimizer in optimizers)
        return cls() if needed and cls.from_arguments(args) is None else None

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            _switch(run.optimizer, "eval")  # a failed training may have left it in training mode

    def on_step_begin(self, optimizer: Any) -> None:
        _switch(optimizer, "train")

    def on_evaluate_begin(self, optimizer: Any) -> None:
        _switch(optimizer, "eval")

    def on_save_begin(self, optimizer: Any) -> None:
        # The switch rounds the weights. A resumed run starts with the rounded weights, so this run continues with them.
        _switch(optimizer, "eval")

    def on_train_end(self, optimizer: Any) -> None:
        _switch(optimizer, "eval")  # in PREPARE, before KeepBest loads the best weights


def _switch(optimizer: Any, mode: str) -> None:
    if has_two_modes(optimizer):
        getattr(optimizer, mode)()
