"""From datasets to loaders of batches."""

from __future__ import annotations

from typing import Any

import torch

from ...events.errors import DataError
from ..data.build import build_loader, default_sampler, is_iterable
from ..data.collators.default import Collator
from .hf_compat import Familiar


class Loading(Familiar):
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
        return build_loader(
            *(dataset, self.args, self.data_collator, self.run.ranks),
            batch_size=batch_size,
            training=training,
            accepted=self._accepted_columns(),
            seed=self._order_seed(),
            sampler=self._get_train_sampler if training else self._get_eval_sampler,
        )

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Return the order of the training rows, of all processes together; None for that of the dataset.

        Override it for an order of your own, as a `WeightedRandomSampler`: its rows are batched, and shared out among
        the processes. A `RandomSampler` of all rows is seeded with the epoch, as in transformers.

        Args:
            train_dataset: by default the trainer's.
        """
        dataset = self.train_dataset if train_dataset is None else train_dataset
        size = self.run.train_batch_size or self.args.train_batch_size
        return self._default_sampler(dataset, size, training=True)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """Return the order of the rows to evaluate on, or predict for; None for that of the dataset. Override it so."""
        return self._default_sampler(eval_dataset, self.args.eval_batch_size, training=False)

    def _default_sampler(self, dataset: Any, batch_size: int, *, training: bool) -> Any:
        if is_iterable(dataset):
            return None
        return default_sampler(
            *(dataset, self.args, self.run.ranks),
            batch_size=batch_size,
            training=training,
            seed=self._order_seed(),
            main_input=getattr(self.run.processing_class, "model_input_names", ["input_ids"])[0],
        )

    def _order_seed(self) -> int:
        return self.run.data_seed if self.run.data_seed is not None else torch.initial_seed()
