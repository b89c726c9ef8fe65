"""The evaluation loop: one pass over a loader, for metrics and predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, repeat
from typing import Any, Protocol

import numpy as np
from torch import nn

from ...events.bus import EventBus
from ..arguments import TrainingArguments
from ..data.batches import rows_of, to_device
from ..data.build import batch_sizes, length_of, order_of, rows_read
from ..data.collators.default import makes_new_tensors
from ..data.loader import Loader
from ..data.plan import limited
from ..distributed.ranks import Ranks
from .evaluation_record import EvaluationRecord
from .gathering import first_rows
from .metrics import finished_metrics
from .modes import to_eval
from .outputs import EvalLoopOutput, EvalPrediction
from .prediction import main_input
from .results import BatchResult, Results

PredictionStep = Callable[..., tuple[Any, Any, Any]]
Metrics = Callable[..., dict[str, Any]]


class EvaluatedRun(Protocol):
    """The attributes of a run that the evaluation loop reads and writes. `Run` implements this protocol."""

    eval_dataloader: Any
    """The loader of the evaluation in progress. The loop sets it."""
    evaluation: EvaluationRecord
    """The record of the evaluation in progress. The loop sets `batch_number` and `empty` of the record."""

    @property
    def args(self) -> TrainingArguments:
        """The training arguments."""

    @property
    def ranks(self) -> Ranks:
        """The ranks. The loop gathers results from all ranks."""

    @property
    def model(self) -> nn.Module:
        """The model without a wrapper."""

    @property
    def model_wrapped(self) -> nn.Module:
        """The model that the loop calls, with its wrappers."""

    @property
    def bus(self) -> EventBus:
        """The event bus."""


def evaluation_loop(
    run: EvaluatedRun,
    loader: Any,
    prediction_step: PredictionStep,
    *,
    prefix: str,
    loss_only: bool,
    compute_metrics: Metrics | None,
    by_batch: bool = False,
    keeps_batches: bool = True,
    observed: bool = False,
    preprocess_logits: Callable[[Any, Any], Any] | None = None,
    ignore_keys: list[str] | None = None,
    limit: float | None = None,
) -> EvalLoopOutput:
    """Run the model over a loader without training it.

    After the loop, the model stays in evaluation mode, so that handlers of `on_evaluate` can call `model.generate`. The
    next training step switches the model back to training mode.

    Args:
        run: gives the model, the arguments and the ranks.
        loader: yields the batches.
        prediction_step: called as `prediction_step(model, batch, loss_only, ignore_keys=...)`; returns loss, logits and
            labels of the batch. Each may be None.
        prefix: the prefix of all metric names, such as `eval`.
        loss_only: compute only the loss.
        compute_metrics: turns an `EvalPrediction` into a dict of metrics; None measures only the loss.
        by_batch: call `compute_metrics` for each batch, with tensors and the argument `compute_result`, which is True
            for the last batch.
        keeps_batches: store predictions, labels and inputs of all batches. False needs `by_batch`.
        observed: whether a callback reads the predictions of each batch. If `loss_only` is also True, the loop computes
            predictions for the callback, and drops the predictions after each batch.
        preprocess_logits: called with logits and labels of each batch; its result replaces the logits. A smaller
            result needs less memory.
        ignore_keys: keys of the model's outputs that are not predictions. If None, `prediction_step` chooses the keys.
        limit: the number of batches of each rank, or a fraction below 1 of all batches; None for all batches.

    Returns:
        Predictions, labels, metrics and the number of rows, without padding rows. Predictions and labels are arrays in
        dataset order, or None if they are not stored. With `eval_do_concat_batches=False`, they are lists of batches in
        the order of the loader.

    Raises:
        ArgumentError: if `compute_metrics` does not return a dict, or returns values that cannot be logged.
    """
    args, announce = run.args, run.bus.announce
    model = run.model_wrapped
    to_eval(model)
    if isinstance(loader, Loader):
        loader = loader.independent()
    run.eval_dataloader = loader
    device, non_blocking = args.device, args.non_blocking
    by_batch = by_batch and compute_metrics is not None
    most = limited(limit, length_of(loader))
    results = Results(
        concat=args.eval_do_concat_batches,
        dataset_size=length_of(getattr(loader, "dataset", None)) if most is None else None,
        rows_to_read=lambda: rows_read(loader) if most is None else None,
        include_losses="loss" in args.include_for_metrics,
        as_objects=args.eval_use_gather_object,
        together=not (observed or by_batch),
        copies=keeps_batches and not (loss_only and observed),
        copies_labels=not isinstance(loader, Loader) or not makes_new_tensors(loader.collate_fn),
    )

    def predict(batch: Any) -> tuple[Any, Any, Any]:
        return prediction_step(model, batch, loss_only and not observed, ignore_keys=ignore_keys)

    metrics: Any = {}
    number = 0
    batches = _batches(loader, most, look_ahead=by_batch)
    for number, ((batch, known, padding_rows), is_last) in enumerate(batches, start=1):
        run.evaluation.batch_number = number - 1
        batch = to_device(batch, device, non_blocking)
        results.add(_batch_result(run, batch, known, padding_rows, predict, preprocess_logits), run.ranks)
        announce("on_prediction_step", batch=batch, prediction=results.last_prediction() if observed else None)
        if by_batch and compute_metrics is not None and results.has_last_pair:
            metrics = compute_metrics(results.last_prediction(), compute_result=is_last)
        if not keeps_batches or (loss_only and observed):
            results.drop_batch()
        if args.eval_accumulation_steps is not None and number % args.eval_accumulation_steps == 0:
            results.finish(run.ranks)
            results.to_host()
    run.evaluation.empty = number == 0
    results.finish(run.ranks)
    row_losses = results.row_losses()
    order = order_of(loader)
    if most is not None and order is not None:
        order = np.argsort(np.argsort(order[: results.rows_gathered])).tolist()  # the order among these rows
    prediction = results.prediction(order, row_losses)
    if compute_metrics is not None and not by_batch and _is_complete(prediction):
        metrics = compute_metrics(prediction)
    random_batches = None if run.evaluation.rows is None else args.eval_batch_size
    metrics = finished_metrics(
        metrics, row_losses, prefix, filter_nonfinite=args.logging_nan_inf_filter, batch_size=random_batches
    )
    return EvalLoopOutput(prediction.predictions, prediction.label_ids, metrics, results.rows)


def _batches(
    loader: Iterable[Any], most: int | None, *, look_ahead: bool
) -> Iterator[tuple[tuple[Any, int | None, int], bool]]:
    """Yield a pair for each batch.

    The first item is a tuple that `with_padding_rows` yields: batch, number of rows, number of padding rows. The second
    item says whether the batch is the last batch.

    Args:
        loader: yields the batches.
        most: the largest number of batches; None for all batches.
        look_ahead: True fetches the next batch before a batch is yielded, to find the last batch. A collator then draws
            its random numbers earlier. With False, the second item of every pair is False.
    """
    batches = islice(with_padding_rows(loader), most)
    return with_last(batches) if look_ahead else zip(batches, repeat(False))


def with_padding_rows(loader: Iterable[Any]) -> Iterator[tuple[Any, int | None, int]]:
    """Yield each batch, its number of rows, and its number of padding rows.

    The number of rows comes from the sampler or the collator, and includes padding rows. It is None if neither counts
    the rows. Padding rows are copies of other rows at the end of a batch, and are not part of the results.
    """
    if isinstance(loader, Loader):
        for batch in loader.without_resume():
            yield batch, loader.batch_rows, loader.padding_rows
        return
    sizes = batch_sizes(loader)
    for batch in loader:
        yield batch, getattr(loader, "batch_rows", next(sizes, None)), getattr(loader, "padding_rows", 0)


def with_last(batches: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Yield each batch, and whether the batch is the last batch. The function fetches one batch ahead."""
    batches = iter(batches)
    for batch in batches:
        for following in batches:
            yield batch, False
            batch = following
        yield batch, True


