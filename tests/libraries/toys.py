"""Small models, a tokenizer and texts for the libraries. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

SAMPLES = 16
"""Samples of a training set: 8 steps are two epochs."""

RUN: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_steps": 8,
    "logging_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "save_strategy": "steps",
    "save_steps": 4,
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss",
    "learning_rate": 1e-2,
    "bf16": False,
    "use_cpu": True,
    "report_to": "none",
    "disable_tqdm": True,
}
"""Arguments of all trainings."""


def words(start: int) -> str:
    """Return a text of five to seven words."""
    return " ".join(f"w{(start * 7 + place * 3) % 40}" for place in range(5 + start % 3))


def texts(**offsets: int) -> Dataset:
    """Return a dataset with a column of texts for each name; other numbers give other texts."""
    return Dataset.from_dict(
        {name: [words(row + offset) for row in range(SAMPLES)] for name, offset in offsets.items()}
    )


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of 45 words with a chat template."""
    known = ["<pad>", "<eos>", "<unk>", "<user>", "<bot>", *(f"w{number}" for number in range(40))]
    plain = Tokenizer(models.WordLevel({word: place for place, word in enumerate(known)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    made.chat_template = "{% for m in messages %}<{{m.role}}> {{m.content}} {% endfor %}"
    return made


_SIZES = {
    "vocab_size": 45,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def llama() -> LlamaForCausalLM:
    """Return a causal language model, always with the same weights."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**_SIZES, eos_token_id=1, bos_token_id=1))


def scoring_llama() -> LlamaForSequenceClassification:
    """Return a model with one score per text, always with the same weights."""
    torch.manual_seed(0)
    return LlamaForSequenceClassification(LlamaConfig(**_SIZES, eos_token_id=1, bos_token_id=1, num_labels=1))


def saved(model: Any, folder: Path) -> str:
    """Save a model with the tokenizer, and return the folder."""
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def saved_bert(folder: Path) -> str:
    """Save an encoder, always with the same weights, and return the folder."""
    torch.manual_seed(0)
    return saved(BertModel(BertConfig(**_SIZES)), folder)


def saved_scoring_bert(folder: Path) -> str:
    """Save an encoder with one score per text, always with the same weights, and return the folder."""
    torch.manual_seed(0)
    return saved(BertForSequenceClassification(BertConfig(**_SIZES, num_labels=1)), folder)
