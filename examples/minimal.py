"""The smallest training: a model, a dataset and a loss function."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Trainer, TrainingArguments

torch.manual_seed(0)
points = torch.randn(2000, 20)
dataset = TensorDataset(points, (points.sum(dim=1) + 2 * torch.randn(2000) > 0).long())
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
args = TrainingArguments("outputs/minimal", num_train_epochs=2, learning_rate=1e-2, logging_steps=100)
Trainer(model, args, train_dataset=dataset, criterion=nn.functional.cross_entropy).train()
