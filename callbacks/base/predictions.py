"""Collect the predictions of an evaluation for the tables and charts of a tracker, in bounded memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import torch

from ...engine.data.batches import rows_of
from ...engine.data.build import order_of
from ...engine.evaluation.outputs import EvalPrediction
from ...engine.run import Run
from ...events.errors import ArgumentError
from ...events.keywords import CheckedKeywords
from .class_counts import ClassCounts

logger = logging.getLogger(__name__)

LARGEST = 10_000
SHOWN_VALUES = 16
"""The largest number of values of a prediction that the table shows. Classes and texts are shown in full."""


@dataclass(frozen=True)
class Predictions(CheckedKeywords):
    """Settings for the tables and charts that a tracker shows for each evaluation.

    The tracker shows a table of predictions, a confusion matrix, and ROC and PR curves. Pass the settings to a tracker:
    `Wandb(tables=Predictions(rows=64))`. With `tables`, every evaluation computes logits, even if the trainer has no
    `compute_metrics`. Without `compute_metrics`, an evaluation keeps the logits of only one batch at a time.
    """

    rows: int = 64
    """The number of rows of the table. The rows are the first samples that rank 0 evaluates. 0: no table."""
    task: Literal["classification", "other"] | None = None
    """The task. Default: `classification` if the labels are class numbers, and a sample has one logit per class or a
    single logit."""
    class_names: Sequence[str] | None = None
    """The names of the classes. Default: `model.config.id2label`, else the class numbers."""
    max_classes: int = 50
    """The largest number of classes for which the confusion matrix and the curves are made."""
    inputs: bool = True
    """Whether the table shows the texts and images of the batch."""

    def __post_init__(self) -> None:
        if not isinstance(self.rows, int) or not 0 <= self.rows <= LARGEST:
            raise ArgumentError(f"Predictions(rows={self.rows!r}) is not a number from 0 to {LARGEST}.")
        if self.task not in (None, "classification", "other"):
            raise ArgumentError(f"Predictions(task={self.task!r}) is unknown. Known: classification, other.")
        if isinstance(self.class_names, str) or not isinstance(self.class_names, (Sequence, type(None))):
            raise ArgumentError(f"Predictions(class_names={self.class_names!r}) is not a list of names.")
        if not isinstance(self.max_classes, int) or self.max_classes < 0:
            raise ArgumentError(f"Predictions(max_classes={self.max_classes!r}) is not a number of classes.")


@dataclass
class Collected:
    """The predictions collected so far for one dataset."""

    wanted: Predictions
    """The settings: what to collect."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The rows of the table. An image is a tensor of shape (channels, height, width)."""
    counts: ClassCounts | None = None
    """The counts for the confusion matrix and the curves. None before the first batch, for tasks other than
    classification, and for more than `wanted.max_classes` classes."""
    _samples: int = 0

    def add(self, run: Run, batch: Any, prediction: EvalPrediction) -> None:
        """Add the samples of a batch to the attributes `rows` and `counts`.

        `rows` gets the samples of this rank, up to the number `wanted.rows`. `counts` gets the samples of all ranks.

        Args:
            run: the run.
            batch: the batch of this rank.
            prediction: predictions and labels of the batches of all ranks. The samples of rank 0 come first.
        """
        logits, labels = _first(prediction.predictions), _first(prediction.label_ids)
        if logits is None or logits.ndim == 0:
            return
        text = _is_text(run, logits)
        classified = None if text else classes_of(logits, labels, self.wanted.task)
        if classified is not None and classified[0].shape[1] <= self.wanted.max_classes:
            if self.counts is None:
                self.counts = ClassCounts(classified[0].shape[1])
            self.counts.add(*classified)
        own = min(len(logits), rows_of(batch) or len(logits), self.wanted.rows - len(self.rows))
        order = order_of(run.eval_dataloader)
        inputs = inputs_of(run, batch, own) if self.wanted.inputs and own > 0 else {}
        single = classified is not None and len(classified[0]) == len(logits)
        for row in range(own):
            number = self._samples + row
            shown: dict[str, Any] = {"id": number if order is None else order[number]}
            shown |= {name: values[row] for name, values in inputs.items()}
            if single and classified is not None:
                shown |= self._classified(run, classified[0][row], labels[row])
            else:
                shown["label"] = None if labels is None else _shown(run, labels[row], text)
                shown["prediction"] = _shown(run, logits[row], text, classified is not None)
            self.rows.append(shown)
        self._samples += len(logits)

    def _classified(self, run: Run, logits: torch.Tensor, label: torch.Tensor) -> dict[str, Any]:
        share = logits.float().softmax(0)
        predicted, number = int(logits.argmax()), int(label)
        names = self.names(run, len(logits))
        known = names[number] if 0 <= number < len(names) else str(number)
        return {"label": known, "prediction": names[predicted], "confidence": round(float(share[predicted]), 4)}

    def names(self, run: Run, classes: int) -> list[str]:
        """Return the names of the classes.

        The names come from the settings, else from `model.config.id2label`. Classes without a name get their numbers.
        """
        if self.wanted.class_names is not None:
            if len(self.wanted.class_names) == classes:
                return [str(name) for name in self.wanted.class_names]
            _warn_names(len(self.wanted.class_names), classes)
        known = getattr(getattr(run.model, "config", None), "id2label", None)
        found = {int(number): str(name) for number, name in known.items()} if isinstance(known, Mapping) else {}
        return [found.get(number, str(number)) for number in range(classes)]


