"""Batches: nested structures of tensors, measured, moved, joined and detached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch


def map_tensors(function: Callable[[torch.Tensor], Any], data: Any) -> Any:
    """Return a copy of nested data with `function` applied to each tensor; what is no tensor stays."""
    if isinstance(data, torch.Tensor):
        return function(data)
    if isinstance(data, Mapping):
        items = {key: map_tensors(function, value) for key, value in data.items()}
        try:
            return type(data)(items)  # type: ignore[call-arg]
        except TypeError:  # a mapping that is not built from a dict
            return items
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(map_tensors(function, value) for value in data))
    if isinstance(data, (tuple, list)):
        return type(data)(map_tensors(function, value) for value in data)
    return data


def to_device(batch: Any, device: torch.device, non_blocking: bool = False) -> Any:
    """Return the batch with its tensors on `device`."""
    if device.type == "cpu" and not torch.cuda.is_available():
        return batch  # there is nowhere else that it could be
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking), batch)


def detach(data: Any) -> Any:
    """Return nested data without its graph."""
    return map_tensors(torch.Tensor.detach, data)


def to_numpy(data: Any) -> Any:
    """Return nested data as numpy arrays on the host; bfloat16, which numpy lacks, becomes float32."""
    return map_tensors(
        lambda tensor: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy(), data
    )


def rows_of(batch: Any) -> int | None:
    """Return the number of rows of a batch: the first dimension of the first tensor in it; None if there is none."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return len(batch) if batch.ndim else None
    if isinstance(batch, (dict, Mapping)):
        batch = batch.values()
    elif not isinstance(batch, (list, tuple)):
        return None
    return next((rows for rows in map(rows_of, batch) if rows is not None), None)


def join(parts: list[Any], padding: int = -100) -> Any:
    """Join the results of several batches along their first dimension.

    Tensors of shape (rows, width, ...) whose widths differ are filled up with `padding` to the widest.

    Raises:
        TypeError: if the parts are of different structure.
    """
    first = parts[0]
    if isinstance(first, Mapping):
        return type(first)({key: join([part[key] for part in parts], padding) for key in first})  # type: ignore[call-arg]
    if isinstance(first, (list, tuple)):
        return type(first)(join([part[index] for part in parts], padding) for index in range(len(first)))
    if isinstance(first, torch.Tensor):
        return _join_tensors([part.reshape(1) if part.dim() == 0 else part for part in parts], padding)
    if isinstance(first, np.ndarray):
        return _join_tensors([torch.from_numpy(np.atleast_1d(part)) for part in parts], padding).numpy()
    raise TypeError(
        f"Results of type {type(first).__name__} cannot be joined; return tensors, or lists or dicts of them."
    )


def _join_tensors(parts: list[torch.Tensor], padding: int) -> torch.Tensor:
    if parts[0].dim() == 1 or len({part.shape[1] for part in parts}) == 1:
        return torch.cat(parts)
    width = max(part.shape[1] for part in parts)
    filled = []
    for part in parts:
        whole = part.new_full((part.shape[0], width, *part.shape[2:]), padding)
        whole[:, : part.shape[1]] = part
        filled.append(whole)
    return torch.cat(filled)
