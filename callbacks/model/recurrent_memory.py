"""Carry a model's memory of earlier batches to the next one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.data.batches import detach
from ...engine.loss.signature import label_names_of
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError, ModelError, nearest
from ...events.stages import Stage
from .forwards import replace_forward


@dataclass
class CarryPast(Callback):
    """Gives the model one of its outputs back with the next batch, as models with a memory (Transformer-XL) want it.

    The memory is empty at the beginning of each epoch and before and after each evaluation, and gradients do not flow
    through it. Of several processes, each has its own, and a resumed run begins with an empty one; alone, it is saved,
    for batches of the same size.
    """

    stage = Stage.PREPARE
    arguments = ("past_index",)

    index: int = 1
    """Which output it is, counted from 1, the loss being 0, whether there are labels or not."""
    name: str = "mems"
    """The parameter of the model's forward that takes it."""
    _past: Any = field(default=None, init=False, repr=False, compare=False)
    _alone: bool = field(default=True, init=False, repr=False, compare=False)
    _restore: Callable[[], None] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.index < 1:
            raise ArgumentError(f"CarryPast(index={self.index}): outputs are counted from 1, the loss being 0.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> CarryPast | None:
        return None if args.past_index < 0 else cls(args.past_index)

    def on_setup(self, run: Run) -> None:
        forward = run.model.forward
        labels, signature = label_names_of(run.model), inspect.signature(forward)
        if self.name not in signature.parameters and not any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()
        ):
            raise ModelError(
                f"{type(run.model).__name__}.forward takes no {self.name!r}{nearest(self.name, signature.parameters)} "
                "Name the parameter that takes the memory: CarryPast(name=...)."
            )

        def carrying(*args: Any, **kwargs: Any) -> Any:
            if self._past is not None:
                kwargs[self.name] = self._past
            outputs = forward(*args, **kwargs)
            given = signature.bind_partial(*args, **kwargs).arguments
            has_loss = any(given.get(label) is not None for label in labels)
            self._past = detach(self._pick(outputs, self.index if has_loss else self.index - 1))
            return outputs

        self._past, self._alone = None, run.ranks.single_process
        self._restore = replace_forward(run.model, carrying)

    def _pick(self, outputs: Any, index: int) -> Any:
        values = list(outputs.values()) if isinstance(outputs, Mapping) else outputs
        if not isinstance(values, (tuple, list)) or not 0 <= index < len(values):
            count = len(values) if isinstance(values, (tuple, list)) else 1
            raise ModelError(
                f"CarryPast(index={self.index}), or `past_index`, says which output is the model's memory; it returned "
                f"{count}, the loss included where there are labels."
            )
        return values[index]

    def on_epoch_begin(self, run: Run) -> None:
        position = run.position  # in the middle of an epoch that is gone on with, the memory is too
        if position is None or position.rows(run.sizes.rows_per_batch) == position.first_row:
            self._past = None

    def on_evaluate_begin(self) -> None:
        self._past = None

    def on_evaluate_end(self) -> None:
        self._past = None

    def on_close(self) -> None:
        restore, self._restore, self._past = self._restore, None, None
        if restore is not None:
            restore()

    def state_dict(self) -> dict[str, Any]:
        return {"past": self._past} if self._alone and self._past is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._past = state.get("past")
