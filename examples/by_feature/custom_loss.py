"""A loss of one's own: a rare class counts as much as the frequent one.

Beside minimal.py: `compute_loss` is overridden; where the loss needs logits and labels only, pass it as `criterion`.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

from trainbus import Trainer, TrainingArguments

points = torch.randn(4000, 20)
rows = TensorDataset(points, (points.sum(dim=1) + 2 * torch.randn(4000) > 9).long())  # 1 in 30 is of class 1
train, test = random_split(rows, [3000, 1000])


class Balanced(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        points, labels = inputs
        logits = model(points)
        loss = nn.functional.cross_entropy(logits, labels, weight=torch.tensor([1.0, 30.0]))
        return (loss, {"logits": logits}) if return_outputs else loss


def found(trainer):
    """Return the share of the rare class that the model finds."""
    points, labels = test[:]
    return (trainer.model(points).argmax(-1) == labels)[labels == 1].float().mean()


recall = {}
for kind in (Trainer, Balanced):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    args = TrainingArguments(
        "outputs/custom_loss", num_train_epochs=4, learning_rate=1e-2, per_device_train_batch_size=64
    )
    trainer = kind(model, args, train_dataset=train, criterion=nn.functional.cross_entropy if kind is Trainer else None)
    trainer.train()
    recall[kind] = found(trainer)
print(f"recall: {recall[Trainer]:.3f} before, {recall[Balanced]:.3f} after")
