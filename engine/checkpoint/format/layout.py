"""Store and restore the memory layout (the strides) of tensors.

Files hold contiguous tensors. Optimizers that update a weight and its state in one pass over the memory, such as fused
AdamW, need the same layout for both. Matrix products can round differently with another layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def stride_to_store(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the strides that a checkpoint stores for a tensor; None if the checkpoint stores no strides.

    A contiguous, empty or sparse tensor needs no strides. For any other tensor, return the strides of
    `torch.empty_like(tensor)`. If this new tensor is contiguous, as for a slice `weight[:, ::2]`, return None.
    """
    if tensor.layout is not torch.strided or not tensor.numel() or tensor.is_contiguous():
        return None
    stride = dense_stride(tensor)
    return None if stride == torch.empty(tensor.shape, device="meta").stride() else stride


def dense_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of `torch.empty_like(tensor)`, which optimizers use for the state of a weight."""
    return torch.empty_like(tensor.detach(), device="meta").stride()


def arranged(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """Return a tensor with the given strides: `tensor` itself if it has these strides, or else a copy."""
    if tensor.stride() == tuple(stride):
        return tensor
    made = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)
