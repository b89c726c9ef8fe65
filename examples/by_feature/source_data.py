"""What the recipes learn from: the source of Python's standard library, and a tokenizer of its words.

Everybody has it, it is real text, and nothing needs to be downloaded.
"""

import sysconfig
from pathlib import Path


def source(name):
    """Return the text of a module of the standard library, as `textwrap.py`."""
    return (Path(sysconfig.get_path("stdlib")) / name).read_text(encoding="utf-8")


def lines(*names):
    """Return the lines of modules without their indentation, each once."""
    return list(dict.fromkeys(line.strip() for name in names for line in source(name).splitlines() if line.strip()))


def word_tokenizer(texts, size=1000):
    """Return a tokenizer of the words and signs in `texts`, with [MASK], [CLS] and [SEP] as BERT has them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=size, special_tokens=list(special.values())))
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=64, **special)


def small(tokenizer, **others):
    """Return what makes a BERT's config small: 2 layers of 64 numbers per token."""
    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    return {"vocab_size": len(tokenizer), "max_position_embeddings": 64, **size, **others}


if __name__ == "__main__":
    print(f"{len(lines('textwrap.py'))} lines of textwrap.py, among them: {lines('textwrap.py')[10]}")
