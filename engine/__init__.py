"""The engine: the loop, the step, evaluation, data, checkpoints, and the Trainer that combines them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_exports

if TYPE_CHECKING:
    from .arguments import TrainingArguments as TrainingArguments
    from .arguments.seq2seq import Seq2SeqTrainingArguments as Seq2SeqTrainingArguments
    from .data.collators import DataCollatorForLanguageModeling as DataCollatorForLanguageModeling
    from .data.collators import DataCollatorForSeq2Seq as DataCollatorForSeq2Seq
    from .data.collators import DataCollatorForTokenClassification as DataCollatorForTokenClassification
    from .data.collators import DataCollatorWithPadding as DataCollatorWithPadding
    from .data.collators import DefaultDataCollator as DefaultDataCollator
    from .data.collators import default_data_collator as default_data_collator
    from .evaluation.seq2seq import Seq2SeqTrainer as Seq2SeqTrainer
    from .trainer import Trainer as Trainer

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "arguments": ("TrainingArguments",),
        "arguments.seq2seq": ("Seq2SeqTrainingArguments",),
        "data.collators": (
            *("DataCollatorForLanguageModeling", "DataCollatorForSeq2Seq", "DataCollatorForTokenClassification"),
            *("DataCollatorWithPadding", "DefaultDataCollator", "default_data_collator"),
        ),
        "evaluation.seq2seq": ("Seq2SeqTrainer",),
        "trainer": ("Trainer",),
    },
)
