"""The findings of a dry batch as text, and its checks of the optimizer and of metric names.

These functions read no sample and call no code of the program.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ....events.capabilities import Capability
from ....events.composition import provides
from ....events.errors import nearest
from ...evaluation.rehearsal import REPLACEABLE
from ...loss.loss_module import module_of, trainable_of
from ...run import Run
from ..overrides import is_overridden

SHOWN = 4
"""The largest number of names that a finding lists."""
MUCH_PADDING = 0.5
"""A share of padding of this value or more is a finding."""
MANY_TRUNCATED = 0.05
"""A share of samples of maximum length of this value or more is a finding."""

_GROUP = (
    "Set `train_sampling_strategy='group_by_length'`. For a causal language model, you can also pass "
    "`data_collator=Packing()`."
)
_PAD_LATER = "Pad in the data collator, to the longest sample of a batch, and not during tokenization."


def listed(names: list[str]) -> str:
    """Return names as text. After `SHOWN` names, the text ends with `and <number> more`."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def optimizer_findings(trainer: Any) -> Iterator[str] | None:
    """Return the findings about trainable parameters that are not in the optimizer.

    Return None if the optimizer cannot be checked. For example, if a callback shards the model, the optimizer may have
    other tensors than the parameters.
    """
    run: Run = trainer.run
    optimizer, subscribers = run.optimizer, run.bus.subscribers.values()
    sharded = provides(subscribers, Capability.SHARDS_MODEL) or provides(subscribers, Capability.DEEPSPEED)
    if sharded or run.seams.filled_by("make_optimizer") or not isinstance(optimizer, torch.optim.Optimizer):
        return None
    held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    # `model.parameters()` would take several times as long, because it removes duplicates. Here a shared weight may
    # come twice.
    weights = [weight for module in run.model.modules() for weight in module._parameters.values() if weight is not None]
    trained = [weight for weight in weights if weight.requires_grad]
    if any(weight._post_accumulate_grad_hooks for weight in trained):
        return None  # an optimizer for each layer steps in the backward
    return _of_parameters(trainer, trained, held)


def _of_parameters(trainer: Any, trained: list[torch.nn.Parameter], held: set[int]) -> Iterator[str]:
    model, kind = trainer.run.model, type(trainer.run.optimizer).__name__
    module = module_of(trainer.criterion or trainer.compute_loss_func)
    if not trained and not trainable_of(module, model):
        yield (
            f"No parameter of {type(model).__name__} is trainable: all have `requires_grad=False`, so no step changes "
            "the model. Call `requires_grad_(True)` on the parameters to train."
        )
    if all(id(weight) in held for weight in trained):
        return
    names = {name: each for name, each in model.named_parameters() if each.requires_grad}
    missing = [name for name, each in names.items() if id(each) not in held]
    if len(missing) == len(names):
        yield (
            f"The optimizer {kind} holds no trainable parameter of {type(model).__name__}, so no step changes the "
            "model. Build the optimizer from the parameters of this model, or pass `optimizer_cls_and_kwargs` instead "
            "of `optimizers`."
        )
        return
    yield (
        f"{len(missing)} of {len(names)} trainable parameters are not in the optimizer {kind}, so they keep their "
        f"values: {listed(missing)}. Add them to the optimizer, or freeze them with `requires_grad_(False)`, which "
        "also saves the memory of their gradients."
    )


