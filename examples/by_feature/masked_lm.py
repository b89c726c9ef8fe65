"""Teach a small BERT which words of a line of source code are hidden.

Beside sequence_classification.py: there are no labels, for the collator hides words, other ones in each epoch, and asks
for them.
"""

from source_data import lines, small, word_tokenizer
from torch.utils.data import random_split
from transformers import BertConfig, BertForMaskedLM

from trainbus import DataCollatorForLanguageModeling, Trainer, TrainingArguments

texts = lines("argparse.py", "ast.py")
tokenizer = word_tokenizer(texts)
train, test = random_split([tokenizer(line, truncation=True) for line in texts], [0.8, 0.2])

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
