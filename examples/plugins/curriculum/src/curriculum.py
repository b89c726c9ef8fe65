"""Train on easy samples first. A sampler orders the samples by difficulty, and adds more random order in each epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Sampler

from trainbus import Callback, Run, Stage


def order_of(difficulty: torch.Tensor, noise: float, generator: torch.Generator) -> torch.Tensor:
    """Return indices from easy to hard. `noise` 0 sorts strictly, 1 shuffles."""
    ranks = difficulty.argsort().argsort() / max(1, len(difficulty) - 1)
    return ((1 - noise) * ranks + noise * torch.rand(len(difficulty), generator=generator)).argsort()


class CurriculumSampler(Sampler[int]):
    """An order that depends on the epoch and the seed only, so that a run resumes in the middle of an epoch."""

    def __init__(self, difficulty: torch.Tensor, epochs: int, seed: int) -> None:
        """Order samples by `difficulty`, of shape (samples,).

        The order is strict in the first epoch, and random after `epochs` epochs.
        """
        self.difficulty, self.epochs, self.seed, self.epoch = difficulty, epochs, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Use the order of an epoch, from 0."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        noise = min(1.0, self.epoch / self.epochs)
        return iter(order_of(self.difficulty, noise, generator).tolist())

    def __len__(self) -> int:
        return len(self.difficulty)


def by_length(sample: Any) -> float:
    """Return the number of tokens of a sample. Without tokens, return the number of elements of its first value."""
    value = sample["input_ids"] if "input_ids" in sample else next(iter(sample.values()))
    return float(len(value))


@dataclass
class Curriculum(Callback):
    """Orders the training samples from easy to hard. After some epochs the order is random."""

    stage = Stage.PREPARE

    epochs: int = 2
    """After this number of epochs the order is random."""
    difficulty: Callable[[Any], float] = by_length
    """Returns the difficulty of a sample. It is called once for each sample, at the start of a training."""

    def on_setup(self, run: Run) -> None:
        batches = getattr(run.train_dataloader, "batch_sampler", None)
        if run.mode == "train" and hasattr(batches, "sampler"):
            rows = run.train_dataloader.dataset
            hard = torch.tensor([self.difficulty(rows[index]) for index in range(len(rows))])
            seed = run.args.data_seed if run.args.data_seed is not None else run.args.seed
            batches.sampler = CurriculumSampler(hard, self.epochs, seed)