def metric_finding(trainer: Any, metric: str) -> str | None:
    """Return a finding if no evaluation of the trainer can return a metric; otherwise None.

    If it is not known which metrics the evaluations return, the result is None too.

    Args:
        trainer: the Trainer.
        metric: the full name of a metric that a callback reads, such as `eval_loss`.
    """
    given = trainer.eval_dataset
    if given is None or any(is_overridden(trainer, name) for name in REPLACEABLE):
        return None
    prefixes = [f"eval_{name}" for name in given] if isinstance(given, dict) else ["eval"]
    # The metrics of memory have several names.
    of_engine = ("loss", "runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
    if any(metric.startswith(f"{prefix}_mem_") for prefix in prefixes):
        return None
    if trainer.compute_metrics is None:
        names = [f"{prefix}_{name}" for prefix in prefixes for name in of_engine]
        if metric in names:
            return None
        return (
            f"A callback reads the metric {metric!r}, but no evaluation measures it{nearest(metric, names)} Without "
            f"`compute_metrics`, evaluations measure {', '.join(name for name in names if 'model' not in name)}. Pass "
            "`compute_metrics`, or set `metric_for_best_model` to one of these."
        )
    if any(metric.startswith(f"{prefix}_") for prefix in prefixes):
        return None
    return (
        f"A callback reads the metric {metric!r}, but no evaluation measures it: `eval_dataset` is a dict, so the "
        f"names of the metrics start with {', '.join(f'{prefix}_' for prefix in prefixes)}. Set "
        f"`metric_for_best_model`, for example to {prefixes[0] + metric.removeprefix('eval')!r}."
    )


def label_finding(masked: float | None) -> str | None:
    """Return a finding if the loss ignores all labels of the batch; otherwise None.

    Args:
        masked: the share of labels that are -100; None if it is not known.
    """
    if masked != 1.0:
        return None
    return (
        "All labels of the batch are -100, so the loss ignores every token and the model learns nothing. Check the "
        "masking of the labels in the collator or the tokenization. A prompt that fills the maximum length leaves no "
        "answer."
    )


def padding_finding(
    share: float | None, of_run: float | None, grouped: bool, to_longest: float | None = None
) -> str | None:
    """Return a finding if at least half of the tokens are padding, in the run or in the batch; otherwise None.

    Args:
        share: the share of padding in the batch; None if it is not known.
        of_run: the expected share of padding in all batches of the run; None if it is not known. Pass a number only
            if the batch has the longest samples of the run.
        grouped: whether batches have samples of similar length. If True, a high `of_run` gives no finding.
        to_longest: the share of padding that the batch would have if it were padded to its longest sample; None if it
            is not known.
    """
    if of_run is not None and of_run >= MUCH_PADDING and not grouped:
        return f"About {of_run:.0%} of the tokens of the run are padding. {_GROUP}"
    if share is None or share < MUCH_PADDING:
        return None
    of_batch = f"{share:.0%} of the tokens of the batch are padding"
    if to_longest is None:
        return (
            f"{of_batch}. {_PAD_LATER} If the samples have different lengths, also set "
            "`train_sampling_strategy='group_by_length'`."
        )
    if to_longest < MUCH_PADDING:
        return f"{of_batch}. If it were padded to its longest sample, it would have {to_longest:.0%}. {_PAD_LATER}"
    if grouped or of_run is not None:
        return (
            f"{of_batch}, because its longest sample is much longer than the others. Split or truncate such samples. "
            "For a causal language model, you can also pass `data_collator=Packing()`."
        )
    return f"{of_batch}, because its samples have different lengths. {_GROUP}"


def truncation_finding(share: float | None, limit: int | None, of_batch: bool = False) -> str | None:
    """Return a finding if at least 5 % of the samples have `limit` tokens or more; otherwise None.

    Args:
        share: the share of samples that have `limit` tokens or more; None if it is not known.
        limit: the maximum length of the tokenizer or the model; None if it is not known.
        of_batch: whether `share` is a share of the samples of the batch. If False, it is a share of all samples.
    """
    if share is None or limit is None or share < MANY_TRUNCATED:
        return None
    counted = "samples of the batch" if of_batch else "samples"
    return (
        f"{share:.0%} of the {counted} have {limit:,} tokens or more, the maximum length of the tokenizer or the "
        "model, so they were probably truncated. Split long texts into several samples, or raise the maximum length."
    )


def gradient_findings(loss: float, norm: float | None, without: list[str], trained: int) -> Iterable[str]:
    """Yield the findings about the gradients of a batch.

    Args:
        loss: the loss of the batch.
        norm: the norm of the gradients; None if no parameter has a gradient.
        without: the names of the trainable parameters without a gradient.
        trained: the number of trainable parameters.
    """
    if without:
        yield (
            f"{len(without)} of {trained} trainable parameters get no gradient from this batch: {listed(without)}. The "
            "loss does not depend on them, for example because an output of the model is not used. Use the output in "
            "the loss, or freeze the parameters with `requires_grad_(False)`. With DDP, set "
            "`ddp_find_unused_parameters=True` if they are used in other batches."
        )
    if norm is not None and math.isfinite(loss) and not math.isfinite(norm):
        yield (
            f"The loss is {loss:.4g}, but the gradient norm is {norm}. Look for a division by zero or a square root of "
            "zero in the model. `debug='underflow_overflow'` names the first layer with a value that is not finite."
        )
