"""Models, samples and trainings for the tests of packing."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from support.parity_models import gpt2, llama, of_bert
from trainbus import Trainer, TrainingArguments

LENGTHS = (3, 9, 5, 7, 2, 8, 4, 6, 9, 2, 3, 5, 8, 7, 4, 6)


def samples(kind: str, count: int = 16) -> list[dict[str, Any]]:
    """Return samples of different lengths. Some labels are masked, and the first of GPT-2."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for number in range(count):
        length = LENGTHS[number % len(LENGTHS)]
        ids = torch.randint(2, 40, (length,), generator=generator).tolist()
        labels = [label % 3 for label in ids] if kind == "bert" else list(ids)
        if number % 3 == 0:
            labels[1] = -100
        if kind == "gpt2":
            labels[0] = -100
        rows.append({"input_ids": ids, "attention_mask": [1] * length, "labels": labels})
    return rows


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pad the samples of a batch to its longest: the batch that packing must equal."""
    width = max(len(row["input_ids"]) for row in rows)
    fills = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    return {
        name: torch.tensor([row[name] + [fill] * (width - len(row[name])) for row in rows])
        for name, fill in fills.items()
    }


def model_of(kind: str, attention: str = "sdpa") -> nn.Module:
    """Return a small model in float64 without dropout."""
    makes = {"llama": llama, "gpt2": gpt2, "bert": of_bert("TokenClassification", num_labels=3)}
    model: Any = makes[kind]()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    for name in ("attn_pdrop", "attention_probs_dropout_prob", "attention_dropout"):
        if hasattr(model.config, name):
            setattr(model.config, name, 0.0)
    for module in model.modules():  # attention of BERT passes this number on
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    model.set_attn_implementation(attention)
    return model.double()


def trainer_of(folder: Any, kind: str, collator: Any, *callbacks: Any, attention: str = "sdpa", **args: Any) -> Trainer:
    """Return a trainer of four steps with two batches each."""
    rows = samples(kind)
    said = {
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "learning_rate": 0.5,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "include_num_input_tokens_seen": "all",
        **args,
    }
    options = {"train_dataset": rows, "eval_dataset": rows[:7]}
    return Trainer(
        model_of(kind, attention),
        TrainingArguments(str(folder), **said),
        data_collator=collator,
        callbacks=list(callbacks),
        **options,
    )
