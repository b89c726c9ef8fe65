"""Evaluate on several named datasets: here on clean and on noisy data.

Added to minimal.py: `eval_dataset` is a dict. Its keys are part of the metric names: `eval_clean_loss`.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Trainer, TrainingArguments


def make_dataset(count: int, noise: float) -> TensorDataset:
    points = torch.randn(count, 20)
    return TensorDataset(points, (points.sum(dim=1) + noise * torch.randn(count) > 0).long())


model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
args = TrainingArguments("outputs/several_eval_sets", learning_rate=3e-3, num_train_epochs=2, eval_strategy="epoch")
trainer = Trainer(
    model,
    args,
    train_dataset=make_dataset(2000, noise=2),
    eval_dataset={"clean": make_dataset(500, noise=0), "noisy": make_dataset(500, noise=3)},
    criterion=nn.functional.cross_entropy,
)
before = trainer.evaluate()
trainer.train()
after = trainer.evaluate()  # a single one: trainer.evaluate("clean")
for name in ("clean", "noisy"):
    print(f"loss: {before[f'eval_{name}_loss']:.3f} before, {after[f'eval_{name}_loss']:.3f} after, on {name} data")
