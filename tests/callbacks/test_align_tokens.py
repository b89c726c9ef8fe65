"""The special tokens of a tokenizer reach the configs of the model."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch.utils.data import TensorDataset
from transformers.trainer_utils import align_special_tokens

from trainbus import Trainer, TrainingArguments
from trainbus.callbacks.model.align_tokens import align


class Tokenizer:
    """What transformers asks a tokenizer for."""

    def __init__(self, eos: int | None, bos: int | None, pad: int | None) -> None:
        self.eos_token_id, self.bos_token_id, self.pad_token_id = eos, bos, pad


ENDS = (None, 3, 50, [50], [50, 3], [3])


@pytest.mark.parametrize(
    "tokens", [(3, 2, 1), (3, None, None), (None, None, 1), (None, None, None), (50, 50, 50)], ids=str
)
def test_configs_equal_those_of_transformers(tokens: tuple[int | None, ...]) -> None:
    for end, generated, has_generation in itertools.product(ENDS, ENDS, (True, False)):
        config = transformers.GPT2Config(eos_token_id=end, bos_token_id=50)
        generation = transformers.GenerationConfig(eos_token_id=generated, bos_token_id=2) if has_generation else None
        model = SimpleNamespace(config=config, generation_config=generation)
        theirs, ours = copy.deepcopy(model), copy.deepcopy(model)
        align_special_tokens(theirs, Tokenizer(*tokens))
        align(Tokenizer(*tokens), ours.config, ours.generation_config)
        for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
            assert getattr(ours.config, name) == getattr(theirs.config, name), (end, generated, name)
            if has_generation:
                mine, other = (getattr(of.generation_config, name) for of in (ours, theirs))
                assert mine == other, (end, generated, name)


def test_a_model_without_a_padding_token_trains_on_padded_batches(tmp_path: Path) -> None:
    config = transformers.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=8, pad_token_id=None)
    model = transformers.GPT2ForSequenceClassification(config)
    rows = [{"input_ids": [1 + index, 2, 3, 0], "labels": index % 2} for index in range(8)]
    args = TrainingArguments(str(tmp_path), max_steps=2, disable_tqdm=True)
    Trainer(model, args, train_dataset=rows, processing_class=WithPad(None, None, 0)).train()
    assert model.config.pad_token_id == 0


class WithPad(Tokenizer):
    """One that stacks rows of equal length."""

    def pad(self, rows: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        return {key: torch.tensor([row[key] for row in rows]) for key in rows[0]}


@pytest.mark.parametrize("processing_class", [None, object(), Tokenizer(1, 2, 3)])
def test_plain_models_and_plain_tokenizers_are_left_alone(processing_class: Any, tmp_path: Path) -> None:
    rows = TensorDataset(torch.ones(4, 2), torch.ones(4, dtype=torch.int64))
    args = TrainingArguments(str(tmp_path), max_steps=1, disable_tqdm=True)
    model = torch.nn.Linear(2, 2)
    built = Trainer(model, args, train_dataset=rows, criterion=torch.nn.CrossEntropyLoss())
    built.run.processing_class = processing_class
    built.train()
    assert not hasattr(model, "config")
