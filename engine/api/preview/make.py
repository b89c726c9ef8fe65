"""Make a preview: run the training loop and the callbacks that request logs, evaluations, saves and stops.

Virtual objects replace the model, the data, the disk and the clock.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ....events.callback import Callback
from ....events.capabilities import Capability
from ....events.composition import best_metric_of
from ....events.errors import nearest
from ....events.recording.recorder import DecisionRecorder, Record
from ....events.recording.rows import kept_of, rows_of
from ...checkpoint.read.choosing import checkpoint_to_resume
from ...checkpoint.read.listing import list_checkpoints
from ...checkpoint.rng_state import random_states, restore_random_states
from ...checkpoint.storage import Disk
from ...data.plan import RunPlan
from ...distributed.consensus import agree_single_process
from ...distributed.ranks import Ranks
from ...loop import Loop
from ...optim.registry import OPTIMIZERS
from ...optim.schedules import get_scheduler
from ..overrides import is_overridden
from .curves import Given, from_function, from_list, improving
from .result import Preview
from .traps import Seen, describe_absent, traps
from .virtual import (
    Curves,
    LearningRates,
    VirtualClock,
    VirtualFeed,
    VirtualRanks,
    VirtualResumption,
    VirtualRun,
    VirtualServices,
    VirtualStart,
    VirtualStepper,
    VirtualStorage,
    VirtualTrainer,
    dummy_optimizer,
)

_REPLACED = ("log", "evaluate", "_evaluate", "_save_checkpoint", "_determine_best_metric", "_get_learning_rate")
"""Methods in which an override may decide something. A preview does not call these overrides, but warns about them."""


class MemoryRecorder(DecisionRecorder):
    """A recorder that stores the records of a preview in memory, in place of a file."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.id = "preview"

    def put(self, record: Record) -> None:
        self.records.append(record)


@contextmanager
def undisturbed(trainer: Any, processes: int | None) -> Iterator[None]:
    """After the `with` block, restore the RNG states, and `session`, `ranks` and `lr_scheduler` of the run.

    Args:
        trainer: the Trainer.
        processes: the world size of the run inside of the block; None for no change.
    """
    real, before = trainer.run, random_states()
    session, ranks, schedule = real.session, real.ranks, real.lr_scheduler
    real.session = copy.copy(session)
    real.use_batch_size(trainer._wanted_batch_size)
    if processes is not None:
        real.ranks = Ranks(0, processes, 0)
    try:
        yield
    finally:
        real.session, real.ranks, real.lr_scheduler = session, ranks, schedule
        restore_random_states(before)


