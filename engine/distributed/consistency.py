"""Alike: what the processes of a run are told is compared when it begins, and what differs is refused, by name."""

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

from ...events.errors import RankDivergence, SubscriptionError
from ..arguments.rank_local import OWN
from ..data.build import is_iterable, length_of
from ..data.loader import Loader
from ..run import Run

Plans: TypeAlias = dict[str, list[str]]
"""For each event, who hears it, in order."""
Facts: TypeAlias = dict[str, str]
"""Whatever is compared, by the name that errors give it, as text."""

_LISTED = 5
"""How many differences an error names."""
_LONG = 80
"""How many characters of a value it shows."""
_PACKAGE = __name__.partition(".")[0]


def named(ranks: Sequence[int]) -> str:
    """Return ranks as words: `rank 1`, `ranks 0 and 2`."""
    words = [str(rank) for rank in ranks]
    return f"rank {words[0]}" if len(words) == 1 else f"ranks {', '.join(words[:-1])} and {words[-1]}"


# When a session begins: who hears what, and the arguments.


def told(run: Run) -> tuple[Plans, Facts]:
    """Return what must be the same on all processes when a session begins."""
    return {event: [hearer.owner_id for hearer in run.bus.order_of(event)] for event in run.bus}, arguments_of(run.args)


def arguments_of(args: Any) -> Facts:
    """Return the arguments that must be the same, as text; those that a subclass of the user's adds are not looked at.

    Where the data's order has a seed of its own, `seed` may differ.
    """
    ours = next(cls for cls in type(args).__mro__ if cls.__module__.partition(".")[0] == _PACKAGE)
    own = OWN if args.data_seed is None else OWN | {"seed"}
    names = [field.name for field in fields(ours) if field.name not in own]
    return {f"`{name}`": as_text(getattr(args, name)) for name in names}


