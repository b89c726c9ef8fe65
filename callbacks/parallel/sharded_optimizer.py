"""Split the optimizer's state over processes, beside DDP: torch's ZeroRedundancyOptimizer, which is ZeRO stage 1."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.optim import Optimizer

from ...engine.arguments import TrainingArguments
from ...engine.optim.build import made_with
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError, ModelError
from ...events.stages import Stage
from ..optimizer.schedule_free import has_two_modes


@dataclass
class ShardedOptimizer(Callback):
    """Has each process keep the optimizer's state of its share of the weights only, and update those for all.

    The weights come out as those of DDP, beside which it works. Start with `torchrun --nproc_per_node=N`.
    """

    stage = Stage.PREPARE
    arguments = ("sharding", "sharding_degree")

    degree: int | None = None
    """How many processes share one copy of the state, as those of one machine; None for all."""

    def __post_init__(self) -> None:
        if self.degree is not None and self.degree < 2:
            raise ArgumentError(
                f"ShardedOptimizer(degree={self.degree}): at least 2 processes share the state, or None for all."
            )
        # Imported while there is no process group: some of its functions would hold that as a default.
        _sharding_class()

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> ShardedOptimizer | None:
        if args.world_size == 1 or args.way_to_shard != "optimizer":
            return None
        return cls(None if args.sharding_degree in (-1, args.world_size) else args.sharding_degree)

    def on_setup(self, run: Run) -> None:
        world = run.ranks.world_size
        if run.ranks.single_process:
            raise ArgumentError(
                "ShardedOptimizer splits the state among processes, and this is a single one: start it with torchrun "
                "--nproc_per_node=N."
            )
        if self.degree is not None and world % self.degree:
            raise ArgumentError(
                f"ShardedOptimizer(degree={self.degree}) does not divide the {world} processes of this run."
            )
        if run.mode == "train":
            refuse_optimizer(run, _sharding_class(), "ShardedOptimizer")
            run.seams.fill(
                "ShardedOptimizer",
                make_optimizer=partial(_split, self.degree, run.ranks.rank, world),
                optimizer_state=_whole_state(run, self.degree or world),
                load_optimizer=_load_share,
            )


def refuse_optimizer(run: Run, kind: type[Optimizer], name: str) -> None:
    """Refuse an optimizer that was made outside, of which only a class and its options can be split.

    Raises:
        ArgumentError: if there is one, and it is none of the kind that splits.
    """
    if run.optimizer is not None and not isinstance(run.optimizer, kind):
        raise ArgumentError(
            f"`optimizers` has a {type(run.optimizer).__name__}, and {name} makes one of its own on each process: give "
            "its class and options, as `optimizer_cls_and_kwargs=(AdamW, {'lr': 1e-4})`."
        )


def options_to_share(optimizer: Optimizer, name: str) -> dict[str, Any]:
    """Return the options with which each process makes an optimizer of the same class for its share of the weights.

    Args:
        optimizer: one for all weights.
        name: who shares it out, for the errors.

    Raises:
        ArgumentError: if its options are not known, or it keeps two sets of weights.
        ModelError: if its weights are of several types.
    """
    kind = type(optimizer).__name__
    if has_two_modes(optimizer):
        raise ArgumentError(
            f"{kind} trains other weights than it evaluates, and with {name} each process has its own share of them "
            "only: leave that out, or split the weights too, with `sharding='stage2'`."
        )
    types = Counter(str(weight.dtype) for group in optimizer.param_groups for weight in group["params"])
    if len(types) > 1:
        counts = " and ".join(f"{count} of {dtype.removeprefix('torch.')}" for dtype, count in types.items())
        raise ModelError(
            f"{name} sends weights that are updated in one piece, which takes one type, and there are {counts}: give "
            "all the same, as by `model.float()`, or leave it out, as DDP takes any."
        )
    unknown = sorted(_taken(optimizer) - optimizer.defaults.keys())
    if unknown and made_with(optimizer) is None:
        raise ArgumentError(
            f"{name} has each process make a {kind} of its own, and of the one that `create_optimizer` made it cannot "
            f"read back {', '.join(unknown)}: give class and options, as "
            f"`optimizer_cls_and_kwargs=({kind}, {{'lr': 1e-4}})`."
        )
    return options_of(optimizer)


def options_of(optimizer: Optimizer) -> dict[str, Any]:
    """Return the options that an optimizer was made with; where that is not known, those of its class that it shows."""
    given = made_with(optimizer)
    if given is not None:
        return given
    return {name: value for name, value in optimizer.defaults.items() if name in _taken(optimizer)}


def _taken(optimizer: Optimizer) -> set[str]:
    """Return the names of the options that an optimizer's class takes, beside the weights."""
    _, *taken = inspect.signature(type(optimizer)).parameters.values()
    return {each.name for each in taken if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}


def _sharding_class() -> Any:
    with warnings.catch_warnings():
        # The package has other optimizers too, which are compiled when it is imported.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer


def _split(degree: int | None, rank: int, world: int, make: Callable[[], Optimizer]) -> Any:
    """Return the optimizer's work, shared out: the same class and options on each process's part of the weights."""
    optimizer, sharding = make(), _sharding_class()
    if isinstance(optimizer, sharding):  # a trainer that trains once more
        return optimizer
    group = None
    if degree is not None:
        # Every process makes all groups, in the same order.
        groups = [dist.new_group(list(range(first, first + degree))) for first in range(0, world, degree)]
        group = groups[rank // degree]
    options = options_to_share(optimizer, "ShardedOptimizer")
    return sharding(optimizer.param_groups, optimizer_class=type(optimizer), process_group=group, **options)


def _whole_state(run: Run, degree: int) -> Callable[[Any], dict[str, Any]]:
    saves = run.args.should_save
    saving = [rank for rank, (each,) in enumerate(run.ranks.gather_numbers(int(saves))) if each]
    # Processes are numbered within their group; in all groups the same ones gather, so that none waits.
    homes = sorted({rank % degree for rank in saving})

    def whole_state(optimizer: Any) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for home in homes:
            optimizer.consolidate_state_dict(home)  # on all processes
            if saves and optimizer.rank == home:
                state = optimizer.state_dict()
            optimizer._all_state_dicts.clear()  # it would keep all that it gathered until it gathers again
        return state

    return whole_state


def _load_share(optimizer: Any, state: dict[str, Any]) -> None:
    optimizer.load_state_dict(state)
    optimizer.state.clear()  # what is used is in the optimizer inside; this is a second copy of the share
