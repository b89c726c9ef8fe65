"""Train on two ranks without a dry batch, with one, and with faults on one rank only, and save the results.

The first argument is the output folder.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from trainbus import DDP, FSDP, Trainer, TrainingArguments
from trainbus.events import DataError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.dropout = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2)
        self.head, self.calls = nn.Linear(8, 3), 0

    def forward(self, x):
        self.calls += 1
        return self.head(self.dropout(self.norm(self.first(x)).relu()))


class Rows(Dataset):
    """Rows of which one has a wrong label on rank 1 only."""

    def __init__(self, broken=False, unreadable=False):
        self.x = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
        self.broken = broken and os.environ["RANK"] == "1"
        if unreadable and os.environ["RANK"] == "1":
            self.source = iter(range(10_000))

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return self.x[index], torch.tensor(7 if self.broken and index == 2 else index % 3)


def train(folder, dry, rows, callback, accumulate=1):
    args = TrainingArguments(
        f"{folder}/out",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulate,
        max_steps=3,
        learning_rate=0.05,
        save_strategy="no",
        logging_steps=1,
        dry_batch=dry,
        use_cpu=True,
        disable_tqdm=True,
        ddp_timeout=60,
    )
    trainer = Trainer(Net(), args, train_dataset=rows, criterion=nn.CrossEntropyLoss(), callbacks=[callback])
    trainer.train()
    report = trainer.callbacks["DryBatch"].report if dry is not False else None
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    whole = [
        getattr(value, "full_tensor", lambda value=value: value)() for value in trainer.model.state_dict().values()
    ]
    values = [value.double().flatten().tolist() for value in whole]
    state = [trainer.model.calls, torch.get_rng_state().sum().item()]
    return {"losses": losses, "weights": values, "state": state}, report


def main(folder):
    found = {}
    ways = {
        "DDP": (DDP, 1),
        "DDP accumulated": (DDP, 2),
        "DDP static": (partial(DDP, static_graph=True), 1),
        "FSDP": (FSDP, 2),
    }
    for name, (way, accumulate) in ways.items():
        before, _ = train(folder, False, Rows(), way(), accumulate)
        after, report = train(folder, True, Rows(), way(), accumulate)
        found[name] = {"equal": before == after, "loss": report.loss, "skipped": report.skipped}
    result, report = train(folder, True, Rows(unreadable=True), DDP())
    found["unreadable"] = {"steps": len(result["losses"]), "skipped": report.skipped, "loss": report.loss}
    try:
        train(folder, True, Rows(broken=True), DDP())
    except Exception as error:
        found["broken"] = {"error": f"{type(error).__name__}: {error}", "data": isinstance(error, DataError)}
    Path(folder, f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
