"""Label each token of a text: is this name of a line of source code called, as `print` in `print(line)`?

Beside sequence_classification.py: labels are lists, -100 where nothing is to be learned, and a collator pads them too.
"""

from source_data import lines, small, word_tokenizer
from torch.utils.data import random_split
from transformers import BertConfig, BertForTokenClassification

from trainbus import DataCollatorForTokenClassification, Trainer, TrainingArguments

texts = lines("argparse.py", "ast.py")
tokenizer = word_tokenizer(texts)


def labelled(line):
    """Return the tokens of a line but its opening brackets, which would give the answer away, and their labels."""
    tokens = tokenizer(line, truncation=True, return_token_type_ids=False)["input_ids"]
    names = [tokenizer.decode(token).isidentifier() for token in tokens]
    bracket = tokenizer.convert_tokens_to_ids("(")
    labels = [int(after == bracket) if name else -100 for name, after in zip(names, [*tokens[1:], 0], strict=True)]
    kept = [index for index, token in enumerate(tokens) if token != bracket]
    return {"input_ids": [tokens[index] for index in kept], "labels": [labels[index] for index in kept]}


def accuracy(prediction):
    counted = prediction.label_ids != -100
    return {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids)[counted].mean()}


train, test = random_split([labelled(line) for line in texts], [0.8, 0.2])
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
