"""Accept the positional arguments of `Trainer(...)` in the order of PaddleNLP: model, criterion, args, ..."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar, cast

from ...events.errors import ArgumentError, closest, nearest
from ...events.errors import UnknownArgument as UnknownArgument
from ...events.keywords import refuse_unknown
from ..arguments import TrainingArguments

Init = TypeVar("Init", bound=Callable[..., None])

PADDLENLP = (
    *("model", "criterion", "args", "data_collator", "train_dataset", "eval_dataset", "tokenizer", "compute_metrics"),
    *("callbacks", "optimizers", "preprocess_logits_for_metrics"),
)
"""The parameters of PaddleNLP's Trainer, in order."""


def _nearest_of(name: str, known: Iterable[str]) -> str:
    """Return the last part of the error text about an unknown parameter: a suggestion, or only a period.

    If `name` is a training argument, suggest `TrainingArguments(<name>=...)`. Otherwise, suggest the nearest name in
    `known`, the parameters of the Trainer. If no name in `known` is similar, suggest the nearest training argument.
    """
    arguments = [field.name for field in fields(TrainingArguments)]
    if name not in arguments and closest(name, known):
        return nearest(name, known)
    meant = name if name in arguments else closest(name, arguments)
    return f". Set it in the arguments: `TrainingArguments({meant}=...)`." if meant else "."


def has_criterion_second(given: Sequence[Any]) -> bool:
    """Return whether positional arguments are in the order of PaddleNLP: model, loss function, `TrainingArguments`.

    A loss function in the second place, or a `TrainingArguments` in the third place, is enough.
    """
    if len(given) > 2 and isinstance(given[2], TrainingArguments):
        return True
    second = given[1] if len(given) > 1 else None
    return callable(second) and not isinstance(second, (type, TrainingArguments))


def accepts_criterion_second(init: Init) -> Init:
    """Decorate the constructor of a trainer, so that it also takes positional arguments in the order of PaddleNLP.

    The constructor then raises an ArgumentError for too many positional arguments, and for an argument that is passed
    by position and by name.
    """

    known = [*inspect.signature(init).parameters][1:]

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        refuse_unknown("The Trainer", kwargs, known, _nearest_of)
        if not has_criterion_second(args):
            return init(self, *args, **kwargs)
        named = dict(zip(PADDLENLP, args))
        if len(args) > len(PADDLENLP):
            raise ArgumentError(
                f"The Trainer got {len(args)} positional arguments and a criterion as the second. In this order it "
                f"takes {len(PADDLENLP)}: {', '.join(PADDLENLP)}. Pass the others by name."
            )
        if twice := sorted(named.keys() & kwargs.keys()):
            raise ArgumentError(f"The Trainer got {twice[0]!r} by position and by name. Pass it once.")
        return init(self, **{**named, **kwargs})

    return cast(Init, wrapper)
