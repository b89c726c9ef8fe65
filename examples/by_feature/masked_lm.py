"""Teach a small BERT to predict the hidden words of a line of source code.

Added to sequence_classification.py: the collator hides words and makes the labels, differently in each epoch.
"""

from source_data import lines, small, split, word_tokenizer
from transformers import BertConfig, BertForMaskedLM

from trainbus import DataCollatorForLanguageModeling, Trainer, TrainingArguments

texts = lines("argparse.py", "ast.py")
tokenizer = word_tokenizer(texts)
train, test = split([tokenizer(line, truncation=True) for line in texts])

args = TrainingArguments("outputs/masked_lm", num_train_epochs=3, learning_rate=3e-3, per_device_train_batch_size=32)
trainer = Trainer(
    BertForMaskedLM(BertConfig(**small(tokenizer))),
    args,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
    train_dataset=train,
    eval_dataset=test,
)
before = trainer.evaluate()
trainer.train()
after = trainer.evaluate()
print(f"loss: {before['eval_loss']:.3f} before, {after['eval_loss']:.3f} after")
