"""Classify texts: does a line belong to the module argparse, or to the module ast?

Added to minimal.py: a tokenizer as `processing_class` pads each batch, and `compute_metrics` returns the accuracy.
"""

import numpy as np
from source_data import lines, small, split, word_tokenizer
from transformers import BertConfig, BertForSequenceClassification

from trainbus import EvalPrediction, Trainer, TrainingArguments

texts = [(line, label) for label, name in enumerate(["argparse.py", "ast.py"]) for line in lines(name)]
tokenizer = word_tokenizer([line for line, _ in texts])
samples = [{**tokenizer(line, truncation=True), "labels": label} for line, label in texts]
train, test = split(samples)


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


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
