"""Trains with SWA on several ranks, on data that the first BatchNorm layer receives, and saves the statistics."""

import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import SWA, Trainer, TrainingArguments, every


def main(output, way):
    torch.manual_seed(0)
    x = torch.randn(16, 3)
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    args = TrainingArguments(
        f"{output}/{way}",
        per_device_train_batch_size=4,
        num_train_epochs=2,
        sharding="" if way == "ddp" else way,
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        train_sampling_strategy="sequential",
    )
    data = TensorDataset(x, (x.sum(1) > 0).long())
    swa = SWA(start=0.0, trigger=every(1))
    trainer = Trainer(model, args, train_dataset=data, criterion=nn.functional.cross_entropy, callbacks=[swa])
    trainer.train()
    found = {"x": x, "mean": model[0].running_mean, "variance": model[0].running_var}
    torch.save(found, f"{output}/{way}{args.process_index}.pt")
    trainer.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
