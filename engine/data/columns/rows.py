"""A batch that reads its samples only when they are needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch

logger = logging.getLogger(__name__)

_PROVED: dict[Hashable, bool] = {}
"""Kind of batch -> whether columns and samples gave equal batches of this kind in this process."""


class NotColumnar(Exception):
    """The error for a batch that must be made from its samples, not from columns.

    The code that catches the error makes the batch from the samples.
    """


class BatchRows:
    """The samples of a batch, given by their indices. A collator may read the columns, or the samples."""

    def __init__(self, rows: Any, indices: list[int]) -> None:
        """Create a batch whose samples are not read yet.

        Args:
            rows: the map-style dataset of the user.
            indices: the indices in `rows` of the samples of the batch.
        """
        self.rows = rows
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def kind(self) -> Hashable:
        """The types of the samples, such as dtypes. Batches of equal `kind` differ only in values and lengths."""
        raise NotImplementedError

    def stacked(self) -> Any:
        """Return the batch that the default collator would return, but make it from columns.

        Raises:
            NotColumnar: if the columns cannot make the batch.
        """
        raise NotImplementedError

    def plain(self) -> list[Any]:
        """Read the samples as torch's DataLoader does, and return them."""
        read = getattr(self.rows, "__getitems__", None)
        samples: list[Any] = read(self.indices) if read else [self.rows[index] for index in self.indices]
        return samples

    def proved(self, what: Hashable, fast: Callable[[], Any], slow: Callable[[list[Any]], Any]) -> Any:
        """Return the batch that `fast` makes. For the first batch of each kind, check that `slow` makes the same batch.

        With some versions of datasets or transformers, the two batches might differ.

        Args:
            what: the operation that makes the batch, such as padding, and the options of the operation. Two batches
                are of the same kind if `what` and the property `kind` are equal.
            fast: makes the batch from columns.
            slow: makes the batch from the samples.

        Raises:
            NotColumnar: if the check of this kind found a difference, or if the columns cannot make this batch.
        """
        kind = (what, self.kind)
        if _PROVED.get(kind) is False:
            raise NotColumnar
        batch = fast()
        if kind not in _PROVED:
            _PROVED[kind] = is_same(batch, slow(self.plain()))
            if not _PROVED[kind]:
                logger.warning(
                    "The columns of the %s make another batch than its samples, so batches are made from samples, "
                    "which is slower. Please report it with the versions of datasets and transformers.",
                    type(self.rows).__name__,
                )
                raise NotColumnar
        return batch


def is_same(batch: Any, other: Any) -> bool:
    """Return whether two batches are equal in their types, keys, order of keys, and in layout and bits of tensors."""
    if type(batch) is not type(other):
        return False
    if isinstance(batch, torch.Tensor):
        layout = batch.dtype == other.dtype and batch.shape == other.shape and batch.stride() == other.stride()
        return layout and batch.requires_grad == other.requires_grad and _bits(batch) == _bits(other)
    if isinstance(batch, Mapping):
        return [*batch] == [*other] and all(is_same(batch[key], other[key]) for key in batch)
    if isinstance(batch, (list, tuple)):
        return len(batch) == len(other) and all(map(is_same, batch, other))
    return bool(batch == other)


def _bits(tensor: torch.Tensor) -> bytes:
    tensor = tensor.detach().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
