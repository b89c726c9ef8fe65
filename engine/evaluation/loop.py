"""Evaluation and prediction: one pass over a loader, to metrics and predictions. The second, smaller machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from ...events.errors import ArgumentError
from ..data.batches import detach, join, map_tensors, rows_of, to_device, to_numpy
from ..data.build import length_of, order_of
from ..distributed.ranks import Ranks
from ..loss.objective import Objective
from ..run import Run
from .outputs import EvalLoopOutput, EvalPrediction, plain

PredictionStep = Callable[..., tuple[Any, Any, Any]]
Metrics = Callable[..., dict[str, Any]]


@dataclass
class Gathered:
    """One kind of result - losses, predictions, labels or inputs - collected batch by batch."""

    concat: bool
    parts: list[Any] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)

    def add(self, part: Any) -> None:
        """Keep the result of one batch, where it is."""
        self.parts.append(part)

    def last(self, rows: int) -> Any:
        """Return the first `rows` rows of the last batch, where it is; None if there is none."""
        return first_rows(self.parts[-1], rows) if self.parts else None

    def drop(self) -> None:
        """Keep nothing that is not in the host's memory."""
        self.parts = []

    def to_host(self) -> None:
        """Move what is kept to the host's memory."""
        if self.parts:
            self.arrays.append(to_numpy(join(self.parts))) if self.concat else self.arrays.extend(
                map(to_numpy, self.parts)
            )
            self.parts = []

    def whole(self, rows: int, order: list[int] | None = None, surplus: int = 0) -> Any:
        """Return the first `rows` rows of everything, as arrays; None if there is nothing.

        What lies behind them, `surplus` rows, was added to give all processes equal batches. Rows that came in an
        `order` of their own are put back into that of the dataset; where batches are kept apart, they stay as they
        came.
        """
        self.to_host()
        if not self.arrays:
            return None
        return first_rows(join(self.arrays), rows, order) if self.concat else _without_last(self.arrays, surplus)


