"""The layout of a packed batch: the position ids and the attention mask that separate the samples of a packed row.

`layout_for` runs the model on a few tokens to find the layout of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ....events.errors import ModelError
from ...checkpoint.rng_state import random_states, restore_random_states
from ...distributed.memory_errors import lacks_memory
from ...loss.signature import ForwardSignature, user_model

REMEDY = "Leave `Packing` out, and set `train_sampling_strategy='group_by_length'`, which also saves padding."


@dataclass(frozen=True)
class Layout:
    """The kind of position ids and attention mask that a model needs to separate the samples of a packed row."""

    first_position: int = 0
    """The position id of the first token of each sample."""
    mask: torch.dtype | None = None
    """Data type of an attention mask of shape (rows, 1, width, width): bool, or a float type whose masked entries are
    the lowest number. None if the model finds the samples by their position ids."""
    causal: bool = False
    """Whether the mask also hides later tokens. This is for causal models that use a mask of this shape unchanged, and
    add no causal mask."""
    one_row: bool = False
    """Whether the model accepts a single row only, as flash attention does."""

    def __repr__(self) -> str:
        kind = f"{'a causal ' if self.causal else 'an '}attention mask of {self.mask}"
        found = "position ids" if self.mask is None else f"position ids and {kind}"
        return f"{found}, from {self.first_position}{', in one row' if self.one_row else ''}"

    def batch(self, tokens: torch.Tensor, segments: torch.Tensor, positions: torch.Tensor) -> dict[str, torch.Tensor]:
        """Build the inputs of the model: token ids, position ids and, if the layout has one, an attention mask.

        Args:
            tokens: token ids of shape (rows, width).
            segments: for each token, the index of its sample in the batch; -1 for padding. Shape (rows, width).
            positions: for each token, its position in its sample, from 0; 0 for padding. Shape (rows, width).
        """
        batch = {"input_ids": tokens, "position_ids": positions + self.first_position}
        if self.mask is not None:
            # Padding tokens attend to each other, because a token that attends to nothing may get NaN.
            joined = (segments[:, None, :] == segments[:, :, None])[:, None]
            joined = joined.tril() if self.causal else joined
            batch["attention_mask"] = joined if self.mask is torch.bool else _additive(joined, self.mask)
        return batch


def _additive(joined: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(joined.shape, dtype=dtype).masked_fill_(~joined, torch.finfo(dtype).min)


def layout_for(model: nn.Module) -> Layout:
    """Find the layout with which packed samples give the same results in a model as single samples.

    The function runs the model on a few tokens, in evaluation mode and without gradients. At the end, it restores the
    mode of the model and the RNG states.

    Raises:
        ModelError: if there is no such layout. The error names the reason and the remedy.
    """
    inner = user_model(model)
    name = type(inner).__name__
    signature = ForwardSignature.of(inner)
    config: Any = getattr(inner, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"`Packing` does not support {name}: it is an encoder-decoder model. {REMEDY}")
    missing = [each for each in ("input_ids", "position_ids") if each not in signature.parameters]
    if missing and not signature.is_unknown:
        raise ModelError(
            f"`Packing` does not support {name}: its forward has no parameter {missing[0]!r}, so the positions of a "
            f"packed sample cannot restart. {REMEDY}"
        )
    modes = [(module, module.training) for module in inner.modules()]
    states, problem = random_states(), ""
    try:
        inner.eval()
        with torch.no_grad():
            for layout in _candidates(inner, config, signature):
                problem = _difference(inner, config, layout)
                if not problem:
                    return layout
    finally:
        for module, training in modes:
            module.training = training
        restore_random_states(states)
    raise ModelError(
        f"`Packing` does not support {name}: {problem}. Models that read neighbors in another way than by attention, "
        f"such as recurrent ones, cannot keep packed samples apart. {REMEDY}"
    )


def _candidates(model: nn.Module, config: Any, signature: ForwardSignature) -> Iterator[Layout]:
    """Yield the layouts to try with a model. Layouts without an attention mask come first, because they cost less."""
    pad = getattr(config, "pad_token_id", None)
    firsts = [0] if pad is None else [0, pad + 1]  # RoBERTa and its relatives count from the padding id
    attention = str(getattr(config, "_attn_implementation", None) or "")
    if attention.startswith("flash"):
        yield from (Layout(first, one_row=True) for first in firsts)
        return
    yield from (Layout(first) for first in firsts)
    if any(getattr(config, name, None) for name in _WINDOWS):
        return  # a mask of every pair would replace the window of the model
    if "attention_mask" in signature.parameters or signature.accepts_any_keyword:
        weight = next((each for each in model.parameters() if each.is_floating_point()), None)
        dtype = torch.float32 if weight is None else weight.dtype
        kinds = [(mask, causal) for causal in (False, True) for mask in (torch.bool, dtype)]
        yield from (Layout(first, mask, causal) for first in firsts for mask, causal in kinds)


_WINDOWS = ("sliding_window", "local_attention", "attention_chunk_size", "attention_window")
"""Attributes of a configuration that limit attention to near tokens."""
_LENGTHS = (5, 4, 3)
"""Number of tokens of each sample that the check uses."""


def _difference(model: nn.Module, config: Any, layout: Layout) -> str:
    """Check the logits of packed samples, and return the first problem as text; an empty text if there is no problem.

    The first comparison is with the logits of each sample alone. A second comparison changes the tokens of one sample,
    and checks that the logits of the other sample in the row do not change. The second comparison finds influences
    between samples that are smaller than the rounding errors of the first comparison.
    """
    samples = _samples(model, config)
    try:
        alone = [_logits(model, {"input_ids": ids[None]}, config) for ids in samples]
        packed = _packed_logits(model, config, samples, layout)
        if not packed or any(each is None or each.shape[:2] != (1, len(ids)) for each, ids in zip(alone, samples)):
            return "its output has no logits for each token"
        error = _distance(packed, [each[0] for each in alone if each is not None])
        if not error <= _tolerance(packed[0]):
            return f"with {layout!r}, packed samples get other logits, by {error:.1g} of their size"
        for changed, other in ((0, 1), (1, 0)):
            others = [*samples]
            others[changed] = samples[changed].flip(0).roll(1)
            found = _packed_logits(model, config, others, layout)
            error = _distance(found[other : other + 1], packed[other : other + 1])
            if not error <= _tolerance(packed[0]) / 100:
                return f"with {layout!r}, a sample changes the logits of its neighbor, by {error:.1g} of their size"
    except Exception as error:
        if lacks_memory(error):
            raise
        return f"its forward fails with {layout!r} ({type(error).__name__}: {error})"
    return ""


def _distance(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """Return the norm of `found - exact`, divided by the norm of `exact`; NaN if a value is not finite."""
    whole = torch.cat(exact).double()
    return float((torch.cat(found).double() - whole).norm() / whole.norm().clamp_min(1e-300))


def _packed_logits(model: nn.Module, config: Any, samples: list[torch.Tensor], layout: Layout) -> list[torch.Tensor]:
    """Run a model on one packed batch, and return the logits of each sample.

    Return an empty list if the model does not return logits for each token.
    """
    batch, places = _packed(samples, [[0, 1, 2]] if layout.one_row else [[0, 1], [2]], layout)
    logits = _logits(model, batch, config)
    if logits is None or logits.shape[:2] != batch["input_ids"].shape:
        return []
    return [logits[row, start : start + len(ids)] for (row, start), ids in zip(places, samples)]


def _tolerance(logits: torch.Tensor) -> float:
    """Return the largest result of `_distance` that counts as a rounding error, for the type and device of `logits`."""
    if logits.dtype is torch.float32:
        return 1e-4 if logits.device.type == "cpu" else 2e-3  # devices may multiply with fewer bits, such as TF32
    return {torch.float64: 1e-9, torch.float16: 1e-2}.get(logits.dtype, 5e-2)


def _logits(model: nn.Module, inputs: dict[str, torch.Tensor], config: Any) -> torch.Tensor | None:
    """Run a model, and return its logits. Return None if it returns no logits with at least 3 dimensions.

    If the model also returns hidden states for each token, the last hidden states are appended to the logits. If all
    weights of the output layer are zero, the logits are equal for all inputs, but the hidden states are not.
    """
    options = {"output_hidden_states": True} if hasattr(config, "output_hidden_states") else {}
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    outputs: Any = model(**{name: value.to(device) for name, value in inputs.items()}, **options)
    if isinstance(outputs, torch.Tensor):
        return outputs if outputs.dim() > 2 else None
    found = outputs.get("logits") if isinstance(outputs, Mapping) else next(iter(outputs))
    if not isinstance(found, torch.Tensor) or found.dim() < 3:
        return None
    hidden = outputs.get("hidden_states") if isinstance(outputs, Mapping) else None
    return torch.cat([found, hidden[-1]], -1) if hidden and hidden[-1].shape[:2] == found.shape[:2] else found


def _samples(model: nn.Module, config: Any) -> list[torch.Tensor]:
    """Return token ids of a few samples, without the padding id."""
    inner: Any = model
    embedding = inner.get_input_embeddings() if hasattr(inner, "get_input_embeddings") else None
    size = getattr(embedding, "num_embeddings", None) or getattr(config, "vocab_size", None) or 2
    avoided = getattr(config, "pad_token_id", None)
    usable = [token for token in range(min(size, 32)) if token != avoided] or [0]
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(usable), (sum(_LENGTHS),), generator=generator)
    return [*torch.split(torch.tensor(usable)[drawn], [*_LENGTHS])]


def _packed(
    samples: list[torch.Tensor], rows: list[list[int]], layout: Layout
) -> tuple[dict[str, torch.Tensor], list[tuple[int, int]]]:
    """Pack samples into a batch. Return the inputs of the model, and the row and the first column of each sample.

    Args:
        samples: token ids of each sample.
        rows: for each row of the batch, the indices of its samples.
        layout: makes the inputs of the model.
    """
    width = max(sum(len(samples[sample]) for sample in row) for row in rows)
    tokens = torch.full((len(rows), width), int(samples[0][0]))
    segments, positions = torch.full_like(tokens, -1), torch.zeros_like(tokens)
    places = {}
    for number, row in enumerate(rows):
        start = 0
        for sample in row:
            end = start + len(samples[sample])
            tokens[number, start:end], segments[number, start:end] = samples[sample], sample
            positions[number, start:end] = torch.arange(end - start)
            places[sample], start = (number, start), end
    return layout.batch(tokens, segments, positions), [places[sample] for sample in range(len(samples))]
