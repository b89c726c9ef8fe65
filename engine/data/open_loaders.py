"""The loaders that are being read now, and the size of their last batch, for `accelerator.gather_for_metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .samplers import BatchedSampler

_OPEN: list[Any] = []
"""The loaders with an iteration in progress, in the order in which the iterations began. During an evaluation inside of
a training, there are two."""


@contextmanager
def opened(loader: Any) -> Iterator[None]:
    """Add `loader` to the loaders that are being read, until the end of the `with` block.

    The function `last_batch` uses the newest of these loaders.
    """
    open_loaders = _OPEN  # the module may be gone when Python ends the iteration at exit
    open_loaders.append(loader)
    try:
        yield
    finally:
        # An iteration that a program left may end later than an outer one.
        last = max(index for index, each in enumerate(open_loaders) if each is loader)
        del open_loaders[last]


def last_batch() -> tuple[int | None, int]:
    """Return the number of samples of the last batch, and the number of repeated samples at the end of this batch.

    The batch comes from the loader that is being read. During an evaluation inside of a training, this is the loader of
    the evaluation. Repeated samples only fill up the batch, so that all ranks get equally many batches. If the
    number of samples is unknown, the first value is None. If no loader is being read, the result is (None, 0).
    """
    if not _OPEN:
        return None, 0
    loader = _OPEN[-1]
    sampler, progress = loader.batch_sampler, getattr(loader, "_progress", None)
    if isinstance(sampler, BatchedSampler) and progress is not None:
        return loader.batch_rows, sampler.repeated_before(progress.rows.get(0, 0))
    return loader.batch_rows, loader.padding_rows
