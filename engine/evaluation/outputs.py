"""The results that a trainer returns, the argument of metric functions, and the throughput of a session."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from ...events.state import TrainerState
from ..data.plan import RunPlan
from ..loss.loss_window import Losses


class EvalPrediction:
    """The argument of `compute_metrics`.

    An `EvalPrediction` unpacks to `predictions, label_ids, inputs, losses`. `inputs` and `losses` are left out if they
    are None. With `batch_eval_metrics`, all values are tensors of one batch. With `eval_do_concat_batches=False`, all
    values are lists with one entry per batch.

    Args:
        predictions: outputs of the model without its loss: an array of shape (rows, ...), or a tuple of such arrays.
        label_ids: labels: an array of shape (rows, ...), or a tuple of such arrays.
        inputs: main input of the model if `include_for_metrics` contains `inputs`, else None.
        losses: for each row, the mean loss of its batch, shape (rows,), if `include_for_metrics` contains `loss`, else
            None.
    """

    def __init__(self, predictions: Any, label_ids: Any, inputs: Any = None, losses: Any = None) -> None:
        self.predictions = predictions
        self.label_ids = label_ids
        self.inputs = inputs
        self.losses = losses
        self.elements = (predictions, label_ids, *(part for part in (inputs, losses) if part is not None))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements)

    def __getitem__(self, index: int) -> Any:
        return self.elements[index]


def batches_of(prediction: EvalPrediction) -> Iterator[tuple[Any, Any]]:
    """Yield predictions and labels of each batch.

    With `eval_do_concat_batches=False`, predictions and labels are lists with one entry per batch. Otherwise the
    function yields the whole prediction as one batch.
    """
    predictions, labels = prediction.predictions, prediction.label_ids
    if isinstance(predictions, list) and isinstance(labels, list):
        yield from zip(predictions, labels)
    else:
        yield predictions, labels


class EvalLoopOutput(NamedTuple):
    """The result of an evaluation loop."""

    predictions: Any
    """Predictions in dataset order, shape (rows, ...); None if no predictions were stored."""
    label_ids: Any
    """Labels in dataset order, shape (rows, ...); None if no labels were stored."""
    metrics: dict[str, Any]
    """Metrics by name. Each name starts with the prefix."""
    num_samples: int
    """Number of samples, over all ranks."""


class PredictionOutput(NamedTuple):
    """The result of `Trainer.predict`."""

    predictions: Any
    """Predictions in dataset order, shape (rows, ...); None with `prediction_loss_only`."""
    label_ids: Any
    """Labels in dataset order, shape (rows, ...); None if the dataset has no labels, or with `prediction_loss_only`."""
    metrics: dict[str, Any]
    """Metrics by name. Each name starts with the prefix."""


class TrainOutput(NamedTuple):
    """The result of `Trainer.train`."""

    global_step: int
    """Optimizer steps of the whole run."""
    training_loss: float
    """Mean training loss of the whole run."""
    metrics: dict[str, Any]
    """The summary of the session, see `train_summary`."""


class SummarizedRun(Protocol):
    """The attributes of a run that `train_summary` reads. `Run` implements this protocol."""

    @property
    def plan(self) -> RunPlan | None:
        """Length of the run; None before the run begins."""

    @property
    def state(self) -> TrainerState:
        """Progress of the run."""

    @property
    def losses(self) -> Losses:
        """Training losses of the run."""


def train_summary(run: SummarizedRun, first_step: int, began: float) -> dict[str, Any]:
    """Return runtime and throughput of this session, and FLOPs and mean training loss of the whole run.

    Every rank must call this function.

    Args:
        run: a run whose loop has ended or is about to end.
        first_step: number of optimizer steps that were done before this session.
        began: start of the session in seconds, as `time.time` returns it.
    """
    assert run.plan is not None
    run.losses.main.drain(run.state.global_step)
    steps = run.state.global_step - first_step
    rows = run.plan.num_train_samples * steps / max(run.state.max_steps, 1)
    summary: dict[str, Any] = speed_metrics("train", began, rows, steps)
    summary["total_flos"] = run.state.total_flos
    summary["train_loss"] = run.losses.main.total / max(run.state.global_step - run.losses.first, 0.001)
    return summary


def is_train_summary(logs: Mapping[str, Any]) -> bool:
    """Return whether logged values are the summary of a training: they have `train_runtime`, but no `loss`.

    `train_runtime` alone is not enough, because `CountTokens` also adds it to each log of the training loss.
    """
    return "train_runtime" in logs and "loss" not in logs


def speed_metrics(prefix: str, began: float, rows: float | None = None, steps: int | None = None) -> dict[str, float]:
    """Return the runtime in seconds, and samples and steps per second, rounded as in transformers.

    Args:
        prefix: start of each key, such as `eval` for `eval_runtime`.
        began: start of the measured time in seconds, as `time.time` returns it.
        rows: number of processed samples; None leaves out the samples per second.
        steps: number of processed batches or optimizer steps; None leaves out the steps per second.
    """
    runtime = time.time() - began
    speed = {f"{prefix}_runtime": round(runtime, 4)}
    if runtime > 0 and rows is not None:
        speed[f"{prefix}_samples_per_second"] = round(rows / runtime, 3)
    if runtime > 0 and steps is not None:
        speed[f"{prefix}_steps_per_second"] = round(steps / runtime, 3)
    return speed


def plain(value: Any) -> Any:
    """Convert arrays and tensors with one element to numbers, also inside lists, tuples and dicts.

    All other values, such as larger arrays, stay unchanged.
    """
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value] if isinstance(value, list) else tuple(map(plain, value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, np.ndarray) and value.size == 1:
        return plain(value.reshape(-1)[0])
    return value


def recordable(values: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[Any, str]]:
    """Split metrics into values that a checkpoint can store, and all other values.

    Returns:
        Two dicts: name -> value for the values that a checkpoint can store, and name -> description for all other
        values, such as `a Tensor of shape (3,)`.
    """
    converted = plain(dict(values))
    left_out = not_plain(converted)
    return {name: value for name, value in converted.items() if name not in left_out}, left_out


def not_plain(values: Mapping[Any, Any]) -> dict[Any, str]:
    """Return name -> description of the entries that JSON cannot store because of their value or their name."""
    found = {}
    for name, value in values.items():
        if not isinstance(name, str):
            found[name] = f"a name of type {type(name).__name__}"
        elif (kind := _kind_not_plain(value)) is not None:
            found[name] = kind
    return found


def _kind_not_plain(value: Any) -> str | None:
    """Return what JSON cannot store in a value, such as `a Tensor of shape (3,)`; None if JSON can store all of it.

    If JSON cannot store several parts of the value, the result describes the first of these parts.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return None
    if isinstance(value, Mapping):
        return next(iter(not_plain(value).values()), None)
    if isinstance(value, (list, tuple)):
        return next((kind for part in value if (kind := _kind_not_plain(part)) is not None), None)
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return f"a {type(value).__name__} of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
