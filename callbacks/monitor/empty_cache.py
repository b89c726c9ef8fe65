"""Release unused GPU memory at intervals."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.stages import Stage
from ...events.trigger_fields import check_triggers
from ...events.triggers import Moment, Trigger, every


@dataclass
class EmptyCache(Callback):
    """Calls `torch.cuda.empty_cache()` when `trigger` is due, to reduce fragmentation of GPU memory.

    Each call makes training slower. Use the callback if training runs out of memory after many steps with batches of
    different sizes. Set `torch_empty_cache_steps=50`, or add `EmptyCache(every(50))` to the callbacks. Without a CUDA
    GPU, the callback does nothing.
    """

    stage = Stage.RELEASE
    arguments = ("torch_empty_cache_steps",)

    trigger: Trigger = field(default_factory=lambda: every(100))
    """When to empty the cache, at the end of a step or epoch. Default: every 100 steps."""
    _last: Moment | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_triggers(self)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> EmptyCache | None:
        return None if args.torch_empty_cache_steps is None else cls(every(args.torch_empty_cache_steps))

    def on_setup(self) -> None:
        self._last = None

    def on_step_end(self, run: Run) -> None:
        self._empty_if_due(run.moment("step"))

    def on_epoch_end(self, run: Run) -> None:
        self._empty_if_due(run.moment("epoch"))

    def _empty_if_due(self, now: Moment) -> None:
        if self.trigger.due_again(now, self._last):
            self._last = now
            torch.cuda.empty_cache()  # does nothing without a GPU
