"""Count the input tokens of a run."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ...engine.arguments import TrainingArguments
from ...engine.evaluation.prediction import main_input
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError
from ...events.stages import Stage

logger = logging.getLogger(__name__)


def tokens_in(batch: Any, tokens: torch.Tensor, pad: int | None) -> torch.Tensor:
    """Return the number of tokens in a batch that are not padding, as a tensor without dimensions.

    Args:
        batch: the batch. If its `attention_mask` has one value for each token, the result is the sum of the mask.
            Without such a mask, the result is the number of tokens that differ from `pad`. A mask with 3 or 4
            dimensions is not used, because it has one value for each pair of tokens.
        tokens: the main input, of shape (batch, length).
        pad: the id of the padding token. None: no token counts as padding.
    """
    mask = _token_mask(batch)
    if mask is not None:
        return mask.sum()
    return torch.tensor(tokens.numel()) if pad is None else (tokens != pad).sum()


def _token_mask(batch: Any) -> torch.Tensor | None:
    """Return the `attention_mask` of a batch if it has one value for each token, else None."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    return mask if isinstance(mask, torch.Tensor) and mask.dim() < 3 else None


@dataclass
class CountTokens(Callback):
    """Counts the input tokens of all ranks in `state.num_input_tokens_seen`, and logs this number and the speed.

    Set `include_num_input_tokens_seen=True`, or add `CountTokens("non_padding")` to the callbacks. The callback adds
    `num_input_tokens_seen` to each log. It adds `train_runtime` and `train_tokens_per_second` to each log of the
    training loss. `train_runtime` is the time since training began in this session, in seconds. The speed counts only
    the tokens of this session. With several ranks, the callback needs one `all_reduce` per batch.

    Raises:
        ArgumentError: if `which` is neither `all` nor `non_padding`.
    """

    stage = Stage.MEASURE
    arguments = ("include_num_input_tokens_seen",)

    which: Literal["all", "non_padding"] = "all"
    """The tokens to count: `all`, or `non_padding` for all tokens except padding. The `attention_mask` of a batch marks
    its padding. If a batch has no mask, or its mask has one value per pair of tokens, the tokens with the id
    `pad_token_id` of the tokenizer are padding."""
    _began: tuple[float, int] = field(default=(0.0, 0), init=False, repr=False, compare=False)
    _warned: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.which not in ("all", "non_padding"):
            raise ArgumentError(f"CountTokens({self.which!r}): the value is unknown. Set 'all' or 'non_padding'.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> CountTokens | None:
        return None if args.tokens_counted == "no" else cls(args.tokens_counted)  # type: ignore[arg-type]

    def on_train_begin(self, run: Run) -> None:
        self._began = (time.time(), run.state.num_input_tokens_seen)

    def on_batch(self, run: Run) -> None:
        tokens = main_input(run.model, run.batch)
        if not isinstance(tokens, torch.Tensor):
            self._warn(
                f"{type(run.model).__name__}.main_input_name names no tensor in the batch, so no tokens are counted"
            )
            return
        count = torch.tensor(tokens.numel())
        if self.which == "non_padding":
            pad = getattr(run.processing_class, "pad_token_id", None)
            count = tokens_in(run.batch, tokens, pad)
            if pad is None and _token_mask(run.batch) is None:
                self._warn(
                    "neither an attention_mask of the tokens nor a pad_token_id marks the padding, so all tokens are "
                    "counted"
                )
        run.state.num_input_tokens_seen += int(run.ranks.sum(count.to(run.device)))

    def on_log(self, run: Run, logs: dict[str, Any]) -> None:
        logs["num_input_tokens_seen"] = run.state.num_input_tokens_seen
        if "loss" in logs:
            began, before = self._began
            seconds = max(time.time() - began, 1e-9)
            logs["train_runtime"] = round(seconds, 4)
            logs["train_tokens_per_second"] = round((run.state.num_input_tokens_seen - before) / seconds, 3)

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("CountTokens: %s.", problem)