def evaluation_loop(
    run: Run,
    loader: Any,
    prediction_step: PredictionStep,
    *,
    prefix: str,
    loss_only: bool,
    compute_metrics: Metrics | None,
    by_batch: bool = False,
    keeps_batches: bool = True,
    preprocess_logits: Callable[[Any, Any], Any] | None = None,
    ignore_keys: list[str] | None = None,
) -> EvalLoopOutput:
    """Run the model over a loader without training it.

    Args:
        run: read for the model, the arguments and the processes; `eval_dataloader` is set.
        loader: the batches.
        prediction_step: called as `prediction_step(model, batch, loss_only, ignore_keys=...)`, returns loss, logits
            and labels of the batch, each of which may be None.
        prefix: of the metrics' names, as `eval`.
        loss_only: compute nothing but the loss.
        compute_metrics: from an `EvalPrediction` to metrics.
        by_batch: call it for each batch, on tensors, with `compute_result` saying whether it is the last.
        keeps_batches: keep the predictions, labels and inputs of all batches; only where metrics are computed by
            batch, there is a choice.
        preprocess_logits: applied to logits and labels of each batch, to keep less of them in memory.
        ignore_keys: keys of the model's outputs that are no predictions.

    Returns:
        Predictions and labels as arrays in the order of the dataset, each row once, and the metrics.
    """
    args, ranks = run.args, run.ranks
    model = run.model_wrapped
    model.eval()  # and it stays so: who hears of the evaluation may want to generate, and a training step changes back
    run.eval_dataloader = loader
    concat = args.eval_do_concat_batches
    losses, predictions, labels, inputs = (Gathered(keep) for keep in (True, concat, concat, concat))
    wants_inputs, wants_losses = ("inputs" in args.include_for_metrics), ("loss" in args.include_for_metrics)
    size, observed = length_of(getattr(loader, "dataset", None)), 0
    sizes: list[int] = []
    metrics: dict[str, Any] = {}
    non_blocking = args.non_blocking
    by_batch = by_batch and compute_metrics is not None
    # Only then, because it fetches ahead, and a collator that draws at random would do so earlier.
    batches = with_last(with_extra(loader)) if by_batch else ((batch, False) for batch in with_extra(loader))
    for step, ((batch, extra), last) in enumerate(batches):
        batch = to_device(batch, args.device, non_blocking)
        rows = (rows_of(batch) or 1) - extra
        loss, logits, label = prediction_step(model, batch, loss_only, ignore_keys=ignore_keys)
        if preprocess_logits is not None and logits is not None:
            logits = preprocess_logits(logits, label)
        if extra:
            logits, label = (first_rows(part, rows) for part in (logits, label))
        gathered = (
            (losses, loss.repeat(rows) if loss is not None else None),
            (predictions, logits),
            (labels, label),
            (inputs, first_rows(main_input(run.model, batch), rows if extra else None) if wants_inputs else None),
        )
        rows = gather_rows(gathered, ranks, rows, as_objects=args.eval_use_gather_object)
        run.announce("on_prediction_step")
        if by_batch and compute_metrics is not None and predictions.parts and labels.parts:
            new = rows if size is None else min(rows, size - observed)
            wanted = {"losses": losses.last(new) if wants_losses else None, "inputs": inputs.last(new)}
            batched = EvalPrediction(predictions.last(new), labels.last(new), **wanted)
            metrics = compute_metrics(batched, compute_result=last)
        if not keeps_batches:
            for kept in (predictions, labels, inputs):
                kept.drop()
        observed += rows
        sizes.append(rows)
        if args.eval_accumulation_steps is not None and (step + 1) % args.eval_accumulation_steps == 0:
            for kept, _ in gathered:
                kept.to_host()
    rows = observed if size is None else size
    order = order_of(loader)
    row_losses = losses.whole(rows)  # in the order they came in: another one would round their mean otherwise
    all_predictions, all_labels, all_inputs = (
        kept.whole(rows, order, observed - rows) for kept in (predictions, labels, inputs)
    )
    if compute_metrics is not None and not by_batch and all_predictions is not None and all_labels is not None:
        all_losses: Any = None
        if wants_losses and row_losses is not None:
            all_losses = first_rows(row_losses, rows, order) if concat else np.split(row_losses, np.cumsum(sizes)[:-1])
        wanted = {"losses": all_losses, "inputs": all_inputs}
        metrics = compute_metrics(EvalPrediction(all_predictions, all_labels, **wanted))
    if not isinstance(metrics, Mapping):
        raise ArgumentError(
            f"`compute_metrics` returned a {type(metrics).__name__}; return a dict of names and numbers, as "
            "{'accuracy': 0.9}."
        )
    metrics = plain(dict(metrics))
    if row_losses is not None:
        finite = row_losses[np.isfinite(row_losses)] if args.logging_nan_inf_filter else row_losses
        metrics[f"{prefix}_loss"] = (finite if finite.size else row_losses).mean().item()
    metrics = {key if key.startswith(f"{prefix}_") else f"{prefix}_{key}": value for key, value in metrics.items()}
    return EvalLoopOutput(all_predictions, all_labels, metrics, rows)


def metrics_of_first(ranks: Ranks, metrics: dict[str, Any]) -> dict[str, Any]:
    """Return metrics as the first process has them, so that what is decided from them is decided alike on all.

    Each process computes its own, of which one may have drawn random numbers or rounded otherwise. Numbers and texts
    are those of the first; what else is among them stays.
    """
    if ranks.single_process:
        return metrics
    decisive = {name: value for name, value in metrics.items() if value is None or isinstance(value, _DECISIVE)}
    of_first: dict[str, Any] = ranks.broadcast_object(decisive)
    return {**{name: value for name, value in metrics.items() if name not in decisive}, **of_first}


_DECISIVE = (bool, int, float, str)


def with_extra(loader: Iterable[Any]) -> Iterator[tuple[Any, int]]:
    """Yield each batch, and how many of its rows, the last ones, only fill it up and are counted elsewhere."""
    for batch in loader:
        yield batch, getattr(loader, "extra", 0)


