"""Two ranks train weights in channels_last, adapters of peft, or modules with extra state, and resume.

Each rank saves whether both runs end with the same.
"""

import atexit
import os
import sys
from pathlib import Path

import peft
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Trainer, TrainingArguments


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 8, 3)
        self.end = nn.Linear(8 * 16, 2)
        self.to(memory_format=torch.channels_last)
        self.end.weight = nn.Parameter(self.end.weight.detach().t().contiguous().t())

    def forward(self, x):
        return self.end(self.conv(x).relu().flatten(1))


class Counting(Net):
    """Counts its calls in training, in its extra state."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]

    def forward(self, x):
        self.calls += self.training
        return super().forward(x)


def full(weight):
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def end_of(folder, resume, adapters=False, counts=False, **way):
    generator = torch.Generator().manual_seed(1)
    rows = TensorDataset(torch.randn(64, 3, 6, 6, generator=generator), torch.arange(64) % 2)
    args = TrainingArguments(
        str(folder), max_steps=7, save_steps=3, per_device_train_batch_size=4, optim="adamw_torch_fused", use_cpu=True,
        learning_rate=0.01, disable_tqdm=True, ddp_backend="gloo", **way,
    )  # fmt: skip
    model = Counting() if counts else Net()
    if adapters:
        torch.manual_seed(0 if resume is None else 7)
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["conv"], modules_to_save=["end"]))
    trainer = Trainer(model, args, train_dataset=rows, criterion=nn.CrossEntropyLoss())
    trainer.train(resume_from_checkpoint=resume)
    weights = [full(weight).detach().clone() for weight in trainer.model.parameters()]
    return [*weights, torch.tensor(trainer.model.calls if counts else 0)]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    found = {}
    for name, way in (
        ("ddp", {}),
        ("stage1", {"sharding": "stage1"}),
        ("simple", {"sharded_ddp": "simple"}),
        ("adapters", {"adapters": True}),
        ("adapters, fsdp", {"adapters": True, "fsdp": "full_shard"}),
        ("extra state, fsdp", {"counts": True, "fsdp": "full_shard"}),
        ("extra state, simple", {"counts": True, "sharded_ddp": "simple"}),
    ):
        whole = end_of(folder / name, None, **way)
        again = end_of(folder / f"{name} again", str(folder / name / "checkpoint-3"), **way)
        found[name] = all(mine.equal(other) for mine, other in zip(again, whole))
    torch.save(found, folder / f"found-{os.environ['RANK']}.pt")
    atexit._run_exitfuncs()
    os._exit(0)
