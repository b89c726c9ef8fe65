"""Collators: turn a list of samples into a batch."""

from .default import DefaultDataCollator as DefaultDataCollator
from .default import default_data_collator as default_data_collator
from .language_modeling import DataCollatorForLanguageModeling as DataCollatorForLanguageModeling
from .padding import DataCollatorForSeq2Seq as DataCollatorForSeq2Seq
from .padding import DataCollatorForTokenClassification as DataCollatorForTokenClassification
from .padding import DataCollatorWithPadding as DataCollatorWithPadding
