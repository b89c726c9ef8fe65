"""Small models with adapters of peft, and runs that train them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import torch
from torch import nn

from support.trainers import regression_trainer

ROWS = [
    {"x": torch.randn(6, generator=torch.Generator().manual_seed(row)), "labels": torch.tensor(row % 3)}
    for row in range(24)
]
LORA = {"r": 2, "target_modules": ["first", "last"], "lora_dropout": 0.2}


class Base(nn.Module):
    """A base model with a running mean. Training changes it although it belongs to no adapter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.middle = nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None, **_: Any) -> dict[str, torch.Tensor]:
        logits = self.last(self.middle(self.norm(self.first(x)).relu()).relu())
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def adapted(kind: str, seed: int = 0) -> Any:
    """Return a base model with adapters of a kind. The base is the same for every seed."""
    base = Base()
    torch.manual_seed(seed)
    if kind == "ia3":
        return peft.get_peft_model(base, peft.IA3Config(target_modules=["first"], feedforward_modules=[]))
    options = {
        "lora": {},
        "dora": {"use_dora": True},
        "a module besides": {"modules_to_save": ["middle"]},
        "biases": {"bias": "all"},
    }
    model: Any = peft.get_peft_model(
        base, peft.LoraConfig(**LORA, **options.get(kind, {})), adapter_name=first_of(kind)
    )
    if kind == "several":
        model.add_adapter("second", peft.LoraConfig(r=3, target_modules=["middle"]))
        model.base_model.set_adapter(["default", "second"])
    if kind == "a weight besides":
        model.base_model.model.middle.weight.requires_grad_(True)
    return model


def first_of(kind: str) -> str:
    """Return the name of the first adapter."""
    return "own" if kind == "another name" else "default"


KINDS = (
    "lora", "dora", "ia3", "several", "another name", "a module besides", "a weight besides", "biases",
)  # fmt: skip


def run_of(folder: Path | str, model: Any, callbacks: tuple[Any, ...] = (), **args: Any) -> Any:
    """Build a trainer of 8 steps that saves every 2 steps."""
    options = {
        "max_steps": 8, "save_strategy": "steps", "save_steps": 2, "label_names": ["labels"], "use_cpu": True,
        "remove_unused_columns": False, **args,
    }  # fmt: skip
    data = {"train_dataset": ROWS, "eval_dataset": ROWS[:8], "callbacks": list(callbacks)}
    return regression_trainer(folder, model, args=options, **data)
