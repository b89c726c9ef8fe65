"""What subclasses written for transformers read from their trainer, and call on it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from torch import nn

from ...events.capabilities import Capability
from ...events.composition import provides
from ..data.batches import to_device
from ..data.build import keep_columns
from ..data.collators.default import Collator
from .accelerator import Accelerator
from .base import Surface
from .overrides import MISSING


class Familiar(Surface):
    """The part of the Trainer that answers to transformers' names."""

    data_collator: Collator
    _signature_columns: list[str] | None = None
    """The columns that are kept, once they are known; set it to keep others."""

    @property
    def accelerator(self) -> Accelerator:
        """What steps of one's own call `backward`, `gather` and the like on."""
        return Accelerator(self.run, vars(self).get("_stepper"))

    @property
    def is_deepspeed_enabled(self) -> bool:
        """Whether DeepSpeed trains the model."""
        return provides(self.bus.subscribers.values(), Capability.DEEPSPEED)

    @property
    def is_fsdp_enabled(self) -> bool:
        """Whether torch's FSDP splits the model."""
        return provides(self.bus.subscribers.values(), Capability.FSDP)

    @property
    def is_in_train(self) -> bool:
        """Whether a training is under way."""
        return self.run.mode == "train"

    @property
    def _train_batch_size(self) -> int:
        """Rows in a training batch of this process."""
        return self.run.train_batch_size or self.args.train_batch_size

    @property
    def label_names(self) -> list[str]:
        """What labels are called in a batch. It may be set."""
        return self.objective.label_names

    @label_names.setter
    def label_names(self, names: list[str]) -> None:
        self._set_objective(label_names=list(names))

    @property
    def model_accepts_loss_kwargs(self) -> bool:
        """Whether the model divides its loss by the items of the whole step, which it is told. It may be set."""
        return self.objective.takes_item_count

    @model_accepts_loss_kwargs.setter
    def model_accepts_loss_kwargs(self, accepts: bool) -> None:
        self._set_objective(takes_item_count=bool(accepts))

    def _set_objective(self, **settings: Any) -> None:
        """Set something of the objective, and of those for the models that `model_init` makes later."""
        self._objective_settings = {**self._objective_settings, **settings}
        if "objective" in vars(self):
            self.objective.set(**settings)

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Return a batch as the model is given it; called for each batch. Override it to change batches.

        Here it is returned as it is: it is on its device already.
        """
        return inputs

    def _prepare_input(self, data: Any) -> Any:
        """Return nested tensors on the device of the run."""
        return to_device(data, self.args.device)

    def _set_signature_columns_if_needed(self) -> None:
        """Note which columns are kept, unless that is known. Override it to keep others."""
        if self._signature_columns is None:
            self._signature_columns = list(self.objective.accepted_columns)

    def _accepted_columns(self) -> list[str] | None:
        """Return the columns that are kept; None for all of them."""
        if not self.args.remove_unused_columns:
            return None
        own = type(self)._set_signature_columns_if_needed is not Familiar._set_signature_columns_if_needed
        if own:
            self._set_signature_columns_if_needed()
        # Not noted otherwise: another model, or other names of labels, keep other columns.
        return self.objective.accepted_columns if self._signature_columns is None else self._signature_columns

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        """Return a dataset of `datasets` without the columns that the model does not take.

        Args:
            dataset: any other one, whose rows are filtered when they become a batch, is returned as it is.
            description: is not used.

        Raises:
            DataError: if none is left.
        """
        accepted = self._accepted_columns()
        return dataset if accepted is None else keep_columns(dataset, self.data_collator, accepted)[0]

    @staticmethod
    def num_tokens(dataloader: Any, max_steps: int | None = None) -> int:
        """Return the tokens of all batches, or of the first one times `max_steps`."""
        counts = (int(batch["input_ids"].numel()) for batch in dataloader)
        return sum(counts) if max_steps is None else next(counts, 0) * max_steps

    def compute_loss_context_manager(self) -> AbstractContextManager[Any]:
        """Return a context that does nothing: the model's forward is in half precision by itself, where it is."""
        return nullcontext()

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager[Any]:
        """Return a context that does nothing, as in transformers; see `accelerator.autocast`."""
        return nullcontext()

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """Return the model as it is called, for the one of the run; any other as it is."""
        return self.run.model_wrapped if model is self.run.model else model

    if not TYPE_CHECKING:  # or every misspelt attribute would pass the type checker

        def __getattr__(self, name: str) -> Any:
            if name in MISSING:
                raise AttributeError(f"{type(self).__name__} has no {name!r}, which transformers has: {MISSING[name]}")
            return object.__getattribute__(self, name)  # raises the error that says what is wrong, in a property too
