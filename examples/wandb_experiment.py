"""Compare four learning rates as one group of wandb runs, without a network, and print what to upload.

A sweep of wandb needs the service to choose its values. This program needs no service, because it loops over a grid.
Run `pip install 'trainbus[wandb]'`, and then `python examples/wandb_experiment.py [FOLDER]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Evaluate, KeepBest, Log, Trainer, TrainingArguments, Wandb, every

RATES = (0.3, 0.1, 0.03, 0.01)


def data(rows: int, seed: int) -> TensorDataset:
    """Return points with a label that says on which side of a plane they are."""
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0).long())


def train(folder: Path, rate: float) -> float:
    """Train one model as one run of the group. Return its best evaluation loss."""
    args = TrainingArguments(
        str(folder / f"rate-{rate}"), max_steps=20, save_steps=10, learning_rate=rate, use_cpu=True, disable_tqdm=True
    )
    trainer = Trainer(
        model_init=lambda: nn.Linear(4, 2),
        args=args,
        train_dataset=data(128, seed=0),
        eval_dataset=data(64, seed=1),
        criterion=nn.functional.cross_entropy,
        callbacks=[
            Log(every(5)),
            Evaluate(every(5)),
            KeepBest("eval_loss"),
            Wandb("demo", f"rate-{rate}", "offline", {"dir": str(folder)}, group="rates", job_type="train"),
        ],
    )
    trainer.train()
    trainer.end()
    assert trainer.state.best_metric is not None
    return trainer.state.best_metric


def main() -> None:
    """Train with each rate, and print the results and the commands that upload the runs."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "outputs/wandb_experiment")
    losses = {rate: train(folder, rate) for rate in RATES}
    for rate, loss in sorted(losses.items(), key=lambda pair: pair[1]):
        print(f"learning rate {rate:<5} eval_loss {loss:.4f}")
    print("Upload the runs with:")
    for script in sorted(folder.glob("rate-*/_wandb_sync.sh")):
        print(f"sh {script}")


if __name__ == "__main__":
    main()
