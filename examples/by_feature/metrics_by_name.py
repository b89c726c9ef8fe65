"""Measure a classifier with metrics by name, batch by batch: accuracy, macro F1, and F1 of each class.

Added to sequence_classification.py: `Metrics` replaces the function `accuracy`. The evaluation keeps no logits.
"""

from source_data import lines, small, split, word_tokenizer
from transformers import BertConfig, BertForSequenceClassification

from trainbus import Metrics, Trainer, TrainingArguments

NAMES = ["argparse", "ast"]
texts = [(line, label) for label, name in enumerate(NAMES) for line in lines(f"{name}.py")]
tokenizer = word_tokenizer([line for line, _ in texts])
samples = [{**tokenizer(line, truncation=True), "labels": label} for line, label in texts]
train, test = split(samples)
args = TrainingArguments(
    "outputs/metrics_by_name", num_train_epochs=2, learning_rate=2e-3, per_device_train_batch_size=32
)
trainer = Trainer(
    BertForSequenceClassification(BertConfig(**small(tokenizer), num_labels=2)),
    args,
    train_dataset=train,
    eval_dataset=test,
    processing_class=tokenizer,
    compute_metrics=Metrics(
        "accuracy",
        Metrics("f1", average="macro", prefix="macro_"),
        Metrics("f1", average=None, label_names=NAMES),
    ),
)
before = trainer.evaluate()
trainer.train()
after = trainer.evaluate()
for name in ("accuracy", "macro_f1"):
    print(f"{name}: {before[f'eval_{name}']:.3f} before, {after[f'eval_{name}']:.3f} after")
for name in NAMES:
    print(f"F1 of {name}: {after[f'eval_f1_{name}']:.3f}")
