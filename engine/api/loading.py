"""The Trainer's methods that load parts of a checkpoint.

A resume calls these methods, and so may a program, before or after a training, or in a handler.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from ...events.errors import ArgumentError, CheckpointError
from ..checkpoint.read.optimizer_state import restore_optimizer, restore_scaler
from ..checkpoint.read.saved import SavedCheckpoint
from .moments import MomentMethods

logger = logging.getLogger(__name__)


class LoadingMethods(MomentMethods):
    """Loads weights, optimizer, schedule, scaler, RNG states and callback states from a checkpoint.

    All ranks must call these methods.
    """

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load the weights of a checkpoint.

        Args:
            resume_from_checkpoint: the folder of the checkpoint, or any other folder that `save_model` wrote.
            model: the model to load into; by default the model of the trainer.

        Raises:
            CheckpointError: if the folder has no weights, or if they do not fit the model.
        """
        own = model is None or model is self.run.model or model is self.run.model_wrapped
        if own and self._is_work("_load_from_checkpoint", resume_from_checkpoint):
            self._work("_load_from_checkpoint")
            return
        checkpoint = _opened("_load_from_checkpoint", resume_from_checkpoint)
        if own:
            self._load_weights(checkpoint)
        elif model is not None:
            checkpoint.load_weights(model)
        logger.info("Loaded the weights from %s.", checkpoint.path)

    def _load_best_model(self) -> None:
        """Load the weights of the best checkpoint of the run, `state.best_model_checkpoint`.

        Raises:
            CheckpointError: if the run has no best checkpoint, or if its weights do not fit the model.
        """
        if self._is_work("_load_best_model"):
            self._work("_load_best_model")
            return
        best = self.run.state.best_model_checkpoint
        if best is None:
            raise CheckpointError(
                "There is no best model to load, because no checkpoint of a best model was written. Set "
                "`load_best_model_at_end=True` and train, or load a checkpoint with `_load_from_checkpoint(folder)`."
            )
        checkpoint = SavedCheckpoint.best_of(best, self.args.output_path)
        self._load_weights(checkpoint)
        logger.info("Loaded the best model from %s.", checkpoint.path)

    def _load_weights(self, checkpoint: SavedCheckpoint) -> None:
        """Load the weights of a checkpoint into the model, and into callbacks with weights, such as a loss module."""
        run = self.run
        unknown = any(weight.is_meta or not weight.numel() for weight in run.model.parameters() if not is_lazy(weight))
        if unknown and not run.seams.filled_by("load_model"):
            raise CheckpointError(
                f"{checkpoint.path} cannot be loaded now, because the weights of the model have no values on this rank "
                "yet. Resume with `train(resume_from_checkpoint=...)`, which loads the weights when they exist."
            )
        checkpoint.load_weights(run.model, run.seams.load_model)
        run.callback_states.restore_weights(*checkpoint.callbacks_and_owners())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Restore the optimizer, the schedule and the loss scaler from a checkpoint. For None, do nothing.

        Raises:
            ArgumentError: if there is no optimizer yet.
            CheckpointError: if the folder does not exist, if a state does not fit, or if a state is missing and
                `resume_partial` is not set.
        """
        if checkpoint is None:
            return
        if self._is_work("_load_optimizer_and_scheduler", checkpoint):
            self._work("_load_optimizer_and_scheduler")
            return
        if self.run.optimizer is None:
            raise ArgumentError(
                f"There is no optimizer yet, so its state cannot be loaded from {checkpoint}. Call "
                "`create_optimizer_and_scheduler(num_training_steps)` first, or resume with "
                "`train(resume_from_checkpoint=...)`."
            )
        restore_optimizer(self.run, _opened("_load_optimizer_and_scheduler", checkpoint))

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Restore the loss scaler from a checkpoint. For None, and in a run without a scaler, do nothing.

        When a resume calls this method, it does nothing: the resume has already restored the scaler.
        """
        if checkpoint is not None and not self._is_work("_load_scaler", checkpoint):
            restore_scaler(self.run, _opened("_load_scaler", checkpoint))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore the RNG states of this rank from a checkpoint. For None, do nothing.

        Raises:
            CheckpointError: if the checkpoint has no RNG states of this rank.
        """
        if checkpoint is None:
            return
        if self._is_work("_load_rng_state", checkpoint):
            self._work("_load_rng_state")
            return
        saved, ranks = _opened("_load_rng_state", checkpoint), self.run.ranks
        states = saved.own(ranks.rank, ranks.world_size)
        if not states:
            name = saved.state_files.rng_path(ranks.rank, ranks.world_size).name
            raise CheckpointError(f"{saved.path} has no {name}, so the RNG states of rank {ranks.rank} are unknown.")
        self.run.restore_rng(states)

    def _load_callback_state(self) -> None:
        """Restore the callback states from the checkpoint that the run last wrote or resumed from.

        With `restore_callback_states_from_checkpoint=False`, do nothing.

        Raises:
            CheckpointError: if there is no such checkpoint.
        """
        if self._is_work("_load_callback_state"):
            self._work("_load_callback_state")
            return
        if not self.args.restore_callback_states_from_checkpoint:
            return
        if self.run.checkpoint is None:
            raise CheckpointError(
                "There is no checkpoint to restore the callback states from: the run has neither written a checkpoint "
                "nor resumed. Resume with `train(resume_from_checkpoint=...)`, which restores them."
            )
        saved = _opened("_load_callback_state", self.run.checkpoint.path)
        self.run.callback_states.restore(*saved.callbacks_and_owners())


def _opened(method: str, folder: Any) -> SavedCheckpoint:
    """Return the checkpoint in a folder.

    Raises:
        ArgumentError: if `folder` is not a path.
        CheckpointError: if the folder does not exist.
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise ArgumentError(
            f"{method}({folder!r}): this is not a folder. Pass the path of a checkpoint. To resume from the newest "
            "checkpoint, call `train(resume_from_checkpoint=True)`."
        )
    if not Path(folder).is_dir():
        raise CheckpointError(f"{method}: the folder {str(folder)!r} does not exist. Pass the path of a checkpoint.")
    return SavedCheckpoint.open(Path(folder))