class Rehearsal:
    """One preview of a trainer: objects such as a `VirtualRun`, and a method that runs the training loop on them."""

    def __init__(
        self,
        trainer: Any,
        metrics: Given,
        resume: Any,
        times: dict[str, float],
        step_seconds: float,
        checkpoint_bytes: int | None,
        stream_rows: int | None,
    ) -> None:
        self.trainer, self.times, self.checkpoint_bytes = trainer, times, checkpoint_bytes
        self.stream_rows = stream_rows
        self.notes: list[str] = []
        real = trainer.run
        self.clock = VirtualClock(step_seconds)
        ranks = VirtualRanks(0, real.ranks.world_size, 0)  # on every rank: only rank 0 deletes checkpoints
        self.virtual = virtual = VirtualRun(real, self.clock, ranks)
        virtual.use_batch_size(real.train_batch_size)
        virtual.storage = self.storage = VirtualStorage()
        self.callbacks = self._attach()
        self.curves = self._curves(metrics)
        virtual.services = VirtualServices(VirtualTrainer(virtual, trainer.eval_dataset, self.curves, self._names()))
        chosen = checkpoint_to_resume(real, resume) if resume else None
        if chosen is not None and trainer.args.auto_find_batch_size:
            virtual.use_batch_size(chosen.state.get("train_batch_size") or virtual.train_batch_size)
        self.start = VirtualStart(virtual) if chosen is None else VirtualResumption(virtual, chosen)

    def preview(self) -> Preview:
        """Run the training loop on virtual objects, such as a `VirtualRun`, and return the preview."""
        virtual, trainer = self.virtual, self.trainer
        borrowed = trainer.run.session
        borrowed.data_seed = self.start.data_seed(trainer.args.data_seed)
        loader = trainer.get_train_dataloader()
        virtual.feed_from(loader)
        virtual.state, virtual.plan, virtual.position = self.start.begin(trainer._plan_run(loader))
        existing = Disk().checkpoints(virtual)
        self.storage.saved = {each.step: each for each in existing}
        plan, recorder = virtual.plan, MemoryRecorder()
        virtual.bus.attach(recorder)
        recorder.open(virtual)
        virtual.announce("on_setup")
        virtual.optimizer, virtual.lr_scheduler = self._schedule(plan.max_steps)
        virtual.begin()
        feed, stepper = VirtualFeed(virtual, plan, self.stream_rows), VirtualStepper(virtual, self.clock)
        self.start.restore(feed)
        loop = Loop(
            virtual.bus,
            virtual.state,
            virtual.control,
            feed,
            stepper,
            epochs=plan.epochs,
            batches_per_epoch=plan.batches_per_epoch,
            position=virtual.position,
            agree=agree_single_process,
        )
        loop.run()
        recorder.close()
        rows, rates = rows_of(recorder.records), stepper.rates
        if any(row["what"] == "evaluate" for row in rows):
            self._tell_assumed()
        kept = kept_of(rows, (each.step for each in existing))
        return Preview(
            rows=rows,
            kept=kept,
            warnings=[*self.notes, *traps(self._seen(rows, rates, plan))],
            steps=virtual.state.global_step,
            max_steps=plan.max_steps,
            epochs=round(virtual.state.epoch, 6),
            learning_rates={"first": rates.first, "highest": rates.highest, "last": rates.last} if rates.steps else {},
            disk=self._disk(len(kept)) if any(row["what"] == "save" for row in rows) else {},
            time=self._time(rows, rates.steps),
        )

    # Callbacks.

    def _attach(self) -> dict[str, Any]:
        """Attach copies of the callbacks that take part in previews. Return a dict: callback id -> copy.

        Add a warning to the attribute `notes` about callbacks of the user that do not take part but may raise a flag.
        Add another warning to `notes` about overridden Trainer methods that the preview does not call.
        """
        bus, absent, taking = self.virtual.bus, [], {}
        subscribers = self.trainer.bus.subscribers
        bus.know(subscribers)
        for owner_id, callback in subscribers.items():
            copied = _copy_of(callback)
            if copied is not None:
                copied.id = owner_id
                bus.attach(copied)
                taking[owner_id] = copied
            elif _is_outside(callback):
                absent.append(owner_id)
        self.notes += describe_absent(absent)
        if replaced := [name for name in _REPLACED if is_overridden(self.trainer, name)]:
            kind = type(self.trainer).__name__
            self.notes.append(f"The preview does not call these methods of {kind}: {', '.join(replaced)}.")
        return taking

    # Metrics.

    def _curves(self, given: Given) -> Curves:
        curves: Curves = {}
        for name, values in given.items():
            full = name if name.startswith("eval_") else f"eval_{name}"
            curves[full] = from_function(values) if callable(values) else from_list(full, values, self.notes)
        read = self._read_metrics()
        if not read.keys() & curves.keys():  # else a further metric is only shown
            hints = {name: nearest(name, read) for name in curves}
            self.notes += [
                f"{name}: no callback reads this metric{hint}" for name, hint in hints.items() if hint != "."
            ]
        for name, greater in read.items():
            curves.setdefault(name, improving(greater))
        return curves

    def _tell_assumed(self) -> None:
        """Add a warning about the metrics that the user gave no values for."""
        if assumed := [name for name in self.curves if self._assumes(name)]:
            self.notes.append(
                f"{', '.join(assumed)}: assumed to improve at each evaluation. For other values, pass "
                f"`metrics={{{assumed[0]!r}: [...]}}`."
            )

    def _read_metrics(self) -> dict[str, bool]:
        """Return the metrics that callbacks read, as a dict: metric name -> whether a greater value is better."""
        args, found = self.trainer.args, {}
        for callback in self.callbacks.values():
            best = callback.best_metric
            if best is not None:
                found[best.name] = best.greater_is_better
            elif isinstance(name := getattr(callback, "metric", None), str):
                rule = getattr(callback, "rule", None)
                found.setdefault(name, bool(getattr(rule, "greater", not name.endswith("loss"))))
            elif hasattr(callback, "early_stopping_patience") and args.metric_for_best_model:
                name = args.metric_for_best_model
                full = name if name.startswith("eval_") else f"eval_{name}"
                found.setdefault(full, bool(args.greater_is_better))
        return found

    def _names(self) -> dict[str, tuple[str, ...]]:
        """Return the argument `names` of `VirtualTrainer`: metric prefix of each evaluation -> an empty tuple.

        A tuple names the metrics without a curve of values. There are none, because `_curves` returns a curve for each
        metric that a callback reads.
        """
        given = self.trainer.eval_dataset
        names = [*given] if isinstance(given, dict) else []
        names += [each.variant for each in self.callbacks.values() if each.has(Capability.EVALUATES) and each.variant]
        return {"eval": (), **{f"eval_{name}": () for name in names}}

    # The schedule.

    def _schedule(self, steps: int) -> tuple[Any, Any]:
        """Return an optimizer that updates no model, and its learning-rate schedule for a run of `steps` steps."""
        trainer, args = self.trainer, self.trainer.args
        given, schedule = trainer._given_optimizers
        if schedule is None and not is_overridden(trainer, "create_scheduler"):
            schedule = trainer._own_schedule()
            given = getattr(schedule, "optimizer", given)
        groups = list(given.param_groups) if given is not None else self._own_groups()
        optimizer = dummy_optimizer(groups, args.learning_rate)
        if schedule is not None:
            made = copy.deepcopy(schedule, {id(schedule.optimizer): optimizer, id(given): optimizer})
            return optimizer, made
        if is_overridden(trainer, "create_scheduler"):
            trainer.run.lr_scheduler = None
            made = trainer.create_scheduler(steps, optimizer)
            return optimizer, trainer.run.lr_scheduler if made is None else made
        options = args.lr_scheduler_kwargs or {}
        return optimizer, get_scheduler(
            args.lr_scheduler_type, optimizer, args.get_warmup_steps(steps), steps, **options
        )

    def _own_groups(self) -> list[dict[str, Any]]:
        """Build the parameter groups that the trainer uses if the user passes no optimizer."""
        trainer, args, model = self.trainer, self.trainer.args, self.trainer.run.model
        groups: list[dict[str, Any]] = trainer._make_groups(model, args.weight_decay)
        return groups

    # Figures.

    def _seen(self, rows: list[Any], rates: LearningRates, plan: RunPlan) -> Seen:
        virtual = self.virtual
        best = best_metric_of(self.callbacks.values())
        name = "eval_loss" if best is None else best.name
        values = {
            entry["step"]: float(entry[name])
            for entry in virtual.state.log_history
            if name in entry and not self._assumes(name)
        }
        saved = {row["step"] for row in rows if row["what"] == "save"}
        return Seen(
            args=self.trainer.args,
            callbacks=self.callbacks,
            rows=rows,
            steps=virtual.state.global_step,
            max_steps=virtual.state.max_steps,
            epochs=plan.epochs,
            endless=plan.endless and self.stream_rows is None,
            rates=rates,
            clocked=self.clock.step_seconds > 0,
            best={step: value for step, value in values.items() if step in saved},
            greater=bool(best is not None and best.greater_is_better),
        )

    def _assumes(self, name: str) -> bool:
        return name not in self.curves or getattr(self.curves[name], "assumed", False)

    def _disk(self, kept: int) -> dict[str, int]:
        size = self.checkpoint_bytes
        if size is None:
            size = _size_of_checkpoint(self.trainer)
        return {"checkpoint": size, "peak": size * self.storage.most, "left": size * kept}

    def _time(self, rows: list[Any], made: int) -> dict[str, float]:
        if not self.times:
            return {}
        steps = made * self.times["step"]
        evaluations = sum(row["what"] == "evaluate" for row in rows) * self.times["evaluation"]
        return {**self.times, "evaluation_share": evaluations / max(steps + evaluations, 1e-12)}


