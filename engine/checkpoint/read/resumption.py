"""The start of a training: fresh, or from a checkpoint."""

from __future__ import annotations

import copy
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ....events.errors import CheckpointError
from ....events.state import TrainerState
from ...data.plan import RunPlan
from ...data.position import Position, Sizes, follows_arguments, restore_position
from ..format.files import LACKING, CheckpointRecord
from ..format.sharded import is_lazy
from ..pending_stops import restore_stops
from ..protocols import ResumableFeed, ResumableRun
from .missing_state import warn_of_missing_state, warn_of_other_settings
from .optimizer_state import restore_optimizer
from .overridden_options import OptionWatch
from .saved import SavedCheckpoint
from .world_size import adapt_to_world_size, position_in_samples

logger = logging.getLogger(__name__)


class FreshStart:
    """Starts a new run. The subclass `Resumption` resumes a run from a checkpoint."""

    def __init__(self, run: ResumableRun) -> None:
        """Create an object that starts `run`. The run does not change yet."""
        self.run = run

    def data_seed(self, wanted: int | None) -> int:
        """Return the seed of the data order: `wanted`, or `torch.initial_seed()` if `wanted` is None."""
        return wanted if wanted is not None else torch.initial_seed()

    def begin(self, plan: RunPlan) -> tuple[TrainerState, RunPlan, Position]:
        """Return the trainer state, run plan and data position with which training starts. Also set the run id.

        Args:
            plan: the run plan that `run.args` give for a training from step 0. A `Resumption` may return another plan.
        """
        self.run.run_id = self._new_run_id()
        return self._state(TrainerState(), plan), plan, Position()

    def restore(self, feed: ResumableFeed) -> None:
        """Prepare a fresh run: drop the states and values that an earlier resume of this trainer has left in the run.

        `Resumption` overrides this method. The override restores the optimizer, the callback states, the RNG states and
        the position of the data loader from the checkpoint.

        Args:
            feed: the feed of the training batches.
        """
        self.run.continue_from({})
        self.run.keep_overridden({})
        self.run.callback_states.forget_carried()

    def _new_run_id(self) -> str:
        run_id: str = self.run.ranks.gather_objects(uuid.uuid4().hex)[0]  # the same on every rank
        return run_id

    def _state(self, state: TrainerState, plan: RunPlan) -> TrainerState:
        args, ranks = self.run.args, self.run.ranks
        state.max_steps = plan.max_steps
        state.num_train_epochs = plan.epochs
        state.train_batch_size = self.run.train_batch_size
        state.is_local_process_zero = ranks.local_rank == 0
        state.is_world_process_zero = ranks.rank == 0
        for name in ("logging_steps", "eval_steps", "save_steps"):
            if getattr(args, name) is not None:
                setattr(state, name, plan.in_steps(getattr(args, name)))
        self.run.control.speaking.step = state.global_step
        return state


