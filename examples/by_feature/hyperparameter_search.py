"""Search hyperparameters: `model_init` builds a new model for each trial, and `space` returns the values of a trial."""

from typing import Any

import optuna
import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

from trainbus import BestRun, Trainer, TrainingArguments

points = torch.randn(2000, 20)
dataset = TensorDataset(points, (points.sum(dim=1) + 2 * torch.randn(2000) > 0).long())
train, test = random_split(dataset, [1500, 500])


def model_init() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))


def space(trial: optuna.Trial) -> dict[str, Any]:
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
assert isinstance(best, BestRun)  # a list only for several objectives
print(f"Best: trial {best.run_id}, eval_loss {best.objective:.4f}, with {best.hyperparameters}")
