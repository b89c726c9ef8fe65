"""Rehearse an evaluation: evaluate one batch to find the names of its metrics, without any effect on the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.data import Subset, TensorDataset

from ...events.errors import ArgumentError
from ..arguments import TrainingArguments
from ..data.batches import to_device, to_numpy
from ..data.build import keep_columns
from ..data.collators.default import Collator, DefaultDataCollator, default_data_collator
from ..data.collators.padding import DataCollatorWithPadding
from ..loss.loss_module import module_of
from ..loss.objective import Objective
from .isolation import NotIsolated, isolated, undisturbed
from .metrics import finished_metrics
from .outputs import EvalPrediction, speed_metrics
from .prediction import prediction_step
from .streamed import StreamedMetrics

logger = logging.getLogger(__name__)

REPLACEABLE = (
    *("evaluate", "evaluation_loop", "prediction_step", "compute_loss", "get_eval_dataloader", "_get_eval_sampler"),
    *("log", "_prepare_inputs", "_evaluate", "_determine_best_metric"),
)
"""The methods of a Trainer that decide what an evaluation measures. If a subclass overrides one of these methods, the
names of the metrics are unknown."""


def rehearse(
    model: nn.Module,
    datasets: Mapping[str, Any],
    args: TrainingArguments,
    objective: Objective,
    collator: Collator,
    accepted: Collection[str] | None,
    compute_metrics: Callable[..., Any] | None,
    preprocess_logits: Callable[[Any, Any], Any] | None,
) -> tuple[str, ...] | None:
    """Evaluate one batch of each dataset, and return the names of the metrics that an evaluation will measure.

    Before the first step, callbacks use the names to check that the metric they read exists. The function evaluates
    only if the evaluation is fast and cannot change the run. All conditions must be true:

    - The model has no lazy weights. `batch_eval_metrics` and `include_for_metrics` are not set.
    - Reading the datasets needs no user code.
    - The collator is `default_data_collator`, a `DefaultDataCollator` or a `DataCollatorWithPadding`.
    - The function `isolated` can copy `preprocess_logits`.
    - `isolated` can copy `compute_metrics`, or `compute_metrics` is a `StreamedMetrics` with a True `names_are_known`.

    At the end, the function restores the modes, buffers and attributes of modules, and all RNG states.

    Args:
        model: the model, without a wrapper.
        datasets: the datasets. Each key is the prefix of the metric names of its dataset, such as `eval`.
        args: the training arguments.
        objective: computes the loss.
        collator: turns samples into a batch.
        accepted: the columns to keep; None keeps all.
        compute_metrics: turns predictions and labels into metrics; None for an evaluation of the loss only.
        preprocess_logits: called with logits and labels; its result replaces the logits.

    Returns:
        The names; None if the function does not evaluate, or if the evaluation fails.

    Raises:
        ArgumentError: for metrics that logs and checkpoints cannot hold.
    """
    weights = (*model.parameters(), *model.buffers())
    lazy = any(map(is_lazy, weights))
    plain_collator = collator is default_data_collator or type(collator) in (
        DefaultDataCollator,
        DataCollatorWithPadding,
    )
    known = plain_collator and all(map(_is_in_memory, datasets.values()))
    if lazy or not known or args.batch_eval_metrics or args.include_for_metrics:
        return None
    names: list[str] = []
    loss = module_of(objective.criterion or objective.compute_loss_func)
    try:
        metrics = _isolated_metrics(compute_metrics)
        preprocess = isolated(preprocess_logits) if preprocess_logits is not None else None
        with undisturbed([model] if loss is None else [model, loss]):
            for prefix, dataset in datasets.items():
                collate = collator
                if accepted is not None:
                    dataset, collate = keep_columns(dataset, collator, accepted)
                rows = [dataset[index] for index in range(min(len(dataset), args.eval_batch_size))]
                batch = to_device(collate(rows), args.device)
                names += _measured(model, batch, objective, metrics, preprocess, prefix)
    except ArgumentError:
        raise
    except Exception as error:  # if the evaluation itself fails in the same way, it shows the error
        logger.debug("The metrics of an evaluation are not known in advance: %r", error)
        return None
    return (*names, "epoch")


def _isolated_metrics(compute_metrics: Any) -> Any:
    """Return a copy of `compute_metrics`; None for None. A call of the copy does not change the state of the original.

    Raises:
        NotIsolated: if `compute_metrics` cannot be copied. Also if `compute_metrics` is a `StreamedMetrics` whose
            attribute `names_are_known` is False.
    """
    if isinstance(compute_metrics, StreamedMetrics):
        if not compute_metrics.names_are_known:
            raise NotIsolated
        return compute_metrics.begin()
    return isolated(compute_metrics) if compute_metrics is not None else None


def _measured(
    model: nn.Module, batch: Any, objective: Objective, metrics: Any, preprocess: Any, prefix: str
) -> list[str]:
    """Return the names of the metrics that an evaluation of one batch gives."""
    speed = [*speed_metrics(prefix, 0.0, 1, 1)]
    if metrics is None:
        return [*([f"{prefix}_loss"] if objective.has_loss(batch) else []), *speed]
    loss, logits, labels = prediction_step(model, batch, False, None, objective, objective)
    if preprocess is not None and logits is not None:
        logits = preprocess(logits, labels)
    computed = {}
    if logits is not None and labels is not None:
        computed = metrics(EvalPrediction(to_numpy(logits), to_numpy(labels)))
    own = finished_metrics(computed, None, prefix, filter_nonfinite=False)
    return [*own, *([f"{prefix}_loss"] if loss is not None else []), *speed]


def _is_in_memory(dataset: Any) -> bool:
    """Return whether reading a sample is known to run no user code and to draw no random numbers.

    True for lists and tuples of samples, a `TensorDataset`, a dataset of the library datasets without a transform, and
    a `Subset` of these.
    """
    if type(dataset) is Subset:
        return _is_in_memory(dataset.dataset)
    if type(dataset) in (list, tuple):  # a subclass may have its own `__getitem__`
        return all(_is_plain_row(row) for row in islice(dataset, 1))
    arrow = type(dataset).__module__ == "datasets.arrow_dataset" and dataset.format["type"] != "custom"
    return arrow or type(dataset) is TensorDataset


def _is_plain_row(row: Any) -> bool:
    """Return whether a row is a mapping, tuple or list of a class that the user did not define."""
    library = type(row).__module__.partition(".")[0] in ("builtins", "collections", "transformers")
    return isinstance(row, (Mapping, tuple, list)) and (library or hasattr(row, "_fields"))
