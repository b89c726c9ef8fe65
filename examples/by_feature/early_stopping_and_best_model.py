"""Stop when the evaluation no longer improves, and load the best model at the end.

Added to minimal.py: an evaluation per epoch, `load_best_model_at_end`, and the callback `EarlyStopping`.
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import EarlyStopping, Trainer, TrainingArguments


def make_dataset(count: int) -> TensorDataset:
    points = torch.randn(count, 20)
    return TensorDataset(points, (points.sum(dim=1) + 4 * torch.randn(count) > 0).long())


model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 2))  # large enough to overfit 200 samples
args = TrainingArguments(
    "outputs/early_stopping",
    num_train_epochs=50,
    learning_rate=1e-2,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=1,
    load_best_model_at_end=True,
)
trainer = Trainer(
    model,
    args,
    None,
    make_dataset(200),
    make_dataset(500),
    criterion=nn.functional.cross_entropy,
    callbacks=[EarlyStopping(patience=3)],
)
trainer.train()
losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
print(f"Stopped after {len(losses)} of 50 epochs; the best is {trainer.state.best_model_checkpoint}.")
print(f"loss: {losses[-1]:.4f} before, {trainer.evaluate()['eval_loss']:.4f} after the best model is loaded")
