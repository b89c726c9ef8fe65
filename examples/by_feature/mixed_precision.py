"""Compute in bfloat16 where its precision suffices. On a GPU with bfloat16, this saves time and memory.

Added to minimal.py: `bf16=True`. The weights stay float32. On older GPUs use `fp16=True`.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

from trainbus import Trainer, TrainingArguments

points = torch.randn(2000, 20)
dataset = TensorDataset(points, (points.sum(dim=1) + 2 * torch.randn(2000) > 0).long())
train, test = random_split(dataset, [1600, 400])
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
args = TrainingArguments("outputs/mixed_precision", num_train_epochs=2, learning_rate=1e-2, bf16=True)
trainer = Trainer(model, args, None, train, test, criterion=nn.functional.cross_entropy)
before = trainer.evaluate()
dtypes = set()
hook = model[0].register_forward_hook(lambda layer, points, output: dtypes.add(output.dtype))
trainer.train()
hook.remove()
after = trainer.evaluate()
print(f"The first layer computed in {dtypes.pop()}, and its weights are {model[0].weight.dtype}.")
print(f"loss: {before['eval_loss']:.3f} before, {after['eval_loss']:.3f} after")
