"""TrainerBase: attributes of transformers' Trainer, such as `state` and `model`. Their values come from the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import nn

from ...events.bus import EventBus
from ...events.control import TrainerControl
from ...events.errors import ArgumentError
from ...events.state import TrainerState
from ..arguments import TrainingArguments
from ..run import Run
from .early_attributes import PENDING


class TrainerBase:
    """The attributes that all groups of Trainer methods use. The base class of these groups."""

    args: TrainingArguments
    run: Run
    bus: EventBus

    @property
    def state(self) -> TrainerState:
        """The progress of the run."""
        return self.run.state

    @state.setter
    def state(self, state: Any) -> None:
        if self.run.mode:
            raise ArgumentError(f"The state cannot be replaced during {self.run.mode}(). Set its attributes.")
        if not dataclasses.is_dataclass(type(state)):
            raise ArgumentError(f"`trainer.state` cannot be {state!r}. Set a `TrainerState`.")
        ours = isinstance(state, TrainerState)
        self.run.replace_state(state if ours else TrainerState.from_dict(dataclasses.asdict(state)))

    @property
    def control(self) -> TrainerControl:
        """The control with the flags that callbacks raise, such as `should_save`."""
        return self.run.control

    @control.setter
    def control(self, control: TrainerControl) -> None:
        if isinstance(control, TrainerControl):
            if control is not self.run.control:
                self.run.control.absorb(control)
        else:
            raise ArgumentError("The control of a run cannot be replaced. Set its flags, or call request and veto.")

    def _note_metrics(self, metrics: dict[str, Any]) -> None:
        """If an override of `evaluate` runs, record `metrics` as metrics of its evaluation. Otherwise do nothing.

        Only metrics with the prefix of the evaluation, such as `eval_`, are recorded.
        """

    @property
    def model(self) -> nn.Module:
        """The user's model, unwrapped."""
        return self.run.model

    @model.setter
    def model(self, model: nn.Module) -> None:
        if self.run.mode:
            raise ArgumentError(f"The model cannot be replaced during {self.run.mode}(). Replace it before or after.")
        if not isinstance(model, nn.Module):
            raise ArgumentError(
                f"`trainer.model` cannot be {model!r}. Set a torch module. To free the memory of the model, delete the "
                "trainer and the model."
            )
        self._use_model(model.to(self.args.device))

    def _follow_arguments(self) -> None:
        """Apply arguments that the program changed after construction.

        Check the arguments, and update the callbacks that the Trainer builds from arguments.
        """
        raise NotImplementedError

    def _argument_check(self) -> Callable[[], None]:
        """Return a function that warns about each argument that a handler changed too late to affect the training."""
        raise NotImplementedError

    def _order_seed(self) -> int:
        """Return the seed of the data order."""
        raise NotImplementedError

    def _use_model(self, model: nn.Module) -> None:
        """Replace the model of the run with another model."""
        raise NotImplementedError

    @property
    def model_wrapped(self) -> nn.Module:
        """The model that each step calls: `model` in its wrapper, such as DDP or FSDP. Without a wrapper: `model`.

        A program may set this attribute only to the value of `model`. To wrap the model, override `_wrap_model`.
        """
        return self.run.model_wrapped

    @model_wrapped.setter
    def model_wrapped(self, model: nn.Module) -> None:
        if model is not self.run.model and model is not self.run.model_wrapped:
            raise AttributeError(
                "`trainer.model_wrapped` can only be set to `trainer.model`. Set `trainer.model`, or override "
                "`_wrap_model` to wrap it."
            )

    @property
    def processing_class(self) -> Any:
        """The tokenizer or processor of the model."""
        return self.run.processing_class

    @processing_class.setter
    def processing_class(self, processing_class: Any) -> None:
        self.run.use_processor(processing_class)

    @property
    def tokenizer(self) -> Any:
        """The older name of `processing_class`.

        If a subclass sets `self.tokenizer` before the constructor and also passes another `processing_class`, the two
        names have different values, as in transformers.
        """
        return vars(self).get("_own_tokenizer", self.run.processing_class)

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        vars(self).pop("_own_tokenizer", None)
        self.run.use_processor(tokenizer)

    def _use_early_tokenizer(self) -> None:
        """Use the `tokenizer` that a subclass set before the constructor.

        If the trainer has no `processing_class`, the tokenizer becomes the `processing_class`. Otherwise, only the
        attribute `tokenizer` has this value.
        """
        early = vars(self).pop(PENDING, {})
        if "tokenizer" not in early:
            return
        if self.run.processing_class is None:
            self.run.use_processor(early["tokenizer"])
        else:
            vars(self)["_own_tokenizer"] = early["tokenizer"]

    @property
    def train_dataloader(self) -> Any:
        """The loader of the training batches; None before the first training."""
        return self.run.train_dataloader

    @property
    def is_in_train(self) -> bool:
        """Whether a training is in progress."""
        return self.run.mode == "train"

    def is_local_process_zero(self) -> bool:
        """Return whether this process has local rank 0."""
        return self.run.ranks.local_rank == 0

    def is_world_process_zero(self) -> bool:
        """Return whether this process has rank 0."""
        return self.run.ranks.rank == 0
