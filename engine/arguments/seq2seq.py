"""What a run on sequences is told in addition: how to generate, and how to batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from . import TrainingArguments
from ._base import Group, arg, must
from ._checks import normalised, with_defaults, wrong_types


@dataclass(kw_only=True, repr=False)
class GenerationArguments(Group):
    """How sequences are generated in evaluations and predictions."""

    predict_with_generate: bool = arg(
        False, "Whether evaluations and predictions generate, for metrics of texts, rather than keep the logits."
    )
    generation_max_length: int | None = arg(
        None, "Length of what is generated, in tokens, the prompt of a decoder included; None leaves it to the model."
    )
    generation_num_beams: int | None = arg(
        None, "Beams of the search for the best sequence, 1 for none; None leaves it to the model."
    )
    generation_config: Any = arg(
        None,
        "How the model generates: a `GenerationConfig`, or the path of a file or folder that one was saved to. None "
        "leaves the model's own.",
    )
    sortish_sampler: bool = arg(
        False, "The same as `train_sampling_strategy='group_by_length'`: rows of similar length come together."
    )

    def problems(self) -> Iterator[str]:
        yield from must(self, lambda n: n >= 1, "give at least 1, or None.", "generation_max_length")
        yield from must(self, lambda n: n >= 1, "give at least 1, or None.", "generation_num_beams")
        config = self.generation_config
        if isinstance(config, (bool, int, float, list, tuple)):
            yield f"`generation_config` is {config!r}; give a `GenerationConfig`, or the path of one."


@dataclass(kw_only=True)
class Seq2SeqTrainingArguments(GenerationArguments, TrainingArguments):
    """`TrainingArguments` for models that generate sequences."""

    def __post_init__(self) -> None:
        for field in fields(GenerationArguments):
            setattr(self, field.name, normalised(field, getattr(self, field.name)))
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
        wrong = wrong_types(self, GenerationArguments)
        yield from wrong.values()
        yield from GenerationArguments.problems(with_defaults(self, wrong))
        if self.sortish_sampler and self.train_sampling_strategy == "sequential":
            yield (
                "`sortish_sampler=True` groups rows by length, and `train_sampling_strategy='sequential'` keeps them "
                "as they stand; give one of the two."
            )

    def to_dict(self) -> dict[str, Any]:
        """Every field as `TrainingArguments.to_dict` gives it; a `GenerationConfig` as its own dict."""
        values = TrainingArguments.to_dict(self)
        config = values["generation_config"]
        return {**values, "generation_config": config.to_dict() if hasattr(config, "to_dict") else config}
