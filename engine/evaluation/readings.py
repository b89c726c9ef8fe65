"""Convert the outputs and labels of a batch to the predictions and references that a metric compares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...events.errors import ArgumentError
from ..data.batches import IGNORED_LABEL
from .bundled.base import Reads


@dataclass(frozen=True)
class Reader:
    """Converts outputs and labels of a batch to the predictions and references of a metric."""

    reads: Reads
    """The values to read from the outputs."""
    sequences: bool = False
    """Whether to return one list of label names per row, instead of one array of classes."""
    shift: bool = False
    """Whether to compare the outputs of each position with the label of the next position."""
    threshold: float = 0.5
    """The probability above which `sigmoid` predicts 1."""
    ignore_index: int = IGNORED_LABEL
    """The label to leave out. `sigmoid` and `values` use all labels."""
    output: int = 0
    """The index of the output to read, if there are several outputs. The same index selects the labels, if there are
    several labels."""
    label_names: dict[int, str] | None = None
    """Class number -> name. Needed if `sequences` is True."""
    tokenizer: Any = None
    """Decodes tokens for `Reads.TEXT`; None for other values of `reads`."""

    def __call__(self, predictions: Any, labels: Any) -> tuple[Any, Any]:
        """Return the predictions and the references that a metric compares.

        The form of the results depends on the field `reads`. `argmax` and `labels` give integer arrays of shape (n,),
        for the n labels that are not `ignore_index`. If the field `sequences` is True, `argmax` and `labels` give lists
        with one list of label names per row instead. `sigmoid` and `values` give two arrays of equal shape. `logits`
        gives tensors. `text` gives lists of strings.

        Args:
            predictions: the outputs of the model, of shape (rows, ...), or a tuple of outputs.
            labels: the labels, of shape (rows, ...), or a tuple of labels.

        Raises:
            ArgumentError: if the outputs or labels do not fit `reads`. The error gives the shapes and the remedy.
        """
        outputs, labels = (torch.as_tensor(_one_of(part, self.output)).detach() for part in (predictions, labels))
        if self.shift:
            _check(outputs.ndim > 1 and labels.ndim > 1, outputs, labels, "`shift=True` needs several labels per row")
            width = min(outputs.shape[1], labels.shape[1])
            outputs, labels = outputs[:, : width - 1], labels[:, 1:width]
        return _READERS[self.reads](self, outputs, labels)

    def of_classes(self, outputs: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
        """Return the predicted classes and the labels.

        `outputs` contains class numbers. Labels that are `ignore_index`, and the classes at their positions, are left
        out. If the field `sequences` is True, both results have one list of label names per row.
        """
        _check(
            outputs.shape == labels.shape and not outputs.is_floating_point() and not labels.is_floating_point(),
            outputs,
            labels,
            "reads='labels' needs one class number per label. For logits, set reads='argmax'",
        )
        counted = labels != self.ignore_index
        if self.sequences:
            _check(
                labels.ndim == 2, outputs, labels, "spans need a sequence of labels per row, of shape (rows, length)"
            )
            pairs = [(row[mask], true[mask]) for row, true, mask in zip(outputs, labels, counted)]
            return tuple([self._names(pair[index]) for pair in pairs] for index in (0, 1))  # type: ignore[return-value]
        return outputs[counted].cpu().numpy(), labels[counted].cpu().numpy()

    def of_argmax(self, outputs: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
        """Return the classes with the highest logits, and the labels.

        Labels that are `ignore_index`, and the classes at their positions, are left out. If the field `sequences` is
        True, both results have one list of label names per row.
        """
        _check_logits(outputs, labels, "reads='argmax'")
        return self.of_classes(outputs.argmax(dim=-1), labels)

    def of_logits(self, outputs: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
        """Return logits of shape (number of labels, number of classes), and labels of shape (number of labels,).

        Labels that are `ignore_index`, and their logits, are left out.

        Raises:
            ArgumentError: if the shapes do not fit, or if a label is not a class.
        """
        _check_logits(outputs, labels, "reads='logits'")
        counted = labels != self.ignore_index
        outputs, labels = outputs[counted], labels[counted]
        wrong = labels[(labels < 0) | (labels >= outputs.shape[-1])]
        if len(wrong):
            raise ArgumentError(
                f"The label {int(wrong[0])} is out of range: the logits have {outputs.shape[-1]} classes. Count labels "
                f"from 0, or set `ignore_index={int(wrong[0])}` if it does not count."
            )
        return outputs, labels

    def of_sigmoid(self, outputs: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
        """Return one prediction per logit, and the labels, as arrays of equal shape.

        A prediction is 1 if the sigmoid of the logit is above the field `threshold`, else 0.
        """
        labels = labels.reshape(outputs.shape) if outputs.numel() == labels.numel() and _one_each(outputs) else labels
        binary = outputs.shape == labels.shape and bool(((labels == 0) | (labels == 1)).all())
        _check(binary, outputs, labels, "reads='sigmoid' needs one logit for each label, and labels that are 0 or 1")
        _check(
            labels.ndim <= 2,
            outputs,
            labels,
            "reads='sigmoid' needs labels of shape (rows,) or (rows, labels). Flatten the outputs and labels of the "
            "model, or return two logits for each label and set reads='argmax'",
        )
        marks = outputs.float().sigmoid() > self.threshold
        pair = [part.cpu().long().numpy() for part in (marks, labels)]
        return tuple(part.reshape(-1) if _one_each(part) else part for part in pair)  # type: ignore[return-value]

    def of_values(self, outputs: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
        """Return outputs and labels as float64 arrays of equal shape.

        If the outputs have one dimension more than the labels, and the last dimension has the size 1, the function
        removes the last dimension.

        Raises:
            ArgumentError: if the shapes still differ.
        """
        if outputs.ndim == labels.ndim + 1 and outputs.shape[-1] == 1:
            outputs = outputs.squeeze(-1)
        _check(outputs.shape == labels.shape, outputs, labels, "reads='values' needs one output for each label")
        return outputs.double().cpu().numpy(), labels.double().cpu().numpy()

    def of_text(self, outputs: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
        """Return the decoded outputs and the decoded labels, as two lists with one text per row.

        The texts have no special tokens, and no white space at the start or the end. Token numbers that are
        `ignore_index` are left out.
        """
        _check(
            not outputs.is_floating_point() and not labels.is_floating_point(),
            outputs,
            labels,
            "reads='text' needs token numbers. Use a Seq2SeqTrainer with `predict_with_generate=True`, or set "
            "`preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1)`",
        )
        return self._texts(outputs), self._texts(labels)

    def _texts(self, tokens: torch.Tensor) -> list[str]:
        filler = getattr(self.tokenizer, "pad_token_id", None)
        filler = getattr(self.tokenizer, "eos_token_id", None) if filler is None else filler
        rows = tokens.cpu().tolist()
        if filler is None:
            rows = [[token for token in row if token != self.ignore_index] for row in rows]
        else:
            rows = [[filler if token == self.ignore_index else token for token in row] for row in rows]
        return [text.strip() for text in self.tokenizer.batch_decode(rows, skip_special_tokens=True)]

    def _names(self, classes: torch.Tensor) -> list[str]:
        names = self.label_names or {}
        numbers = classes.tolist()
        refuse_unnamed(numbers, names)
        return [names[number] for number in numbers]


def refuse_unnamed(classes: Iterable[int], names: Mapping[int, str]) -> None:
    """Check that each class of the predictions and labels has a name.

    Raises:
        ArgumentError: if a class has no name. The error names the lowest class number without a name.
    """
    if missing := sorted(set(classes) - names.keys()):
        raise ArgumentError(f"`label_names` has no name for the class {missing[0]}. Name all classes of the model.")


_READERS: dict[Reads, Callable[[Reader, torch.Tensor, torch.Tensor], tuple[Any, Any]]] = {
    Reads.ARGMAX: Reader.of_argmax,
    Reads.SIGMOID: Reader.of_sigmoid,
    Reads.LABELS: Reader.of_classes,
    Reads.LOGITS: Reader.of_logits,
    Reads.VALUES: Reader.of_values,
    Reads.TEXT: Reader.of_text,
}


NO_LABELS = (
    "A metric needs outputs and labels, and one of them is missing. Name the labels in the batches `labels`, "
    "or set `label_names` of the arguments. If the samples have no labels, pass a function of your own as "
    "`compute_metrics`."
)


def _one_of(part: Any, index: int) -> Any:
    if isinstance(part, Mapping):
        part = tuple(part.values())
    if part is None or (isinstance(part, (tuple, list)) and not part):
        raise ArgumentError(NO_LABELS)
    if not isinstance(part, (tuple, list)):
        return part
    if index >= len(part):
        raise ArgumentError(f"`output={index}` does not exist: the model has {len(part)} outputs. Set 0 or more.")
    return part[index]


def _one_each(array: Any) -> bool:
    """Return whether an array has one entry per row: shape (rows,) or (rows, 1)."""
    return bool(array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1))


def _check_logits(outputs: torch.Tensor, labels: torch.Tensor, reading: str) -> None:
    fits = outputs.ndim == labels.ndim + 1 and outputs.shape[:-1] == labels.shape and not labels.is_floating_point()
    _check(
        fits and outputs.shape[-1] > 1,
        outputs,
        labels,
        f"{reading} needs logits of shape (*labels, classes) and integer labels. For one logit per label, set "
        "reads='sigmoid'; for class numbers, reads='labels'; for numbers, a metric of values such as 'mse'",
    )


def _check(fits: bool, outputs: torch.Tensor, labels: torch.Tensor, needs: str) -> None:
    if not fits:
        kinds = [f"{str(part.dtype).partition('.')[2]} of shape {tuple(part.shape)}" for part in (outputs, labels)]
        raise ArgumentError(f"{needs}. The outputs are {kinds[0]}, and the labels {kinds[1]}.")
