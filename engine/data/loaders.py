"""Loaders: a DataLoader over a dataset, whose order is known and whose position can be set."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from ...events.errors import DataError
from ..arguments import TrainingArguments
from ..ranks import Ranks
from ..utils import set_seed
from .collate import Collator, ColumnFilter
from .samplers import BatchedSampler, ShuffledSampler


class Loader(DataLoader[Any]):
    """A DataLoader that fetches one batch ahead, and knows epochs.

    Fetching ahead keeps the random draws of a collator in transformers' order: the next batch is drawn before the step
    on the current one.
    """

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for an epoch, counted from 0, and tell a dataset that wants to know."""
        if isinstance(self.batch_sampler, BatchedSampler):
            self.batch_sampler.set_epoch(epoch)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def skip(self, batches: int) -> bool:
        """Begin the next iteration after this many batches, without reading their rows; False where it cannot."""
        if isinstance(self.batch_sampler, BatchedSampler):
            self.batch_sampler.first = batches
            return True
        return False

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batches = super().__iter__()
        ahead = next(batches, _END)
        while ahead is not _END:
            batch, ahead = ahead, next(batches, _END)
            yield batch


_END = object()


def build_loader(
    dataset: Any,
    args: TrainingArguments,
    collator: Collator,
    ranks: Ranks,
    *,
    batch_size: int,
    training: bool,
    accepted: Collection[str] | None,
    seed: int,
) -> Loader:
    """Build the loader of one process.

    Args:
        dataset: a map-style or iterable torch dataset, a `datasets` one, or any object that indexes or iterates rows.
        args: workers, pinning, dropping of the last batch.
        collator: from a list of rows to a batch.
        ranks: which share of the batches is this process's.
        batch_size: rows per batch.
        training: shuffle and seed the workers.
        accepted: columns to keep, or None for all.
        seed: of the shuffling.

    Raises:
        DataError: if the dataset is none, or has no column that the model accepts.
    """
    if accepted is not None:
        dataset, collator = _keep_columns(dataset, collator, accepted)
    options: dict[str, Any] = {
        "collate_fn": collator,
        "num_workers": args.dataloader_num_workers,
        "pin_memory": args.dataloader_pin_memory and args.device.type == "cuda",
        "persistent_workers": args.dataloader_persistent_workers and args.dataloader_num_workers > 0,
        "prefetch_factor": args.dataloader_prefetch_factor,
    }
    if is_iterable(dataset):
        if not isinstance(dataset, IterableDataset):
            dataset = _Iterable(dataset)
        return Loader(dataset, batch_size=batch_size, drop_last=args.dataloader_drop_last, **options)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(
            f"{type(dataset).__name__} is no dataset: it needs __getitem__ and __len__, or __iter__ to be streamed."
        )
    sampler = ShuffledSampler(dataset, seed) if training else SequentialSampler(dataset)
    batches = BatchedSampler(
        sampler,
        batch_size,
        drop_last=args.dataloader_drop_last,
        rank=ranks.rank,
        world_size=ranks.world_size,
    )
    if training:
        options["worker_init_fn"] = partial(_seed_worker, workers=args.dataloader_num_workers, rank=ranks.rank)
    return Loader(dataset, batch_sampler=batches, **options)


def is_iterable(dataset: Any) -> bool:
    """Say whether a dataset can only be read from its beginning."""
    return isinstance(dataset, IterableDataset) or (
        hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    )


def length_of(data: Any) -> int | None:
    """Return the length of a dataset or loader, or None if it has none."""
    try:
        return len(data)
    except (TypeError, AttributeError, NotImplementedError):
        return None


def _keep_columns(dataset: Any, collator: Collator, accepted: Collection[str]) -> tuple[Any, Collator]:
    columns = getattr(dataset, "column_names", None)
    if is_iterable(dataset) or not isinstance(columns, list) or not hasattr(dataset, "remove_columns"):
        return dataset, ColumnFilter(collator, frozenset(accepted))
    ignored = [column for column in columns if column not in accepted]
    if len(ignored) == len(columns):
        raise DataError(
            f"The model accepts none of the dataset's columns ({', '.join(columns)}): its forward takes "
            f"{', '.join(accepted)}. Rename the columns, or set `remove_unused_columns=False` with a `data_collator`."
        )
    return dataset.remove_columns(ignored), collator


def _seed_worker(worker: int, workers: int, rank: int) -> None:
    set_seed(workers * rank + torch.initial_seed() % 2**32)


class _Iterable(IterableDataset[Any]):
    """Any iterable, as torch wants it."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)
