"""Pass an output of the model to the next forward of the model, for models with a recurrent memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.data.batches import detach
from ...engine.loss.signature import ForwardSignature, label_names_of
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError, ModelError, nearest
from ...events.stages import Stage
from .forwards import replace_forward


@dataclass
class RecurrentMemory(Callback):
    """Passes one output of a forward, the memory, to the next forward, as Transformer-XL and XLNet expect.

    Set `past_index=1` in the arguments to use the callback. If the parameter of your model is not called `mems`, add
    the callback yourself: `RecurrentMemory(index=2, name="past")`. The memory is empty at the start of each epoch, and
    before and after each evaluation. No gradient flows through the memory.

    With a single process, checkpoints contain the memory. A resumed run restores the memory if the batch size is the
    same. With several ranks, each rank has its own memory, and a resumed run starts with an empty memory.

    The id of the callback, also in checkpoints, is `CarryPast`: an older name of the class.

    Raises:
        ArgumentError: if `index` is below 1.
        ModelError: if the model's forward has no parameter `name`, or if the model has no output `index`.
    """

    stage = Stage.PREPARE
    arguments = ("past_index",)

    index: int = 1
    """The index of the output that is the memory. The loss is output 0. Without labels, the model returns no loss, and
    the callback uses `index - 1`."""
    name: str = "mems"
    """The parameter of the model's forward that receives the memory."""
    _memory: Any = field(default=None, init=False, repr=False, compare=False)
    _single_process: bool = field(default=True, init=False, repr=False, compare=False)
    _restore: Callable[[], None] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.index < 1:
            raise ArgumentError(
                f"RecurrentMemory(index={self.index}): output 0 is the loss. Set `index` (`past_index`) to 1 or more."
            )

    @classmethod
    def default_id(cls) -> str:
        return "CarryPast" if cls is RecurrentMemory else super().default_id()

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> RecurrentMemory | None:
        return None if args.past_index < 0 else cls(args.past_index)

    def on_setup(self, run: Run) -> None:
        forward = run.model.forward
        labels, inspected = label_names_of(run.model), ForwardSignature.of(run.model)
        signature = inspect.Signature([*inspected.parameters.values()])
        if self.name not in signature.parameters and not inspected.accepts_any_keyword:
            raise ModelError(
                f"{type(run.model).__name__}.forward takes no {self.name!r}{nearest(self.name, signature.parameters)} "
                "Name the parameter that receives the memory: RecurrentMemory(name=...)."
            )

        def forward_with_memory(*args: Any, **kwargs: Any) -> Any:
            if self._memory is not None:
                kwargs[self.name] = self._memory
            outputs = forward(*args, **kwargs)
            given = signature.bind_partial(*args, **kwargs).arguments
            has_loss = any(given.get(label) is not None for label in labels)
            self._memory = detach(self._pick(outputs, self.index if has_loss else self.index - 1))
            return outputs

        self._memory, self._single_process = None, run.ranks.single_process
        self._restore = replace_forward(run.model, forward_with_memory)

    def _pick(self, outputs: Any, index: int) -> Any:
        values = list(outputs.values()) if isinstance(outputs, Mapping) else outputs
        if not isinstance(values, (tuple, list)) or not 0 <= index < len(values):
            count = len(values) if isinstance(values, (tuple, list)) else 1
            raise ModelError(
                f"RecurrentMemory(index={self.index}): the model returned {count} output{'s' * (count != 1)}, so this "
                "output does not exist. With labels, the loss is one of them. Set `index` (`past_index`) to the output "
                "that holds the memory."
            )
        return values[index]

    def on_epoch_begin(self, run: Run) -> None:
        position = run.position  # a run that resumes in the middle of an epoch keeps the restored memory
        if position is None or position.rows(run.sizes.rows_per_batch) == position.first_row:
            self._memory = None

    def on_evaluate_begin(self) -> None:
        self._memory = None

    def on_evaluate_end(self) -> None:
        self._memory = None

    def on_close(self) -> None:
        restore, self._restore, self._memory = self._restore, None, None
        if restore is not None:
            restore()

    def state_dict(self) -> dict[str, Any]:
        return {"past": self._memory} if self._single_process and self._memory is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._memory = state.get("past")


CarryPast = RecurrentMemory
"""Another name of the class `RecurrentMemory`, for older programs and checkpoints."""
