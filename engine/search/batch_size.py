"""Finding the batch size that memory holds: train, and where it does not, start over with a smaller one."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch

from ...events.errors import ArgumentError
from ..checkpoint.rng_state import random_states, restore_random_states
from ..data.batches import map_tensors

if TYPE_CHECKING:
    from ..run import Run

logger = logging.getLogger(__name__)

T = TypeVar("T")

SHARE = 0.9
"""The next size to try, as a share of the one that did not fit: what accelerate takes too."""

SIGNS = (" out of memory", "can't allocate memory", "CUDNN_STATUS_NOT_SUPPORTED")
"""What the message says when memory is what is missing: CUDA's, the CPU allocator's, cuDNN's."""


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that memory did not suffice."""
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


@contextmanager
def memory_explained(run: Run) -> Iterator[None]:
    """Have one of several processes that cannot start over say what to do instead, in place of torch's error.

    The others may be waiting for its part in the middle of a step, where nothing calls them back.

    Raises:
        ArgumentError: if memory does not suffice.
    """
    try:
        yield
    except RuntimeError as error:
        if run.ranks.single_process or not run.args.auto_find_batch_size or not is_out_of_memory(error):
            raise
        raise ArgumentError(
            f"Memory of rank {run.ranks.rank} does not hold a batch of {run.train_batch_size} rows, and several "
            "processes cannot start over with a smaller one: set a lower `per_device_train_batch_size`."
        ) from error


def with_smaller_batches(run: Run, train: Callable[[], T]) -> T:
    """Train, with ever smaller batches until memory holds them; each attempt begins where the first one did.

    Args:
        run: of a single process; its `train_batch_size` is the first to try, and afterwards the one that fitted.
        train: what is tried.

    Raises:
        ArgumentError: if not even a batch of one row fits.
    """
    weights = map_tensors(lambda weight: weight.detach().to("cpu", copy=True), dict(run.model.state_dict()))
    randomness = random_states()
    while True:
        try:
            return train()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            size = run.train_batch_size
            if size == 1:
                raise ArgumentError("Memory does not hold a training batch of a single row.") from error
        run.train_batch_size = int(size * SHARE)
        logger.warning("Memory does not hold a batch of %d rows; starting over with %d.", size, run.train_batch_size)
        # What the failed attempt left is only free when nothing refers to it.
        run.optimizer = run.lr_scheduler = run.loss = None
        gc.collect()
        torch.cuda.empty_cache()
        run.model.load_state_dict(weights)
        restore_random_states(randomness)
