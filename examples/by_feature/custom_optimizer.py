"""A custom optimizer: the last layer has ten times the learning rate of the first, and both rates decrease.

Added to minimal.py: `optimizers` takes an optimizer and a schedule for the model's parameters. Either may be None.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

from trainbus import Trainer, TrainingArguments

points = torch.randn(2000, 20)
dataset = TensorDataset(points, (points.sum(dim=1) + 2 * torch.randn(2000) > 0).long())
train, test = random_split(dataset, [1600, 400])
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))

groups = [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[2].parameters(), "lr": 1e-2}]
optimizer = torch.optim.NAdam(groups)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=200, gamma=0.1)  # counted in training steps

args = TrainingArguments("outputs/custom_optimizer", num_train_epochs=2)
trainer = Trainer(
    model, args, None, train, test, criterion=nn.functional.cross_entropy, optimizers=(optimizer, schedule)
)
before = trainer.evaluate()
trainer.train()
after = trainer.evaluate()
print(f"Learning rates at the end: {schedule.get_last_lr()}")
print(f"loss: {before['eval_loss']:.3f} before, {after['eval_loss']:.3f} after")
