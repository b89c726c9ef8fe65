"""Compute the loss of a causal language model in chunks of tokens, so that the logits of all tokens never exist."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import torch
from torch import nn

from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability, Conflict
from ...events.errors import ArgumentError, ModelError
from ...events.stages import Stage
from ..base.missing_logits import MissingLogits, changed_logits
from ..base.module_changes import has_own, replace_attribute
from .compile_model import Compile
from .forwards import replace_forward

logger = logging.getLogger(__name__)

_WHOLE = "the loss needs the full weights of the output layer. Leave ChunkedCrossEntropy out."


@dataclass
class ChunkedCrossEntropy(Callback):
    """Computes the training loss of a causal language model in chunks of tokens, to save memory.

    The logits of all tokens are often the largest tensor of a step. Their shape is (tokens, vocabulary). This callback
    passes the hidden states and the output layer to torch's function `linear_cross_entropy`. This function never holds
    all logits. With and without the callback, the loss and the gradients are the same except for rounding. Evaluations
    and predictions still compute all logits.

    The callback needs torch 2.13 or later. It needs a transformers model with the loss `ForCausalLMLoss`. It saves the
    most memory if the vocabulary is large, and if a batch has more tokens than the hidden size of the model. In
    training, `outputs.logits` of the model is None. With `bf16=True`, the output layer and the loss compute in float32.
    This is more exact and slower.

    Raises:
        ArgumentError: if torch is older than 2.13, if `chunk` is below 1, or if `label_smoothing_factor` is set.
        ModelError: if the model has another loss or returns a tuple, or if the model or a hook reads or changes the
            logits. Also if the output layer is not an `nn.Linear`, overrides the `forward` of `nn.Linear`, or has
            weights in half precision.
    """

    stage = Stage.PREPARE
    conflicts_with = (Conflict(Capability.SHARDS_MODEL, _WHOLE), Conflict(Capability.DEEPSPEED, _WHOLE))

    chunk: int | None = 256
    """The number of tokens in a chunk. Smaller chunks save more memory, but are slower. None: torch chooses the
    number."""
    _undo: list[Callable[[], None]] = field(default_factory=list, init=False, repr=False, compare=False)
    _active: bool = field(default=False, init=False, repr=False, compare=False)
    _used: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise ArgumentError(f"ChunkedCrossEntropy(chunk={self.chunk}): set 1 or more, or None.")

    def conflict_with(self, other: Callback) -> str:
        if isinstance(other, Compile) and not other.regions:
            return 'torch does not compile its loss in chunks. Compile the blocks: Compile(regions="blocks").'
        return super().conflict_with(other)

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            return
        if not hasattr(nn, "LinearCrossEntropyOptions"):
            raise ArgumentError(
                f"ChunkedCrossEntropy needs torch 2.13 or later, and this is torch {torch.__version__}. Install a "
                "later version, or leave the callback out."
            )
        if run.args.label_smoothing_factor:
            raise ArgumentError(
                "ChunkedCrossEntropy does not work with `label_smoothing_factor`: it computes the loss from all "
                "logits. Set `label_smoothing_factor=0`."
            )
        self._used = False
        self._replace(run.model)

    def _replace(self, model: Any) -> None:
        name = type(model).__name__
        loss = inspect.getattr_static(type(model), "loss_function", None)
        if not isinstance(loss, property) or not _is_usual(model.loss_function):
            raise ModelError(
                f"ChunkedCrossEntropy needs a causal language model of transformers, whose `loss_function` is "
                f"ForCausalLMLoss. {name} has another loss, or wraps such a model. Leave the callback out."
            )
        head = model.get_output_embeddings()
        if type(head) is not nn.Linear:
            raise ModelError(
                f"ChunkedCrossEntropy needs an output layer of the class nn.Linear. The output layer of {name} is a "
                f"{_name_of(type(head))}. Leave the callback out."
            )
        if has_own(head, "forward"):
            raise ModelError(
                f"ChunkedCrossEntropy: the forward of the output layer of {name} was replaced, so its logits may "
                "differ from the logits of an nn.Linear. Leave the callback out."
            )
        forward, project = model.forward, head.forward

        def forward_in_chunks(*args: Any, **kwargs: Any) -> Any:
            self._active = kwargs.get("labels") is not None and torch.is_grad_enabled()
            try:
                outputs = forward(*args, **kwargs)
                return self._without_logits(outputs) if self._active else outputs
            finally:
                self._active = False

        def keep_hidden(hidden: torch.Tensor) -> torch.Tensor:
            if not self._active:
                projected: torch.Tensor = project(hidden)
                return projected
            return MissingLogits.of(hidden, head.out_features, name)

        def loss_in_chunks(logits: Any, labels: Any, vocab_size: Any = None, **options: Any) -> torch.Tensor:
            if not self._active:
                usual: torch.Tensor = compute_usual(logits, labels, vocab_size, **options)
                return usual
            if not isinstance(logits, MissingLogits):
                raise changed_logits(name)
            self._used = True
            return self._loss(logits.hidden, head, labels, **options)

        compute_usual = model.loss_function
        self._undo += [replace_forward(head, keep_hidden), replace_forward(model, forward_in_chunks)]
        # The property `loss_function` of transformers reads this attribute, and computes it if there is none.
        self._undo.append(replace_attribute(model, "_loss_function", loss_in_chunks))

    def _without_logits(self, outputs: Any) -> Any:
        """Return the outputs of a training forward with `logits=None`.

        Raises:
            ModelError: if the outputs are a tuple.
        """
        if not is_dataclass(outputs):
            raise ModelError(
                "ChunkedCrossEntropy: the model returns a tuple, whose logits cannot be left out. Set "
                "`model.config.return_dict = True`."
            )
        return replace(outputs, logits=None)  # type: ignore[type-var]

    def _loss(
        self,
        hidden: torch.Tensor,
        head: nn.Linear,
        labels: torch.Tensor,
        num_items_in_batch: Any = None,
        ignore_index: int = -100,
        shift_labels: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Return the same loss as transformers: the summed loss of the tokens, divided by `num_items_in_batch`.

        If `num_items_in_batch` is None, the divisor is the number of labels that are not `ignore_index`.

        Raises:
            ModelError: if the weights of the output layer are in half precision.
        """
        if shift_labels is None:
            shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        if head.weight.dtype in (torch.bfloat16, torch.float16):
            raise ModelError(
                f"ChunkedCrossEntropy: the output layer is {head.weight.dtype}, and torch would round the loss of the "
                "whole batch to this type. Keep the weights in float32 and set `bf16=True`, or leave the callback out."
            )
        functional: Any = nn.functional  # torch before 2.13 does not have the function
        targets = shift_labels.flatten().to(hidden.device)
        # torch returns the loss in the type of the weights. With autocast, it would round the loss to half precision.
        with torch.autocast(hidden.device.type, enabled=False):
            total: torch.Tensor = functional.linear_cross_entropy(
                hidden.flatten(0, -2).to(head.weight.dtype),
                head.weight,
                targets,
                linear_bias=head.bias,
                reduction="sum",
                ignore_index=ignore_index,
                options=nn.LinearCrossEntropyOptions(batch_chunk_size=self.chunk),
            )
        items = (targets != ignore_index).sum() if num_items_in_batch is None else num_items_in_batch
        return _divided(total, torch.as_tensor(items, device=total.device))

    def on_step_end(self) -> None:
        if not self._used:
            self._used = True
            logger.warning(
                "ChunkedCrossEntropy has no effect: the first step did not pass labels to the model. Leave out your "
                "own loss function, or the callback."
            )

    def on_close(self) -> None:
        undo, self._undo = self._undo, []
        for step in undo:
            step()
        self._active = False


def _is_usual(loss: Any) -> bool:
    """Return whether `loss` is the function `ForCausalLMLoss` of transformers."""
    name, module = getattr(loss, "__name__", ""), getattr(loss, "__module__", None) or ""
    return name == "ForCausalLMLoss" and module.partition(".")[0] == "transformers"


def _name_of(kind: type) -> str:
    """Return the name of a class, for an error.

    If the class is called `Linear`, the name includes the Python module, because libraries of adapters also have a
    class `Linear`.
    """
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__name__ == "Linear" else kind.__name__


def _divided(total: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    """Return a sum of losses divided by the number of items. For 0 items, return NaN, with gradients of zero.

    The loss of transformers is also NaN with gradients of zero. A plain division by zero would give gradients of NaN.
    """
    nothing = items == 0
    return total / items.masked_fill(nothing, 1) + torch.zeros_like(total).masked_fill(nothing, torch.nan)
