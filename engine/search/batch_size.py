"""Find a batch size that fits in memory: train, and start again with a smaller batch on an out-of-memory error."""

from __future__ import annotations

import copy
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch

from ...events.errors import ArgumentError
from ..data.batches import map_tensors
from ..distributed.memory_errors import SIGNS as SIGNS
from ..distributed.memory_errors import is_out_of_memory as is_out_of_memory
from ..loss.loss_module import LossModule

if TYPE_CHECKING:
    from ..run import Run

logger = logging.getLogger(__name__)

T = TypeVar("T")

SHARE = 0.9
"""The next batch size to try, as a fraction of the size that did not fit. accelerate uses the same fraction."""


@contextmanager
def memory_explained(run: Run) -> Iterator[None]:
    """In a `with` block, replace torch's out-of-memory error with an error that names the remedy.

    The error is replaced only on several ranks with `auto_find_batch_size`. A single process starts again with a
    smaller batch. One of several ranks cannot start again, because the other ranks may be inside a collective of the
    same step.

    Raises:
        ArgumentError: if a batch does not fit in memory, on several ranks with `auto_find_batch_size`.
    """
    try:
        yield
    except RuntimeError as error:
        if run.ranks.single_process or not run.args.auto_find_batch_size or not is_out_of_memory(error):
            raise
        raise ArgumentError(
            f"A batch of {run.train_batch_size} samples does not fit in the memory of rank {run.ranks.rank}. Several "
            "ranks cannot start over with a smaller batch: set a lower `per_device_train_batch_size`."
        ) from error


def with_smaller_batches(run: Run, train: Callable[[], T]) -> T:
    """Train with smaller and smaller batches until a batch fits in memory.

    Each attempt starts from the same weights and RNG states.

    Args:
        run: the run of a single process. After each attempt that does not fit, the function lowers the
            `train_batch_size` of the run.
        train: a function that makes one attempt, with the current `train_batch_size` of the run.

    Returns:
        The result of the attempt that fits.

    Raises:
        ArgumentError: if a batch of one sample does not fit.
    """
    weights = map_tensors(lambda weight: weight.detach().to("cpu", copy=True), dict(run.model.state_dict()))
    loss_modules = [each.module for each in run.bus.subscribers.values() if isinstance(each, LossModule)]
    of_losses = [copy.deepcopy(module.state_dict()) for module in loss_modules]
    randomness = run.rng_states()
    while True:
        try:
            return train()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            size = run.train_batch_size
            if size == 1:
                raise ArgumentError(
                    "A training batch of one sample does not fit in memory. Use a smaller model or shorter samples."
                ) from error
        run.use_batch_size(int(size * SHARE))
        logger.warning(
            "A batch of %d samples does not fit in memory. Starting over with %d.", size, run.train_batch_size
        )
        # The memory of the failed attempt is free only when nothing refers to it.
        run.optimizer = run.lr_scheduler = run.loss = None
        gc.collect()
        torch.cuda.empty_cache()
        run.model.load_state_dict(weights)
        for module, state in zip(loss_modules, of_losses):
            module.load_state_dict(state)
        run.restore_rng(randomness)
