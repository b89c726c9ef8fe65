"""Train on a stream of unknown length: the lines of files.

Added to minimal.py: an iterable dataset has no length, so `max_steps` sets the length of the run.
"""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import IterableDataset

from trainbus import Trainer, TrainingArguments


class Lines(IterableDataset[tuple[torch.Tensor, int]]):
    """Yields the character counts of each line of source code, and whether the line is indented."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        for path in sorted(Path(sysconfig.get_path("stdlib")).glob(self.pattern)):
            with path.open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    if line.strip():
                        characters = torch.tensor(list(line.strip().encode("ascii", "replace")))
                        yield torch.bincount(characters, minlength=128).float(), int(line.startswith(" "))


model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 2))
args = TrainingArguments("outputs/streaming_data", max_steps=400, learning_rate=3e-3, per_device_train_batch_size=32)
trainer = Trainer(
    model,
    args,
    train_dataset=Lines("[a-d]*.py"),
    eval_dataset=Lines("textwrap.py"),
    criterion=nn.functional.cross_entropy,
)
before = trainer.evaluate()
trainer.train()
after = trainer.evaluate()
print(f"loss: {before['eval_loss']:.3f} before, {after['eval_loss']:.3f} after")