def classes_of(
    logits: torch.Tensor, labels: torch.Tensor | None, task: str | None
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the logits and the labels of a classification, one row per sample.

    The logits have the shape (samples, classes). The labels are class numbers of shape (samples,). If the model gives
    one logit per sample, it is the logit of class 1, and class 0 gets the logit 0. For logits of shape (samples,
    tokens, classes), each token counts as a sample.

    Args:
        logits: the predictions.
        labels: the true labels; None if there are none.
        task: `classification` or `other`. None: decide by the logits and the labels.

    Returns:
        The logits and the labels. None without labels, or if the task is not a classification.
    """
    if labels is None or task == "other" or not logits.is_floating_point():
        return None
    if labels.is_floating_point() and task is None:
        return None
    if logits.shape == labels.shape and (logits.ndim == 1 or logits.shape[1:] == (1,)):
        flat = logits.reshape(-1, 1).float()
        if task is None and not bool(((labels == 0) | (labels == 1)).all()):
            return None
        return torch.cat((torch.zeros_like(flat), flat), 1), labels.reshape(-1).long()
    if logits.ndim == labels.ndim + 1 and logits.shape[:-1] == labels.shape and logits.shape[-1] > 1:
        return logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).long()
    if logits.ndim == 2 and logits.shape[1] == 1 and labels.ndim == 1:
        return classes_of(logits[:, 0], labels, task)
    return None


def inputs_of(run: Run, batch: Any, rows: int) -> dict[str, list[Any]]:
    """Return the texts and images of the first `rows` samples of a batch, under the keys `text` and `image`.

    If the batch has no texts or no images, the result does not contain the key.
    """
    parts = batch if isinstance(batch, Mapping) else dict(enumerate(batch if isinstance(batch, (list, tuple)) else ()))
    found: dict[str, list[Any]] = {}
    ids = parts.get("input_ids")
    if isinstance(ids, torch.Tensor) and ids.ndim == 2 and hasattr(run.processing_class, "decode"):
        found["text"] = [_decoded(run, each) for each in ids[:rows]]
    for values in parts.values():
        texts = isinstance(values, (list, tuple)) and len(values) >= rows and isinstance(values[0], str)
        if texts and "text" not in found:
            found["text"] = list(values[:rows])
        picture = isinstance(values, torch.Tensor) and values.ndim == 4 and values.shape[1] in (1, 3, 4)
        if picture and "image" not in found:
            found["image"] = list(values[:rows].detach().float().cpu())
    return found


@cache
def _warn_names(names: int, classes: int) -> None:
    """Warn that `class_names` has `names` names, but the model has `classes` classes. Warn once per pair."""
    logger.warning("Predictions(class_names=...) has %d names, but the model has %d classes.", names, classes)


def _first(values: Any) -> Any:
    """Return the first tensor of a prediction; None if the first value of the prediction is not a tensor.

    A prediction may be a tensor, a list or a dict, also nested.
    """
    while isinstance(values, (tuple, list, Mapping)):
        values = next(iter(values.values() if isinstance(values, Mapping) else values), None)
    return values if isinstance(values, torch.Tensor) else None


def _is_text(run: Run, predictions: torch.Tensor) -> bool:
    """Return whether predictions can be shown as text: token ids, or logits over the vocabulary of the model."""
    if not predictions.is_floating_point():
        return predictions.ndim == 2 and hasattr(run.processing_class, "decode")
    read = getattr(run.model, "get_output_embeddings", lambda: None)
    weight = None
    with suppress(NotImplementedError):  # a model of transformers without a head
        weight = getattr(read(), "weight", None)
    return predictions.ndim == 3 and weight is not None and predictions.shape[-1] == weight.shape[0]


def _shown(run: Run, values: torch.Tensor, text: bool, classes: bool = False) -> str | float:
    if (text or classes) and values.is_floating_point():
        values = values.argmax(-1)
    if text and hasattr(run.processing_class, "decode"):
        return _decoded(run, values)
    if values.numel() == 1:
        return round(float(values), 6)
    flat = values.flatten()
    more = ", ..." if flat.numel() > SHOWN_VALUES else ""
    return f"[{', '.join(f'{float(value):.4g}' for value in flat[:SHOWN_VALUES])}{more}]"


def _decoded(run: Run, tokens: torch.Tensor) -> str:
    numbers = [number for number in tokens.tolist() if number >= 0]  # -100 marks positions without a token
    return str(run.processing_class.decode(numbers, skip_special_tokens=True))
