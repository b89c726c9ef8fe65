"""Classify reviews: the complete program of the newer MindNLP page, which patches transformers."""

from datasets import Dataset, DatasetDict
from local_data import accuracy, reviews, small_bert, word_tokenizer

from trainbus import Trainer, TrainingArguments

dataset = DatasetDict({split: Dataset.from_list(reviews(split)) for split in ("train", "test")})

tokenizer = word_tokenizer(dataset["train"]["text"])
model = small_bert(tokenizer, num_labels=2)


def tokenize_function(examples: dict) -> dict:
    """Return the tokens of texts."""
    return tokenizer(examples["text"], padding="max_length", truncation=True)


tokenized_datasets = dataset.map(tokenize_function, batched=True)

training_args = TrainingArguments(
    output_dir="./results",
    eval_strategy="epoch",
    save_strategy="epoch",
    learning_rate=5e-3,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    num_train_epochs=3,
    logging_steps=10,
)

trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=tokenized_datasets["train"].select(range(100)),
    eval_dataset=tokenized_datasets["test"].select(range(40)),
    compute_metrics=accuracy,
)

trainer.train()

# As on the page of MindNLP, resume from the path of a checkpoint.
resumed = Trainer(
    model=small_bert(tokenizer, num_labels=2),
    args=training_args,
    train_dataset=tokenized_datasets["train"].select(range(100)),
    eval_dataset=tokenized_datasets["test"].select(range(40)),
    compute_metrics=accuracy,
)
resumed.train(resume_from_checkpoint="./results/checkpoint-26")
assert all(weight.equal(other) for weight, other in zip(resumed.model.parameters(), model.parameters(), strict=True))
