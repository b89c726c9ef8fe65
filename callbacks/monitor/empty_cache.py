"""Give unused GPU memory back now and then."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.stages import Stage
from ...events.triggers import Moment, Trigger, every


@dataclass
class EmptyCache(Callback):
    """Returns cached memory that no tensor uses to the GPU, against fragmentation; it makes training slower."""

    stage = Stage.RELEASE
    arguments = ("torch_empty_cache_steps",)

    trigger: Trigger = field(default_factory=lambda: every(100))
    """When, at the end of steps."""
    _last: Moment | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> EmptyCache | None:
        return None if args.torch_empty_cache_steps is None else cls(every(args.torch_empty_cache_steps))

    def on_setup(self) -> None:
        self._last = None

    def on_step_end(self, run: Run) -> None:
        now = run.moment("step")
        if self.trigger.due(now, self._last):
            self._last = now
            torch.cuda.empty_cache()  # which does nothing where there is no GPU
