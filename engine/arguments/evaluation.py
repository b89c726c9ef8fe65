"""When the model is evaluated, and what of it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._base import Group, IntervalStrategy, arg, must, steps_or_share


@dataclass(kw_only=True)
class EvaluationArguments(Group):
    """When the model is evaluated, and what the evaluation keeps."""

    eval_strategy: IntervalStrategy | str = arg(
        IntervalStrategy.NO, "When the model is evaluated during training.", choices=IntervalStrategy
    )
    eval_steps: float | None = arg(
        None, "Steps between two evaluations; below 1, a share of the run. Left out, they follow `logging_steps`."
    )
    eval_delay: float = arg(
        0, "How long no evaluation happens from the start, in the unit of `eval_strategy`: steps or epochs."
    )
    eval_on_start: bool = arg(False, "Whether to evaluate before the first step, which finds mistakes early.")
    minimum_eval_times: int | None = arg(
        None, "How often a run evaluates at least, where `eval_steps` would make it fewer; None goes by `eval_steps`."
    )
    prediction_loss_only: bool = arg(False, "Whether an evaluation keeps the loss only, no predictions and labels.")
    include_for_metrics: list[str] = arg(
        [], "What `compute_metrics` gets beside predictions and labels: 'inputs', 'loss' (one per sample) or both."
    )
    eval_accumulation_steps: int | None = arg(
        None,
        "Batches whose predictions stay on the device before they move to host memory; None moves them at the end.",
    )
    eval_do_concat_batches: bool = arg(
        True, "Whether the predictions of all batches are joined into one array, rather than kept as a list of batches."
    )

    batch_eval_metrics: bool = arg(
        False,
        "Whether `compute_metrics` is called batch by batch, with `compute_result=True` at the last one, so that no "
        "predictions are kept.",
    )
    eval_use_gather_object: bool = arg(
        False, "Whether predictions of several processes are gathered as any nested objects, rather than as tensors."
    )

    def problems(self) -> Iterator[str]:
        yield from must(self, steps_or_share, "give whole steps, or a share of the run in (0, 1).", "eval_steps")
        yield from must(self, lambda wait: wait >= 0, "give 0 or more.", "eval_delay")
        yield from must(self, lambda n: n >= 1, "give at least 1 batch, or None.", "eval_accumulation_steps")
        yield from must(self, lambda n: n >= 1, "give at least 1, or None.", "minimum_eval_times")
        if self.minimum_eval_times and self.eval_strategy == IntervalStrategy.EPOCH:
            yield (
                f"`minimum_eval_times={self.minimum_eval_times}` makes `eval_steps` smaller, and `eval_strategy` is "
                "'epoch', which has none; give eval_strategy='steps', or leave it out."
            )
        yield from must(self, {"inputs", "loss"}.issuperset, "take from 'inputs' and 'loss'.", "include_for_metrics")
