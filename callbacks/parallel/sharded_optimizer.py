"""Shard the optimizer state over ranks, together with DDP: torch's ZeroRedundancyOptimizer (ZeRO stage 1)."""

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
from ...engine.distributed.strategies import Strategy
from ...engine.optim.build import made_with
from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.errors import ArgumentError, ModelError
from ...events.stages import Stage
from ..optimizer.schedule_free import has_two_modes


@dataclass
class ShardedOptimizer(Callback):
    """Shards the optimizer state. Each rank holds the state of some of the weights, and updates these weights.

    Set `sharding="stage1"` in the arguments, or add `ShardedOptimizer()` to the callbacks, and start the program with
    `torchrun --nproc_per_node=N`. The callback works together with DDP. Training reaches the same weights as with DDP
    alone. After a step, each rank sends its updated weights to all other ranks.

    Raises:
        ArgumentError: if there is only one process, or if `degree` is below 2 or does not divide the world size. Also
            if the ranks cannot build the optimizer: you passed an optimizer object, or `optimizer.defaults` lacks an
            option. Also if the optimizer has separate weights for training and evaluation.
        ModelError: if the weights have several dtypes.
    """

    stage = Stage.PREPARE
    arguments = ("sharding", "sharding_degree")
    capabilities = frozenset({Capability.KEEPS_GROUPS})

    degree: int | None = None
    """The number of ranks that together hold one copy of the state, such as the ranks of one machine. None: all
    ranks."""

    def __post_init__(self) -> None:
        if self.degree is not None and self.degree < 2:
            raise ArgumentError(
                f"ShardedOptimizer(degree={self.degree}): set it to 2 or more ranks, or to None for all ranks."
            )
        # Import it before the process group exists: some of its functions would hold the group as a default.
        _sharding_class()

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> ShardedOptimizer | None:
        if args.world_size == 1 or args.sharding_strategy is not Strategy.OPTIMIZER:
            return None
        return cls(None if args.sharding_degree in (-1, args.world_size) else args.sharding_degree)

    def on_setup(self, run: Run) -> None:
        world = run.ranks.world_size
        if run.ranks.single_process:
            raise ArgumentError(
                "ShardedOptimizer shards the state over ranks, but this is a single process: start it with torchrun "
                "--nproc_per_node=N."
            )
        if self.degree is not None and world % self.degree:
            raise ArgumentError(
                f"ShardedOptimizer(degree={self.degree}) does not divide the world size {world}. Set a divisor."
            )
        if run.mode == "train":
            refuse_optimizer(run, _sharding_class(), "ShardedOptimizer")
            run.seams.fill(
                "ShardedOptimizer",
                make_optimizer=partial(_shard, self.degree, run.ranks.rank, world),
                optimizer_state=_whole_state(run, self.degree or world),
                load_optimizer=_load_shard,
            )


def refuse_optimizer(run: Run, kind: type[Optimizer], name: str) -> None:
    """Raise an error if the user passed an optimizer object instead of its class and options.

    A callback that shards the optimizer state builds an optimizer on each rank, from the class and the options.

    Args:
        run: the run.
        kind: the class of sharded optimizers. After an earlier session, the run has an optimizer of this class, and
            the function raises no error.
        name: the name of the callback, for the message.

    Raises:
        ArgumentError: if the run has an optimizer object that is not a `kind`.
    """
    if run.optimizer is not None and not isinstance(run.optimizer, kind):
        raise ArgumentError(
            f"`optimizers` has a {type(run.optimizer).__name__}, but {name} builds one on each rank: pass its class "
            "and options, such as `optimizer_cls_and_kwargs=(AdamW, {'lr': 1e-4})`."
        )


