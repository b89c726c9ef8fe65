"""A custom loss: a rare class gets a larger weight than the frequent one.

Added to minimal.py: a subclass overrides `compute_loss`. A loss that needs only logits and labels needs no subclass:
pass it as `criterion`.
"""

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

from trainbus import Trainer, TrainingArguments

points = torch.randn(4000, 20)
dataset = TensorDataset(points, (points.sum(dim=1) + 2 * torch.randn(4000) > 9).long())  # 1 in 30 is of class 1
train, test = random_split(dataset, [3000, 1000])


class BalancedTrainer(Trainer):
    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        points, labels = inputs
        logits = model(points)
        loss = nn.functional.cross_entropy(logits, labels, weight=torch.tensor([1.0, 30.0]))
        return (loss, {"logits": logits}) if return_outputs else loss


def recall_of(trainer: Trainer) -> float:
    """Return the fraction of the rare class that the model finds."""
    points, labels = test[:]
    return float((trainer.model(points).argmax(-1) == labels)[labels == 1].float().mean())


recall = {}
for kind in (Trainer, BalancedTrainer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    args = TrainingArguments(
        "outputs/custom_loss", num_train_epochs=4, learning_rate=1e-2, per_device_train_batch_size=64
    )
    trainer = kind(model, args, train_dataset=train, criterion=nn.functional.cross_entropy if kind is Trainer else None)
    trainer.train()
    recall[kind] = recall_of(trainer)
print(f"recall: {recall[Trainer]:.3f} before, {recall[BalancedTrainer]:.3f} after")
