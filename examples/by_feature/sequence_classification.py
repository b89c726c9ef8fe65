"""Classify texts: is a line from the module argparse, or from the module ast?

Beside minimal.py: a tokenizer as `processing_class`, which pads each batch, and `compute_metrics` for the accuracy.
"""

from source_data import lines, small, word_tokenizer
from torch.utils.data import random_split
from transformers import BertConfig, BertForSequenceClassification

from trainbus import Trainer, TrainingArguments

texts = [(line, label) for label, name in enumerate(["argparse.py", "ast.py"]) for line in lines(name)]
tokenizer = word_tokenizer([line for line, _ in texts])
rows = [{**tokenizer(line, truncation=True), "labels": label} for line, label in texts]
train, test = random_split(rows, [0.8, 0.2])


def accuracy(prediction):
    return {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()}


args = TrainingArguments(
    "outputs/sequence_classification", num_train_epochs=2, learning_rate=2e-3, per_device_train_batch_size=32
)
trainer = Trainer(
    BertForSequenceClassification(BertConfig(**small(tokenizer), num_labels=2)),
    args,
    train_dataset=train,
    eval_dataset=test,
    processing_class=tokenizer,
    compute_metrics=accuracy,
)
before = trainer.evaluate()
trainer.train()
after = trainer.evaluate()
print(f"accuracy: {before['eval_accuracy']:.3f} before, {after['eval_accuracy']:.3f} after")
