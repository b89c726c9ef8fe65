"""Attributes and methods of transformers' Trainer that subclasses read and call."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from torch import nn

from ...events.capabilities import Capability
from ...events.composition import provides
from ..data.batches import to_device
from .accelerator import Accelerator
from .base import TrainerBase
from .removed_names import MISSING


class HFCompatMethods(TrainerBase):
    """Members that exist only for compatibility with transformers' Trainer."""

    @property
    def accelerator(self) -> Accelerator:
        """An object with accelerate's methods, such as `backward` and `gather`."""
        return Accelerator(self.run, vars(self).get("_stepper"))

    @property
    def is_deepspeed_enabled(self) -> bool:
        """Whether DeepSpeed trains the model."""
        return provides(self.bus.subscribers.values(), Capability.DEEPSPEED)

    @property
    def is_fsdp_enabled(self) -> bool:
        """Whether torch's FSDP shards the model."""
        return provides(self.bus.subscribers.values(), Capability.FSDP)

    def _prepare_input(self, data: Any) -> Any:
        """Return nested tensors on the run's device."""
        return to_device(data, self.args.device)

    def compute_loss_context_manager(self) -> AbstractContextManager[Any]:
        """Return a context that does nothing: a callback puts the forward pass into half precision."""
        return nullcontext()

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager[Any]:
        """Return a context that does nothing, as transformers does. See `accelerator.autocast`."""
        return nullcontext()

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """Return the wrapped model for the run's model, and any other model unchanged."""
        return self.run.model_wrapped if model is self.run.model else model

    if not TYPE_CHECKING:  # a type checker would otherwise accept every misspelt attribute

        def __getattr__(self, name: str) -> Any:
            if name in MISSING:
                raise AttributeError(f"{type(self).__name__} has no {name!r}, which transformers has: {MISSING[name]}")
            return object.__getattribute__(self, name)  # raises the original error, also for one inside a property
