"""The virtual objects of a preview, which replace the model, the data, the disk and the clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ....events.control import TrainerControl
from ....events.errors import ArgumentError
from ....events.state import TrainerState
from ...checkpoint.format.files import CheckpointRecord, step_of
from ...checkpoint.own_generators import OwnGenerators
from ...checkpoint.read.resumption import FreshStart, Resumption
from ...checkpoint.read.state_files import StatePart
from ...checkpoint.write.snapshot import Snapshot
from ...data.plan import RunPlan
from ...distributed.ranks import Ranks
from ...evaluation.outputs import EvalLoopOutput
from ...optim.schedules import needs_metric
from ...run import Run
from ..evaluation import EvaluationMethods
from ..services import TrainerServices

Curves = dict[str, Callable[[int, int], float]]
"""Name of a metric -> a function that returns its value. The function receives the step and the number of the
evaluation. Evaluations count from 0."""


@dataclass
class VirtualClock:
    """The training time of a preview. It advances with each step."""

    step_seconds: float = 0.0
    """The seconds of one step."""
    now: float = 0.0
    """The seconds since the start of the preview."""


class VirtualRanks(Ranks):
    """A process group for a preview. It has the world size of the run but sends no data."""

    @property
    def single_process(self) -> bool:
        """True, so that the engine does not wait for other ranks."""
        return True


class VirtualRun(Run):
    """The run of a preview. It reads the time from a `VirtualClock`, and has no RNG states."""

    def __init__(self, real: Run, clock: VirtualClock, ranks: Ranks) -> None:
        """Create a run with the arguments and the model of `real`, the run of the trainer, but without callbacks."""
        self._clock = clock
        super().__init__(
            real.args,
            TrainerState(),
            TrainerControl(ranks.rank),
            real.model,
            ranks,
            real.services,
            real.processing_class,
        )
        opened = self.session
        opened.mode = "train"

    def feed_from(self, loader: Any) -> None:
        """Set the attribute `train_dataloader` to `loader`, the training loader of the trainer."""
        opened = self.session
        opened.train_dataloader = loader

    def clock(self) -> float:
        return self._clock.now

    def seconds(self) -> float:
        return self.state.seconds + self._clock.now

    def rng_states(self) -> dict[str, Any]:
        return {}

    def restore_rng(self, states: Any) -> None:
        """Do nothing: a preview draws no random number."""


class VirtualStorage:
    """The storage of a preview. It lists the checkpoints that the run would have, but writes no file."""

    def __init__(self) -> None:
        """Create a storage without a checkpoint."""
        self.saved: dict[int, Any] = {}
        self.most = 0
        """The largest number of checkpoints that existed at the same time."""

    def check(self, run: Any) -> None:
        """Do nothing: a preview writes no checkpoint, so it needs no writable folder."""

    def snapshot(self, run: Any, checkpoint: CheckpointRecord, callbacks: dict[str, Any], copies: Any) -> Snapshot:
        """Return a snapshot without weights and states."""
        facts = {"seconds": run.seconds()}
        return Snapshot(checkpoint, 0, facts, {}, {}, lambda folder: None, frozen=False)

    def write(self, run: Any, snapshot: Snapshot, ranks: Any) -> None:
        """Store that `snapshot.checkpoint` exists. Write no file."""
        kept = snapshot.checkpoint
        kept.run_id, kept.seconds = run.run_id, snapshot.facts["seconds"]
        self.saved[kept.step] = kept
        self.most = max(self.most, len(self.saved))

    def checkpoints(self, run: Any) -> list[Any]:
        """Return the records of the checkpoints that exist in the preview, by step in ascending order."""
        return [self.saved[step] for step in sorted(self.saved)]

    def holds(self, path: str) -> bool:
        """Return whether the checkpoint with this path exists."""
        return step_of(Path(path)) in self.saved

    def deletes(self, run: Any) -> bool:
        """Return True: on each rank, the method `remove` removes checkpoints from the preview."""
        return True

    def remove(self, checkpoint: Any) -> None:
        """Remove a checkpoint from the existing checkpoints."""
        self.saved.pop(checkpoint.step, None)


class VirtualFeed:
    """The data of a preview. It counts the batches and samples of each step, but reads no data."""

    def __init__(self, run: Run, plan: RunPlan, stream_rows: int | None = None) -> None:
        """Create the object that counts the batches of a run.

        Args:
            run: the run of the preview.
            plan: the length of the run.
            stream_rows: the number of samples of one epoch, if the data has no length; None if it is unknown.

        Raises:
            ArgumentError: if `stream_rows` is not positive, or if the data has a length.
        """
        if stream_rows is not None:
            _check_stream_rows(stream_rows, plan)
        self._run, self._plan, self._stream_rows = run, plan, stream_rows
        self._left = 0
        self._accumulate = 1
        self._rows = 0

    def reach(self, batches_done: int) -> None:
        """Do nothing, because a preview restores no RNG states."""

    def begin(self, epoch: int, batches_done: int) -> None:
        """Go to a position in the data: skip `batches_done` batches of an epoch. Epochs count from 0."""
        args, position = self._run.args, self._run.position
        scheduled = args.gradient_accumulation_schedule
        self._accumulate = args.accumulation_in(epoch) if scheduled else args.gradient_accumulation_steps
        size = self._run.sizes.rows_per_batch
        if self._stream_rows is not None:
            taken = position.rows(size) if position is not None and batches_done else batches_done * size
            self._rows = max(0, self._stream_rows - taken)
            self._left = self._rows // size if args.dataloader_drop_last else -(-self._rows // size)
            return
        length = (position.length if position is not None else 0) or self._plan.batches_per_epoch
        self._left = max(0, length - batches_done)
        self._rows = max(0, self._plan.epoch_rows - batches_done * size)

    def take(self) -> VirtualWindow | None:
        """Return the numbers of batches and samples of the next step; None at the end of the epoch."""
        batches = min(self._accumulate, self._left)
        self._left -= batches
        rows = min(batches * self._run.sizes.rows_per_batch, self._rows)
        self._rows -= rows
        return VirtualWindow(batches, rows) if batches else None

    def resume(self, *_: Any) -> None:
        """Do nothing: there is no loader."""


def _check_stream_rows(rows: Any, plan: RunPlan) -> None:
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise ArgumentError(f"stream_rows={rows!r} is not a number of samples. Pass a whole number of 1 or more.")
    if not plan.endless:
        raise ArgumentError(
            f"stream_rows={rows} is for training data without a length, but this data has {plan.num_examples} samples. "
            "Leave stream_rows out."
        )


@dataclass
class VirtualWindow:
    """The window of a step in a preview: it has the numbers of batches and samples, but no batches."""

    batches: int
    """The number of batches on this rank."""
    rows: int
    """The number of samples, over all ranks."""


@dataclass
class LearningRates:
    """A summary of the learning rates of all steps of a preview."""

    steps: int = 0
    """The number of steps."""
    first: float = 0.0
    """The learning rate of the first step."""
    highest: float = 0.0
    """The highest learning rate."""
    last: float = 0.0
    """The learning rate of the last step."""

    def add(self, rate: float) -> None:
        """Add the learning rate of the next step to the summary."""
        if not self.steps:
            self.first = self.highest = rate
        self.steps += 1
        self.highest = max(self.highest, rate)
        self.last = rate


class VirtualStepper:
    """The object that makes the steps of a preview. It does not run the model.

    Each step advances the virtual clock. It also advances the learning-rate schedule, unless the schedule needs a
    metric.
    """

    def __init__(self, run: Run, clock: VirtualClock) -> None:
        """Create the object for a run. The run must already have its optimizer and its schedule."""
        self._run, self._clock = run, clock
        self._moves = run.lr_scheduler is not None and not needs_metric(run.lr_scheduler)
        self.rates = LearningRates()
        """The summary of the learning rates of all steps."""

    def step(self, window: Any) -> None:
        """Make one step. `window` is not used."""
        run = self._run
        rate = run.current_learning_rate()
        run.restore_step({"learning_rate": rate})
        self.rates.add(rate)
        self._clock.now += self._clock.step_seconds
        if self._moves:
            run.lr_scheduler.step()


class VirtualTrainer(EvaluationMethods):
    """The trainer of a preview. It logs and evaluates with the code of the Trainer, but with assumed metrics."""

    def __init__(self, run: Run, eval_dataset: Any, curves: Curves, names: dict[str, tuple[str, ...]]) -> None:
        """Create the trainer of a preview.

        Args:
            run: the run of the preview.
            eval_dataset: the evaluation data of the trainer. For a dict of datasets, only the keys are read.
            curves: the assumed values of metrics: name of a metric -> its curve, as in `Curves`.
            names: metric prefix of an evaluation -> the names of metrics without a curve. These metrics are 0.
        """
        self.args, self.run, self.bus = run.args, run, run.bus
        self.eval_dataset, self.compute_metrics = eval_dataset, None
        self._curves, self._names = curves, names
        self._measured: dict[str, int] = {}

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return None: there is no data."""

    def _check_given(self, name: str, dataset: Any) -> None:
        """Accept every eval dataset, because a preview does not read it."""

    def _run_over(self, loader: Any, description: str, prefix: str, *_: Any) -> EvalLoopOutput:
        metrics = {name: self._value(name) for name in self._names_of(prefix)}
        return EvalLoopOutput(None, None, metrics, 1)

    def _names_of(self, prefix: str) -> list[str]:
        """Return the names of the metrics that an evaluation with this prefix measures.

        If a name starts with the prefixes of two evaluations, it belongs to the evaluation with the longer prefix. For
        example, `eval_test_loss` belongs to `eval_test`, not to `eval`.
        """
        longer = [other for other in self._names if other.startswith(f"{prefix}_")]
        known = {name for names in self._names.values() for name in names} | self._curves.keys() | {f"{prefix}_loss"}
        own = (name for name in known if name.startswith(f"{prefix}_"))
        return sorted(name for name in own if not any(name.startswith(f"{other}_") for other in longer))

    def _value(self, name: str) -> float:
        number = self._measured.get(name, 0)
        self._measured[name] = number + 1
        return float(self._curves[name](self.run.state.global_step, number)) if name in self._curves else 0.0


