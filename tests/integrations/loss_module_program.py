"""Trains a model with a loss module that has parameters, on any number of ranks, and saves the results."""

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import EMA, Trainer, TrainingArguments


class Temperature(nn.Module):
    """A cross entropy with a trained temperature for each class, and a buffer."""

    def __init__(self, value):
        super().__init__()
        self.temperature = nn.Parameter(torch.full((2,), value))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, logits, labels):
        self.seen += logits.detach().mean()
        return nn.functional.cross_entropy(logits * self.temperature, labels)


def main(output, way, batch, resume):
    """Make 6 steps, clipped; rank 1 begins with another temperature, which must not matter."""
    torch.manual_seed(0)
    x = torch.randn(48, 6)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    args = TrainingArguments(
        f"{output}/run",
        per_device_train_batch_size=int(batch),
        gradient_accumulation_steps=2,
        max_steps=6,
        learning_rate=0.05,
        max_grad_norm=0.2,
        save_steps=3,
        fsdp="full_shard" if way == "fsdp" else "",
        sharding="stage1" if way == "stage1" else "",
        disable_tqdm=True,
        use_cpu=True,
        train_sampling_strategy="sequential",
    )
    criterion = Temperature(1.5 + args.process_index)
    trainer = Trainer(model, args, train_dataset=data, criterion=criterion, callbacks=[EMA(decay=0.5)])
    trainer.train(resume_from_checkpoint=f"{output}/run/checkpoint-3" if resume else None)
    weights = trainer.run.seams.model_state(model) or model.state_dict()
    torch.save({"model": weights, "loss": criterion.state_dict()}, f"{output}/{way}{resume}{args.process_index}.pt")
    trainer.end()


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4] if len(sys.argv) > 4 else "")
