"""Teach a small GPT-2 to write source code, character by character, and let it write some.

Added to minimal.py: the samples are blocks of text, and the collator makes the labels from them.
"""

import torch
from source_data import source
from transformers import GPT2Config, GPT2LMHeadModel

from trainbus import Trainer, TrainingArguments, default_data_collator

characters = torch.tensor(list(source("argparse.py").encode("ascii", "replace")))
blocks = [{"input_ids": block, "labels": block} for block in characters[: len(characters) // 64 * 64].view(-1, 64)]
test, train = blocks[:100], blocks[100:]  # the model itself shifts the labels by one

config = GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
args = TrainingArguments("outputs/causal_lm", num_train_epochs=2, learning_rate=3e-3, per_device_train_batch_size=16)
trainer = Trainer(model, args, default_data_collator, train, test)
before = trainer.evaluate()
trainer.train()
after = trainer.evaluate()

prompt = torch.tensor([list(b"    def ")])
written = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_length=60, do_sample=True, pad_token_id=0)
print(bytes(written[0].tolist()).decode("ascii", "replace"))
print(f"loss: {before['eval_loss']:.3f} before, {after['eval_loss']:.3f} after")
