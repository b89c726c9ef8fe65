"""The engine: the loop, the step, evaluation, data, checkpoints, and the Trainer that puts them together."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arguments.seq2seq import Seq2SeqTrainingArguments as Seq2SeqTrainingArguments
    from .data.collate import DefaultDataCollator as DefaultDataCollator
    from .data.collate import default_data_collator as default_data_collator
    from .data.collators import DataCollatorForSeq2Seq as DataCollatorForSeq2Seq
    from .data.collators import DataCollatorForTokenClassification as DataCollatorForTokenClassification
    from .data.collators import DataCollatorWithPadding as DataCollatorWithPadding
    from .data.collators_lm import DataCollatorForLanguageModeling as DataCollatorForLanguageModeling
    from .seq2seq import Seq2SeqTrainer as Seq2SeqTrainer

_PLACES = {
    "arguments.seq2seq": ("Seq2SeqTrainingArguments",),
    "data.collate": ("DefaultDataCollator", "default_data_collator"),
    "data.collators": ("DataCollatorForSeq2Seq", "DataCollatorForTokenClassification", "DataCollatorWithPadding"),
    "data.collators_lm": ("DataCollatorForLanguageModeling",),
    "seq2seq": ("Seq2SeqTrainer",),
}
"""Where names live that are imported from here: using one imports its module."""

_HOME = {name: place for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
