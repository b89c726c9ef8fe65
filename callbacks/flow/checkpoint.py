"""Write checkpoints when they are due, and delete those that need not be kept."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ...engine.arguments import TrainingArguments
from ...engine.checkpoint.format import files
from ...engine.checkpoint.read.listing import list_checkpoints
from ...engine.checkpoint.write.background_writer import BackgroundWriter
from ...engine.checkpoint.write.commit import remove
from ...engine.checkpoint.write.host_copies import HostCopies
from ...engine.checkpoint.write.retention import Keep
from ...engine.checkpoint.write.save import on_all_ranks, write_checkpoint
from ...engine.checkpoint.write.snapshot import Snapshot, take_snapshot
from ...engine.run import Run
from ...events.control import TrainerControl
from ...events.errors import ArgumentError, CheckpointError, nearest
from ...events.stages import Stage, order
from ...events.state import TrainerState
from ...events.triggers import Trigger, at_end, every, never
from ..base.cadence import Cadence
from .log import from_strategy

logger = logging.getLogger(__name__)

T = TypeVar("T")

SAVE_ERRORS = ("raise", "warn")
"""What a checkpoint that cannot be written may do to the run."""


@dataclass
class Checkpoint(Cadence):
    """Writes everything a run needs to go on from where it is, as `<output_dir>/checkpoint-<step>`."""

    flag = "save"
    arguments = ("save_strategy", "save_steps", "save_total_limit", "on_save_error", "async_save")

    trigger: Trigger = field(default_factory=lambda: every(500) | at_end())
    """When."""
    keep: Keep = field(default_factory=Keep)
    """Which checkpoints stay; by default all."""
    on_save_error: str = "raise"
    """What follows when one cannot be written: `raise` ends the run, `warn` trains on until the next one is due."""
    async_save: bool = True
    """Copy what is saved to the host's memory, and write it on a thread, one at a time, while training goes on. Not on
    several processes, nor where somebody hears `on_save`, or a model cannot be written from a copy."""
    id: str | None = None
    """Its name in the ledger and in checkpoints."""
    _copies: HostCopies = field(default_factory=HostCopies, init=False, repr=False, compare=False)
    _writer: BackgroundWriter = field(default_factory=BackgroundWriter, init=False, repr=False, compare=False)
    _best_before: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.on_save_error not in SAVE_ERRORS:
            hint = nearest(self.on_save_error, SAVE_ERRORS)
            raise ArgumentError(f"on_save_error={self.on_save_error!r}{hint} It is 'raise' or 'warn'.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Checkpoint:
        # With the strategy `best` it is KeepBest that asks for checkpoints.
        strategy = "no" if args.save_strategy == "best" else args.save_strategy
        trigger, keep = from_strategy(strategy, args.save_steps), Keep(total=args.save_total_limit)
        return cls(trigger, keep, args.on_save_error, args.async_save)

    @property
    def writes_checkpoints(self) -> bool:
        """Whether it is ever due by itself."""
        return self.trigger != never()

    @order(Stage.ACT)
    def on_save_due(self, run: Run, control: TrainerControl) -> None:
        self._settle(run, self._writer.wait)
        step = run.state.global_step
        path = Path(run.args.output_dir) / files.folder_name(step)
        metrics = dict(run.metrics) if run.metrics_step == step else {}
        run.set_checkpoint(files.CheckpointRecord(path, step, metrics))
        self._best_before = run.state.best_model_checkpoint
        run.announce("on_save_begin")
        # One process that forbids it is enough: the others would wait for its part.
        if any(vetoed for (vetoed,) in run.ranks.gather_numbers(int(control.vetoed("save")))):
            logger.warning("The checkpoint of step %d is not written: it was vetoed.", step)
            return
        # Whoever hears of a checkpoint expects it to be there, and so is waited for.
        later = self.async_save and run.ranks.single_process and not run.bus.hears("on_save")
        if self._settle(run, lambda: self._save(run, later)):
            run.announce("on_save")

    def _save(self, run: Run, later: bool) -> None:
        states = on_all(run, run.callback_states.collect)
        snapshot = on_all(run, lambda: take_snapshot(run, run.checkpoint, states, self._copies if later else None))
        best = run.state.best_model_checkpoint
        if snapshot.frozen:
            self._writer.submit(lambda: self._write(run, snapshot, best))
        else:
            self._write(run, snapshot, best)
        run.announce("on_snapshot")

    def _write(self, run: Run, snapshot: Snapshot, best: str | None) -> None:
        write_checkpoint(run, snapshot)
        if run.args.should_save:
            self._forget(run, best)

    def on_step_end(self, run: Run, state: TrainerState) -> None:
        if self._writer.done:
            self._settle(run, self._writer.wait)
        super().on_step_end(run, state)

    @order(Stage.PREPARE)
    def on_train_end(self, run: Run) -> None:
        self._settle(run, self._writer.close)  # before anybody looks for what was saved

    def on_close(self, run: Run) -> None:
        self._copies = HostCopies()  # the memory is needed no more
        self._settle(run, self._writer.close)

    def _settle(self, run: Run, work: Callable[[], None]) -> bool:
        """Do what may meet an error of the disk, which is what `on_save_error` says; say whether it went well."""
        try:
            work()
        except CheckpointError as error:
            if self.on_save_error == "raise":
                raise
            missing = run.state.best_model_checkpoint
            if missing is not None and not Path(missing).is_dir():
                run.state.best_model_checkpoint = self._best_before  # it was to be the one that is not written
            logger.warning("%s The run goes on.", error)
            return False
        return True

    def _forget(self, run: Run, best: str | None) -> None:
        chooser = _chooser(run)
        # What another run left in this folder is not counted, and not deleted.
        found = [saved for saved in list_checkpoints(run.args.output_dir) if saved.run_id == run.run_id]
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


def on_all(run: Run, work: Callable[[], T]) -> T:
    """Do something on every process, and return what it gave on this one; if it fails on one, it is an error on all."""
    results: list[T] = []
    on_all_ranks(run, lambda: results.append(work()))
    return results[0]


def _chooser(run: Run) -> object:
    """Return the callback that says which model is best, if there is one."""
    return next((callback for callback in run.bus.subscribers.values() if hasattr(callback, "chooses_best")), None)
