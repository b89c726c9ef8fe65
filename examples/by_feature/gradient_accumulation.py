"""Train with batches larger than memory: 4 batches of 8 samples make the same step as one batch of 32.

Added to minimal.py: `gradient_accumulation_steps=4`.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

from trainbus import Trainer, TrainingArguments

points = torch.randn(2000, 20)
dataset = TensorDataset(points, (points.sum(dim=1) + 2 * torch.randn(2000) > 0).long())
train, test = random_split(dataset, [1600, 400])
sizes = {"one batch": (32, 1), "four batches": (8, 4)}
weights = {}
for name, (batch_size, accumulation) in sizes.items():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    args = TrainingArguments(
        "outputs/gradient_accumulation",
        num_train_epochs=2,
        learning_rate=1e-2,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
    )
    trainer = Trainer(model, args, None, train, test, criterion=nn.functional.cross_entropy)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    weights[name] = torch.cat([weight.flatten() for weight in model.parameters()])
    print(f"loss: {before['eval_loss']:.3f} before, {after['eval_loss']:.3f} after {trainer.state.global_step} steps")
print(f"The weights differ by at most {(weights['one batch'] - weights['four batches']).abs().max():.0e}.")
