"""Write checkpoints when due, and rotate old ones."""

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
from ...events.capabilities import BestMetric, Capability
from ...events.composition import providers
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
"""The values of `on_save_error`."""


@dataclass
class Checkpoint(Cadence):
    """Writes everything that a run needs to resume, as `<output_dir>/checkpoint-<step>`.

    Every trainer has one, which the arguments configure. List it for a trigger or a retention policy that the
    arguments cannot express: `Checkpoint(every("10min") | at_end(), keep=Keep(last=2, best=1))`.

    Raises:
        ArgumentError: for an unknown `on_save_error`.
        CheckpointError: if a checkpoint cannot be written and `on_save_error` is `raise`.
    """

    flag = "save"
    arguments = ("save_strategy", "save_steps", "save_total_limit", "on_save_error", "async_save")

    trigger: Trigger = field(default_factory=lambda: every(500) | at_end())
    """When to save. Default: every 500 steps and at the end."""
    keep: Keep = field(default_factory=Keep)
    """The retention policy: which checkpoints stay. Default: all."""
    on_save_error: str = "raise"
    """What happens when a checkpoint cannot be written: `raise` ends the run, `warn` logs and continues training."""
    async_save: bool = True
    """Copy the checkpoint to host memory and write it on a thread while training continues, one at a time. The run
    writes synchronously with several ranks, if a handler of `on_save` is attached, and if the model cannot be written
    from a copy."""
    id: str | None = None
    """Its name in the ledger and in checkpoints."""
    _copies: HostCopies = field(default_factory=HostCopies, init=False, repr=False, compare=False)
    _writer: BackgroundWriter = field(default_factory=BackgroundWriter, init=False, repr=False, compare=False)
    _best_before: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.on_save_error not in SAVE_ERRORS:
            hint = nearest(self.on_save_error, SAVE_ERRORS)
            raise ArgumentError(f"on_save_error={self.on_save_error!r} is unknown{hint} Set 'raise' or 'warn'.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Checkpoint:
        # With the strategy `best`, KeepBest requests the checkpoints.
        strategy = "no" if args.save_strategy == "best" else args.save_strategy
        trigger, keep = from_strategy(strategy, args.save_steps), Keep(total=args.save_total_limit)
        return cls(trigger, keep, args.on_save_error, args.async_save)

    def has(self, capability: Capability) -> bool:
        return self.trigger != never() if capability is Capability.WRITES_CHECKPOINTS else super().has(capability)

    @order(Stage.ACT)
    def on_save_due(self, run: Run, control: TrainerControl) -> None:
        self._guarded(run, self._writer.wait)
        step = run.state.global_step
        path = Path(run.args.output_dir) / files.folder_name(step)
        metrics = dict(run.metrics) if run.metrics_step == step else {}
        run.set_checkpoint(files.CheckpointRecord(path, step, metrics))
        self._best_before = run.state.best_model_checkpoint
        run.announce("on_save_begin")
        # A veto on one rank is enough: the other ranks would wait for its part.
        if any(vetoed for (vetoed,) in run.ranks.gather_numbers(int(control.vetoed("save")))):
            logger.warning("The checkpoint of step %d is not written: a callback vetoed it.", step)
            return
        # A handler of `on_save` expects the checkpoint on disk, so the run waits for it.
        later = self.async_save and run.ranks.single_process and not run.bus.hears("on_save")
        if self._guarded(run, lambda: self._save(run, later)):
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
            self._rotate(run, best)

    def on_step_end(self, run: Run, state: TrainerState) -> None:
        if self._writer.done:
            self._guarded(run, self._writer.wait)
        super().on_step_end(run, state)

    @order(Stage.PREPARE)
    def on_train_end(self, run: Run) -> None:
        self._guarded(run, self._writer.close)  # before other handlers look for the checkpoint

    def on_close(self, run: Run) -> None:
        self._copies = HostCopies()  # free the host memory
        self._guarded(run, self._writer.close)

    def _guarded(self, run: Run, work: Callable[[], None]) -> bool:
        """Do work that may fail on the disk; `on_save_error` decides about the error. Return whether it succeeded."""
        try:
            work()
        except CheckpointError as error:
            if self.on_save_error == "raise":
                raise
            missing = run.state.best_model_checkpoint
            if missing is not None and not Path(missing).is_dir():
                run.state.best_model_checkpoint = self._best_before  # the best model was in the failed checkpoint
            logger.warning("%s Training continues.", error)
            return False
        return True

    def _rotate(self, run: Run, best: str | None) -> None:
        metric = _best_metric(run)
        # Checkpoints of another run in this folder are neither counted nor deleted.
        found = [saved for saved in list_checkpoints(run.args.output_dir) if saved.run_id == run.run_id]
        for checkpoint in self.keep.superfluous(
            found,
            pinned={checkpoint.step for checkpoint in found if best and checkpoint.path.name == Path(best).name},
            metric=metric.name,
            greater_is_better=metric.greater_is_better,
        ):
            try:
                remove(checkpoint)
            except OSError as error:
                logger.warning(
                    "The retention policy does not keep %s, and it cannot be deleted: %s", checkpoint.path, error
                )


def on_all(run: Run, work: Callable[[], T]) -> T:
    """Call a function on every rank and return its result on this rank. If it fails on one rank, all ranks raise."""
    results: list[T] = []
    on_all_ranks(run, lambda: results.append(work()))
    return results[0]


def _best_metric(run: Run) -> BestMetric:
    """Return the metric of the callback that chooses the best model; `eval_loss` if there is none."""
    choosers = providers(run.bus.subscribers.values(), Capability.CHOOSES_BEST_MODEL)
    return (choosers[0].best_metric if choosers else None) or BestMetric()
