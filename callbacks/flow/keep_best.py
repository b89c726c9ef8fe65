"""Track the best model of a run, request a checkpoint of this model, and load it when training ends."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.checkpoint.format import files
from ...engine.checkpoint.read.saved import SavedCheckpoint
from ...engine.evaluation.metric_names import improves as improves
from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import BestMetric, Capability, Conflict
from ...events.control import TrainerControl
from ...events.stages import Stage, order
from ...events.state import TrainerState
from ..base.metric_names import (
    ADD_EVALUATIONS,
    Mode,
    check_measured,
    full_name,
    greater_is_better,
    may_evaluate,
    value_of,
)

logger = logging.getLogger(__name__)


@dataclass
class KeepBest(Callback):
    """Tracks the best value of a metric, saves the model with this value, and loads this model when training ends.

    Set `load_best_model_at_end=True`, or add `KeepBest("f1", mode="max")` to the callbacks. If an evaluation gives a
    new best value, the callback requests a checkpoint. The best model is therefore on disk even if evaluations and
    saves have different intervals. A run can have only one `KeepBest`.

    Raises:
        ArgumentError: if no evaluation measures the metric, or if a second callback chooses the best model.
    """

    previews = True
    arguments = ("load_best_model_at_end", "metric_for_best_model", "greater_is_better")
    capabilities = frozenset({Capability.CHOOSES_BEST_MODEL, Capability.WRITES_CHECKPOINTS})
    conflicts_with = (
        Conflict(
            Capability.CHOOSES_BEST_MODEL, "both choose the best model, and a run has one. Leave one of them out."
        ),
    )

    metric: str = "eval_loss"
    """The name of the metric. The prefix `eval_` is optional."""
    mode: Mode | None = None
    """`min`: lower is better. `max`: higher is better. Default: `min` for names of losses, errors and perplexities,
    else `max`."""
    save: bool = True
    """Whether to request a checkpoint after a new best value."""
    load_at_end: bool = True
    """Whether to load the best model when training ends, also if training ends early."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    greater: bool = field(init=False, repr=False)
    """Whether a greater value is better. `mode`, or else the name of the metric, decides this."""
    _saved: files.Checkpoint | None = field(default=None, init=False, repr=False, compare=False)
    _loaded: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.metric = full_name(self.metric)
        self.greater = greater_is_better(self.metric, self.mode)

    @property
    def best_metric(self) -> BestMetric:
        """The metric that selects the best model, and whether a greater value is better."""
        return BestMetric(self.metric, self.greater)

    def has(self, capability: Capability) -> bool:
        return self.save if capability is Capability.WRITES_CHECKPOINTS else super().has(capability)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> KeepBest | None:
        if args.metric_for_best_model is None:
            return None
        wants_it = args.load_best_model_at_end or args.save_strategy == "best"
        mode: Mode = "max" if args.greater_is_better else "min"
        return cls(args.metric_for_best_model, mode, save=wants_it, load_at_end=args.load_best_model_at_end)

    def __eq__(self, other: object) -> bool:
        # Two spellings of one direction are equal: an explicit mode, and a name that implies it.
        return isinstance(other, KeepBest) and self._key() == other._key()

    def _key(self) -> tuple[Any, ...]:
        return (self.metric, self.greater, self.save, self.load_at_end, self.id)

    def on_setup(self, run: Run) -> None:
        self._saved, self._loaded = None, False

    def on_load(self, checkpoint: files.Checkpoint) -> None:
        self._saved, self._loaded = checkpoint, True

    def on_train_begin(self, run: Run) -> None:
        check_measured(self.metric, run, "KeepBest")
        if (self.save or self.load_at_end) and run.state.is_world_process_zero and not may_evaluate(run):
            logger.warning("KeepBest finds no best model, because this run makes no evaluations. %s", ADD_EVALUATIONS)

    def on_evaluate_end(self, run: Run, state: TrainerState, control: TrainerControl, metrics: dict[str, Any]) -> None:
        if run.mode != "train":
            return
        is_best = run.services.at("_determine_best_metric", lambda: self._note_best(run, metrics), metrics, None)
        if is_best and self.save:
            value = "" if state.best_metric is None else f": {state.best_metric:.6g}"
            control.request("save", f"{self.metric} is the best so far{value}")

    def _note_best(self, run: Run, metrics: dict[str, Any]) -> bool:
        """If the metric has a new best value, store it in the state. Return whether to save a checkpoint of this step.

        Values at step 0 do not count. Return True for a new best value, except if the run resumed from a checkpoint of
        this step.
        """
        state, value = run.state, value_of(self.metric, metrics, run, "KeepBest")
        # An evaluation before the first step measures no training, so it requests no checkpoint.
        if value is None or state.global_step == 0 or not improves(value, state.best_metric, self.greater):
            return False
        state.best_metric, state.best_global_step = value, state.global_step
        if self._saved is not None and self._saved.step == state.global_step:
            state.best_model_checkpoint = str(self._saved.path)  # saved before this evaluation, at the same step
            if self._loaded:  # an evaluation that a stop interrupted, repeated before the first step
                return False
        return True

    @order(Stage.RELEASE)
    def on_save_begin(self, state: TrainerState, control: TrainerControl, checkpoint: files.Checkpoint) -> None:
        # In RELEASE, because other callbacks may veto the checkpoint.
        if control.vetoed("save"):
            return
        self._saved, self._loaded = checkpoint, False
        if state.best_global_step == checkpoint.step:
            state.best_model_checkpoint = str(checkpoint.path)

    @order(Stage.MEASURE)
    def on_train_end(self, run: Run, state: TrainerState) -> None:
        if not self.load_at_end:
            return
        if state.best_model_checkpoint is None:
            logger.warning("No checkpoint of a best %s was written. The model keeps its last weights.", self.metric)
            return
        run.services.at("_load_best_model", lambda: self._load(run))
        saved = _best_of(run)
        step = files.step_of(saved.path) or state.best_global_step or 0
        run.announce("on_best_loaded", checkpoint=files.CheckpointRecord.of(saved, step))

    def _load(self, run: Run) -> None:
        state, saved = run.state, _best_of(run)
        best = saved.path
        saved.load_weights(run.model, run.seams.load_model)
        run.callback_states.restore_weights(*saved.callbacks_and_owners())
        if best.name == files.folder_name(state.best_global_step or 0):
            logger.info("Loaded the best model from %s, %s = %s.", best, self.metric, state.best_metric)
        else:
            logger.warning("The best model, of step %s, was not saved. Loaded %s.", state.best_global_step, best)


def _best_of(run: Run) -> SavedCheckpoint:
    """Return the best checkpoint of the run. An override of `_load_best_model` may choose another one."""
    return SavedCheckpoint.best_of(str(run.state.best_model_checkpoint), run.args.output_path)