class Resumption(FreshStart):
    """Resumes a training from a checkpoint."""

    def __init__(self, run: ResumableRun, checkpoint: SavedCheckpoint) -> None:
        """Read the trainer state, and load the weights into the model of the run.

        If the model is on the meta device, or an earlier training sharded the model, `restore` loads the weights later.

        Raises:
            CheckpointError: if the folder is not a checkpoint, or if its weights do not fit the model.
        """
        super().__init__(run)
        self.checkpoint = checkpoint
        self.saved: dict[str, Any] = copy.deepcopy(checkpoint.state)  # training appends to lists in it
        # A model on the meta device, or one that an earlier training sharded, is loaded later by `restore`, when each
        # rank has its shard. A lazy weight is loaded now, because it gets its shape from the checkpoint, and the
        # optimizer needs the shape.
        known = [weight for weight in run.model.parameters() if not is_lazy(weight)]
        self.loads_later = any(weight.is_meta or not weight.numel() for weight in known)
        if not self.loads_later:
            self._load(lambda: checkpoint.load_weights(run.model))
        if ignored := checkpoint.state_files.ignored_callbacks(self.saved):
            logger.info(
                "%s is a transformers checkpoint. The states of its callbacks are not restored: %s.",
                checkpoint.path,
                ", ".join(ignored),
            )

    def _load(self, load_weights: Callable[[], Any]) -> None:
        """Call `load_weights`, or the override of `_load_from_checkpoint` in a subclass of the Trainer."""
        self.run.services.at("_load_from_checkpoint", load_weights, str(self.checkpoint.path))

    def data_seed(self, wanted: int | None) -> int:
        saved = self.saved.get("data_seed")
        return saved if saved is not None else super().data_seed(wanted)

    def begin(self, plan: RunPlan) -> tuple[TrainerState, RunPlan, Position]:
        self.run.run_id = self.saved.get("run_id") or self._new_run_id()
        state = TrainerState.from_dict(self.saved)
        self.run.control.ledger.load_list(self.saved.get("ledger", []))
        where = self.saved.get("position")
        if where:
            step, after = state.global_step, getattr(self.run.train_dataloader, "batches_after", lambda rows: None)
            position, offset = restore_position(where, plan, self._sizes(), step, after)
            position.ended = where.get("ended", True)
            plan = plan.moved(offset, step, position.epoch, self.run.args.max_steps > 0)
        else:
            epoch, steps = divmod(state.global_step, plan.steps_per_epoch)
            position = Position(epoch, steps * self.run.args.gradient_accumulation_steps, ended=True)
        if self.run.args.ignore_data_skip and position.batches < (position.length or plan.batches_per_epoch):
            position = Position(position.epoch)
        state = self._state(state, plan)
        warn_of_other_settings(self.saved, state, self.run.args.accumulation_by_epoch)
        return state, plan, position

    def restore(self, feed: ResumableFeed) -> None:
        run, checkpoint = self.run, self.checkpoint
        if self.loads_later or run.seams.filled_by("load_model"):
            self._load(lambda: checkpoint.load_weights(run.model, run.seams.load_model))
        at, path = run.services.at, str(checkpoint.path)
        options = OptionWatch(run, checkpoint)
        at("_load_optimizer_and_scheduler", lambda: restore_optimizer(run, checkpoint), path)
        options.warn()
        at("_load_scaler", lambda: None, path)
        restores = run.args.restore_callback_states_from_checkpoint
        states, owners = checkpoint.callbacks_and_owners()
        if not run.args.resume_partial:
            run.callback_states.refuse_other_weights(owners, checkpoint.path, restores=restores)
        if restores:
            at("_load_callback_state", lambda: run.callback_states.restore(states, owners))
            self._restore_stops(owners)
        own = self._own()
        warn_of_missing_state(run, checkpoint)
        own = adapt_to_world_size(own, run, checkpoint)
        run.eval_loaders.load_state_dict(own.get("eval_workers", {}))
        run.losses.load_state_dict(own.get("losses", {}))
        run.restore_step(own.get("last_step", {}))
        run.continue_from(own)
        restore_late = not checkpoint.state_files.resumes_loader_exactly
        feed.resume(self._place(own.get("place", {})), lambda: _restore_rng(run, path), restore_late)
        extra = checkpoint.extra
        checkpoint.release()
        run.set_checkpoint(CheckpointRecord.of(checkpoint, run.state.global_step, extra))
        run.announce("on_load")

    def _restore_stops(self, owners: dict[str, Any]) -> None:
        stops, same = self.saved.get("pending_stops", {}), self.saved.get("max_steps") == self.run.state.max_steps
        restore_stops(self.run, stops, owners, same_length=same)

    def _own(self) -> dict[str, Any]:
        """Read the values that only this rank saved, such as RNG states and loader position; {} if there are none.

        Raises:
            CheckpointError: if no rank has RNG states in the checkpoint, and `resume_partial` is False.
        """
        rank, world_size = self.run.ranks.rank, self.run.ranks.world_size
        stored = self.checkpoint.state_files
        own = stored.own(rank, world_size)
        if not own and not stored.has_rng_states() and not self.run.args.resume_partial:
            raise CheckpointError(f"{self.checkpoint.path} has no {stored.rng_path(rank, world_size).name}, {LACKING}")
        return own

    def _sizes(self) -> Sizes:
        """Return the batch size over all ranks and the gradient accumulation of this session.

        If the batch size of the user's own loader is unknown, use the batch size per rank in the checkpoint. The
        argument `per_device_train_batch_size` does not change the batches of such a loader.
        """
        sizes, before = self.run.sizes, self.saved.get("train_batch_size")
        if follows_arguments(self.run.train_dataloader) or not before:
            return sizes
        return replace(sizes, rows_per_batch=before * self.run.ranks.world_size)

    def _place(self, place: dict[str, Any]) -> dict[str, Any]:
        """Return the loader position at which the run resumes. `place` is the saved position.

        If the batch size changed, the entries of `place` that depend on the batch size are left out.
        """
        where, size = self.saved.get("position"), self._sizes().rows_per_batch
        if not where:
            return place
        was = where.get("rows_per_batch", size)
        if was != size:
            place = position_in_samples(place)
        return {**place, "row": where.get("rows", where["batches"] * was)}


def _restore_rng(run: ResumableRun, path: str) -> None:
    if run.randomness:
        run.services.at("_load_rng_state", lambda: run.restore_rng(run.randomness), path)