def as_text(value: Any) -> str:
    """Return a value as text that is the same on every process: without addresses, sets and mappings sorted."""
    if isinstance(value, Enum):
        return as_text(value.value)
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return as_text(value.item())
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{as_text(key)}: {as_text(item)}" for key, item in value.items())) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(as_text, value))) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(as_text, value)) + "]"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def digest(values: Any) -> str:
    """Return a short text that is the same for the same values."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def check_told(run: Run, mine: tuple[Plans, Facts], digests: Sequence[str]) -> None:
    """Refuse arguments or callbacks that are not the same, in the same order, on all processes.

    Args:
        run: the run, for a second exchange if there is a difference.
        mine: what this process was told.
        digests: of what each was told, in order of rank.

    Raises:
        RankDivergence: on all processes, naming the arguments, the ranks and their values.
        SubscriptionError: on all processes, naming the first difference between callbacks.
    """
    if len(set(digests)) == 1:
        return
    everyone = run.ranks.gather_objects(mine)
    refuse_differences([facts for _, facts in everyone])
    raise SubscriptionError(
        f"The processes do not hear the same: {first_difference([plans for plans, _ in everyone])}. What one does "
        "and another does not may leave them waiting for each other. Attach the same callbacks, in the same order, "
        "on every process; one for the first only may return where `state.is_world_process_zero` is False."
    )


def first_difference(everyone: list[Plans]) -> str:
    """Say in words where the hearers of events, given for each process in order of rank, differ first."""
    for event in dict.fromkeys(event for plan in everyone for event in plan):
        heard = [plan.get(event, []) for plan in everyone]
        for name in dict.fromkeys(name for names in heard for name in names):
            having = [rank for rank, names in enumerate(heard) if name in names]
            lacking = [rank for rank, names in enumerate(heard) if name not in names]
            if lacking:
                has, have_not = ("has", "have")[len(having) > 1], ("has", "have")[len(lacking) > 1]
                return f"{named(having)} {has} {name} in {event}, {named(lacking)} {have_not} not"
        for (rank, names), (other, others) in pairwise(enumerate(heard)):
            if names != others:
                first, second = next(pair for pair in zip(names, others) if pair[0] != pair[1])
                return f"in {event}, rank {rank} calls {first} where rank {other} calls {second}"
    return "in nothing but the events that there are"


# When it is planned and built: how long it is, and what it is optimized with.


def check_built(run: Run, eval_datasets: Mapping[str, Any]) -> None:
    """Refuse a training that is not the same on all processes, when everything is built and before its first step.

    Args:
        run: the run, with its plan, loader, optimizer and schedule.
        eval_datasets: what it will be evaluated on, by name.

    Raises:
        RankDivergence: on all processes, naming what differs, the ranks and their values.
        SubscriptionError: on all processes, if one attached a callback meanwhile and another did not.
    """
    if run.ranks.single_process:
        return
    mine = told(run)
    facts = facts_of(run)
    for name, dataset in eval_datasets.items():
        facts[f"the rows of the eval dataset {name}".rstrip()] = as_text(length_of(dataset))
    everyone = run.ranks.gather_objects((digest(mine), facts))
    check_told(run, mine, [told_digest for told_digest, _ in everyone])
    refuse_differences([of_rank for _, of_rank in everyone])


def facts_of(run: Run) -> Facts:
    """Return how long a training is and what it is optimized with.

    A stream may have another length on each process, whose ends are made even as it is read.
    """
    facts: dict[str, Any] = {}
    loader = run.train_dataloader
    dataset = getattr(loader, "dataset", None)
    if run.plan is not None and not is_iterable(dataset):
        if isinstance(loader, Loader):  # any other may have been given a share of the rows
            facts["the rows of the train dataset"] = run.plan.num_examples
        facts["the batches of an epoch"] = run.plan.batches_per_epoch
        facts["the steps of the run"] = run.plan.max_steps
    facts["the optimizer"] = type(run.optimizer).__name__
    facts["the schedule"] = type(run.lr_scheduler).__name__
    for index, group in enumerate(getattr(run.optimizer, "param_groups", ())):
        for name, value in group.items():
            if isinstance(value, (bool, int, float, str, tuple, torch.Tensor)):
                facts[f"`{name}` of the optimizer's group {index}"] = value
    return {name: as_text(value) for name, value in facts.items()}


def check_lengths(run: Run, loader: Any) -> None:
    """Refuse an evaluation or prediction whose rows or batches are not as many on all processes; called on each.

    Raises:
        RankDivergence: on all processes, naming the numbers of each.
    """
    dataset = getattr(loader, "dataset", None)
    if run.ranks.single_process or is_iterable(dataset):
        return
    rows = length_of(dataset) if isinstance(loader, Loader) else None
    batches = length_of(loader)
    everyone = run.ranks.gather_numbers(*(-1 if number is None else number for number in (rows, batches)))
    names = ("the rows of the dataset", "the batches")
    refuse_differences([{name: as_text(number) for name, number in zip(names, numbers)} for numbers in everyone])


def refuse_differences(everyone: Sequence[Facts]) -> None:
    """Refuse facts, given for each process in order of rank, that are not the same.

    Raises:
        RankDivergence: naming what differs, the ranks and their values.
    """
    said = []
    for name in dict.fromkeys(name for facts in everyone for name in facts):
        of_ranks: dict[str, list[int]] = {}
        for rank, facts in enumerate(everyone):
            of_ranks.setdefault(facts.get(name, "not there"), []).append(rank)
        if len(of_ranks) > 1:
            values = [f"{_short(value)} on {named(ranks)}" for value, ranks in of_ranks.items()]
            said.append(f"{name}: {', '.join(values)}")
    if said:
        more = f"; and {len(said) - _LISTED} more" if len(said) > _LISTED else ""
        raise RankDivergence(
            f"The processes are not told the same: {'; '.join(said[:_LISTED])}{more}. They would train different "
            "weights, or wait for each other. Give the same to every process."
        )


def _short(value: str) -> str:
    return value if len(value) <= _LONG else f"{value[:_LONG]}..."