def with_last(batches: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Yield each batch and whether it is the last."""
    batches = iter(batches)
    for batch in batches:
        for following in batches:
            yield batch, False
            batch = following
        yield batch, True


def gather_rows(gathered: tuple[tuple[Gathered, Any], ...], ranks: Ranks, rows: int, *, as_objects: bool) -> int:
    """Add the results of one batch, of all processes in order of rank; return how many rows they were.

    Args:
        gathered: what to add to, and the part of this process.
        ranks: the processes.
        rows: those of this process.
        as_objects: whether the parts may be any objects, and not of the same form on every process.
    """
    parts = [part for _, part in gathered]
    if not ranks.single_process and not as_objects:
        rows = int(ranks.sum(torch.tensor(rows, device=_device_of(parts))))
        parts = [map_tensors(ranks.gather_padded, part) for part in parts]
    elif not ranks.single_process:
        everyone = ranks.gather_objects(([map_tensors(torch.Tensor.cpu, part) for part in parts], rows))
        rows = sum(of_one[1] for of_one in everyone)
        parts = [
            None if part is None else join([of_one[0][index] for of_one in everyone])
            for index, part in enumerate(parts)
        ]
    for (kept, _), part in zip(gathered, parts):
        if part is not None:
            kept.add(part)
    return rows


def _device_of(parts: list[Any]) -> torch.device:
    found: list[torch.device] = []
    map_tensors(lambda tensor: found.append(tensor.device), parts)
    return found[0] if found else torch.device("cpu")


def first_rows(arrays: Any, rows: int | None, order: list[int] | None = None) -> Any:
    """Return nested arrays or tensors of shape (n, ...) cut to their first `rows`, if any; arrays sorted by `order`."""
    if arrays is None or isinstance(arrays, torch.Tensor):
        return arrays if arrays is None else arrays[:rows]
    if isinstance(arrays, np.ndarray):
        kept = arrays[:rows]
        return kept if order is None else kept[np.argsort(order[: len(kept)])]
    if isinstance(arrays, Mapping):
        return type(arrays)({key: first_rows(value, rows, order) for key, value in arrays.items()})  # type: ignore[call-arg]
    return type(arrays)(first_rows(value, rows, order) for value in arrays)


def _without_last(batches: list[Any], surplus: int) -> list[Any]:
    """Return batches that are kept apart, the last one without its last `surplus` rows."""
    if surplus <= 0:
        return batches
    return [*batches[:-1], first_rows(batches[-1], (rows_of(batches[-1]) or 0) - surplus)]


def main_input(model: nn.Module, batch: Any) -> Any:
    """Return what a model calls its main input, `input_ids` where it does not say."""
    return batch.get(getattr(model, "main_input_name", "input_ids")) if isinstance(batch, Mapping) else batch[0]


def prediction_step(
    model: nn.Module,
    batch: Any,
    loss_only: bool,
    ignore_keys: list[str] | None,
    objective: Objective,
    compute_loss: Any,
) -> tuple[Any, Any, Any]:
    """Return loss, logits and labels of a batch, without gradients; each is None where there is none.

    Args:
        model: the model, in evaluation mode.
        batch: on the model's device.
        loss_only: return neither logits nor labels.
        ignore_keys: keys of the outputs that are no logits; by default those that the model's config names.
        objective: knows what labels are called.
        compute_loss: called as `compute_loss(model, batch)`, returns loss and outputs.
    """
    if ignore_keys is None:
        config = getattr(model, "config", None)
        ignore_keys = list(getattr(config, "keys_to_ignore_at_inference", ["past_key_values"])) if config else []
    labels = objective.labels_in(batch)
    loss = None
    with torch.no_grad():
        if objective.has_loss(batch):
            loss, outputs = compute_loss(model, batch)
            loss = loss.detach().mean()
            skipped = [*ignore_keys, "loss"]
        else:
            outputs = objective.forward(model, batch)
            skipped = ignore_keys
    if loss_only:
        return loss, None, None
    logits = detach(_logits(outputs, skipped, drop_first=loss is not None and objective.model_returns_loss))
    return loss, logits, labels


def _logits(outputs: Any, skipped: list[str], drop_first: bool) -> Any:
    if isinstance(outputs, Mapping):
        outputs = tuple(value for key, value in outputs.items() if key not in skipped)
    elif isinstance(outputs, (tuple, list)):
        outputs = tuple(outputs[1:] if drop_first else outputs)
    else:
        return outputs
    return outputs[0] if len(outputs) == 1 else outputs
