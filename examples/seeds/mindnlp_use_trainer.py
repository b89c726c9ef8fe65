"""Classify reviews with the arguments of MindNLP 0.4: the program of its page "Use Trainer"."""

from local_data import accuracy, reviews, small_bert, word_tokenizer

from trainbus.engine import Trainer, TrainingArguments
from trainbus.engine.utils import EvalPrediction  # pyright: ignore[reportMissingImports]

training_args = TrainingArguments(
    output_dir="../../output",
    num_train_epochs=3,
    learning_rate=5e-3,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=16,
    evaluation_strategy="steps",
    eval_steps=10,
    save_strategy="epoch",
    logging_strategy="steps",
    logging_steps=5,
    optim="adamw",
)


def compute_metrics(eval_pred: EvalPrediction) -> dict[str, float]:
    """Return the accuracy."""
    return accuracy(eval_pred)


tokenizer = word_tokenizer(row["text"] for row in reviews("train"))
dataset_train, dataset_val = (
    [{**tokenizer(row["text"], padding="max_length"), "labels": row["label"]} for row in reviews(split)]
    for split in ("train", "test")
)
model = small_bert(tokenizer, num_labels=2)

trainer = Trainer(
    model=model,
    train_dataset=dataset_train,
    eval_dataset=dataset_val,
    compute_metrics=compute_metrics,
    args=training_args,
)
trainer.train()
