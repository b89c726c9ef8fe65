"""Allow or forbid TF32 for float32 matrix products and convolutions on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ...engine.arguments import TrainingArguments
from ...engine.optim.tf32_settings import allow_tf32
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError
from ...events.stages import Stage


@dataclass
class TF32(Callback):
    """Sets whether float32 matrix products and convolutions may use TF32. TF32 has 10 instead of 23 bits of mantissa.

    Set `tf32=True`, or add `TF32()` to the callbacks. TF32 makes float32 training faster on GPUs of the Ampere
    generation or later. After the session, the callback restores the settings that torch had before.

    Raises:
        ArgumentError: if `enabled` is True and the device does not support TF32.
    """

    stage = Stage.PREPARE
    arguments = ("tf32",)

    enabled: bool = True
    """Whether to allow TF32. False: forbid TF32, even if the program allowed it."""
    _restore: Callable[[], None] | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> TF32 | None:
        return None if args.tf32 is None else cls(args.tf32)

    def on_setup(self, run: Run) -> None:
        if self.enabled and (run.device.type != "cuda" or torch.cuda.get_device_capability(run.device)[0] < 8):
            raise ArgumentError(
                f"`tf32` needs a GPU of the Ampere generation or later, but this run is on {_name_of(run.device)}. "
                "Leave it out, or set tf32=False."
            )
        self._restore = allow_tf32(self.enabled)

    def on_close(self) -> None:
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()


def _name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
