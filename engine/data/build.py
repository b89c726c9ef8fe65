"""Construction of the loader of one rank from a dataset of any kind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, Sampler, SequentialSampler

from ...events.errors import ArgumentError, DataError
from ..arguments import TrainingArguments
from ..distributed.ranks import Ranks
from .collators.default import Collator, ColumnFilter
from .length_sampler import LengthGroupedSampler, lengths_of
from .loader import Loader
from .packing.collator import joins_samples
from .plan import limited
from .position import batch_size_of
from .prepared import PreparedLoader
from .samplers import BatchedSampler, ShuffledSampler, UserSampler
from .sources import DATASET_NEEDS
from .streaming_shards import PaddingRowCollator, StreamCollator, StreamEndSync, StreamShard, own_part
from .workers.signals import ignore_stop_signals
from .workers.startup import WorkerCollator, WorkerInit

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
    """Build the loader of one rank.

    Args:
        dataset: a map-style or iterable dataset of torch or of the library `datasets`, or any object that can be
            indexed or iterated over.
        args: the training arguments. They give the sampling strategy, workers, pinned memory and `drop_last`.
        collator: turns a list of samples into a batch.
        ranks: the ranks that divide the batches.
        batch_size: samples per batch of one rank.
        training: whether the loader is for training. Without `sampler`, only a training loader shuffles. Only a
            training loader applies `limit_train_batches`. Only a training loader of a map-style dataset seeds its
            workers.
        accepted: columns to keep; None keeps all.
        seed: seed of the shuffling.
        main_input: the key of the model's main input. If samples store no length, grouping by length uses the length of
            this input.
        sampler: a function that receives a map-style dataset and returns a sampler, or returns None for the dataset's
            own order. If `sampler` is None, `args` select the sampler. Streams ignore `sampler`.

    Raises:
        DataError: for a dataset that is not a stream, in three cases. It lacks `__getitem__` or `__len__`. It is a
            dataset of the library `datasets` without an accepted column. Or `args` ask to group samples by length, and
            a sample has no length.
        ArgumentError: if `training` is True, the dataset is a stream, and `limit_train_batches` is set to any value.
    """
    rows, joins = dataset, joins_samples(collator)
    if accepted is not None:
        dataset, collator = keep_columns(dataset, collator, accepted)
    if is_iterable(dataset):
        if training and args.limit_train_batches is not None:
            raise ArgumentError(
                f"`limit_train_batches={args.limit_train_batches}` needs a dataset with a length, but "
                f"{type(dataset).__name__} is a stream. Set `max_steps`."
            )
        if training and args.train_sampling_strategy == "group_by_length":
            logger.warning(
                "`train_sampling_strategy='group_by_length'` has no effect: it cannot order the samples of a stream."
            )
        collator = StreamCollator(collator)
        # With batch_size=1, a sample may itself be a whole batch. Its tensors then say how many samples it has.
        counts = batch_size > 1 and (not training or joins)
        if counts or not ranks.single_process:
            collator = PaddingRowCollator(collator, counts)
        return _stream_loader(
            dataset, args, ranks, batch_size, _loader_options(dataset, args, collator, ranks, training)
        )
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(f"{type(dataset).__name__} is not a dataset: {DATASET_NEEDS}.")
    if sampler is None:
        order = default_sampler(
            rows, args, ranks, batch_size=batch_size, training=training, seed=seed, main_input=main_input
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
    if training:
        batches.limit = limited(args.limit_train_batches, length_of(batches))
    return Loader(dataset, batch_sampler=batches, **_loader_options(dataset, args, collator, ranks, training))


def _loader_options(
    dataset: Any, args: TrainingArguments, collator: Collator, ranks: Ranks, training: bool
) -> dict[str, Any]:
    """Return the keyword arguments of a `Loader`, except the dataset, the batch sampler, batch size and `drop_last`."""
    workers = args.dataloader_num_workers
    worker_init: Callable[[int], None] | None = ignore_stop_signals if workers else None
    if workers and (training or args.dataloader_persistent_workers):
        worker_init = WorkerInit(workers, ranks.rank, training and not is_iterable(dataset), collator)
        collator = WorkerCollator(collator)
    return {
        "collate_fn": collator,
        "num_workers": workers,
        "in_group": not ranks.single_process,
        "pin_memory": args.dataloader_pin_memory and args.device.type == "cuda",
        "persistent_workers": args.dataloader_persistent_workers and workers > 0,
        "prefetch_factor": args.dataloader_prefetch_factor,
        "multiprocessing_context": args.dataloader_multiprocessing_context if workers else None,
        "in_order": args.dataloader_in_order,
        "worker_init_fn": worker_init,
    }


def _stream_loader(
    dataset: Any, args: TrainingArguments, ranks: Ranks, batch_size: int, options: dict[str, Any]
) -> Loader:
    """Build the loader of a stream.

    If `own_part` finds a part of the stream for this rank, the loader reads only this part. Otherwise the loader reads
    the whole stream, and skips the samples of other ranks. `options` is the result of `_loader_options`.
    """
    drop_last = args.dataloader_drop_last
    part = None if ranks.single_process else own_part(dataset, ranks, args.reads_own_shards)
    if part is not None:
        shard = StreamShard(part, batch_size, Ranks(), drop_last)
        loader = Loader(shard, batch_size=batch_size, drop_last=drop_last, **options)
        loader.stream_end = StreamEndSync(ranks)
        return loader
    shard = StreamShard(dataset, batch_size, ranks, drop_last)
    return Loader(shard, batch_size=batch_size, drop_last=drop_last, **options)


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
    """Build the sampler that the training arguments select for a map-style dataset.

    The order contains the samples of all ranks, and is the same on every rank.

    The parameters have the same meaning as in `build_loader`.
    """
    if args.train_sampling_strategy == "group_by_length":
        lengths = lengths_of(dataset, args.length_column_name, main_input)
        return _group_by_length(lengths, args, ranks, batch_size, training)
    if training and args.train_sampling_strategy == "random":
        return ShuffledSampler(dataset, seed)
    return SequentialSampler(dataset)


def _repeatable(sampler: Any, dataset: Any, seed: int) -> Sampler[int]:
    """Return `sampler`, or a sampler that replaces it, so that a resumed run can draw the order of an epoch again.

    - None becomes a sampler in the order of `dataset`.
    - A torch `RandomSampler` that draws each sample once becomes a `ShuffledSampler` with `seed`, as in accelerate.
    - A `SequentialSampler`, `ShuffledSampler` or `LengthGroupedSampler` is returned unchanged.
    - Any other sampler is wrapped in a `UserSampler`.
    """
    if sampler is None:
        return SequentialSampler(dataset)
    if isinstance(sampler, (SequentialSampler, ShuffledSampler, LengthGroupedSampler)):
        return sampler
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source):
        return ShuffledSampler(sampler.data_source, seed)
    return UserSampler(sampler)


def _group_by_length(
    lengths: list[float], args: TrainingArguments, ranks: Ranks, batch_size: int, training: bool
) -> Sampler[int]:
    """Build a sampler that puts samples of similar length next to each other.

    The sampler draws a new order in each epoch for training. Its order is fixed for evaluation.
    """
    if training:
        return LengthGroupedSampler(lengths, batch_size * args.gradient_accumulation_steps, ranks)
    seed = args.seed if args.data_seed is None else args.data_seed
    return LengthGroupedSampler(lengths, batch_size, ranks, seed)


def order_of(loader: Any) -> list[int] | None:
    """Return the order in which the last iteration of a loader read the samples, as a list of dataset indices.

    An evaluation sorts its results with this list.

    Returns:
        The indices; None if the loader does not group samples by length. With None, the evaluation does not sort.
    """
    grouping = loader.grouping if isinstance(loader, Loader) else None
    return None if grouping is None else grouping.order


def is_iterable(dataset: Any) -> bool:
    """Return whether a dataset is a stream: it can be iterated over, but not indexed."""
    return isinstance(dataset, IterableDataset) or (
        hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    )


def length_of(data: Any) -> int | None:
    """Return the length of a dataset or loader; None if it has no length."""
    try:
        return len(data)
    except (TypeError, AttributeError, NotImplementedError):
        return None


def rows_read(loader: Any) -> int | None:
    """Return how many samples all ranks together read in an iteration of a loader, without padding rows.

    A sampler may leave out samples of the dataset, or repeat them. Call this function after the iteration has begun,
    because a `BatchedSampler` counts its samples when its iteration begins.

    Returns:
        The number. None in two cases: the number is unknown, or each rank reads all samples of a loader of the user.
    """
    size, batches = length_of(getattr(loader, "dataset", None)), getattr(loader, "batch_sampler", None)
    if isinstance(batches, BatchedSampler):
        return batches.drawn
    sampled = length_of(getattr(getattr(batches, "batches", batches), "sampler", None))
    if size is None or sampled is None:
        return size
    if isinstance(loader, PreparedLoader):
        return sampled
    return size if sampled < size else None


def batch_sizes(loader: Any) -> Iterator[int]:
    """Yield the number of samples of each batch of a loader of the user.

    Yield nothing if the batch sampler of the loader is not torch's `BatchSampler`. Yield nothing either if the sampler
    has no length. The last size may belong to an incomplete batch that the loader does not yield (`drop_last=True`).
    """
    batches = getattr(loader, "batch_sampler", None)
    if type(batches) is BatchSampler:
        rows = length_of(batches.sampler) or 0
        for start in range(0, rows, batches.batch_size):
            yield min(batches.batch_size, rows - start)


def epoch_rows(loader: Any, batch_size: int, world_size: int) -> int | None:
    """Return how many samples all ranks together read in an epoch; None if the loader has no length.

    If the exact number is unknown, return the largest possible number. The result can differ from the length of the
    dataset. A sampler may draw more or fewer samples. The dataset of a user's own loader may be the part of one rank.

    Args:
        loader: the loader of one rank.
        batch_size: samples per batch of one rank, if the loader has no integer `batch_size`.
        world_size: number of ranks.
    """
    batches = length_of(loader)
    if batches is None:
        return None
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, BatchedSampler):
        return sampler.rows()
    rows = batches * batch_size_of(loader, batch_size) * world_size
    if isinstance(loader, Loader):
        in_part = length_of(loader.dataset)
        return rows if in_part is None else in_part * loader.parts[0]
    drawn = length_of(sampler.sampler) if type(sampler) is BatchSampler else None
    return rows if drawn is None else min(rows, drawn * world_size)


def keep_columns(dataset: Any, collator: Collator, accepted: Collection[str]) -> tuple[Any, Collator]:
    """Remove the columns that are not accepted, and return the dataset and the collator to use.

    For a map-style dataset of the library `datasets` without a transform, the returned dataset lacks these columns. For
    any other dataset, the returned collator is a `ColumnFilter`, which removes these columns from each sample.

    Args:
        dataset: the dataset.
        collator: turns a list of samples into a batch.
        accepted: the names of the columns to keep.

    Raises:
        DataError: if a map-style dataset of the library `datasets` has none of the accepted columns.
    """
    columns = getattr(dataset, "column_names", None)
    fixed = hasattr(dataset, "remove_columns") and not is_iterable(dataset) and not _has_transform(dataset)
    if not fixed or not isinstance(columns, list):
        return dataset, ColumnFilter(collator, frozenset(accepted))
    ignored = [column for column in columns if column not in accepted]
    if len(ignored) == len(columns):
        raise DataError(
            f"The model accepts none of the dataset's columns ({', '.join(columns)}): its forward takes "
            f"{', '.join(dict.fromkeys(accepted))}. Rename the columns, or set `remove_unused_columns=False` with a "
            "`data_collator`."
        )
    return dataset.remove_columns(ignored), collator


def dropped_columns(dataset: Any, accepted: Collection[str]) -> list[str]:
    """Return the columns of a dataset that are not accepted; an empty list if the columns are unknown.

    - For a list of dicts, the columns are the keys of the first dict. For any other list, they are unknown.
    - For a dataset with a transform, the columns are unknown.
    - For any other dataset, the columns are its `column_names`. Without this attribute, they are unknown.
    """
    columns: Any = None
    if isinstance(dataset, (list, tuple)):
        columns = list(dataset[0]) if dataset and isinstance(dataset[0], Mapping) else None
    elif not _has_transform(dataset):
        columns = getattr(dataset, "column_names", None)
    return [column for column in columns if column not in accepted] if isinstance(columns, list) else []


def _has_transform(dataset: Any) -> bool:
    """Return whether a dataset of the library `datasets` has a transform, which makes samples from stored columns."""
    format_ = getattr(dataset, "format", None)
    return isinstance(format_, Mapping) and format_.get("type") == "custom"
