"""Take apart tensors that consist of other tensors, such as the 8-bit optimizer state of torchao, and rebuild them."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from ....events.errors import CheckpointError

KNOWN = {
    "torchao.optim.subclass_4bit:OptimState4bit": "torchao",
    "torchao.optim.subclass_8bit:OptimState8bit": "torchao",
    "torchao.optim.subclass_fp8:OptimStateFp8": "torchao",
}
"""Tensor class that a checkpoint may hold -> its package. To read a checkpoint, no other class is imported."""

_DTYPE = "__dtype__"


def consists_of_tensors(value: Any) -> bool:
    """Return whether a value is a tensor of a class that stores its values in other tensors."""
    return isinstance(value, torch.Tensor) and hasattr(value, "__tensor_flatten__")


def taken_apart(tensor: Any, where: str) -> tuple[str, dict[str, torch.Tensor], list[Any]]:
    """Return the class of a tensor, the tensors that it consists of, and its other attributes as plain values.

    Args:
        tensor: a tensor for which `consists_of_tensors` is true.
        where: the path of the tensor in the saved values, for the error.

    Raises:
        CheckpointError: if the class is not in `KNOWN`, the table of classes that a checkpoint may hold.
    """
    kind = type(tensor)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if name not in KNOWN:
        raise CheckpointError(
            f"{where} is a {kind.__name__} of {kind.__module__}, which a checkpoint cannot hold. Use a dense tensor."
        )
    names, attributes = tensor.__tensor_flatten__()
    return name, {each: getattr(tensor, each) for each in names}, [_plain(each) for each in attributes]


def put_together(name: str, parts: dict[str, torch.Tensor], attributes: list[Any]) -> torch.Tensor:
    """Rebuild a tensor from the three results of `taken_apart`.

    Raises:
        CheckpointError: if the class is not in `KNOWN`, or if its package is not installed.
    """
    if name not in KNOWN:
        raise CheckpointError(f"it has a tensor of the class {name}, which trainbus does not know")
    module, _, kind = name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), kind)
    except (ModuleNotFoundError, AttributeError) as error:
        raise CheckpointError(f"it has a tensor of the class {name}: pip install {KNOWN[name]}") from error
    made: torch.Tensor = found.__tensor_unflatten__(parts, [_restored(each) for each in attributes], None, None)
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return {_DTYPE: str(value).removeprefix("torch.")}
    return [*value] if isinstance(value, torch.Size) else value


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return getattr(torch, value[_DTYPE])
    return torch.Size(value) if isinstance(value, list) else value
