"""Functions that count, move, detach, convert and join batches: nested mappings, lists and tuples of tensors."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.pin_memory import pin_memory

IGNORED_LABEL = -100
"""The label that losses ignore; also the value that fills up shorter predictions and labels."""


def map_tensors(function: Callable[[torch.Tensor], Any], data: Any) -> Any:
    """Return a copy of nested data with `function` applied to each tensor. Other values stay the same objects."""

    def change(values: list[Any]) -> Any:
        return function(values[0]) if isinstance(values[0], torch.Tensor) else values[0]

    return map_together(change, [data])


def map_together(function: Callable[[list[Any]], Any], parts: list[Any]) -> Any:
    """Combine several nested structures into one: apply a function to the values at each position.

    Args:
        function: receives a list with one value of each part, and returns the value of the result at this position.
        parts: nested mappings, lists and tuples, all of the same structure. Any other object is a value.

    Returns:
        A nested structure like the first part. A mapping class that cannot be created from a dict becomes a dict.

    Raises:
        TypeError: if the structures differ.
    """
    first = parts[0]
    if len(parts) > 1:
        _refuse_mixed(parts)
    if isinstance(first, Mapping):
        return _as_mapping(type(first), {key: map_together(function, [part[key] for part in parts]) for key in first})
    if isinstance(first, (list, tuple)):
        values = (map_together(function, [part[index] for part in parts]) for index in range(len(first)))
        return type(first)(*values) if hasattr(first, "_fields") else type(first)(values)
    return function(parts)


def _refuse_mixed(parts: list[Any]) -> None:
    kinds = [*dict.fromkeys(map(_kind, parts))]
    if len(kinds) > 1:
        raise TypeError(
            f"The results of the batches cannot be joined: one batch has {kinds[0]}, and another has {kinds[1]}. "
            "Return the same structure for each batch, and give labels to all samples or to none."
        )


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a mapping with the keys {', '.join(sorted(map(str, value))) or 'none'}"
    if isinstance(value, (list, tuple)):
        return f"a list or tuple of length {len(value)}"
    kind = next((kind for kind in (torch.Tensor, np.ndarray) if isinstance(value, kind)), type(value))
    return f"a value of type {kind.__name__}"


def _as_mapping(kind: type[Any], items: dict[Any, Any]) -> Any:
    """Return `kind(items)`; return `items` itself if the mapping class `kind` does not accept a dict."""
    try:
        return kind(items)
    except TypeError:
        return items


def pinned(batch: Any) -> Any:
    """Return the batch in pinned memory, as torch's loader pins it.

    If the batch, or an object in the batch, has a method `pin_memory`, the function calls this method.
    """
    return pin_memory(batch)  # type: ignore[no-untyped-call] # torch has no type for it


def to_device(batch: Any, device: torch.device, non_blocking: bool = False) -> Any:
    """Return the batch with its tensors on `device`.

    If an object has a method `to`, such as a `PackedSequence` or a `BatchEncoding`, the function calls this method.

    Args:
        batch: nested data.
        device: the device of the result.
        non_blocking: whether the host continues while tensors are copied from pinned memory. If `device` is the CPU,
            the host waits, because it may read the copy at once.
    """
    if device.type == "cpu" and _only_cpu():
        return batch
    return _moved(batch, device, non_blocking and device.type != "cpu")


def _moved(data: Any, device: torch.device, non_blocking: bool) -> Any:
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=non_blocking)
    if callable(getattr(data, "to", None)) and not isinstance(data, type):
        return _moved_by_itself(data, device, non_blocking)
    if isinstance(data, Mapping):
        items = {key: _moved(value, device, non_blocking) for key, value in data.items()}
        return _as_mapping(type(data), items)
    if isinstance(data, (list, tuple)):
        values = [_moved(value, device, non_blocking) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)
    return data


def _moved_by_itself(data: Any, device: torch.device, non_blocking: bool) -> Any:
    """Return an object on `device`, moved by its method `to`."""
    try:
        moved = data.to(device, non_blocking=non_blocking)
    except TypeError:  # it has no parameter `non_blocking`
        moved = data.to(device)
    if isinstance(moved, (dict, UserDict)):
        # The `to` of a BatchEncoding or BatchFeature does not move the tensors in nested dicts, and not all in lists.
        for key, value in list(moved.items()):
            if isinstance(value, (dict, UserDict, list, tuple)):
                moved[key] = _moved(value, device, non_blocking)
    return moved


@cache
def _only_cpu() -> bool:
    """Return whether this process has no accelerator, such as a GPU.

    Without an accelerator, all tensors are on the CPU. The function `to_device` then returns the batch unchanged.
    """
    # The second test may start CUDA, and a process that has started CUDA cannot fork workers.
    return not (torch.cuda.is_available() or torch.accelerator.is_available())


def detach(data: Any) -> Any:
    """Return nested data with every tensor detached from its graph."""
    return data.detach() if isinstance(data, torch.Tensor) else map_tensors(torch.Tensor.detach, data)


def to_numpy(data: Any) -> Any:
    """Return nested data as numpy arrays in host memory. bfloat16 becomes float32, because numpy has no bfloat16."""
    return map_tensors(
        lambda tensor: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy(), data
    )


def rows_of(batch: Any) -> int | None:
    """Return the number of samples of a batch: the size of the first dimension of one of its tensors.

    The function reads the size of `labels` if the batch is a mapping with this key. Otherwise it reads the size of the
    first tensor or array that has a dimension. In a time-major batch, the first dimension is the time, so the result is
    wrong. `Loader.batch_rows` is right for such a batch too.

    Returns:
        The number; None if no tensor or array of the batch has a dimension.
    """
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return len(batch) if batch.ndim else None
    if isinstance(batch, (dict, Mapping)):
        labelled = rows_of(batch["labels"]) if "labels" in batch else None
        if labelled is not None:
            return labelled
        batch = batch.values()
    elif not isinstance(batch, (list, tuple)):
        return None
    return next((rows for rows in map(rows_of, batch) if rows is not None), None)


def join(parts: list[Any], padding: int = IGNORED_LABEL) -> Any:
    """Concatenate the results of several batches along their first dimension.

    Args:
        parts: one part per batch: tensors or arrays in dicts, lists or tuples, with the same structure in each part.
            Each tensor or array has the shape (rows, width, ...). Scalars count as one row.
        padding: the value that fills parts with a smaller width.

    Raises:
        TypeError: if the parts contain values that are neither tensors nor arrays, or if their structures differ.
    """

    def join_values(values: list[Any]) -> Any:
        if isinstance(values[0], torch.Tensor):
            return _join_tensors([value.reshape(1) if value.dim() == 0 else value for value in values], padding)
        if isinstance(values[0], np.ndarray):
            return _join_tensors([torch.from_numpy(np.atleast_1d(value)) for value in values], padding).numpy()
        kind = type(values[0]).__name__
        raise TypeError(f"Results of type {kind} cannot be joined. Return tensors, or lists or dicts of tensors.")

    return map_together(join_values, parts)


def _join_tensors(parts: list[torch.Tensor], padding: int) -> torch.Tensor:
    """Concatenate tensors of shape (rows, ...), padded along their second dimension if their widths differ."""
    if parts[0].dim() == 1 or len({part.shape[1] for part in parts}) == 1:
        return torch.cat(parts)
    width = max(part.shape[1] for part in parts)
    filled = []
    for part in parts:
        whole = part.new_full((part.shape[0], width, *part.shape[2:]), padding)
        whole[:, : part.shape[1]] = part
        filled.append(whole)
    return torch.cat(filled)
