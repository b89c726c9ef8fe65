"""Model, data and trainer for the tests of the ways to shard. The messages of FSDP name the class `Block`."""

import os
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Trainer, TrainingArguments

ON_CPU = os.environ.get("TRAINBUS_TESTS_ON") != "gpus"
"""Whether the trainings run on the CPU."""

WAYS = {
    "ddp": {},
    "simple": {"sharded_ddp": "simple"},
    "stage1": {"sharding": "stage1"},
    "stage2": {"sharding": "stage2"},
    "stage3": {"sharding": "stage3"},
    "stage3-offload": {"sharding": "stage3 offload"},
    "zero_dp_2": {"sharded_ddp": "zero_dp_2"},
    "zero_dp_3": {"sharded_ddp": "zero_dp_3"},
    "zero_dp_3-offload": {"sharded_ddp": "zero_dp_3 offload auto_wrap"},
    "fsdp": {"fsdp": True},
}
IN_OTHER_WORDS = ("zero_dp_2", "zero_dp_3", "fsdp")
"""Other names of stage 2 and stage 3. They are trained once, without accumulation and resume."""


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.Dropout(0.1))
        )

    def forward(self, x):
        return x + self.body(x)


class Net(nn.Module):
    """Blocks of an odd width, so that the shards of two ranks differ in size, and a running mean."""

    def __init__(self, width=33):
        super().__init__()
        # No bias: before a normalization its gradient would be only rounding.
        self.start = nn.Linear(6, width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.end = nn.Linear(width, 3)

    def forward(self, x):
        x = self.norm(self.start(x))
        for block in self.blocks:
            x = block(x)
        return self.end(x)


def data():
    """Return 101 rows to train on and 33 to evaluate on."""
    torch.manual_seed(0)
    x = torch.randn(101, 6)
    y = (x.sum(1) > 0).long() + (x[:, 0] > 1).long()
    return SimpleNamespace(train=TensorDataset(x, y), eval=TensorDataset(x[:33], y[:33]), labels=y[:33].tolist())


class Words(torch.utils.data.Dataset):
    """32 rows of 8 tokens."""

    def __init__(self):
        self.ids = torch.randint(0, 64, (32, 8), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def language_model():
    """Return a small GPT-2. Its first and last layer share their weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    size = {"vocab_size": 64, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))


def build(folder, *callbacks, model=None, rows=None, **options):
    """Return a trainer of 8 steps that saves and evaluates at the 4th and the 8th."""
    words = rows == "words"
    rows = SimpleNamespace(train=Words(), eval=Words()) if words else data()
    torch.manual_seed(1)
    arguments = {
        **{"per_device_train_batch_size": 4, "max_steps": 8, "learning_rate": 1e-2, "max_grad_norm": 0.5},
        **{"weight_decay": 0.01, "save_steps": 4, "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 4},
        **{"ddp_timeout": 60, "disable_tqdm": True, "use_cpu": ON_CPU, "report_to": "none", **options},
    }
    if words:
        model = language_model() if model is None else model
        return Trainer(
            model, TrainingArguments(str(folder), **arguments), None, rows.train, rows.eval, callbacks=[*callbacks]
        )
    return Trainer(
        Net() if model is None else model,
        TrainingArguments(str(folder), **arguments),
        train_dataset=rows.train,
        eval_dataset=rows.eval,
        criterion=nn.CrossEntropyLoss(),
        compute_metrics=lambda prediction: {"labels": prediction.label_ids.tolist()},
        callbacks=list(callbacks),
    )


def farthest(one, other):
    """Return how far the weights of two models are apart."""
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)
