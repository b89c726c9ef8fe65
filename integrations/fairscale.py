"""fairscale: the optimizer's state sharded over the processes (OSS), and gradients reduced to who needs them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
from torch import nn
from torch.optim import Optimizer

from ..callbacks.ddp import DDP, synchronise_last
from ..engine.arguments import TrainingArguments
from ..engine.ranks import Ranks
from ..engine.run import Run
from ..engine.seams import Clip
from ..events.callback import Callback
from ..events.errors import ArgumentError
from ..events.stages import Stage


@dataclass
class ShardedDDP(Callback):
    """Trains on several processes, each holding its share of the optimizer's state (ZeRO stage 1 and 2).

    The weights come out as those of DDP. Start with `torchrun --nproc_per_node=N`.
    """

    stage = Stage.PREPARE
    arguments = ("sharded_ddp", "sharding")
    instead_of = (DDP,)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> ShardedDDP:
        return cls()

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            return
        if run.ranks.alone:
            raise ArgumentError(
                "Using sharded DDP only works in distributed training: start it with torchrun --nproc_per_node=N."
            )
        run.seams.fill(
            "ShardedDDP",
            make_optimizer=_shard,
            wrap_model=ShardedDataParallel,
            synchronise=synchronise_last,
            clip=_clip_shares(run.ranks),
            zero_grad=_zero_in_place,
            optimizer_state=_whole_state(run.ranks),
        )


def _shard(make: Callable[[], Optimizer]) -> OSS:
    """Return the optimizer's work, shared out: the same class and options on each process's part of the weights."""
    optimizer = make()
    if isinstance(optimizer, OSS):  # a trainer that trains once more
        return optimizer
    options = inspect.signature(type(optimizer)).parameters
    defaults = {name: value for name, value in optimizer.defaults.items() if name in options}
    return OSS(optimizer.param_groups, optim=type(optimizer), **defaults)


def _clip_shares(ranks: Ranks) -> Clip:
    """Return clipping for gradients of which each process has only its own share reduced.

    The norms of the single gradients are exchanged, not their sum, so that the whole norm is added up as torch adds it,
    and comes out with the same bits.
    """

    def clip(optimizer: Any, parameters: list[nn.Parameter], max_norm: float) -> torch.Tensor:
        own = {id(parameter) for group in optimizer.partition_parameters()[ranks.rank] for parameter in group["params"]}
        trained = [parameter for parameter in parameters if parameter.grad is not None]
        norms = [
            torch.linalg.vector_norm(parameter.grad) if id(parameter) in own else parameter.new_zeros(())
            for parameter in trained
        ]
        total: torch.Tensor = torch.linalg.vector_norm(ranks.sum(torch.stack(norms)))
        if max_norm > 0:
            nn.utils.clip_grads_with_norm_([p for p in trained if id(p) in own], max_norm, total)
        return total

    return clip


def _zero_in_place(parameters: list[nn.Parameter]) -> None:
    # Gradients are views into the buckets that are reduced. Setting them to None, torch's default, would cut them off,
    # and the processes would go on with gradients that nobody averaged.
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.detach_().zero_()


def _whole_state(ranks: Ranks) -> Callable[[Any], dict[str, Any]]:
    def whole_state(optimizer: Any) -> dict[str, Any]:
        optimizer.consolidate_state_dict()  # on all processes: it gathers
        return optimizer.state_dict() if ranks.rank == 0 else {}

    return whole_state
