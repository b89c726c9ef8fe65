"""When the model is evaluated, and which results an evaluation keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._base import Group, IntervalStrategy, arg, must, steps_or_share


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class EvaluationArguments(Group):
    """When the model is evaluated, and which results an evaluation keeps."""

    eval_strategy: IntervalStrategy | str = arg(
        IntervalStrategy.NO,
        "When to evaluate during training: 'no' (never), 'steps' (every `eval_steps`) or 'epoch' (after each epoch).",
        choices=IntervalStrategy,
    )
    eval_steps: float | None = arg(
        None,
        "Steps between two evaluations, for `eval_strategy='steps'`. Below 1: a fraction of the run. None or 0: "
        "`logging_steps`.",
    )
    eval_delay: float = arg(0, "Steps or epochs (the unit of `eval_strategy`) to wait before evaluations begin.")
    eval_on_start: bool = arg(False, "Evaluate before the first step, to find errors of the evaluation early.")
    eval_rows: int | None = arg(
        None,
        "Number of random rows of each dataset to evaluate during training. None: all rows. The rows are the same "
        "in each evaluation. At the end of training, all rows are evaluated. An evaluation of some rows also measures "
        "`eval_loss_ci`: half the width of the 95 % confidence interval of the mean loss.",
    )
    minimum_eval_times: int | None = arg(
        None,
        "Least number of evaluations in the run. Reduces `eval_steps` if necessary. None: `eval_steps` is not changed. "
        "Does not work with `eval_strategy='epoch'`.",
    )
    prediction_loss_only: bool = arg(False, "Keep only the loss in evaluations, not predictions and labels.")
    include_for_metrics: list[str] = arg(
        [],
        "What `compute_metrics` receives besides predictions and labels: 'inputs', 'loss' (one value per sample), or "
        "both.",
    )
    eval_accumulation_steps: int | None = arg(
        None,
        "Number of evaluation batches after which the predictions move from the device to host memory. None: they "
        "move once, at the end of the evaluation.",
    )
    eval_do_concat_batches: bool = arg(
        True, "Concatenate the predictions of all batches into one array. False: keep a list with one array per batch."
    )

    batch_eval_metrics: bool = arg(
        False,
        "Call `compute_metrics` after every batch, so that no predictions are kept. The last call has "
        "`compute_result=True`.",
    )
    eval_use_gather_object: bool = arg(
        False, "Gather predictions of the ranks as Python objects instead of tensors. Slower, but allows any structure."
    )

    def problems(self) -> Iterator[str]:
        yield from must(
            self,
            steps_or_share,
            "set it to a whole number of steps, or to a fraction of the run in (0, 1).",
            "eval_steps",
        )
        yield from must(self, lambda wait: wait >= 0, "set it to 0 or more.", "eval_delay")
        yield from must(self, lambda n: n >= 1, "set it to 1 or more, or to None.", "eval_accumulation_steps")
        yield from must(
            self, lambda n: n >= 1 and n == int(n), "set it to a whole number of rows, or to None.", "eval_rows"
        )
        yield from must(self, lambda n: n >= 1, "set it to 1 or more, or to None.", "minimum_eval_times")
        if self.minimum_eval_times and self.eval_strategy == IntervalStrategy.EPOCH:
            yield (
                f"`minimum_eval_times={self.minimum_eval_times}` reduces `eval_steps`, which `eval_strategy='epoch'` "
                "does not use; set `eval_strategy='steps'`, or remove it."
            )
        yield from must(self, {"inputs", "loss"}.issuperset, "choose from 'inputs' and 'loss'.", "include_for_metrics")
