"""Evaluate when it is due, and before the first step if wanted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.checkpoint.rng_state import random_states, restore_random_states
from ...engine.run import Run
from ...engine.search.batch_size import is_out_of_memory
from ...events.control import TrainerControl
from ...events.errors import ArgumentError, EvaluationStopped
from ...events.stages import Stage, order
from ...events.triggers import Trigger, every
from ..base.cadence import Cadence
from .log import from_strategy, serves


@dataclass
class Evaluate(Cadence):
    """Evaluates on the trainer's eval dataset, or on one of its own.

    Several may run side by side, each with a cadence and dataset of its own: give all but one a `dataset` and a `name`.
    """

    flag = "evaluate"
    set_apart = ", or give one of them a dataset and a name"
    arguments = ("eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "minimum_eval_times")

    trigger: Trigger = field(default_factory=lambda: every(1, "epoch"))
    """When."""
    on_start: bool = False
    """Also before the first step, as a check that evaluating works at all."""
    dataset: Any = field(default=None, repr=False)
    """What to evaluate on, or the name of one of the trainer's datasets; by default all of those."""
    name: str = ""
    """The name of `dataset`, for its metrics: `eval_<name>_<metric>`."""
    id: str | None = None
    """Its name in the ledger and in checkpoints."""
    _left: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.name and self.dataset is None:
            raise ArgumentError(f"Evaluate(name={self.name!r}): the name is that of a dataset; give it as `dataset`.")

    @property
    def aside(self) -> str:
        """The name of its dataset, for one beside the main evaluation."""
        return self.dataset if isinstance(self.dataset, str) else self.name

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Evaluate:
        times = args.minimum_eval_times or 0
        return cls(from_strategy(args.eval_strategy, args.eval_steps, args.eval_delay, times), args.eval_on_start)

    @order(Stage.RELEASE)
    def on_train_begin(self, run: Run) -> None:
        if self._left and run.randomness:
            # What it draws comes before what the next step draws, as it would have.
            restore_random_states(run.randomness)
            self._evaluate(run)
            run.randomness = random_states()
        elif self._left or (self.on_start and run.state.global_step == 0):
            self._evaluate(run)

    @order(Stage.ACT)
    def on_evaluate_due(self, run: Run, control: TrainerControl, requested_by: frozenset[str]) -> None:
        if serves(self, control.speaker, requested_by, run):
            self._evaluate(run)

    def _evaluate(self, run: Run) -> None:
        dataset = self.dataset
        if dataset is not None and not isinstance(dataset, str) and self.name:
            dataset = {self.name: dataset}
        self._left = False
        before = random_states()
        try:
            run.evaluate(eval_dataset=dataset)
        except EvaluationStopped:
            self._left = True
            restore_random_states(before)  # it is made from its beginning when the run goes on
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise ArgumentError(
                f"Memory does not hold an evaluation batch of {run.args.per_device_eval_batch_size} rows: give a "
                "smaller `per_device_eval_batch_size`, or `eval_accumulation_steps` to keep less on the device."
            ) from error

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "left": self._left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._left = state.pop("left", False)  # an evaluation that was stopped in the middle is made up for
        super().load_state_dict(state)