def options_to_share(optimizer: Optimizer, name: str) -> dict[str, Any]:
    """Return the options with which each rank builds an optimizer of the same class for its shard of the weights.

    Args:
        optimizer: an optimizer of all weights.
        name: the name of the callback, for the messages.

    Raises:
        ArgumentError: if trainbus did not build the optimizer and `optimizer.defaults` lacks an option, or if the
            optimizer has train and eval modes.
        ModelError: if the weights have several dtypes.
    """
    kind = type(optimizer).__name__
    if has_two_modes(optimizer):
        raise ArgumentError(
            f"{kind} has separate weights for training and evaluation, but {name} shards its state over the ranks: "
            f"remove {name}, or shard the weights too, with `sharding='stage2'`."
        )
    types = Counter(str(weight.dtype) for group in optimizer.param_groups for weight in group["params"])
    if len(types) > 1:
        counts = " and ".join(f"{count} of {dtype.removeprefix('torch.')}" for dtype, count in types.items())
        raise ModelError(
            f"{name} sends updated weights in one tensor, which needs one dtype, but there are {counts}: convert the "
            f"model, for example with `model.float()`, or remove {name}. DDP alone accepts several dtypes."
        )
    unknown = sorted(_taken(optimizer) - optimizer.defaults.keys())
    if unknown and made_with(optimizer) is None:
        raise ArgumentError(
            f"{name} builds a {kind} on each rank, but cannot read {', '.join(unknown)} from the optimizer that "
            f"`create_optimizer` built: pass class and options, such as "
            f"`optimizer_cls_and_kwargs=({kind}, {{'lr': 1e-4}})`."
        )
    return options_of(optimizer)


def options_of(optimizer: Optimizer) -> dict[str, Any]:
    """Return the options with which an optimizer was built.

    If trainbus did not build the optimizer, return those entries of `optimizer.defaults` that the constructor of the
    optimizer accepts.
    """
    given = made_with(optimizer)
    if given is not None:
        return given
    return {name: value for name, value in optimizer.defaults.items() if name in _taken(optimizer)}


def _taken(optimizer: Optimizer) -> set[str]:
    """Return the names of the parameters of the optimizer's constructor, except the first (the weights)."""
    _, *taken = inspect.signature(type(optimizer)).parameters.values()
    return {each.name for each in taken if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}


def _sharding_class() -> Any:
    with warnings.catch_warnings():
        # The import compiles other optimizers of the package, which warns.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer


def _shard(degree: int | None, rank: int, world: int, make: Callable[[], Optimizer]) -> Any:
    """Build a sharded optimizer with the class and the options of the optimizer that `make` returns.

    Args:
        degree: the number of ranks over which the optimizer state is sharded. None: all ranks.
        rank: the rank of this process.
        world: the world size.
        make: a function that returns the optimizer of all weights. If an earlier session built a sharded optimizer,
            `make` returns the sharded optimizer, and `_shard` returns it unchanged.
    """
    optimizer, sharding = make(), _sharding_class()
    if isinstance(optimizer, sharding):  # from an earlier session
        return optimizer
    group = None
    if degree is not None:
        # Every rank creates all groups, in the same order.
        groups = [dist.new_group(list(range(first, first + degree))) for first in range(0, world, degree)]
        group = groups[rank // degree]
    options = options_to_share(optimizer, "ShardedOptimizer")
    return sharding(optimizer.param_groups, optimizer_class=type(optimizer), process_group=group, **options)


def _whole_state(run: Run, degree: int) -> Callable[[Any], dict[str, Any]]:
    saves = run.args.should_save
    saving = [rank for rank, (each,) in enumerate(run.ranks.gather_numbers(int(saves))) if each]
    # The numbers of ranks within their group. Ranks with these numbers gather in every group, so that no rank waits.
    homes = sorted({rank % degree for rank in saving})

    def whole_state(optimizer: Any) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for home in homes:
            optimizer.consolidate_state_dict(home)  # on all ranks
            if saves and optimizer.rank == home:
                state = optimizer.state_dict()
            optimizer._all_state_dicts.clear()  # free the gathered states
        return state

    return whole_state


def _load_shard(optimizer: Any, state: dict[str, Any]) -> None:
    optimizer.load_state_dict(state)
    optimizer.state.clear()  # a second copy: the inner optimizer holds the state that is used
