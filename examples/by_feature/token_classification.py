"""Classify each token of a text: does a line of source code call this name, as `print(line)` calls `print`?

Added to sequence_classification.py: labels are lists, -100 for tokens that do not count. A collator pads them too.
"""

import numpy as np
from source_data import lines, small, split, word_tokenizer
from transformers import BertConfig, BertForTokenClassification

from trainbus import DataCollatorForTokenClassification, EvalPrediction, Trainer, TrainingArguments

texts = lines("argparse.py", "ast.py")
tokenizer = word_tokenizer(texts)


def make_sample(line: str) -> dict[str, list[int]]:
    """Return the tokens of a line and their labels, without opening brackets, which would reveal the label."""
    tokens = tokenizer(line, truncation=True, return_token_type_ids=False)["input_ids"]
    names = [tokenizer.decode(token).isidentifier() for token in tokens]
    bracket = tokenizer.convert_tokens_to_ids("(")
    labels = [int(after == bracket) if name else -100 for name, after in zip(names, [*tokens[1:], 0], strict=True)]
    kept = [index for index, token in enumerate(tokens) if token != bracket]
    return {"input_ids": [tokens[index] for index in kept], "labels": [labels[index] for index in kept]}


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    counted = prediction.label_ids != -100
    correct = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"accuracy": float(np.mean(correct[counted]))}


train, test = split([make_sample(line) for line in texts])
args = TrainingArguments(
    "outputs/token_classification", num_train_epochs=2, learning_rate=2e-3, per_device_train_batch_size=32
)
trainer = Trainer(
    BertForTokenClassification(BertConfig(**small(tokenizer), num_labels=2)),
    args,
    data_collator=DataCollatorForTokenClassification(tokenizer),
    train_dataset=train,
    eval_dataset=test,
    compute_metrics=accuracy,
)
before = trainer.evaluate()
trainer.train()
after = trainer.evaluate()
print(f"accuracy: {before['eval_accuracy']:.3f} before, {after['eval_accuracy']:.3f} after")
