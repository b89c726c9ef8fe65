"""When the model is evaluated, and which results an evaluation returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._base import Group, IntervalStrategy, arg, must, steps_or_share


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class EvaluationArguments(Group):
    """When the model is evaluated, and which results an evaluation returns."""

    eval_strategy: IntervalStrategy | str = arg(
        IntervalStrategy.NO,
        "When to evaluate during training: 'no' (never), 'steps' (every `eval_steps`) or 'epoch' (after each epoch).",
        choices=IntervalStrategy,
    )
    eval_steps: float | None = arg(
        None,
        "Number of steps between two evaluations, for `eval_strategy='steps'`. A value below 1 is a fraction of the "
        "run. None or 0: the value of `logging_steps`.",
    )
    eval_delay: float = arg(
        0,
        "Number of steps (with `eval_strategy='steps'`) or epochs (with 'epoch') in which no evaluation runs at the "
        "start of training.",
    )
    eval_on_start: bool = arg(False, "Evaluate before the first step, to find errors of the evaluation early.")
    eval_rows: int | None = arg(
        None,
        "Number of random rows of each dataset to evaluate during training. None: all rows. The rows are the same in "
        "each evaluation. At the end of training, the run evaluates all rows. An evaluation with `eval_rows` also "
        "measures `eval_loss_ci`, which is half the width of the 95 % confidence interval of the mean loss.",
    )
    minimum_eval_times: int | None = arg(
        None,
        "Smallest number of evaluations in the run. The run reduces `eval_steps` if necessary. None: the run does "
        "not change `eval_steps`. Does not work with `eval_strategy='epoch'`.",
    )
    prediction_loss_only: bool = arg(
        False, "Keep only the loss in evaluations. The evaluations then return no predictions and no labels."
    )
    include_for_metrics: list[str] = arg(
        [],
        "Additional values for `compute_metrics`, besides predictions and labels. A list with 'inputs', with 'loss' "
        "(one value per sample), or with both.",
    )
    eval_accumulation_steps: int | None = arg(
        None,
        "Number of evaluation batches after which predictions move to host memory. None: the predictions move once, "
        "at the end of the evaluation.",
    )
    eval_do_concat_batches: bool = arg(
        True, "Concatenate the predictions of all batches into one array. False: keep a list with one array per batch."
    )

    batch_eval_metrics: bool = arg(
        False,
        "Call `compute_metrics` after every batch, so that the evaluation keeps no predictions. The call after the "
        "last batch has `compute_result=True`.",
    )
    eval_use_gather_object: bool = arg(
        False,
        "Gather predictions of the ranks as Python objects instead of tensors. This is slower, but the predictions "
        "may have any structure.",
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
