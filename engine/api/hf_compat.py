"""Attributes and methods of transformers' Trainer that subclasses read and call."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ...events.bus import EventBus
from ...events.capabilities import Capability
from ...events.composition import provides
from ...events.handlers import is_called_as_transformers_does
from ..arguments import TrainingArguments
from .accelerator import Accelerator
from .assignments import LOSSES, changes_nothing, tell_unread
from .base import TrainerBase
from .early_attributes import PARTS, PENDING, is_own_property, refuse_other_part
from .inputs import checked_arguments
from .removed_names import MISSING


def make_output_folder(args: TrainingArguments, bus: EventBus) -> None:
    """Create the output folder if a callback in the style of transformers is attached.

    Such a callback may write into the folder in `on_init_end`, because transformers creates the folder before this
    event. If the folder cannot be created, this function raises nothing. The training raises an error when it begins.
    """
    if args.should_save and _has_handler_in_the_style_of_transformers(bus):
        with contextlib.suppress(OSError, ValueError):
            args.output_path.mkdir(parents=True, exist_ok=True)


def _has_handler_in_the_style_of_transformers(bus: EventBus) -> bool:
    own = f"{__name__.partition('.')[0]}."
    return any(
        is_called_as_transformers_does(each.handler, each.event)
        for event in bus
        for each in bus.order_of(event)
        if not type(each.owner).__module__.startswith(own)
    )


class HFCompatMethods(TrainerBase):
    """Members that exist only for compatibility with transformers' Trainer."""

    @property
    def accelerator(self) -> Accelerator:
        """An object with accelerate's methods, such as `backward` and `gather`."""
        made = vars(self).get("_accelerator")
        if made is None or made.run is not self.run:
            made = self._accelerator = Accelerator(self.run, None)
        made.stepper, made.seed = vars(self).get("_stepper"), self._order_seed()
        return made

    @property
    def is_deepspeed_enabled(self) -> bool:
        """Whether DeepSpeed trains the model."""
        return provides(self.bus.subscribers.values(), Capability.DEEPSPEED)

    @property
    def is_fsdp_enabled(self) -> bool:
        """Whether torch's FSDP shards the model."""
        return provides(self.bus.subscribers.values(), Capability.FSDP)

    @property
    def current_gradient_accumulation_steps(self) -> int:
        """The number of batches of the current step; outside of training, `args.gradient_accumulation_steps`.

        The last step of an epoch may have fewer batches than other steps.
        """
        stepper = vars(self).get("_stepper")
        return stepper.accumulating if self.run.mode == "train" and stepper else self.args.gradient_accumulation_steps

    @property
    def _tr_loss(self) -> Any:
        """The sum of this rank's training losses since the last log, a scalar tensor."""
        return self.run.losses.main.pending

    @_tr_loss.setter
    def _tr_loss(self, loss: Any) -> None:
        pending = self.run.losses.main.pending
        pending.copy_(torch.as_tensor(loss))

    @property
    def neftune_noise_alpha(self) -> float | None:
        """`args.neftune_noise_alpha`. A program may set this property. The next training uses the new value."""
        return self.args.neftune_noise_alpha

    @neftune_noise_alpha.setter
    def neftune_noise_alpha(self, alpha: float | None) -> None:
        self.args.neftune_noise_alpha = alpha

    @property
    def _globalstep_last_logged(self) -> int:
        """The step of the last log of the training loss."""
        return self.run.losses.main.since

    @_globalstep_last_logged.setter
    def _globalstep_last_logged(self, step: int) -> None:
        self.run.losses.main.since = step

    @property
    def _total_loss_scalar(self) -> float:
        """The sum of the losses of all steps up to the last log, averaged over the ranks."""
        return self.run.losses.main.total

    @_total_loss_scalar.setter
    def _total_loss_scalar(self, total: float) -> None:
        self.run.losses.main.total = total

    def store_flos(self) -> None:
        """Do nothing, because the callback `CountFlops` updates `state.total_flos`."""

    if not TYPE_CHECKING:  # a type checker would otherwise accept every misspelt attribute

        def __setattr__(self, name: str, value: Any) -> None:
            """Set an attribute.

            A subclass may set a property such as `model` before it calls `super().__init__`. The property returns
            this value until `super().__init__` builds the run, and then returns the value of the run. If a program
            replaces `trainer.args`, handlers receive the new arguments from the next event on.
            """
            if name in PARTS:
                refuse_other_part(self, name, value)
            if name == "args" and "run" in vars(self):
                self.run.use_arguments(checked_arguments(value))
            if "run" not in vars(self) and is_own_property(type(self), name):
                vars(self).setdefault(PENDING, {})[name] = value
                return
            if "run" in vars(self) and is_own_property(type(self), name) and changes_nothing(self, name, value):
                return
            if name in LOSSES and "run" in vars(self) and self.run.mode:
                self._set_late_loss(name, value)
                return
            tell_unread(self, name, value)
            try:
                object.__setattr__(self, name, value)
            except AttributeError:
                # A subclass may override `model` and call the setter of the Trainer, which needs the run.
                own = getattr(type(self), name, None)
                if "run" in vars(self) or not isinstance(own, property) or own.fset is None:
                    raise
                vars(self).setdefault(PENDING, {})[name] = value

        def __getattr__(self, name: str) -> Any:
            if "run" not in vars(self) and name in vars(self).get(PENDING, ()):
                return vars(self)[PENDING][name]
            if name in MISSING:
                raise AttributeError(f"{type(self).__name__} has no {name!r}, which transformers has: {MISSING[name]}")
            return object.__getattribute__(self, name)  # raises the original error, also for one inside a property
