"""Write checkpoints when due, and rotate old ones."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ...engine.arguments import TrainingArguments
from ...engine.checkpoint.format import files
from ...engine.checkpoint.protocols import SavingRanks
from ...engine.checkpoint.write.background_writer import BackgroundWriter
from ...engine.checkpoint.write.host_copies import HostCopies
from ...engine.checkpoint.write.ranks_writer import RanksWriter
from ...engine.checkpoint.write.retention import Keep, R
from ...engine.checkpoint.write.save import on_all_ranks
from ...engine.checkpoint.write.snapshot import Snapshot
from ...engine.distributed.ranks import connection_lost
from ...engine.distributed.skipping import refuse_different_skips
from ...engine.run import Run
from ...events.activity import AWAIT_SAVE, CHECK_FOLDER, SAVE
from ...events.capabilities import BestMetric, Capability
from ...events.composition import best_metric_of, providers, provides
from ...events.control import TrainerControl
from ...events.errors import ArgumentError, CheckpointError, nearest
from ...events.stages import Stage, order
from ...events.state import TrainerState
from ...events.triggers import Trigger, at_end, every, never
from ..base.cadence import Cadence
from ..base.metric_names import value_of
from .log import from_strategy

logger = logging.getLogger(__name__)

T = TypeVar("T")

SAVE_ERRORS = ("raise", "warn")
"""The values of `on_save_error`."""


@dataclass
class Checkpoint(Cadence):
    """Writes checkpoints, from which a run resumes, to the folders `<output_dir>/checkpoint-<step>`.

    Every trainer has this callback, and the training arguments configure it. If you need a trigger or a retention
    policy that the arguments cannot express, add the callback yourself: `Checkpoint(every("10min") | at_end(),
    keep=Keep(last=2, best=1))`.

    Raises:
        ArgumentError: if `on_save_error` is unknown.
        CheckpointError: if a checkpoint cannot be written and `on_save_error` is `raise`.
    """

    flag = "save"
    arguments = ("save_strategy", "save_steps", "save_total_limit", "on_save_error", "async_save", "link_unchanged")

    trigger: Trigger = field(default_factory=lambda: every(500) | at_end())
    """When to save. Default: every 500 steps and at the end."""
    keep: Keep = field(default_factory=Keep)
    """The retention policy: which checkpoints stay on disk. Default: all checkpoints stay."""
    on_save_error: str = "raise"
    """The action when a checkpoint cannot be written. `raise` ends the run. `warn` logs a warning and continues
    training."""
    async_save: bool = True
    """True: copy the checkpoint to host memory, and write the copy on a thread while training continues. Training still
    waits for the write if a callback handles `on_save`, if the model cannot be written from a copy, or if torch lacks
    gloo and the run has several ranks. Handlers of `on_commit` run in the training thread, after
    the write is complete. The thread writes one checkpoint at a time. False: training waits for each write."""
    link_unchanged: bool = False
    """True: if a file equals the file in the previous checkpoint, store a hard link to the earlier file. False: write
    every file."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    _copies: HostCopies = field(default_factory=HostCopies, init=False, repr=False, compare=False)
    _writer: BackgroundWriter = field(default_factory=BackgroundWriter, init=False, repr=False, compare=False)
    _saved_step: int = field(default=-1, init=False, repr=False, compare=False)
    """The step of the last checkpoint of this session; -1 if there is none."""
    _writing: files.CheckpointRecord | None = field(default=None, init=False, repr=False, compare=False)
    """The checkpoint that the background thread writes, until handlers of `on_commit` run. None: no checkpoint."""
    _evaluated: bool = field(default=False, init=False, repr=False, compare=False)
    _told_unmeasured: bool = field(default=False, init=False, repr=False, compare=False)
    _best_before: str | None = field(default=None, init=False, repr=False, compare=False)
    _deleted: list[tuple[Any, int]] = field(default_factory=list, init=False, repr=False, compare=False)
    """The deleted checkpoints for which `on_delete` was not announced yet. An item is a pair: the checkpoint, and the
    step of the save or evaluation after which it was deleted."""
    _pinned: str | None = field(default=None, init=False, repr=False, compare=False)
    """The path of the checkpoint with the best model at the last rotation; None if there was no best model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.keep, Keep):
            raise ArgumentError(f"keep={self.keep!r} is not a rule. Set a `Keep`, such as keep=Keep(last=2).")
        if self.on_save_error not in SAVE_ERRORS:
            hint = nearest(self.on_save_error, SAVE_ERRORS)
            raise ArgumentError(f"on_save_error={self.on_save_error!r} is unknown{hint} Set 'raise' or 'warn'.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Checkpoint:
        # With the strategy `best`, KeepBest requests the checkpoints.
        strategy = "no" if args.save_strategy == "best" else args.save_strategy
        trigger, keep = from_strategy(strategy, args.save_steps), Keep(total=args.save_total_limit)
        return cls(trigger, keep, args.on_save_error, args.async_save, args.link_unchanged)

    def has(self, capability: Capability) -> bool:
        return self.trigger != never() if capability is Capability.WRITES_CHECKPOINTS else super().has(capability)

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        self._evaluated = self._told_unmeasured = False
        self._writing, self._saved_step = None, -1
        if not run.ranks.single_process:
            self._writer = RanksWriter()
        if run.mode == "train" and provides(run.bus.subscribers.values(), Capability.WRITES_CHECKPOINTS):
            # An error at the first save would lose all steps before it.
            with run.activity(CHECK_FOLDER):
                self._guarded(run, lambda: on_all(run, lambda: run.storage.check(run)))

    def on_train_begin(self, state: TrainerState) -> None:
        self._pinned = state.best_model_checkpoint

    @order(Stage.ACT)
    def on_save_due(self, run: Run, control: TrainerControl, requested_by: frozenset[str]) -> None:
        self._complete(run)
        if _only_interrupts(run, requested_by):
            if self._saved_step == run.state.global_step:
                return  # the resumed run repeats what this session did after the save
            if _ends_with_epoch(run):
                for author in requested_by:
                    control.request_for(author, "save", "at the end of the epoch, because the run ends too")
                return
        self._announce_deleted(run)
        step = run.state.global_step
        path = run.args.output_path / files.folder_name(step)
        run.set_checkpoint(files.CheckpointRecord(path, step, run.metrics_at(step), run_id=run.run_id))
        self._best_before = run.state.best_model_checkpoint
        run.announce("on_save_begin")
        # If one rank vetoes the save, no rank saves: the others would wait for its part. If one rank must wait for the
        # write, all ranks wait.
        of_ranks = run.ranks.gather_numbers(int(control.vetoed("save")), int(self._waits(run)), run.state.steps_skipped)
        if len({skipped for *_, skipped in of_ranks}) > 1:
            refuse_different_skips(run.ranks, run.state, control)
        if any(vetoed for vetoed, *_ in of_ranks):
            logger.warning("The checkpoint of step %d is not written: a callback vetoed it.", step)
            return
        later = not any(waits for _, waits, _ in of_ranks)
        failed: list[bool] = []

        def save() -> None:
            with run.activity(SAVE):
                failed.append(not self._guarded(run, lambda: self._save(run, later)))

        run.services.at("_save_checkpoint", save, run.model_wrapped, None)
        if not any(failed):  # an override may save in another way
            if self._writing is None and run.bus.has_handlers("on_commit"):
                run.announce("on_commit")
            _leave_to_resumed_run(run)
            run.announce("on_save")

    def _waits(self, run: Run) -> bool:
        """Return whether training must wait until the checkpoint is written, for a reason known before the save.

        Training must wait if `async_save` is False, if a callback handles `on_save`, or if an error ends the run. With
        several ranks, training must also wait if torch lacks gloo, because a background save needs gloo.
        """
        on_thread = run.ranks.single_process or run.ranks.has_thread_group
        return not (self.async_save and on_thread) or run.bus.hears("on_save") or run.exception is not None

    def _save(self, run: Run, later: bool) -> None:
        states, copies = on_all(run, run.callback_states.collect), self._copies if later else None
        snapshot = on_all(run, lambda: run.storage.snapshot(run, run.checkpoint, states, copies))
        snapshot.link_unchanged = self.link_unchanged
        record, facts = snapshot.checkpoint, snapshot.facts
        record.time, record.seconds = facts.get("time", 0.0), facts.get("seconds", 0.0)
        self._pinned = best = run.state.best_model_checkpoint
        if later and all(frozen for (frozen,) in run.ranks.gather_numbers(int(snapshot.frozen))):
            ranks = self._writer.ranks(run.ranks, run.args.ddp_timeout)
            self._writer.submit(lambda: self._write(run, snapshot, best, ranks), run.state.global_step)
            self._writing = run.checkpoint
        else:
            self._write(run, snapshot, best, run.ranks)
        self._saved_step = run.state.global_step
        run.announce("on_snapshot")

    def _write(self, run: Run, snapshot: Snapshot, best: str | None, ranks: SavingRanks) -> None:
        run.storage.write(run, snapshot, ranks)
        if run.storage.deletes(run):
            self._rotate(run, best, snapshot.checkpoint.step)

    @order(Stage.RELEASE)
    def on_evaluate_end(self, run: Run, control: TrainerControl) -> None:
        super().on_evaluate_end(run, control)
        if run.mode == "train" and self.keep.best:
            value_of(_best_metric(run).name, run.metrics, run, f"Checkpoint(keep=Keep(best={self.keep.best}))")
            self._evaluated = True
        if run.mode == "train" and run.state.best_model_checkpoint != self._pinned:
            self._rotate_after_evaluation(run)

    def _rotate_after_evaluation(self, run: Run) -> None:
        """Rotate again: after this evaluation, another checkpoint has the best model."""
        self._complete(run)
        self._pinned = best = run.state.best_model_checkpoint
        if run.storage.deletes(run) and best is not None and run.storage.holds(best):
            self._rotate(run, best, run.state.global_step)

    def on_step_end(self, run: Run, state: TrainerState) -> None:
        if self._writer.finished_at(state.global_step):
            self._complete(run)
        super().on_step_end(run, state)

    @order(Stage.PREPARE)
    def on_train_end(self, run: Run) -> None:
        self._complete(run)  # before other handlers look for the checkpoint
        self._writer.close()
        self._announce_deleted(run)
        if self.keep.best and run.storage.deletes(run):
            self._tell_unmeasured(run, run.storage.checkpoints(run))

    @order(Stage.RELEASE)
    def on_exception(self, run: Run) -> None:
        if self._writer.finish():  # `on_close` logs an error of the thread
            self._complete(run)

    def on_close(self, run: Run) -> None:
        super().on_close(run)
        self._copies = HostCopies()  # free the host memory
        writing, self._writing = self._writing, None
        try:
            self._guarded(run, self._writer.close)
        except Exception as error:
            if writing is None or run.exception is None or not connection_lost(error):
                raise
            # The run ends with an error that has the reason. A second traceback of the same lost connection explains
            # nothing.
            logger.warning(
                "The connection to another rank was lost while the checkpoint of step %d was written.", writing.step
            )
        self._deleted.clear()

    @property
    def slowest_write(self) -> float:
        """The seconds of the slowest write on the background thread, including the write that runs now."""
        return self._writer.slowest

    @property
    def busy(self) -> bool:
        """Whether the thread writes a checkpoint now."""
        return self._writer.busy

    def _cost_of_last(self) -> float:
        return math.inf if self._writer.busy else super()._cost_of_last() + self._writer.seconds

    def _complete(self, run: Run) -> None:
        """Wait for the thread that writes a checkpoint. If the write succeeds, call the handlers of `on_commit`."""
        written, self._writing = self._writing, None
        with nullcontext() if written is None else run.activity(AWAIT_SAVE):
            succeeds = self._guarded(run, self._writer.wait)
        if succeeds and written is not None:
            self._announce_late(run, written)

    def _announce_late(self, run: Run, written: files.CheckpointRecord) -> None:
        """Call the handlers of `on_commit` for a checkpoint that was written in a background thread.

        The step at which the write ends depends on the speed of the disk. So recordings do not contain this event:
        otherwise two equal runs would have different recordings.
        """
        calls = run.bus.route("on_commit", run.bus.order_of("on_commit"))
        if calls:
            run.bus.call(calls, "on_commit", run, {"checkpoint": written})

    def _guarded(self, run: Run, work: Callable[[], None]) -> bool:
        """Call `work`, which checks the disk, saves, or waits for a write. Return whether `work` succeeds.

        If `work` raises a `CheckpointError`, log a warning and return False. With `on_save_error="raise"`, raise the
        error instead.
        """
        try:
            work()
        except CheckpointError as error:
            if self.on_save_error == "raise":
                raise
            missing = run.state.best_model_checkpoint
            if missing is not None and not run.storage.holds(missing):
                run.state.best_model_checkpoint = self._best_before  # the best model was in the failed checkpoint
            run.control.note(run.control.speaker, "fail", str(error))
            logger.warning("%s. Training continues.", str(error).rstrip("."))
            self._saved_step = -1
            return False
        return True

    def _rotate(self, run: Run, best: str | None, step: int) -> None:
        """Delete the checkpoints that the retention policy does not keep.

        Args:
            run: the run.
            best: the path of the checkpoint with the best model, which the method does not delete; None if there is
                none.
            step: the step of the save or evaluation that causes the rotation.
        """
        if self.keep.keeps_all:  # reading all checkpoints would make each save slower than the last
            return
        found = run.storage.checkpoints(run)
        superfluous = self.superfluous(run, found, best)
        if superfluous and self._evaluated:
            self._tell_unmeasured(run, found)
        for checkpoint in superfluous:
            try:
                run.storage.remove(checkpoint)
                self._deleted.append((checkpoint, step))
            except OSError as error:
                logger.warning(
                    "The retention policy does not keep %s, and it cannot be deleted: %s", checkpoint.path, error
                )

    def superfluous(self, run: Run, found: Sequence[R], best: str | None) -> list[R]:
        """Return the checkpoints that the retention policy does not keep, oldest first.

        Args:
            run: the run.
            found: the undamaged checkpoints of the run, oldest first, on disk or in a remote store.
            best: the path of the checkpoint with the best model, which always stays; None if there is none.
        """
        metric = _best_metric(run)
        return self.keep.superfluous(
            found,
            pinned={checkpoint.step for checkpoint in found if best and files.step_of(Path(best)) == checkpoint.step},
            metric=metric.name,
            greater_is_better=metric.greater_is_better,
        )

    def _announce_deleted(self, run: Run) -> None:
        """Announce `on_delete` for each checkpoint that was deleted since the last call.

        The writer thread may delete checkpoints at any time. The callback calls this method only in `on_save_due` and
        `on_train_end`. So the speed of the disk does not change the step of the event.
        """
        deleted, self._deleted = self._deleted, []
        for checkpoint, step in deleted:
            record = files.CheckpointRecord.of(checkpoint, checkpoint.step)
            run.announce("on_delete", checkpoint=record, saved_step=step)

    def _tell_unmeasured(self, run: Run, found: list[Any]) -> None:
        """Warn once if `Keep(best=...)` keeps nothing, because none of the checkpoints in `found` has the metric."""
        metric = _best_metric(run).name
        if not self.keep.best or self._told_unmeasured or not found or any(metric in each.metrics for each in found):
            return
        self._told_unmeasured = True
        logger.warning(
            "Keep(best=%d) compares %s, but no checkpoint has this metric: no evaluation came at the step of a "
            "checkpoint. So this setting keeps no checkpoint. Evaluate at the steps that are saved, or add KeepBest, "
            "which saves a checkpoint when an evaluation gives a new best value.",
            self.keep.best,
            metric,
        )


def on_all(run: Run, work: Callable[[], T]) -> T:
    """Call `work` on all ranks, and return its result. If `work` fails on one rank, all ranks raise an error."""
    results: list[T] = []
    on_all_ranks(run, lambda: results.append(work()))
    return results[0]


def _only_interrupts(run: Run, requested_by: frozenset[str]) -> bool:
    """Return whether all callbacks in `requested_by` interrupt the run, as `StopOnSignal` does after a signal."""
    attached = [run.bus.subscribers.get(author) for author in requested_by]
    return len(providers(attached, Capability.INTERRUPTS)) == len(attached)


def _ends_with_epoch(run: Run) -> bool:
    """Return whether the training stops as soon as this session has done the work at the end of the epoch.

    With `save_strategy="epoch"`, this work includes a save of the step. So the step must not be saved before this work.
    """
    ends, position = run.control.should_training_stop and not run.interrupted(), run.position
    return ends and position is not None and not position.closed and not position.held


def _leave_to_resumed_run(run: Run) -> None:
    """After a signal or a time limit, leave the work at the end of the epoch to the resumed run.

    This applies if the saved step is the last step of an epoch. There is little time, and the work may include a second
    save. The last step of the run is an exception, because no session resumes a complete run.
    """
    position, plan = run.position, run.plan
    if position is None or plan is None or run.state.global_step >= run.state.max_steps:
        return
    if run.interrupted() and position.batches == (position.length or plan.batches_per_epoch):
        position.held = position.batches > 0


def _best_metric(run: Run) -> BestMetric:
    """Return the metric by which a callback chooses the best model; `eval_loss` if no callback chooses one."""
    return best_metric_of(run.bus.subscribers.values()) or BestMetric()
