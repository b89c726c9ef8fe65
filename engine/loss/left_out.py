"""Explain errors about missing columns in a batch: the default collator leaves out columns with texts or None."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...events.errors import ModelError, note
from ..data.columns.left_out import REMEDY, why_left_out
from .signature import ForwardSignature, label_names_of

if TYPE_CHECKING:
    from ..run import Run


def explain_left_out(run: Run, error: BaseException, batch: Any, dataset: Any, row: int | None, name: str) -> None:
    """Add a text to an error if the batch lacks a column of the dataset because the column has texts or None.

    Args:
        run: the run.
        error: the error. The text becomes the end of the message of a `ModelError`, and a note of any other error.
        batch: the batch; None if it is unknown.
        dataset: the dataset of the batch; None if it is unknown.
        row: the index in the dataset of the first sample of the batch; None if it is unknown.
        name: names the dataset in the text, such as `the training dataset`.
    """
    reasons = _reasons(run, batch, dataset, row) if isinstance(batch, Mapping) else _texts_in(batch)
    if not reasons:
        return
    text = f"In {name}, {'; '.join(reasons)}. {REMEDY}"
    if not isinstance(error, ModelError):
        note(error, text)
    elif text not in str(error):
        error.args = (f"{error} {text}",)


def _reasons(run: Run, batch: Mapping[str, Any], dataset: Any, row: int | None) -> list[str]:
    try:
        signature = ForwardSignature.of(run.model)
        labels = ["labels", *label_names_of(run.model), *(run.args.label_names or ())]
        names = dict.fromkeys([*signature.parameters, *labels])
        return why_left_out(dataset, row, [name for name in names if name not in batch])
    except Exception:  # the dataset fails, and the error that ends the run must not be replaced
        return []


def _texts_in(batch: Any) -> list[str]:
    """Describe the elements of a batch that are lists of texts instead of tensors. The batch is a tuple or a list."""
    if not isinstance(batch, (tuple, list)):
        return []
    texts = {place: value[0] for place, value in enumerate(batch) if isinstance(value, (tuple, list)) and value}
    return [f"position {place} is text, such as {text!r}" for place, text in texts.items() if isinstance(text, str)]
