"""The Trainer's methods for data loaders, samplers and dataset columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...events.errors import DataError
from ..data.build import build_loader, default_sampler, is_iterable, keep_columns, length_of
from ..data.collators.default import Collator
from .loss import LossMethods
from .overrides import is_overridden


class DataLoaderMethods(LossMethods):
    """From datasets to loaders of batches."""

    train_dataset: Any
    eval_dataset: Any
    data_collator: Collator
    _signature_columns: list[str] | None = None
    """The columns to keep, once they are known. Set it to keep others."""
    _kept_loaders: Mapping[str, tuple[Any, Any]] = {}
    """Loaders with persistent workers: dataset name, empty for a single one -> the dataset and its loader."""

    def get_train_dataloader(self) -> Any:
        """Return the loader of the training batches. Override it for a loader of your own.

        Raises:
            DataError: if there is no training dataset.
        """
        if self.train_dataset is None:
            raise DataError("There is no training dataset. Pass `train_dataset` to the Trainer.")
        return self._loader(self.train_dataset, batch_size=self._train_batch_size, training=True)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the loader of the evaluation batches. Override it for a loader of your own.

        Args:
            eval_dataset: a dataset, or the name of one of the trainer's; by default the trainer's `eval_dataset`.

        Raises:
            DataError: if there is no eval dataset.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        name = dataset if isinstance(dataset, str) else ""
        if name:
            dataset = self.eval_dataset[name]
        if dataset is None:
            raise DataError("There is no eval dataset. Pass `eval_dataset` to `evaluate` or to the Trainer.")
        kept, loader = self._kept_loaders.get(name, (None, None))
        if kept is dataset:
            return loader
        loader = self._loader(dataset, batch_size=self.args.eval_batch_size, training=False)
        if self.args.dataloader_persistent_workers and (name or dataset is self.eval_dataset):
            self._kept_loaders = {**self._kept_loaders, name: (dataset, loader)}
        return loader

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the loader of the prediction batches. Override it for a loader of your own."""
        return self._loader(test_dataset, batch_size=self.args.eval_batch_size, training=False)

    def _loader(self, dataset: Any, *, batch_size: int, training: bool) -> Any:
        return build_loader(
            dataset,
            self.args,
            self.data_collator,
            self.run.ranks,
            batch_size=batch_size,
            training=training,
            accepted=self._accepted_columns(),
            seed=self._order_seed(),
            sampler=self._get_train_sampler if training else self._get_eval_sampler,
        )

    # The order of the samples.

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Return the sampler of the training data, over all ranks; None for the order of the dataset.

        Override it for an order of your own, such as a `WeightedRandomSampler`. Its samples are batched and
        distributed over the ranks. A `RandomSampler` over all samples is seeded with the epoch, as in transformers.

        Args:
            train_dataset: by default the trainer's.
        """
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return self._default_sampler(dataset, self._train_batch_size, training=True)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """Return the sampler of an evaluation or prediction; None for the order of the dataset. Override it too."""
        return self._default_sampler(eval_dataset, self.args.eval_batch_size, training=False)

    def _default_sampler(self, dataset: Any, batch_size: int, *, training: bool) -> Any:
        if is_iterable(dataset):
            return None
        return default_sampler(
            dataset,
            self.args,
            self.run.ranks,
            batch_size=batch_size,
            training=training,
            seed=self._order_seed(),
            main_input=getattr(self.run.processing_class, "model_input_names", ["input_ids"])[0],
        )

    def _order_seed(self) -> int:
        return self.run.data_seed if self.run.data_seed is not None else torch.initial_seed()

    # Columns.

    def _set_signature_columns_if_needed(self) -> None:
        """Set `_signature_columns`, the columns to keep, if it is None. Override it to keep others."""
        if self._signature_columns is None:
            self._signature_columns = list(self.objective.accepted_columns)

    def _accepted_columns(self) -> list[str] | None:
        """Return the columns to keep; None for all columns."""
        if not self.args.remove_unused_columns:
            return None
        if is_overridden(self, "_set_signature_columns_if_needed"):
            self._set_signature_columns_if_needed()
        # The default is not stored: another model, or other label names, keep other columns.
        return self.objective.accepted_columns if self._signature_columns is None else self._signature_columns

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        """Return a dataset of the library `datasets` without the columns that the model does not take.

        Args:
            dataset: any other dataset is returned unchanged; its samples are filtered in the collator.
            description: not used.

        Raises:
            DataError: if no column remains.
        """
        accepted = self._accepted_columns()
        return dataset if accepted is None else keep_columns(dataset, self.data_collator, accepted)[0]

    # Sizes.

    @property
    def _train_batch_size(self) -> int:
        """Samples per training batch of this rank."""
        return self.run.train_batch_size or self.args.train_batch_size

    def num_examples(self, dataloader: Any) -> int:
        """Return the samples of a loader's dataset, or an estimate from its number of batches."""
        samples = length_of(getattr(dataloader, "dataset", None))
        return samples if samples is not None else len(dataloader) * self.args.train_batch_size

    @staticmethod
    def num_tokens(dataloader: Any, max_steps: int | None = None) -> int:
        """Return the tokens of all batches, or of the first batch times `max_steps`."""
        counts = (int(batch["input_ids"].numel()) for batch in dataloader)
        return sum(counts) if max_steps is None else next(counts, 0) * max_steps
