"""Write checkpoints when they are due, and delete those that need not be kept."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from ..engine.arguments import TrainingArguments
from ..engine.checkpoint import files
from ..engine.checkpoint.commit import remove
from ..engine.checkpoint.listing import list_checkpoints
from ..engine.checkpoint.retention import Keep
from ..engine.checkpoint.store import write_checkpoint
from ..engine.run import Run
from ..events.control import TrainerControl
from ..events.errors import ArgumentError, CheckpointError, nearest
from ..events.stages import Stage, order
from ..events.triggers import Trigger, at_end, every, never
from .cadence import Cadence
from .log import from_strategy

logger = logging.getLogger(__name__)

SAVE_ERRORS = ("raise", "warn")
"""What a checkpoint that cannot be written may do to the run."""


@dataclass
class Checkpoint(Cadence):
    """Writes everything a run needs to go on from where it is, as `<output_dir>/checkpoint-<step>`."""

    flag = "save"
    arguments = ("save_strategy", "save_steps", "save_total_limit", "on_save_error")

    trigger: Trigger = field(default_factory=lambda: every(500) | at_end())
    """When."""
    keep: Keep = field(default_factory=Keep)
    """Which checkpoints stay; by default all."""
    on_save_error: str = "raise"
    """What follows when one cannot be written: `raise` ends the run, `warn` trains on until the next one is due."""
    id: str | None = None
    """Its name in the ledger and in checkpoints."""

    def __post_init__(self) -> None:
        if self.on_save_error not in SAVE_ERRORS:
            hint = nearest(self.on_save_error, SAVE_ERRORS)
            raise ArgumentError(f"on_save_error={self.on_save_error!r}{hint} It is 'raise' or 'warn'.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Checkpoint:
        # With the strategy `best` it is KeepBest that asks for checkpoints.
        strategy = "no" if args.save_strategy == "best" else args.save_strategy
        trigger, keep = from_strategy(strategy, args.save_steps), Keep(total=args.save_total_limit)
        return cls(trigger, keep, on_save_error=args.on_save_error)

    @property
    def writes_checkpoints(self) -> bool:
        """Whether it is ever due by itself."""
        return self.trigger != never()

    @order(Stage.ACT)
    def on_save_due(self, run: Run, control: TrainerControl) -> None:
        step = run.state.global_step
        path = Path(run.args.output_dir) / files.folder_name(step)
        metrics = dict(run.metrics) if run.metrics_step == step else {}
        run.checkpoint = files.Checkpoint(path, step, metrics)
        best = run.state.best_model_checkpoint
        run.announce("on_save_begin")
        if control.vetoed("save"):
            logger.warning("The checkpoint of step %d is not written: it was vetoed.", step)
            return
        try:
            write_checkpoint(run, run.checkpoint, run.callback_states.collect())
        except CheckpointError as error:
            if self.on_save_error == "raise":
                raise
            run.state.best_model_checkpoint = best  # it may have been about to be this one
            logger.warning("%s The run goes on.", error)
            return
        if run.args.should_save:
            self._forget(run)
        run.announce("on_save")

    def _forget(self, run: Run) -> None:
        chooser = _chooser(run)
        # What another run left in this folder is not counted, and not deleted.
        found = [saved for saved in list_checkpoints(run.args.output_dir) if saved.run_id == run.run_id]
        best = run.state.best_model_checkpoint
        for checkpoint in self.keep.superfluous(
            found,
            pinned={checkpoint.step for checkpoint in found if best and checkpoint.path.name == Path(best).name},
            metric=getattr(chooser, "metric", "eval_loss"),
            greater_is_better=getattr(chooser, "greater", False),
        ):
            try:
                remove(checkpoint)
            except OSError as error:
                logger.warning("%s is no longer needed, and cannot be removed: %s", checkpoint.path, error)


def _chooser(run: Run) -> object:
    """Return the callback that says which model is best, if there is one."""
    return next((callback for callback in run.bus.subscribers.values() if hasattr(callback, "chooses_best")), None)
