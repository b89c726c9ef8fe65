"""Compose a run from callbacks: triggers, two evaluations side by side, and a callback of your own.

    python examples/compose_callbacks.py

The program prints the order of all handlers, and trains for some seconds. Then it prints each request with its
callback and its reason.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

from trainbus import (
    Callback,
    Checkpoint,
    EarlyStopping,
    Evaluate,
    Keep,
    KeepBest,
    Log,
    NaNGuard,
    Run,
    Stage,
    Trainer,
    TrainerControl,
    TrainingArguments,
    at_end,
    every,
    log_spaced,
    order,
    set_seed,
)


@dataclass
class SkipSpikes(Callback):
    """Skips updates whose gradient norm is much larger than usual, and logs their number."""

    factor: float = 4.0
    """The largest ratio of a gradient norm to the running mean."""
    usual: float = field(default=0.0, init=False)
    """The running mean of the gradient norms."""
    skipped: int = field(default=0, init=False)
    """The number of skipped updates."""

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":  # a later evaluation also announces `on_setup`
            self.usual, self.skipped = 0.0, 0

    def on_pre_optimizer_step(self, control: TrainerControl, grad_norm: torch.Tensor | float | None) -> None:
        if grad_norm is None:  # DeepSpeed measures the norm in the step
            return
        norm = float(grad_norm)
        if self.usual and norm > self.factor * self.usual:
            self.skipped += 1
            control.request("skip_update", f"the gradient norm is {norm:.3g}, usually {self.usual:.3g}")
        else:
            self.usual = 0.9 * self.usual + 0.1 * norm if self.usual else norm

    @order(Stage.MEASURE)  # adds to the logs before the callbacks in REPORT read them
    def on_log(self, logs: dict[str, Any]) -> None:
        if "loss" in logs:
            logs["skipped"] = self.skipped

    def state_dict(self) -> dict[str, Any]:
        return {"usual": self.usual, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.usual, self.skipped = state["usual"], state["skipped"]


def make_dataset(count: int, outliers: float) -> TensorDataset:
    """Return points of shape (count, 20), and labels. A fraction of the points are outliers.

    The label of a point says whether the sum of its values, with noise, is positive.
    """
    points = torch.randn(count, 20)
    points[torch.rand(count) < outliers] *= 30
    return TensorDataset(points, (points.sum(dim=1) + 2 * torch.randn(count) > 0).long())


def main() -> None:
    set_seed(0)
    train, valid = random_split(make_dataset(2400, outliers=0.002), [2000, 400])
    clean = make_dataset(400, outliers=0)
    trainer = Trainer(
        nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)),
        TrainingArguments("outputs/compose", num_train_epochs=20, learning_rate=3e-3, per_device_train_batch_size=32),
        train_dataset=train,
        eval_dataset=valid,
        criterion=nn.functional.cross_entropy,
        callbacks=[  # in any order: stages define the order of the handlers
            EarlyStopping("eval_loss", patience=3),
            KeepBest("eval_loss"),
            Log(every(50)),
            Log(log_spaced(8), prefix="early_"),
            Evaluate(every(1, "epoch")),
            Evaluate(every(0.25), dataset=clean, name="clean"),
            Checkpoint(every("10min") | at_end(), keep=Keep(last=2, best=1)),
            SkipSpikes(),
            NaNGuard("stop"),
        ],
    )
    print(trainer.describe(), "\n")
    trainer.train()
    print("\nAll requests, logging excluded:")
    print(*(entry for entry in trainer.control.ledger if entry.flag != "log"), sep="\n")


if __name__ == "__main__":
    main()
