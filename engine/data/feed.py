"""The feed: from a loader to the windows of batches that make optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .batches import rows_of, to_device


@dataclass
class Window:
    """The batches of one optimizer step."""

    items: list[Any]
    """The batches, on their device."""
    batches: int
    """How many there are."""
    rows: int
    """How many rows they hold, over all processes."""


class Feed:
    """Takes windows of `accumulate` batches from a loader, the last of an epoch perhaps with fewer."""

    def __init__(self, loader: Any, accumulate: int, device: torch.device, world_size: int = 1) -> None:
        """Feed from `loader`, anything that iterates over batches."""
        self.loader = loader
        self.accumulate = accumulate
        self.device = device
        self.world_size = world_size
        self._batches: Iterator[Any] = iter(())
        self._to_skip = 0
        self._before_training: Callable[[], None] | None = None

    def on_first_window(self, restore: Callable[[], None]) -> None:
        """Call `restore` when training is about to begin: at an epoch's beginning before its first fetch, else after.

        In the middle of an epoch the first fetch of a resumed run starts the loader, which draws a random number that
        the unbroken run had drawn at the beginning of the epoch.
        """
        self._before_training = restore

    def begin(self, epoch: int, batches_done: int) -> None:
        """Go to the given batch of the given epoch: at once where the loader can, else by reading up to it."""
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(epoch)
        skips = getattr(self.loader, "skip", None)
        self._to_skip = 0 if not batches_done or (skips is not None and skips(batches_done)) else batches_done
        if not batches_done:
            self._restore()
        self._batches = iter(self.loader)

    def _restore(self) -> None:
        restore, self._before_training = self._before_training, None
        if restore is not None:
            restore()

    def take(self) -> Window | None:
        """Return the next window of the epoch, or None when it is used up."""
        while self._to_skip:
            self._to_skip -= 1
            next(self._batches, None)
        items, rows = [], 0
        for batch in self._batches:
            rows += rows_of(batch) or 0
            items.append(to_device(batch, self.device))
            if len(items) == self.accumulate:
                break
        if self._before_training is not None:
            self._restore()
        return Window(items, len(items), rows * self.world_size) if items else None
