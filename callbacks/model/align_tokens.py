"""Copy the special tokens of the tokenizer to the configs of the model."""

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
"""The names of the special tokens that are copied, as attributes of the tokenizer and of the configs."""


@dataclass
class AlignTokens(Callback):
    """Copies the tokenizer's special tokens to the config and generation config of the model, before training.

    Every trainer has this callback. With the copied tokens, the model can pad batches, and a reloaded model stops
    generation at the tokenizer's end token. A warning names the changed tokens.

    - If the tokenizer does not define a token, or if both configs already contain the token, the callback does not
      change this token.
    - In the generation config, a new end token becomes the first of a list. The earlier end tokens stay in the list.
    - In the config of the model, a new end token becomes the first of a list, if there is a list. Otherwise it replaces
      the earlier end token.

    If the run has no tokenizer, or if the model has no config of transformers, the callback does nothing.
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
            logger.warning("The model's config and generation config now have the tokens of the tokenizer: %s.", told)


def align(tokenizer: Any, config: Any, generation: Any) -> dict[str, int]:
    """Write the special tokens to the configs, as transformers does. Return the changed tokens: name -> id.

    Args:
        tokenizer: an object with `eos_token_id`, `bos_token_id` and `pad_token_id`. A token that is missing or None is
            skipped.
        config: the config of the model. If it has a list of end tokens, a new end token becomes the first of the list.
            Otherwise, the new end token replaces the old one.
        generation: the generation config, or None. Its end token becomes a list: the new end token, then the
            earlier end tokens. For example, the new end token 7 changes 2 to [7, 2].
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
