"""A training of two processes that pushes, started by torchrun."""

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Trainer, TrainingArguments


def main():
    """Train four steps in the folder named on the command line, push, and push once more by hand."""
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    args = TrainingArguments(
        sys.argv[1],
        max_steps=4,
        save_steps=2,
        push_to_hub=True,
        hub_strategy="checkpoint",
        hub_always_push=True,
        ddp_timeout=60,
        disable_tqdm=True,
        use_cpu=True,
    )
    model = nn.Linear(4, 2)
    rows = TensorDataset(x, (x.sum(1) > 0).long())
    trainer = Trainer(model, args, train_dataset=rows, criterion=nn.CrossEntropyLoss())
    trainer.train()
    pushed = trainer.push_to_hub("By hand", tags="mine")
    assert (pushed is not None) == trainer.is_world_process_zero()
    trainer.end()


if __name__ == "__main__":
    main()
