"""Know the best model of the run, have it saved when it appears, and load it at the end."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ...engine.arguments import TrainingArguments
from ...engine.checkpoint.format import files
from ...engine.checkpoint.read.saved import SavedCheckpoint
from ...engine.run import Run
from ...events.callback import Callback
from ...events.control import TrainerControl
from ...events.errors import ArgumentError
from ...events.stages import Stage, order
from ...events.state import TrainerState
from ..base.metric_names import Mode, full_name, greater_is_better, value_of

logger = logging.getLogger(__name__)


def improves(value: float, best: float | None, greater: bool) -> bool:
    """Say whether a value is better than the best so far; NaN never is."""
    if value != value:
        return False
    return best is None or (value > best if greater else value < best)


@dataclass
class KeepBest(Callback):
    """Tracks the best value of a metric, whatever the cadences of evaluating and saving, and keeps that model.

    When a new best appears it asks for a checkpoint, so that the best model is always one that was saved.
    """

    arguments = ("load_best_model_at_end", "metric_for_best_model", "greater_is_better")
    chooses_best: ClassVar[bool] = True

    metric: str = "eval_loss"
    """The metric that is compared; the `eval_` may be left out."""
    mode: Mode | None = None
    """Whether `min` or `max` is best; by default told by the name."""
    save: bool = True
    """Ask for a checkpoint when a new best appears."""
    load_at_end: bool = True
    """Load the best model when training ends, whatever ended it."""
    id: str | None = None
    """Its name in the ledger and in checkpoints."""
    greater: bool = field(init=False, repr=False)
    """Whether greater is better, as `mode` or the name says."""
    _saved: files.Checkpoint | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.metric = full_name(self.metric)
        self.greater = greater_is_better(self.metric, self.mode)

    @property
    def writes_checkpoints(self) -> bool:
        """Whether it asks for checkpoints."""
        return self.save

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> KeepBest | None:
        if args.metric_for_best_model is None:
            return None
        wants_it = args.load_best_model_at_end or args.save_strategy == "best"
        mode: Mode = "max" if args.greater_is_better else "min"
        return cls(args.metric_for_best_model, mode, save=wants_it, load_at_end=args.load_best_model_at_end)

    def __eq__(self, other: object) -> bool:
        # The mode may be said or told by the name: it is the direction that counts.
        return isinstance(other, KeepBest) and self._essence() == other._essence()

    def _essence(self) -> tuple[Any, ...]:
        return (self.metric, self.greater, self.save, self.load_at_end, self.id)

    def on_setup(self, run: Run) -> None:
        for other in run.bus.subscribers.values():
            if other is not self and hasattr(other, "chooses_best"):
                raise ArgumentError(f"{self!r} and {other!r} both choose the best model, of which a run has one.")
        self._saved = None

    def on_evaluate_end(self, run: Run, state: TrainerState, control: TrainerControl, metrics: dict[str, Any]) -> None:
        if run.mode != "train":
            return
        value = value_of(self.metric, metrics, run, "KeepBest")
        # An evaluation before the first step measures no training, so no checkpoint is made of it.
        if value is None or state.global_step == 0 or not improves(value, state.best_metric, self.greater):
            return
        state.best_metric, state.best_global_step = value, state.global_step
        if self._saved is not None and self._saved.step == state.global_step:
            state.best_model_checkpoint = str(self._saved.path)  # the end of an epoch comes after that of its last step
        if self.save:
            control.request("save", f"{self.metric} is best so far: {value:.6g}")

    @order(Stage.RELEASE)
    def on_save_begin(self, state: TrainerState, control: TrainerControl, checkpoint: files.Checkpoint) -> None:
        # Last of all, because others may veto it.
        if control.vetoed("save"):
            return
        self._saved = checkpoint
        if state.best_global_step == checkpoint.step:
            state.best_model_checkpoint = str(checkpoint.path)

    @order(Stage.MEASURE)
    def on_train_end(self, run: Run, state: TrainerState) -> None:
        if not self.load_at_end:
            return
        if state.best_model_checkpoint is None:
            logger.warning("No checkpoint of a best %s was written, so the last model stays as it is.", self.metric)
            return
        best = Path(state.best_model_checkpoint)
        if not best.is_dir():
            best = Path(run.args.output_dir) / best.name  # a resumed run whose folder was moved
        SavedCheckpoint.open(best).load_weights(run.model, run.seams.load_model)
        if best.name == files.folder_name(state.best_global_step or 0):
            logger.info("Loaded the model of %s, %s = %s.", best, self.metric, state.best_metric)
        else:
            logger.warning("The best model, of step %s, was not saved: loaded %s.", state.best_global_step, best)
