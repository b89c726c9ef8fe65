"""Evaluate when the trigger is due, and optionally before the first step."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.distributed.memory_errors import is_out_of_memory
from ...engine.evaluation.evaluation_record import EvaluationPlan, planned
from ...engine.run import Run
from ...events.capabilities import Capability
from ...events.control import TrainerControl
from ...events.errors import ArgumentError, EvaluationStopped
from ...events.stages import Stage, order
from ...events.triggers import Trigger, every, never
from ..base.cadence import Cadence
from .log import from_strategy, serves


@dataclass
class Evaluate(Cadence):
    """Evaluates the trainer's `eval_dataset`, or the dataset in the field `dataset`, when `trigger` is due.

    Every trainer has an `Evaluate`, and the training arguments configure it. A run may have several `Evaluate`
    callbacks with different triggers and datasets. Each additional `Evaluate` needs a `dataset` and a `name`:
    `Evaluate(every(500), dataset=hard, name="hard")`.

    If you set `rows`, all evaluations during the training read the same random rows of each dataset. If an evaluation
    has two batches or more, the evaluation also logs `eval_loss_ci`. This metric is half the width of the 95 %
    confidence interval of the mean loss. `KeepBest`, `EarlyStopping` and `MetricSchedule` read the metrics of these
    rows. When the training ends, `Evaluate` evaluates all rows with the final weights. `KeepBest`, `EarlyStopping` and
    `MetricSchedule` ignore the metrics of this last evaluation. `trainer.evaluate()` always evaluates all rows.

    If a signal interrupts an evaluation, the resumed run repeats the whole evaluation.

    Raises:
        ArgumentError: if `name` is set without `dataset`, if `rows` is less than 1, if `rows` is set
            and a dataset has no length, or if an evaluation batch does not fit in memory. When the training begins: if
            `dataset` is a text that names no dataset of the trainer and no file.
        DataError: when the training begins: if there is no dataset, or if the dataset cannot be evaluated.
    """

    flag = "evaluate"
    capabilities = frozenset({Capability.EVALUATES})
    alternative = ", or give one of them a dataset and a name"
    arguments = ("eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "minimum_eval_times", "eval_rows")

    trigger: Trigger = field(default_factory=lambda: every(1, "epoch"))
    """When to evaluate. Default: at the end of each epoch."""
    on_start: bool = False
    """Whether to evaluate before the first step, to find errors in the evaluation early."""
    dataset: Any = field(default=None, repr=False)
    """The dataset, the name of one of the trainer's datasets, or the path of a file of rows. Default: all datasets of
    the trainer."""
    name: str = ""
    """A name for `dataset`. The metrics of this dataset are called `eval_<name>_<metric>`."""
    rows: int | None = field(default=None, kw_only=True)
    """The number of random rows of each dataset to evaluate. `data_seed`, or else `seed`, selects the rows. Default:
    all rows."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    _interrupted: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name and self.dataset is None:
            raise ArgumentError(f"Evaluate(name={self.name!r}) has a name but no dataset. Set `dataset` too.")
        if self.rows is not None and self.rows < 1:
            raise ArgumentError(f"Evaluate(rows={self.rows!r}) is not a number of rows. Set `rows` to 1 or more.")

    def __repr__(self) -> str:
        shown = [entry.name for entry in fields(self) if entry.repr]
        if self.rows is None:
            shown.remove("rows")  # most evaluations have all rows
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def variant(self) -> str:
        """The name of the dataset. It is an empty text for the `Evaluate` that the training arguments configure."""
        return self.name or (self.dataset if isinstance(self.dataset, str) else "")

    def has(self, capability: Capability) -> bool:
        plans = self.on_start or self.trigger != never()
        return plans if capability is Capability.PLANS_EVALUATIONS else super().has(capability)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Evaluate:
        times = args.minimum_eval_times or 0
        trigger = from_strategy(args.eval_strategy, args.eval_steps, args.eval_delay, times)
        return cls(trigger, args.eval_on_start, rows=args.eval_rows)

    def on_setup(self, run: Run) -> None:
        super().on_setup(run)
        if run.mode == "train":
            self._interrupted = False  # a resumed run restores its own value later

    @order(Stage.RELEASE)
    def on_train_begin(self, run: Run) -> None:
        if self.has(Capability.PLANS_EVALUATIONS):
            run.services.check_evaluation(self._given())
        if self._interrupted and run.randomness:
            # The repeated evaluation draws random numbers before the next step does, as in an uninterrupted run.
            run.restore_rng(run.randomness)
            self._evaluate(run, self.rows)
            run.continue_from(run.rng_states())
        elif self._interrupted or (self.on_start and run.state.global_step == 0):
            self._evaluate(run, self.rows)

    @order(Stage.ACT)
    def on_evaluate_due(self, run: Run, control: TrainerControl, requested_by: frozenset[str]) -> None:
        if serves(self, control.speaker, requested_by, run):
            self._evaluate(run, self.rows)

    @order(Stage.ACT)
    def on_train_end(self, run: Run) -> None:
        # Earlier stages put the best or the averaged weights into the model.
        if self.rows is not None and self.has(Capability.PLANS_EVALUATIONS) and run.state.global_step > 0:
            self._evaluate(run, rows=None, decides=False)

    def _given(self) -> Any:
        """Return the value to pass as `eval_dataset`: `{name: dataset}` if `name` is set, else `dataset`."""
        return {self.name: self.dataset} if self.name else self.dataset

    def _evaluate(self, run: Run, rows: int | None, decides: bool = True) -> None:
        dataset = self._given()
        self._interrupted = True  # so that a checkpoint that is written after an error records it
        before, workers = run.rng_states(), run.eval_loaders.state_dict()
        logged = len(run.state.log_history)
        try:
            with planned(run, EvaluationPlan(rows, decides, repeats=True)):
                if dataset is None:
                    run.services.at("_evaluate", run.evaluate, None, None)
                else:
                    run.evaluate(eval_dataset=dataset)
            self._interrupted = False
        except EvaluationStopped:
            run.restore_rng(before)
            run.eval_loaders.load_state_dict(workers)
            self._interrupted = run.control.should_training_stop  # else the run continues without the metrics
            if self._interrupted:  # the resumed run repeats the whole evaluation, and logs all its metrics
                del run.state.log_history[logged:]
                if run.position is not None:
                    run.position.held = run.position.batches > 0  # and then does the work at the end of the epoch
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise ArgumentError(
                f"An evaluation batch of {run.args.per_device_eval_batch_size} samples does not fit in memory. Set a "
                "smaller `per_device_eval_batch_size`. Or set `eval_accumulation_steps` to keep fewer predictions on "
                "the device."
            ) from error

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "left": self._interrupted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._interrupted = state.pop("left", False)  # the session stopped in the middle of an evaluation
        super().load_state_dict(state)
