"""From datasets to loaders of batches."""

from __future__ import annotations

from typing import Any

import torch

from ...events.errors import DataError
from ..data.collate import Collator
from ..data.loaders import build_loader
from .base import Surface


class Loading(Surface):
    """The part of the Trainer that knows the data."""

    train_dataset: Any
    data_collator: Collator

    def get_train_dataloader(self) -> Any:
        """Return the loader of the training batches. Override it for one of your own."""
        if self.train_dataset is None:
            raise DataError("There is nothing to train on: pass `train_dataset` to the Trainer.")
        size = self.run.train_batch_size or self.args.train_batch_size
        return self._loader(self.train_dataset, batch_size=size, training=True)

    def _loader(self, dataset: Any, *, batch_size: int, training: bool) -> Any:
        accepted = self.objective.accepted_columns if self.args.remove_unused_columns else None
        seed = self.run.data_seed if self.run.data_seed is not None else torch.initial_seed()
        return build_loader(
            *(dataset, self.args, self.data_collator, self.run.ranks),
            batch_size=batch_size,
            training=training,
            accepted=accepted,
            seed=seed,
            main_input=getattr(self.run.processing_class, "model_input_names", ["input_ids"])[0],
        )