def _copy_of(callback: Any) -> Any:
    """Return a fresh copy of a callback; None if the callback does not take part in previews."""
    if isinstance(callback, Callback):
        return callback.for_preview() if callback.previews else None
    known = type(callback).__module__.startswith("transformers.") and "EarlyStopping" in type(callback).__name__
    return copy.deepcopy(callback) if known or getattr(callback, "previews", False) else None


def _is_outside(subscriber: object) -> bool:
    """Return whether a subscriber comes from outside trainbus and has a stage before REPORT, so it may raise flags."""
    owner = subscriber if hasattr(subscriber, "__qualname__") else type(subscriber)
    if str(getattr(owner, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]:
        return False
    return int(getattr(subscriber, "stage", 0)) < 50


def _size_of_checkpoint(trainer: Any) -> int:
    """Return the size in bytes of the newest checkpoint in the output folder; without a checkpoint, an estimate."""
    for saved in reversed(list_checkpoints(trainer.args.output_path)):
        return sum(path.stat().st_size for path in saved.path.rglob("*") if path.is_file())
    weights = list(trainer.run.model.parameters())
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    size = sum(weight.numel() * weight.element_size() for weight in [*weights, *trainer.run.model.buffers()])
    spec = OPTIMIZERS.get(str(getattr(trainer.args.optim, "value", trainer.args.optim)))
    states = 0.0 if trainer.args.save_only_model or spec is None else trained * (spec.state_bytes or 0.0)
    return int(size + states)
