"""Loaders of the user that save their own position."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from support.callbacks import stop_at
from support.data import net_samples
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import Checkpoint, every


class Stateful:
    """Yields batches of 4 in an order that it draws itself, and saves where it is."""

    def __init__(self) -> None:
        self.rows, self.epoch, self.done, self.read = net_samples(), 0, 0, 0

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(16, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        for start in range(4 * self.done, 16, 4):
            self.done, self.read = self.done + 1, self.read + 1
            members = [self.rows[index] for index in order[start : start + 4]]
            yield {name: torch.stack([row[name] for row in members]) for name in members[0]}
        self.epoch, self.done = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.done = state["epoch"], state["done"]


def torchdata_loader(workers: int) -> Any:
    from torchdata import stateful_dataloader as module

    generator = torch.Generator().manual_seed(3)
    return module.StatefulDataLoader(
        net_samples(), batch_size=4, shuffle=True, generator=generator, num_workers=workers
    )


MAKERS = {
    "own": Stateful,
    "torchdata": lambda: torchdata_loader(0),
    "torchdata with workers": lambda: torchdata_loader(2),
}


def trainer_with(loader: Any, folder: Path, *callbacks: Any) -> Any:
    trainer = net_trainer(folder, *callbacks, max_steps=4)
    trainer.get_train_dataloader = lambda: loader  # type: ignore[method-assign]
    return trainer


@pytest.mark.parametrize("make", MAKERS.values(), ids=[*MAKERS])
@pytest.mark.filterwarnings("ignore")
def test_its_state_is_in_the_checkpoint_and_resumes_exactly(make: Any, tmp_path: Path) -> None:
    unbroken = trainer_with(make(), tmp_path / "unbroken")
    unbroken.train()
    broken = trainer_with(make(), tmp_path / "broken", Checkpoint(every(2)))
    broken.on("on_step_end", stop_at(2))
    broken.train()
    loader = make()
    resumed = trainer_with(loader, tmp_path / "broken")
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(weights(resumed.model), weights(unbroken.model))
    if isinstance(loader, Stateful):
        assert loader.read == 2  # the batches before were not read again
