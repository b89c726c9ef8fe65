"""Resuming: what a training begins from, be it nothing or a checkpoint."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import torch

from ....events.state import TrainerState
from ...data.feed import Feed
from ...data.plan import Plan
from ...data.position import Position, restore_position
from ...run import Run
from .. import store
from ..format.files import Checkpoint
from ..rng_state import restore_random_states
from . import hf_checkpoint as foreign
from .other_ranks import adapted, in_rows
from .partial import begin_the_rest_anew


class NoResumption:
    """Begins a training from its beginning."""

    def __init__(self, run: Run) -> None:
        """Begin `run` anew."""
        self.run = run

    def data_seed(self, wanted: int | None) -> int:
        """Return the seed of the data's order."""
        return wanted if wanted is not None else torch.initial_seed()

    def begin(self, plan: Plan) -> tuple[TrainerState, Position]:
        """Return the state and position to begin with."""
        self.run.run_id = self.run.ranks.gather_objects(uuid.uuid4().hex)[0]  # by which machines know it is one run
        return self._state(TrainerState(), plan), Position()

    def restore(self, feed: Feed) -> None:
        """Put everything that is built back to where it was."""
        self.run.randomness = {}
        self.run.callback_states.restore({})  # what an earlier run of this trainer carried on ends here

    def _state(self, state: TrainerState, plan: Plan) -> TrainerState:
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


class Resumption(NoResumption):
    """Goes on from a checkpoint."""

    def __init__(self, run: Run, folder: Path) -> None:
        """Read the state in `folder`, and load its weights into the run's model.

        Raises:
            CheckpointError: if the folder is no checkpoint, or its weights do not fit.
        """
        super().__init__(run)
        self.folder = folder
        self.saved: dict[str, Any] = store.read_state(folder)
        # A model that has no values yet, or was split by an earlier training, is loaded when each process has its part.
        self.loads_later = any(weight.is_meta or not weight.numel() for weight in run.model.parameters())
        if not self.loads_later:
            store.load_weights(run.model, folder)
        self.foreign = foreign.is_foreign(folder)
        if self.foreign:
            foreign.say_what_is_left_out(self.saved, folder)

    def data_seed(self, wanted: int | None) -> int:
        saved = self.saved.get("data_seed")
        return saved if saved is not None else super().data_seed(wanted)

    def begin(self, plan: Plan) -> tuple[TrainerState, Position]:
        self.run.run_id = self.saved.get("run_id") or self.run.ranks.gather_objects(uuid.uuid4().hex)[0]
        state = TrainerState.from_dict(self.saved)
        self.run.control.ledger.load_list(self.saved.get("ledger", []))
        where = self.saved.get("position")
        if where:
            step, after = state.global_step, getattr(self.run.train_dataloader, "batches_after", lambda rows: None)
            position, offset = restore_position(where, plan, self.run.sizes, step, after)
            self.run.plan = plan = plan.moved(offset, step, position.epoch, self.run.args.max_steps > 0)
            return self._state(state, plan), position
        epoch, steps = divmod(state.global_step, plan.steps_per_epoch)
        return self._state(state, plan), Position(epoch, steps * self.run.args.gradient_accumulation_steps)

    def restore(self, feed: Feed) -> None:
        run = self.run
        if self.loads_later or run.seams.filled_by("load_model"):
            store.load_weights(run.model, self.folder, run.seams.load_model)
        reads = foreign if self.foreign else store
        reads.restore_optimizer(run, self.folder)
        if run.args.restore_callback_states_from_checkpoint:
            run.callback_states.restore(store.callback_states(self.folder))
        if run.args.ignore_data_skip and run.position is not None:
            run.position = Position(run.position.epoch)
        own = reads.read_own(run, self.folder)
        begin_the_rest_anew(run, self.folder)
        if not self.foreign:
            own = adapted(own, run, self.folder)
        run.losses.load_state_dict(own.get("losses", {}))
        last = own.get("last_step", {})
        run.grad_norm, run.learning_rate = last.get("grad_norm"), last.get("learning_rate")
        run.randomness = own
        feed.resume(self._place(own.get("place", {})), lambda: _go_on_drawing(run), self.foreign)
        run.contents.clear()
        run.checkpoint = Checkpoint(self.folder, run.state.global_step)
        run.announce("on_load")

    def _place(self, place: dict[str, Any]) -> dict[str, Any]:
        """Return where the loader goes on: exactly where it was, or in batches of another size at the row it was at."""
        where, size = self.saved.get("position"), self.run.sizes.rows_per_batch
        if not where:
            return place
        was = where.get("rows_per_batch", size)
        if was != size:
            place = in_rows(place)
        return {**place, "row": where.get("rows", where["batches"] * was)}


def _go_on_drawing(run: Run) -> None:
    if run.randomness:
        restore_random_states(run.randomness)
