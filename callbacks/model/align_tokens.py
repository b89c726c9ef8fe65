"""Let the model's configs know the special tokens of its tokenizer."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.stages import Stage

logger = logging.getLogger(__name__)

NAMES = ("eos_token_id", "bos_token_id", "pad_token_id")


@dataclass
class AlignTokens(Callback):
    """Before training, writes the tokenizer's special tokens into the config and generation config of the model.

    So a batch can be padded, and the model, when it is loaded again, ends its texts where the tokenizer says. What the
    tokenizer does not define stays, and so do further tokens that end a text.
    """

    stage = Stage.PREPARE

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> AlignTokens:
        return cls()

    def on_setup(self, run: Run) -> None:
        tokenizer = getattr(run.processing_class, "tokenizer", run.processing_class)
        model: Any = run.model
        config: Any = getattr(model, "config", None)
        if run.mode != "train" or not hasattr(tokenizer, "eos_token_id") or not hasattr(config, "get_text_config"):
            return
        changed = align(tokenizer, config.get_text_config(), getattr(model, "generation_config", None))
        if changed:
            told = ", ".join(f"{name}={token}" for name, token in changed.items())
            logger.warning("The model's config and generation config take over from the tokenizer: %s.", told)


def align(tokenizer: Any, config: Any, generation: Any) -> dict[str, int]:
    """Write special tokens into configs as transformers does; return those that changed.

    Args:
        tokenizer: has them as `eos_token_id`, `bos_token_id` and `pad_token_id`, None where it has none.
        config: of the model; one that lists several ends of a text goes on doing so.
        generation: how the model generates; None if it does not. It keeps the ends of a text that it has.
    """
    changed = {}
    for name in NAMES:
        token = getattr(tokenizer, name, None)
        if token is None:
            continue
        known, lists = _listed(config, name), isinstance(getattr(config, name, None), list)
        generating = _listed(generation, name)
        if token in known and (generation is None or token in generating):
            continue
        changed[name] = token
        several = name == "eos_token_id"
        setattr(config, name, _first(token, known) if several and lists else token)
        if generation is not None:
            setattr(generation, name, _first(token, generating) if several else token)
    return changed


def _listed(config: Any, name: str) -> list[Any]:
    value = getattr(config, name, None)
    return value if isinstance(value, list) else [value]


def _first(token: int, others: list[Any]) -> list[int]:
    return [token, *(other for other in others if other is not None and other != token)]