def _batch_result(
    run: EvaluatedRun,
    batch: Any,
    known: int | None,
    padding_rows: int,
    predict: Callable[[Any], tuple[Any, Any, Any]],
    preprocess_logits: Callable[[Any, Any], Any] | None,
) -> BatchResult:
    """Predict for one batch and return the results of its rows, without padding rows.

    Args:
        run: gives the model and the arguments.
        batch: the batch, on its device.
        known: number of rows of the batch, padding rows included; None to read the number from the tensors.
        padding_rows: number of padding rows at the end of the batch.
        predict: returns loss, logits and labels of the batch.
        preprocess_logits: called with logits and labels; its result replaces the logits.
    """
    total = rows_of(batch) or 1 if known is None else known  # before `predict`, which may take tensors out of the batch
    loss, logits, labels = predict(batch)
    if known is None and not padding_rows:
        total = rows_of(labels) or total  # labels under any name
    rows = total - padding_rows
    if preprocess_logits is not None and logits is not None:
        logits = preprocess_logits(logits, labels)
    inputs = main_input(run.model, batch) if "inputs" in run.args.include_for_metrics else None
    if padding_rows:
        logits, labels, inputs = (first_rows(part, rows, of=total) for part in (logits, labels, inputs))
    return BatchResult(rows, loss, logits, labels, inputs)


def _is_complete(prediction: EvalPrediction) -> bool:
    """Return whether a prediction has both predictions and labels. Metrics need both."""
    return prediction.predictions is not None and prediction.label_ids is not None
