"""From a dataset of any kind to its loader."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from torch.utils.data import IterableDataset, RandomSampler, Sampler, SequentialSampler

from ...events.errors import DataError
from ..arguments import TrainingArguments
from ..distributed.ranks import Ranks
from .collators.default import Collator, ColumnFilter
from .length_sampler import LengthGroupedSampler, lengths_of
from .loader import Labelling, Loader, WorkerStart
from .samplers import BatchedSampler, GivenSampler, ShuffledSampler
from .streaming_shards import CountingExtras, EvenEnds, SharedStream, own_part
from .workers.signals import outlive_signals

logger = logging.getLogger(__name__)


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
    main_input: str = "input_ids",
    sampler: Callable[[Any], Any] | None = None,
) -> Loader:
    """Build the loader of one process.

    Args:
        dataset: a map-style or iterable torch dataset, a `datasets` one, or any object that indexes or iterates rows.
        args: the order of the rows, workers, pinning, dropping of the last batch.
        collator: from a list of rows to a batch.
        ranks: which share of the batches is this process's.
        batch_size: rows per batch.
        training: shuffle and seed the workers.
        accepted: columns to keep, or None for all.
        seed: of the shuffling.
        main_input: the key of the rows that says how long they are, where they are grouped by length.
        sampler: from the dataset to the order of its rows, or None for its own; by default as the arguments say.

    Raises:
        DataError: if the dataset is none, has no column that the model accepts, or none that says how long a row is.
    """
    rows = dataset
    if accepted is not None:
        dataset, collator = keep_columns(dataset, collator, accepted)
    options: dict[str, Any] = {
        "collate_fn": collator,
        "num_workers": args.dataloader_num_workers,
        "in_group": not ranks.single_process,
        "pin_memory": args.dataloader_pin_memory and args.device.type == "cuda",
        "persistent_workers": args.dataloader_persistent_workers and args.dataloader_num_workers > 0,
        "prefetch_factor": args.dataloader_prefetch_factor,
        "multiprocessing_context": args.dataloader_multiprocessing_context if args.dataloader_num_workers else None,
        "in_order": args.dataloader_in_order,
        "worker_init_fn": outlive_signals if args.dataloader_num_workers else None,
    }
    if is_iterable(dataset) and not ranks.single_process:
        collator = options["collate_fn"] = CountingExtras(collator)
    if training and args.dataloader_num_workers:
        options["collate_fn"] = Labelling(collator)
        options["worker_init_fn"] = WorkerStart(args.dataloader_num_workers, ranks.rank, seeds=not is_iterable(dataset))
    if is_iterable(dataset):
        if training and args.train_sampling_strategy == "group_by_length":
            logger.warning("`train_sampling_strategy='group_by_length'` cannot order rows that come as a stream.")
        return _stream_loader(dataset, args, ranks, batch_size, options)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(
            f"{type(dataset).__name__} is no dataset: it needs __getitem__ and __len__, or __iter__ to be streamed."
        )
    if sampler is None:
        order: Sampler[int] = default_sampler(
            *(rows, args, ranks), batch_size=batch_size, training=training, seed=seed, main_input=main_input
        )
    else:
        order = _repeatable(sampler(rows), dataset, seed)
    batches = BatchedSampler(
        order,
        batch_size,
        drop_last=args.dataloader_drop_last,
        rank=ranks.rank,
        world_size=ranks.world_size,
    )
    return Loader(dataset, batch_sampler=batches, **options)


def _stream_loader(
    dataset: Any, args: TrainingArguments, ranks: Ranks, batch_size: int, options: dict[str, Any]
) -> Loader:
    drop_last = args.dataloader_drop_last
    own = None if ranks.single_process else own_part(dataset, ranks, args.reads_own_shards)
    if own is not None:
        alone = SharedStream(own, batch_size, Ranks(), drop_last)
        loader = Loader(alone, batch_size=batch_size, drop_last=drop_last, **options)
        loader.ends = EvenEnds(ranks)
        return loader
    shared = SharedStream(dataset, batch_size, ranks, drop_last)
    return Loader(shared, batch_size=batch_size, drop_last=drop_last, **options)


def default_sampler(
    dataset: Any,
    args: TrainingArguments,
    ranks: Ranks,
    *,
    batch_size: int,
    training: bool,
    seed: int,
    main_input: str = "input_ids",
) -> Sampler[int]:
    """Return the order of a map-style dataset's rows that the arguments ask for; see `build_loader`."""
    if args.train_sampling_strategy == "group_by_length":
        lengths = lengths_of(dataset, args.length_column_name, main_input)
        return _group_by_length(lengths, args, ranks, batch_size, training)
    if training and args.train_sampling_strategy == "random":
        return ShuffledSampler(dataset, seed)
    return SequentialSampler(dataset)


def _repeatable(sampler: Any, dataset: Any, seed: int) -> Sampler[int]:
    """Return an order that can be gone on with; torch's plain shuffling is seeded, as accelerate does it."""
    if sampler is None:
        return SequentialSampler(dataset)
    if isinstance(sampler, (SequentialSampler, ShuffledSampler, LengthGroupedSampler)):
        return sampler
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source):
        return ShuffledSampler(sampler.data_source, seed)
    return GivenSampler(sampler)


def _group_by_length(
    lengths: list[float], args: TrainingArguments, ranks: Ranks, batch_size: int, training: bool
) -> Sampler[int]:
    """Return the order of training, new in each epoch, or that of evaluation, which stays the same."""
    if training:
        return LengthGroupedSampler(lengths, batch_size * args.gradient_accumulation_steps, ranks)
    seed = args.seed if args.data_seed is None else args.data_seed
    return LengthGroupedSampler(lengths, batch_size, ranks, seed)


def order_of(loader: Any) -> list[int] | None:
    """Return the rows in the order in which a loader last gave them out; None where that is the dataset's."""
    grouping = loader.grouping if isinstance(loader, Loader) else None
    return None if grouping is None else grouping.order


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


def keep_columns(dataset: Any, collator: Collator, accepted: Collection[str]) -> tuple[Any, Collator]:
    """Return a dataset and its collator such that batches have the accepted columns only.

    Raises:
        DataError: if there are none of them.
    """
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
