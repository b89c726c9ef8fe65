"""Explain errors of torch about data types, for example if samples are float64 and the model is float32."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ..run import Run

_TARGET = re.compile(r"expected target dtype|expected scalar type Long|not implemented for '(Int|Short|Char)'")
"""Messages of torch about class labels that are not integers of 64 bits."""

_FLOAT_TARGET = re.compile(r"can't be cast to the desired output type Long")
"""The message of torch about integer targets of a binary cross entropy."""

_IDS = re.compile(r"'indices' to have")
"""The message of torch about input ids that are not integers."""

_INTEGER = "(Byte|Char|Short|Int|Long|Bool|long int|unsigned char|signed char|short|int|bool)"
_INTEGER_INPUT = re.compile(
    rf"but got:? {_INTEGER} (and|!=)|Input type \((torch\.(cuda\.)?)?{_INTEGER}(Tensor)?\)|input1: {_INTEGER}\b"
    rf"|\"(?!\w*loss)\w+\" not implemented for '{_INTEGER}'|mixed dtype"
    rf"|expected scalar type {_INTEGER} but found"
)
"""Messages of torch about integers that a layer with floating-point weights receives."""

_MIXED = re.compile(
    r"same dtype|Found dtype|expected scalar type|dtype of input|data type|Input type \(", re.IGNORECASE
)
"""Messages of torch about tensors of two types."""


def dtype_note(run: Run, error: BaseException) -> str:
    """Return a note about an error in a training step: the tensors of the batch with a wrong data type.

    The note is empty if the error has another cause, or if no tensor with a wrong data type is found.
    """
    message = str(error)
    target, ids, floats = (pattern.search(message) is not None for pattern in (_TARGET, _IDS, _FLOAT_TARGET))
    integer = _INTEGER_INPUT.search(message) is not None
    if not isinstance(error, RuntimeError) or not (target or ids or floats or integer or _MIXED.search(message)):
        return ""
    batch = run.batch if run.mode == "train" else None
    tensors = [*_named(batch)]
    weights = {weight.dtype for weight in run.model.parameters() if weight.is_floating_point()}
    notes = []
    floating = [(name, value) for name, value in tensors if value.is_floating_point()]
    if ids and floating:
        return f"The batch holds {_listed(floating)}. Input ids are int64: convert them with `ids.to(torch.int64)`."
    targets = _labels(batch)
    integers = [(name, value) for name, value in targets if not value.is_floating_point()]
    if floats and integers:
        return f"The batch holds {_listed(integers)}. This loss needs floating-point targets: `labels.float()`."
    if wrong := [(name, value) for name, value in floating if value.dtype not in weights]:
        kinds = ", ".join(sorted(map(_short, weights)))
        notes.append(
            f"The weights of the model are {kinds}, and the batch holds {_listed(wrong)}. Convert these values in the "
            f'dataset or in the collator, such as `values.astype("float32")` for numpy, whose default is float64, or '
            "`values.to(torch.float32)` for tensors."
        )
    labels = [(name, value) for name, value in targets if value.dtype is not torch.int64]
    if target and labels:
        notes.append(
            f"The batch holds {_listed(labels)}. Class labels are int64: convert them with `int(label)`, "
            '`labels.astype("int64")` or `labels.to(torch.int64)`. Labels of several classes at once, and targets of a '
            "regression, are floating point and need another loss."
        )
    values = [(name, value) for name, value in _inputs(batch) if _is_integer(value)]
    if integer and values and not notes:
        notes.append(
            f"The batch holds {_listed(values)}. Layers such as Linear need floating-point values: call `.float()` on "
            "these inputs in forward, or convert them in the dataset."
        )
    return " ".join(notes)


def _named(batch: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and the value of each tensor of a batch. In a list or tuple, the name is the position: `[0]`."""
    if not isinstance(batch, Mapping):
        batch = {f"[{place}]": value for place, value in enumerate(batch)} if isinstance(batch, (list, tuple)) else {}
    for name, value in batch.items():
        if isinstance(value, torch.Tensor):
            yield str(name), value


def _inputs(batch: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the name and the value of each tensor of a batch, without the labels.

    In a mapping, names of labels contain `label`. In a list or tuple of several tensors, the last tensor is the labels.
    """
    tensors = [*_named(batch)]
    if isinstance(batch, Mapping):
        return [(name, value) for name, value in tensors if "label" not in name]
    return tensors[:1] if len(tensors) < 2 else tensors[:-1]


def _labels(batch: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the name and the value of each tensor of a batch that `_inputs` does not return."""
    inputs = {name for name, _ in _inputs(batch)}
    return [(name, value) for name, value in _named(batch) if name not in inputs]


def _is_integer(value: torch.Tensor) -> bool:
    return not value.is_floating_point() and not value.is_complex()


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _listed(tensors: list[tuple[str, torch.Tensor]]) -> str:
    return ", ".join(f"{name} as {_short(value.dtype)} of shape {tuple(value.shape)}" for name, value in tensors)
