"""The Trainer's methods for data loaders, samplers and dataset columns."""

from __future__ import annotations

import logging
from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch

from ...events.errors import ArgumentError, DataError, closest, nearest
from ..data.build import build_loader, default_sampler, dropped_columns, is_iterable, keep_columns, length_of
from ..data.collators.default import Collator, ColumnFilter, default_data_collator
from ..data.columns.left_out import REMEDY, types_left_out
from ..data.packing.collator import collator_for
from ..data.sources import as_dataset, is_table_file, problem_of
from ..evaluation.row_slice import slice_of
from .loss import LossMethods
from .overrides import is_overridden

logger = logging.getLogger(__name__)

DATASETS = {"train_dataset": "get_train_dataloader", "eval_dataset": "get_eval_dataloader"}
"""Attribute of a trainer with a dataset -> the method that makes the loader of this dataset."""


class DataLoaderMethods(LossMethods):
    """Methods that build data loaders, samplers and collators from datasets."""

    _integration: Callable[[str], Any]
    """A function that receives the name of an integration, such as `hub`, and returns its class."""

    train_dataset: Any
    eval_dataset: Any
    data_collator: Collator
    _signature_columns: list[str] | None = None
    """The columns to keep. None: the columns that the model takes. A program may set this attribute."""
    _own_batch_size: int | None = None
    """The value that the program assigned to `_train_batch_size`; None without an assignment."""
    _told_columns: frozenset[tuple[str, tuple[str, ...]]] = frozenset()
    """The dropped columns that were already logged: pairs of a description, such as `Training`, and the columns."""

    def get_train_dataloader(self) -> Any:
        """Build the loader of the training batches. Override this method for a loader of your own.

        Raises:
            DataError: if there is no training dataset.
        """
        if self.train_dataset is None:
            raise DataError("There is no training dataset. Pass `train_dataset` to the Trainer.")
        return self._get_dataloader(
            dataset=self.train_dataset,
            description="Training",
            batch_size=self._train_batch_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the loader of the evaluation batches. Override this method for a loader of your own.

        With `dataloader_persistent_workers`, a later call for the same dataset returns the same loader.

        Args:
            eval_dataset: a dataset, the name of an eval dataset of the trainer, or the path of a file of rows; by
                default the trainer's `eval_dataset`.

        Raises:
            ArgumentError: if the trainer has no eval dataset with the given name.
            DataError: if there is no eval dataset.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        name = dataset if isinstance(dataset, str) and self._is_eval_dataset(dataset) else ""
        if name:
            dataset = self.eval_dataset[name]
        if dataset is None:
            raise self._no_eval_dataset()
        rows = self.run.evaluation.rows
        kept_as = name if rows is None else f"{name}[{rows}]"
        kept = self.run.eval_loaders.find(kept_as, dataset)
        if kept is not None:
            return kept
        loader = self._get_dataloader(
            dataset=dataset if rows is None else self._slice(dataset, rows),
            description="Evaluation",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
            dataloader_key=name or "eval",
        )
        if self.args.dataloader_persistent_workers and (name or dataset is self.eval_dataset):
            self.run.eval_loaders.keep(kept_as, dataset, loader)
        return loader

    def _is_eval_dataset(self, text: str) -> bool:
        """Return True for the name of an eval dataset of the trainer, and False for the path of a file of rows.

        Raises:
            ArgumentError: for any other text.
        """
        names = list(self.eval_dataset) if isinstance(self.eval_dataset, dict) else []
        if text in names:
            return True
        if is_table_file(text):
            return False
        known = (
            f"There are: {names}."
            if names
            else f"The trainer has no eval datasets with names. Pass `eval_dataset={{{text!r}: ...}}` to the Trainer."
        )
        raise ArgumentError(f"Unknown eval dataset {text!r}{nearest(text, names)} {known}")

    @staticmethod
    def _no_eval_dataset() -> DataError:
        return DataError("There is no eval dataset. Pass `eval_dataset` to `evaluate` or to the Trainer.")

    def _slice(self, dataset: Any, rows: int) -> Any:
        """Return `rows` random samples of an eval dataset. The same seed in the arguments selects the same samples."""
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return slice_of(as_dataset(dataset, self._integration), rows, seed)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Build the loader of the prediction batches. Override this method for a loader of your own.

        Args:
            test_dataset: a dataset, a data frame, or the path of a file of rows.

        Raises:
            ArgumentError: for the name of an eval dataset. Pass `trainer.eval_dataset[name]` instead.
        """
        self._refuse_name(test_dataset)
        return self._get_dataloader(
            dataset=test_dataset,
            description="test",
            batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
        )

    def _refuse_name(self, test_dataset: Any) -> None:
        """Raise an ArgumentError if the program passed the name of an eval dataset instead of a dataset."""
        names = self.eval_dataset if isinstance(self.eval_dataset, dict) else {}
        if isinstance(test_dataset, str) and not is_table_file(test_dataset) and names:
            meant = closest(test_dataset, names) or next(iter(names))
            raise ArgumentError(
                f"Predictions need a dataset, and got the text {test_dataset!r}. To predict for an eval dataset of the "
                f"trainer, pass it: `trainer.eval_dataset[{meant!r}]`. There are: {list(names)}."
            )

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Any = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> Any:
        """Build the loader of a dataset. Override this method to change all loaders.

        `get_train_dataloader`, `get_eval_dataloader` and `get_test_dataloader` call this method.

        Args:
            dataset: the dataset.
            description: `Training`, `Evaluation` or `test`.
            batch_size: samples per batch of this rank.
            sampler_fn: a function that receives the dataset and returns its sampler. If `sampler_fn` is None or returns
                None, the samples keep the order of the dataset.
            is_training: whether the loader is for training.
            dataloader_key: not used.

        Raises:
            DataError: if the dataset cannot be loaded. The error says why.
        """
        dataset = as_dataset(dataset, self._integration)
        parameter = "train_dataset" if is_training else "test_dataset" if description == "test" else "eval_dataset"
        if problem := problem_of(parameter, dataset, self.data_collator):
            raise DataError(problem)
        given: Collator = collator_for(self.data_collator, self.run.model, is_training)
        collator = given
        named = hasattr(dataset, "column_names") and hasattr(dataset, "remove_columns")
        if named and self.overrides("_remove_unused_columns"):
            dataset = self._remove_unused_columns(dataset, description=description)
        elif not named and self.overrides("_get_collator_with_removed_columns"):
            collator = self._at("_get_collator_with_removed_columns", lambda: given, collator, description=description)
        accepted = self._accepted_columns()
        self._tell_dropped(dataset, accepted, description)
        return build_loader(
            dataset,
            self.args,
            collator,
            self.run.ranks,
            batch_size=batch_size,
            training=is_training,
            accepted=accepted,
            seed=self._order_seed(),
            sampler=sampler_fn or (lambda rows: None),
        )

    # The order of the samples.

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Return the sampler of the training data; None for a stream.

        Override this method for another order, such as a `WeightedRandomSampler`. Return None to keep the order of the
        dataset. One sampler yields the samples for all ranks, and the loader divides the batches among the ranks.

        If the method returns a `RandomSampler` without replacement, the loader uses its own sampler instead, which
        shuffles by seed and epoch.

        Args:
            train_dataset: the dataset; by default the trainer's `train_dataset`.
        """
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return self._default_sampler(dataset, self._train_batch_size, training=True)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """Return the sampler of an evaluation or prediction; None for a stream.

        Override this method for another order. Return None to keep the order of the dataset.
        """
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
        """If `_signature_columns` is None, set this attribute to the columns that the model takes.

        If the model takes all columns, the attribute stays None. Override this method to keep other columns.
        """
        if self._signature_columns is None:
            accepted = self.objective.accepted_columns
            self._signature_columns = None if accepted is None else list(accepted)

    def _accepted_columns(self) -> list[str] | None:
        """Return the columns to keep; None for all columns."""
        if not self.args.remove_unused_columns:
            return None
        if is_overridden(self, "_set_signature_columns_if_needed"):
            self._set_signature_columns_if_needed()
        # The default is not stored: another model, or other label names, keep other columns.
        return self.objective.accepted_columns if self._signature_columns is None else self._signature_columns

    def _tell_dropped(self, dataset: Any, accepted: list[str] | None, description: str) -> None:
        """Log once which columns of a dataset the model does not receive.

        Store these columns in `self.objective`, which names them in errors.

        Args:
            dataset: the dataset.
            accepted: the columns that the model takes; None for all columns.
            description: the name of the dataset in the log line.
        """
        if self.data_collator is default_data_collator:
            self._tell_left_out(dataset, description)
        dropped = () if accepted is None else tuple(dropped_columns(dataset, accepted))
        self.objective.dropped_columns = dropped
        if not dropped or (description, dropped) in self._told_columns:
            return
        self._told_columns = self._told_columns | {(description, dropped)}
        logger.info(
            "%s drops the columns %s: the model's forward takes %s. Set `remove_unused_columns=False` to pass all "
            "columns to the data collator.",
            description.capitalize(),
            ", ".join(map(repr, dropped)),
            ", ".join(dict.fromkeys(accepted or ())),
        )

    def _tell_left_out(self, dataset: Any, description: str) -> None:
        """Warn once that the model does not receive an optional input, because a column holds texts or only None.

        For an input that is not optional, the first step raises an error.
        """
        parameters = self.objective.signature.parameters
        optional = [name for name, each in parameters.items() if each.default is not each.empty]
        found = types_left_out(dataset, optional)
        if not found or (description, tuple(found)) in self._told_columns:
            return
        self._told_columns = self._told_columns | {(description, tuple(found))}
        logger.warning(
            "%s leaves out columns that the model's forward takes: %s. %s",
            description.capitalize(),
            ", ".join(f"{name!r} is {kind}" for name, kind in found.items()),
            REMEDY,
        )

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        """Return a dataset of the library `datasets` without the columns that the model does not take.

        Args:
            dataset: the dataset. A dataset of another library is returned unchanged: the collator drops the unused
                columns of its samples.
            description: not used.

        Raises:
            DataError: if the model takes none of the columns.
        """
        accepted = self._accepted_columns()
        return dataset if accepted is None else keep_columns(dataset, self.data_collator, accepted)[0]

    def _get_collator_with_removed_columns(self, data_collator: Any, description: str | None = None) -> Any:
        """Return a collator that removes the columns that the model does not take, and then calls `data_collator`.

        Return `data_collator` itself in two cases:

        - No columns are removed, as with `remove_unused_columns=False`.
        - A subclass overrides this method, and calls `super()` while the engine builds a loader. This loader removes
          the columns itself.

        Args:
            data_collator: the collator that makes the batches.
            description: not used.
        """
        if self._is_work("_get_collator_with_removed_columns"):
            return data_collator
        accepted = self._accepted_columns()
        return data_collator if accepted is None else ColumnFilter(data_collator, frozenset(accepted))

    # Sizes.

    @property
    def _wanted_batch_size(self) -> int:
        """The number of samples in a training batch of this rank when the next training begins."""
        return self._own_batch_size or self.args.train_batch_size

    @property
    def _train_batch_size(self) -> int:
        """Samples per training batch of this rank.

        A program may set this attribute between trainings. The value then replaces the batch size of the arguments.
        """
        return self.run.train_batch_size or self._wanted_batch_size

    @_train_batch_size.setter
    def _train_batch_size(self, samples: Any) -> None:
        if self.run.mode and samples == self._train_batch_size:
            return
        if self.run.mode:
            raise ArgumentError(
                f"`trainer._train_batch_size` cannot be set during {self.run.mode}(), which has planned its batches "
                f"already. Set it, or `args.per_device_train_batch_size`, before {self.run.mode}()."
            )
        if not isinstance(samples, Integral) or samples < 1:
            raise ArgumentError(f"`trainer._train_batch_size` cannot be {samples!r}. Set an integer of 1 or more.")
        self._own_batch_size = int(samples)  # checkpoints store no number of numpy
        self.run.use_batch_size(self._own_batch_size)

    def num_examples(self, dataloader: Any) -> int:
        """Return the number of samples of a loader's dataset.

        If the dataset has no length, return an estimate: the number of batches times `train_batch_size`.
        """
        samples = length_of(getattr(dataloader, "dataset", None))
        return samples if samples is not None else len(dataloader) * self.args.train_batch_size

    @staticmethod
    def num_tokens(dataloader: Any, max_steps: int | None = None) -> int:
        """Read all batches, and return the number of their tokens (the elements of `input_ids`).

        With `max_steps`, read only the first batch, and return the number of its tokens times `max_steps`.
        """
        counts = (int(batch["input_ids"].numel()) for batch in dataloader)
        return sum(counts) if max_steps is None else next(counts, 0) * max_steps
