"""Optimizers that train other weights than they evaluate, such as those of the package schedulefree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.optim.registry import has_train_eval_modes
from ...engine.run import Run
from ...events.callback import Callback
from ...events.stages import Stage


def has_two_modes(optimizer: Any) -> bool:
    """Say whether an optimizer, or a class of such, has the methods `train` and `eval`."""
    return callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))


@dataclass
class ScheduleFree(Callback):
    """Switches the optimizer to `train()` for steps, and to `eval()` for evaluations, checkpoints and the end.

    The weights that are evaluated and saved, and those a training ends with, are the average that the optimizer keeps
    (Defazio et al., arXiv:2405.15682). An optimizer without these methods is left alone.

    It is there by itself for `optim="schedule_free_*"` and for an optimizer with these methods that is given to the
    trainer; list it if the optimizer comes from a `create_optimizer` of your own.
    """

    stage = Stage.PREPARE

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> ScheduleFree | None:
        return cls() if has_train_eval_modes(args.optim) else None

    @classmethod
    def for_optimizers(cls, args: TrainingArguments, *optimizers: Any) -> ScheduleFree | None:
        """Build it if one of these optimizers or classes has two modes, and the arguments do not build it already."""
        needed = any(has_two_modes(optimizer) for optimizer in optimizers)
        return cls() if needed and cls.from_arguments(args) is None else None

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            _switch(run.optimizer, "eval")  # a training that failed may have left it in the other mode

    def on_step_begin(self, optimizer: Any) -> None:
        _switch(optimizer, "train")

    def on_evaluate_begin(self, optimizer: Any) -> None:
        _switch(optimizer, "eval")

    def on_save_begin(self, optimizer: Any) -> None:
        # Switching back and forth rounds the weights. It is the weights so rounded that a resumed run begins with.
        _switch(optimizer, "eval")

    def on_train_end(self, optimizer: Any) -> None:
        _switch(optimizer, "eval")  # before KeepBest, which may load the best weights over these


def _switch(optimizer: Any, mode: str) -> None:
    if has_two_modes(optimizer):
        getattr(optimizer, mode)()
