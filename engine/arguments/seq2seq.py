"""`Seq2SeqTrainingArguments`: additional arguments for models that generate sequences."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from . import TrainingArguments
from ._base import Group, arg, must
from ._checks import normalize, type_problems, with_defaults


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class GenerationArguments(Group):
    """How evaluations and predictions generate sequences."""

    predict_with_generate: bool = arg(
        False, "Generate sequences in evaluations and predictions, for text metrics. False: use the logits."
    )
    generation_max_length: int | None = arg(
        None,
        "Largest length of a generated sequence, in tokens. For a decoder-only model, the prompt counts too. None: the "
        "model's setting.",
    )
    generation_num_beams: int | None = arg(
        None, "Number of beams for beam search; 1 turns it off. None: the model's setting."
    )
    generation_config: Any = arg(
        None,
        "A `GenerationConfig`, or the path of the file or folder in which one is saved. None: the model's own.",
    )
    sortish_sampler: bool = arg(
        False, "Same as `train_sampling_strategy='group_by_length'`: samples of similar length share a batch."
    )

    def problems(self) -> Iterator[str]:
        yield from must(self, lambda n: n >= 1, "set it to 1 or more, or to None.", "generation_max_length")
        yield from must(self, lambda n: n >= 1, "set it to 1 or more, or to None.", "generation_num_beams")
        config = self.generation_config
        if isinstance(config, (bool, int, float, list, tuple)):
            yield f"`generation_config` is {config!r}; set it to a `GenerationConfig`, or to the path of one."


@dataclass(kw_only=True)
class Seq2SeqTrainingArguments(GenerationArguments, TrainingArguments):
    """`TrainingArguments` for models that generate sequences."""

    def __post_init__(self) -> None:
        for field in fields(GenerationArguments):
            setattr(self, field.name, normalize(field, getattr(self, field.name)))
        if isinstance(self.generation_config, os.PathLike):
            self.generation_config = os.fspath(self.generation_config)
        TrainingArguments.__post_init__(self)
        if self.sortish_sampler:
            self.train_sampling_strategy = "group_by_length"

    def fallbacks(self) -> dict[str, Any]:
        sortish = {"train_sampling_strategy": "group_by_length"} if self.sortish_sampler else {}
        return {**TrainingArguments.fallbacks(self), **sortish}

    def problems(self) -> Iterator[str]:
        yield from TrainingArguments.problems(self)
        wrong = type_problems(self, GenerationArguments)
        yield from wrong.values()
        yield from GenerationArguments.problems(with_defaults(self, wrong))
        if self.sortish_sampler and self.train_sampling_strategy == "sequential":
            yield (
                "`sortish_sampler=True` groups samples by length, but `train_sampling_strategy='sequential'` keeps "
                "their order; remove one of the two."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, as `TrainingArguments.to_dict` does. A `GenerationConfig` becomes a dict."""
        values = TrainingArguments.to_dict(self)
        config = values["generation_config"]
        return {**values, "generation_config": config.to_dict() if hasattr(config, "to_dict") else config}
