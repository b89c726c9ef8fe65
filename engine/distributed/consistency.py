"""Consistency checks: arguments, callbacks, data lengths and optimizers must be equal on all ranks."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from itertools import pairwise
from typing import Any, TypeAlias

import torch

from ...events.activity import COMPARE_RANKS, during
from ...events.errors import RankDivergence, SubscriptionError
from ..arguments.rank_local import RANK_LOCAL
from ..data.build import is_iterable, length_of
from ..data.loader import Loader
from .protocols import DistributedRun, PreparedRun

HandlerOrder: TypeAlias = dict[str, list[str]]
"""Event -> the ids of the callbacks that handle the event, in the order of the calls."""
Settings: TypeAlias = dict[str, str]
"""Name of a compared value, as errors show the name -> the value as text."""

_MAX_LISTED = 5
"""The most differences that an error lists."""
_MAX_LENGTH = 80
"""The most characters of a value that an error shows."""
_MAX_RANKS = 8
"""The most ranks, or spans of consecutive ranks, that an error lists."""
_PACKAGE = __name__.partition(".")[0]


def format_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as text for an error, such as `rank 1` or `ranks 0 and 2`.

    More than 8 ranks become spans, such as `ranks 0 to 1022`. The text lists at most 8 spans. If there are more spans,
    the text ends with the number of the ranks that are not listed, such as `and 5 more`.
    """
    words = [str(rank) for rank in ranks]
    if len(words) > _MAX_RANKS:
        spans = _spans(ranks)
        words = [f"{first} to {last}" if last > first else f"{first}" for first, last in spans[:_MAX_RANKS]]
        if left := sum(last - first + 1 for first, last in spans[_MAX_RANKS:]):
            words.append(f"{left} more")
    listed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"


