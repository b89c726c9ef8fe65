"""The feed: from a loader to the windows of batches that make optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...events.activity import FETCH, IDLE, Activity
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

    def __init__(
        self,
        loader: Any,
        accumulate: int,
        device: torch.device,
        world_size: int = 1,
        non_blocking: bool = False,
        activity: Activity | None = None,
    ) -> None:
        """Feed from `loader`, anything that iterates over batches; `non_blocking` copies while the device works."""
        self.loader = loader
        self.accumulate = accumulate
        self.device = device
        self.world_size = world_size
        self.non_blocking = non_blocking
        self.activity = Activity() if activity is None else activity
        self._batches: Iterator[Any] = iter(())
        self._place: dict[str, Any] = {}
        self._restore_randomness: Callable[[], None] = _nothing
        self._restore_later = False

    def resume(
        self,
        place: dict[str, Any],
        restore_randomness: Callable[[], None],
        after_a_window: bool = False,
    ) -> None:
        """Go on, when the first epoch begins, where an earlier session was.

        Args:
            place: where its loader was, as `place()` returned it; empty if that is not known.
            restore_randomness: puts the random generators to where they were.
            after_a_window: in the middle of an epoch, only when the first window is taken, as transformers does it.
        """
        self._place, self._restore_randomness, self._restore_later = place, restore_randomness, after_a_window

    def begin(self, epoch: int, batches_done: int) -> None:
        """Go to the given batch of the given epoch: at once where the loader can, else by reading up to it.

        The beginning of an epoch draws random numbers: in the middle of one, those were drawn by the earlier session
        before the states that are restored.
        """
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(epoch)
        place, self._place = self._place, {}
        if not batches_done:
            if place and hasattr(self.loader, "take_over"):
                self.loader.take_over(place)
            self._restore()
            self._batches = iter(self.loader)
            return
        to_read = 0
        if not (place and hasattr(self.loader, "go_to") and self.loader.go_to(place)):
            skips = getattr(self.loader, "skip", None)
            to_read = 0 if skips is not None and skips(batches_done) else batches_done
        self._batches = iter(self.loader)
        for _ in range(to_read):
            next(self._batches, None)
        if not self._restore_later:
            self._restore()

    def _restore(self) -> None:
        restore, self._restore_randomness = self._restore_randomness, _nothing
        restore()

    def take(self) -> Window | None:
        """Return the next window of the epoch, or None when it is used up."""
        self.activity.name = FETCH
        items, rows = [], 0
        for batch in self._batches:
            rows += rows_of(batch) or 0
            items.append(to_device(batch, self.device, self.non_blocking))
            if len(items) == self.accumulate:
                break
        self._restore()
        self.activity.name = IDLE
        return Window(items, len(items), rows * self.world_size) if items else None


def _nothing() -> None:
    """Restore nothing: the run begins anew."""
