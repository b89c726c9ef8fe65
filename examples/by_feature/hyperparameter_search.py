"""Hyperparameter search: `model_init` in place of the model, and the space that is searched."""

import optuna
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Trainer, TrainingArguments

points = torch.randn(2000, 20)
rows = TensorDataset(points, (points.sum(dim=1) + 2 * torch.randn(2000) > 0).long())
train, test = torch.utils.data.random_split(rows, [1500, 500])


def model_init():
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))


def space(trial):
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [16, 64]),
    }


args = TrainingArguments(
    "outputs/hyperparameter_search", num_train_epochs=2, eval_strategy="epoch", logging_strategy="no", disable_tqdm=True
)
trainer = Trainer(
    args=args, model_init=model_init, train_dataset=train, eval_dataset=test, criterion=nn.functional.cross_entropy
)
best = trainer.hyperparameter_search(
    space,
    n_trials=6,
    backend="optuna",
    sampler=optuna.samplers.TPESampler(seed=0),
    pruner=optuna.pruners.MedianPruner(3),
)
print(f"Best: trial {best.run_id}, eval_loss {best.objective:.4f}, with {best.hyperparameters}")
