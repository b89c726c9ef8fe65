"""Trainings of two processes that each save the full gradients of their steps."""

import sys

import deepspeed  # noqa: F401  # before a process group exists
import torch
import torch.distributed.optim

import trainbus.callbacks.parallel.fully_shard
import trainbus.integrations.fairscale.sharded_ddp  # noqa: F401
from support.sharding import build
from trainbus import Callback

WAYS = {
    "ddp": {},
    "simple": {"sharded_ddp": "simple"},
    "stage1": {"sharding": "stage1"},
    "stage3": {"sharding": "stage3"},
    **{f"deepspeed-{stage}": {"deepspeed": {"zero_optimization": {"stage": stage}}} for stage in (0, 1, 2, 3)},
}


class Keep(Callback):
    """Keeps the gradients of each step."""

    def __init__(self):
        self.steps = []

    def on_gradients(self, run):
        self.steps.append({name: gradient.clone() for name, gradient in run.full_gradients().items()})


def main(top):
    for way, options in WAYS.items():
        keep = Keep()
        settings = {"max_steps": 2, "save_strategy": "no", "eval_strategy": "no", "max_grad_norm": 0.0}
        trainer = build(f"{top}/{way}", keep, **{**settings, "gradient_accumulation_steps": 2, **options})
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        trainer.train()
        torch.save(keep.steps, f"{top}/{way}-{trainer.run.ranks.rank}.pt")
    trainer.end()


if __name__ == "__main__":
    main(sys.argv[1])