@dataclass(frozen=True)
class VirtualServices(TrainerServices):
    """The object `run.services` of a preview.

    The trainer of a preview is a `VirtualTrainer`. It lacks methods that need a model or a disk, such as `save_model`.
    Callbacks that take part in previews do not call these methods.
    """

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Return the metrics that the preview assumes for an evaluation, and announce the events of the evaluation."""
        metrics: dict[str, float] = self.trainer.evaluate(*args, **options)
        return metrics

    def rehearse_evaluation(self) -> tuple[str, ...] | None:
        """Return None: a preview runs no model, so it cannot find the names of the metrics."""
        return None

    def at(self, moment: str, work: Callable[[], Any], *arguments: Any) -> Any:
        """Call `work`, which does the work of the Trainer method named `moment`. Return the result of `work`.

        If `moment` is `_load_best_model`, do nothing and return None, because a preview has no weights.
        """
        return None if moment == "_load_best_model" else work()

    def data_generators(self) -> OwnGenerators:
        """Return an object without generators: a preview reads no data."""
        return OwnGenerators({})


class VirtualResumption(Resumption):
    """The start of a preview from a checkpoint. It loads no weights, no optimizer state and no RNG states."""

    def _load(self, load_weights: Callable[[], Any]) -> None:
        """Do nothing: there is no model."""

    def restore(self, feed: Any) -> None:
        """Restore callback states, learning-rate schedule and the sums of the training losses from the checkpoint."""
        run: Any = self.run
        states, owners = self.checkpoint.callbacks_and_owners()
        attached = {type(callback).__name__ for callback in run.bus.subscribers.values()}
        if run.args.restore_callback_states_from_checkpoint:
            known = [name for name in states if owners.get(name, {}).get("class", name) in attached]
            run.callback_states.restore(
                {name: states[name] for name in known}, {name: owners[name] for name in known if name in owners}
            )
            self._restore_stops(owners)
        stored = self.checkpoint.state_files
        if stored.has(StatePart.SCHEDULER) and run.lr_scheduler is not None:
            stored.restore(StatePart.SCHEDULER, run.lr_scheduler, run.lr_scheduler.load_state_dict)
            for _ in range(len(getattr(run.lr_scheduler, "base_lrs", ())) - len(run.optimizer.param_groups)):
                run.optimizer.add_param_group({"params": [torch.zeros(1)]})  # the run was saved with more groups
            for group, rate in zip(run.optimizer.param_groups, run.lr_scheduler.get_last_lr()):
                group["lr"] = rate
        own = stored.own(run.ranks.rank, run.ranks.world_size)
        run.losses.load_state_dict(own.get("losses", {}))
        run.restore_step(own.get("last_step", {}))
        run.continue_from(own)
        self.checkpoint.release()
        run.set_checkpoint(CheckpointRecord.of(self.checkpoint, run.state.global_step))
        run.announce("on_load")


class VirtualStart(FreshStart):
    """The start of a preview at step 0."""


def dummy_optimizer(groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer:
    """Build an optimizer that updates no model. A schedule can read and set the learning rates of the optimizer.

    Args:
        groups: parameter groups. The optimizer copies only `lr` and `initial_lr` from each group. If there are no
            groups, the optimizer has one group.
        rate: the learning rate for groups without `lr`.
    """
    kept = [{name: group[name] for name in ("lr", "initial_lr") if name in group} for group in groups] or [{}]
    made = torch.optim.AdamW([{"params": [torch.zeros(1)], **group} for group in kept], lr=rate)
    # Otherwise a schedule, or its copy, warns that it steps before the optimizer.
    made._opt_called = True  # type: ignore[attr-defined]
    step: Any = partial(made.step)  # a method takes no attributes
    step._wrapped_by_lr_sched = True
    made.step = step  # type: ignore[method-assign]
    return made