def _spans(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the spans of consecutive ranks in `ranks`: the first and the last rank of each span."""
    spans: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1] = spans[-1][0], rank
        else:
            spans.append((rank, rank))
    return spans


# At the begin of a session: handlers and arguments.


def session_settings(run: DistributedRun) -> tuple[HandlerOrder, Settings]:
    """Collect what must be equal on all ranks at the start of a session: handler order, arguments and plugins."""
    order = {event: [handler.owner_id for handler in run.bus.order_of(event)] for event in run.bus}
    return order, {"installed plugins that join": canonical_text(run.plugins), **shared_arguments(run.args)}


def shared_arguments(args: Any) -> Settings:
    """Return the arguments that must be equal on all ranks: name -> value as text.

    Fields that a user's subclass adds are not compared. `seed` may differ if `data_seed` is set, because then the order
    of the data has its own seed.
    """
    ours = next(cls for cls in type(args).__mro__ if cls.__module__.partition(".")[0] == _PACKAGE)
    own = RANK_LOCAL if args.data_seed is None else RANK_LOCAL | {"seed"}
    names = [field.name for field in fields(ours) if field.name not in own]
    return {f"`{name}`": canonical_text(getattr(args, name)) for name in names}


def canonical_text(value: Any) -> str:
    """Return a value as text. Equal values give equal text on every rank.

    The text has no memory addresses. The items of sets and mappings are sorted.
    """
    if isinstance(value, Enum):
        return canonical_text(value.value)
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return canonical_text(value.item())
    if isinstance(value, Mapping):
        items = (f"{canonical_text(key)}: {canonical_text(item)}" for key, item in value.items())
        return "{" + ", ".join(sorted(items)) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(canonical_text, value))) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(canonical_text, value)) + "]"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def digest(values: Any) -> str:
    """Return the SHA-256 of values that JSON can encode, as text. Equal values give equal texts."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def compare_settings(run: DistributedRun, own: tuple[HandlerOrder, Settings], digests: Sequence[str]) -> None:
    """Raise an error if the ranks have different arguments, plugins, callbacks or callback orders.

    Args:
        run: the run. Its ranks exchange their settings only if the digests differ.
        own: the settings of this rank, from `session_settings`.
        digests: the digest of the settings of each rank, in order of rank.

    Raises:
        RankDivergence: on all ranks, if arguments or plugins differ. The message has each difference, the ranks and
            their values.
        SubscriptionError: on all ranks, if callbacks or callback orders differ. The message has the first difference.
    """
    if len(set(digests)) == 1:
        return
    of_ranks = run.ranks.gather_objects(own)
    raise_if_different([settings for _, settings in of_ranks])
    raise SubscriptionError(
        f"The ranks have different handlers: {first_handler_difference([order for order, _ in of_ranks])}. A handler "
        "that runs on one rank only may leave the others waiting for it. Attach the same callbacks in the same order "
        "on every rank. A handler for the first rank only can return early where `state.is_world_process_zero` is "
        "False."
    )


def first_handler_difference(orders: list[HandlerOrder]) -> str:
    """Describe the first difference between the handlers of the ranks.

    Args:
        orders: the handler order of each rank, in order of rank. At least two of the orders must differ.
    """
    for event in dict.fromkeys(event for order in orders for event in order):
        of_ranks = [order.get(event, []) for order in orders]
        for name in dict.fromkeys(name for names in of_ranks for name in names):
            having = [rank for rank, names in enumerate(of_ranks) if name in names]
            lacking = [rank for rank, names in enumerate(of_ranks) if name not in names]
            if lacking:
                return f"{name} handles {event} on {format_ranks(having)} and not on {format_ranks(lacking)}"
        for (rank, names), (other, others) in pairwise(enumerate(of_ranks)):
            if names != others:
                first, second = next(pair for pair in zip(names, others) if pair[0] != pair[1])
                return f"in {event}, rank {rank} calls {first} where rank {other} calls {second}"
    return "they declare different events"


# When everything is built: data lengths, optimizer and schedule.


@during(COMPARE_RANKS)
def compare_training(run: PreparedRun, eval_datasets: Mapping[str, Any]) -> None:
    """Raise an error if lengths, optimizer, schedule, arguments or callbacks differ between ranks.

    The lengths are numbers of samples, batches and steps. Call the function before the first step. In a single process,
    the function does nothing.

    Args:
        run: the run, with its length, loader, optimizer and schedule.
        eval_datasets: the evaluation datasets by name.

    Raises:
        RankDivergence: on all ranks, with the differences, the ranks and their values.
        SubscriptionError: on all ranks, if the ranks have different callbacks or callback orders.
    """
    if run.ranks.single_process:
        return
    own = session_settings(run)
    settings = training_settings(run)
    for name, dataset in eval_datasets.items():
        settings[f"samples of the eval dataset {name}".rstrip()] = canonical_text(length_of(dataset))
    of_ranks = run.ranks.gather_objects((digest(own), settings))
    compare_settings(run, own, [own_digest for own_digest, _ in of_ranks])
    raise_if_different([settings for _, settings in of_ranks])


def training_settings(run: PreparedRun) -> Settings:
    """Collect the values of a training that must be equal on all ranks: name -> value as text.

    These are the lengths of the run, the classes of optimizer and schedule, and the options of the parameter groups.

    For an iterable dataset, the numbers of samples and batches are left out, because a stream can have a different
    length on each rank. For a loader of the user, the number of samples is left out, because its dataset may be the
    shard of one rank. The number of steps must always be equal, because the schedule depends on it.
    """
    values: dict[str, Any] = {}
    loader = run.train_dataloader
    dataset = getattr(loader, "dataset", None)
    if run.plan is not None and is_iterable(dataset):
        values["steps of the run (the stream has another length on each rank: set `max_steps`)"] = run.plan.max_steps
    elif run.plan is not None:
        if isinstance(loader, Loader):  # the user's own loader may hold a shard of the samples
            values["samples of the train dataset"] = run.plan.num_examples
        values["batches per epoch"] = run.plan.batches_per_epoch
        values["steps of the run"] = run.plan.max_steps
    values["the optimizer"] = type(run.optimizer).__name__
    values["the schedule"] = type(run.lr_scheduler).__name__
    for index, group in enumerate(getattr(run.optimizer, "param_groups", ())):
        for name, value in group.items():
            if isinstance(value, (bool, int, float, str, tuple, torch.Tensor)):
                values[f"`{name}` of the optimizer's group {index}"] = value
    return {name: canonical_text(value) for name, value in values.items()}


def compare_lengths(run: DistributedRun, loader: Any) -> None:
    """Raise an error if the ranks have different numbers of samples or batches for an evaluation or prediction.

    In a single process, or if the dataset is iterable, the function does nothing. For a loader of the user, it compares
    the numbers of batches only.

    Args:
        run: the run.
        loader: the loader of the evaluation or prediction.

    Raises:
        RankDivergence: on all ranks, with the numbers of each rank.
    """
    dataset = getattr(loader, "dataset", None)
    if run.ranks.single_process or is_iterable(dataset):
        return
    samples = length_of(dataset) if isinstance(loader, Loader) else None
    batches = length_of(loader)
    of_ranks = run.ranks.gather_numbers(*(-1 if number is None else number for number in (samples, batches)))
    names = ("samples of the dataset", "batches")
    raise_if_different([{name: canonical_text(number) for name, number in zip(names, numbers)} for numbers in of_ranks])


def raise_if_different(of_ranks: Sequence[Settings]) -> None:
    """Raise an error if the settings of the ranks differ.

    Args:
        of_ranks: the settings of each rank (name -> value as text), in order of rank.

    Raises:
        RankDivergence: with the differences, the ranks and their values.
    """
    differences = []
    for name in dict.fromkeys(name for settings in of_ranks for name in settings):
        ranks_by_value: dict[str, list[int]] = {}
        for rank, settings in enumerate(of_ranks):
            ranks_by_value.setdefault(settings.get(name, "missing"), []).append(rank)
        if len(ranks_by_value) > 1:
            values = [f"{_shorten(value)} on {format_ranks(ranks)}" for value, ranks in ranks_by_value.items()]
            differences.append(f"{name}: {', '.join(values)}")
    if differences:
        more = f"; and {len(differences) - _MAX_LISTED} more" if len(differences) > _MAX_LISTED else ""
        raise RankDivergence(
            f"The ranks have different settings: {'; '.join(differences[:_MAX_LISTED])}{more}. They would train "
            "different weights, or wait for each other. Pass the same values on every rank."
        )


def _shorten(value: str) -> str:
    return value if len(value) <= _MAX_LENGTH else f"{value[:_MAX_LENGTH]}..."
