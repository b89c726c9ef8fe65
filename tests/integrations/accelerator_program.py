"""Uses the accelerator on two ranks. Each rank writes the gathered results, the norms and the weights."""

import json
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader

from trainbus import Trainer, TrainingArguments
from trainbus.events.errors import ArgumentError

ROWS = [{"x": torch.tensor([float(row), 1.0]), "labels": torch.tensor(row % 2)} for row in range(11)]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head = nn.Linear(2, 8), nn.Linear(8, 2)

    def forward(self, x, labels=None):
        logits = self.head(self.inner(x).tanh())
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Gathers(Trainer):
    """Gathers the samples of each batch in its own evaluation loop and in its training step."""

    def evaluation_loop(self, dataloader, description, *args, **options):
        self.seen = [self.gathered(batch["x"][:, 0]) for batch in dataloader]
        return super().evaluation_loop(dataloader, description, *args, **options)

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.trained = [*getattr(self, "trained", []), sorted(self.gathered(inputs["x"][:, 0])[0])]
        return super().training_step(model, inputs, num_items_in_batch)

    def gathered(self, values):
        gather = self.accelerator.gather_for_metrics
        both = gather({"values": values, "mean": values.mean()})
        rows, means = both["values"].tolist(), len(both["mean"])
        assert gather(values.tolist()) == rows
        return rows, means


class Clips(Trainer):
    """Clips in its training step, and skips the reduction in a first backward."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        with self.accelerator.no_sync(model):
            super().training_step(model, inputs, num_items_in_batch)
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:
            norm = float(self.accelerator.clip_grad_norm_(model.parameters(), 0.05))
            self.norms = [*getattr(self, "norms", []), norm]
        return loss


def made(cls, folder, **options):
    given = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, "max_steps": 4, "save_strategy": "no"}
    given |= {"use_cpu": True, "disable_tqdm": True, "ddp_timeout": 60, "report_to": "none", "max_grad_norm": 0.0}
    return cls(Model(), TrainingArguments(folder, **given | options), train_dataset=ROWS, eval_dataset=ROWS)


def main(folder):
    ends = {}
    trainer = made(Gathers, folder, max_steps=-1, num_train_epochs=1, gradient_accumulation_steps=3)
    trainer.train()
    trainer.evaluate()
    ends["training"], ends["evaluation"] = trainer.trained, [row for rows, _ in trainer.seen for row in rows]
    ends["means"] = [means for _, means in trainer.seen]
    prepared = trainer.accelerator.prepare(DataLoader(ROWS, batch_size=3))
    ends["prepared"] = [row for batch in prepared for row in trainer.gathered(batch["x"][:, 0])[0]]
    for name, options in {"ddp": {}, "fsdp": {"fsdp": "full_shard"}, "sharded": {"sharded_ddp": "simple"}}.items():
        trainer = made(Clips, folder, gradient_accumulation_steps=2, **options)
        try:
            trainer.train()
            ends[name] = trainer.norms
        except ArgumentError as error:
            ends[name] = str(error)
    with open(f"{folder}/end-{os.environ['RANK']}.json", "w", encoding="utf-8") as file:
        json.dump(ends, file)
    trainer.end()


if __name__ == "__main__":
    main(sys.argv[1])
