"""Classify reviews: the seven steps of the transformers page "Basic Training Workflow"."""

from datasets import Dataset, DatasetDict
from local_data import reviews, small_bert, word_tokenizer

from trainbus import Trainer, TrainingArguments

# 1. Load and preprocess data
dataset = DatasetDict({split: Dataset.from_list(reviews(split)) for split in ("train", "test")})
tokenizer = word_tokenizer(dataset["train"]["text"])


def tokenize_function(examples: dict) -> dict:
    """Return the tokens of texts."""
    return tokenizer(examples["text"], padding="max_length", truncation=True)


tokenized_datasets = dataset.map(tokenize_function, batched=True)

# 2. Load model
model = small_bert(tokenizer, num_labels=2)

# 3. Define training arguments
training_args = TrainingArguments(
    output_dir="./results",
    num_train_epochs=3,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=64,
    learning_rate=5e-3,
    eval_strategy="epoch",
    save_strategy="epoch",
    load_best_model_at_end=True,
)

# 4. Create trainer
trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=tokenized_datasets["train"],
    eval_dataset=tokenized_datasets["test"],
)

# 5. Train
trainer.train()

# 6. Evaluate
trainer.evaluate()

# 7. Save model
trainer.save_model("./final_model")
