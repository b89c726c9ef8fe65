"""The local data of the programs in this folder, and small tokenizers and models.

The original programs download a dataset, a tokenizer and a pretrained model. The functions of this module replace
these downloads.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent


def lines(path: Path) -> list[str]:
    """Return the lines of a text file."""
    return path.read_text(encoding="utf-8").splitlines()


def table(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def reviews(split: str) -> list[dict[str, Any]]:
    """Return the film reviews of a split, `train` or `test`, with `text` and `label`."""
    return [{"text": row["text"], "label": int(row["label"])} for row in table(HERE / "imdb" / f"{split}.csv")]


def word_tokenizer(texts: Iterable[str], more: Iterable[str] = (), by_character: bool = False) -> Any:
    """Return a tokenizer of the words in `texts`, with the special tokens of BERT.

    Args:
        texts: the texts whose words it knows.
        more: more special tokens, such as language codes.
        by_character: whether each character is a word, as in Chinese.
    """
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated") if by_character else pre_tokenizers.Whitespace()
    words.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=[*special.values(), *more]))
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=32, **special)


def small_bert(tokenizer: Any, num_labels: int) -> Any:
    """Return a BERT with random weights that classifies texts."""
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=32, num_labels=num_labels, **size)
    return BertForSequenceClassification(config)


def accuracy(prediction: Any) -> dict[str, float]:
    """Return the fraction of samples whose class has the largest logit."""
    logits, labels = prediction
    return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}
