"""The training text of the scripts: the source of Python's standard library, and a tokenizer of its words.

This text is part of every Python installation, so the scripts need no download.
"""

import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch

Sample = TypeVar("Sample")


def source(name: str) -> str:
    """Return the text of a module of the standard library, such as `textwrap.py`."""
    return (Path(sysconfig.get_path("stdlib")) / name).read_text(encoding="utf-8")


def lines(*names: str) -> list[str]:
    """Return the distinct lines of modules without their indentation."""
    return list(dict.fromkeys(line.strip() for name in names for line in source(name).splitlines() if line.strip()))


def split(samples: list[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Return a random 80 % of the samples for training, and the others for evaluation."""
    shuffled = [samples[index] for index in torch.randperm(len(samples)).tolist()]
    train = round(0.8 * len(samples))
    return shuffled[:train], shuffled[train:]


def word_tokenizer(texts: Iterable[str], size: int = 1000) -> Any:
    """Return a tokenizer of the words and symbols in `texts`, with the special tokens of BERT."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=size, special_tokens=list(special.values())))
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=64, **special)


def small(tokenizer: Any, **others: Any) -> dict[str, Any]:
    """Return the options of a small BERT config: 2 layers, hidden size 64."""
    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    return {"vocab_size": len(tokenizer), "max_position_embeddings": 64, **size, **others}


if __name__ == "__main__":
    print(f"{len(lines('textwrap.py'))} lines of textwrap.py, among them: {lines('textwrap.py')[10]}")
