"""Batches of a `TensorDataset`, made with one index operation per tensor."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch.utils.data import get_worker_info

from .rows import BatchRows, NotColumnar

_DTYPES = frozenset(
    {
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool),
    }
)
_LARGE = 1 << 15
"""The size of one row in bytes, from which a worker lets torch stack the samples, instead of selecting rows. torch
stacks samples directly in shared memory, without a further copy."""


class TensorRows(BatchRows):
    """The samples of a batch of a `TensorDataset`, or of a subset of one."""

    def __init__(self, rows: Any, indices: list[int], tensors: tuple[torch.Tensor, ...], places: list[int]) -> None:
        """Create a batch whose samples are not read yet.

        Args:
            rows: the dataset of the user: a `TensorDataset`, or a subset of one.
            indices: the indices in `rows` of the samples of the batch.
            tensors: the tensors of the `TensorDataset`. Their first dimension is the sample.
            places: for each sample of the batch, the index in the first dimension of `tensors`.

        Raises:
            NotColumnar: if indexing the tensors could give another batch than stacking the samples, or is slower.
        """
        super().__init__(rows, indices)
        self.tensors, self.places = tensors, places
        if {*map(type, places)} != {int} or not tensors or not all(map(_is_usual, tensors)):
            raise NotColumnar
        if min(places) < 0 or max(places) >= len(tensors[0]):
            raise NotColumnar

    @property
    def kind(self) -> Hashable:
        return tuple((tensor.dtype, tensor.shape[1:], tensor.stride()[1:]) for tensor in self.tensors)

    def stacked(self) -> tuple[torch.Tensor, ...]:
        index = torch.tensor(self.places)
        return tuple(tensor.index_select(0, index) for tensor in self.tensors)


def _is_usual(tensor: torch.Tensor) -> bool:
    """Return whether to make a batch by selecting rows of a tensor, instead of stacking samples.

    True only for a dense, contiguous tensor on the CPU that is not empty and needs no gradients. For any other tensor,
    the two ways could give different batches. In a worker, False for rows of `_LARGE` or more bytes, because stacking
    is faster.
    """
    if type(tensor) is not torch.Tensor or tensor.requires_grad or tensor.layout is not torch.strided:
        return False
    if tensor.device.type != "cpu" or tensor.dtype not in _DTYPES or tensor.is_conj() or tensor.is_neg():
        return False
    if tensor.is_nested or not tensor.is_contiguous() or not tensor.dim() or not tensor.numel():
        return False
    return get_worker_info() is None or tensor[0].numel() * tensor.element_size() < _LARGE
