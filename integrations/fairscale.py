"""fairscale: the optimizer's state sharded over the processes (OSS), and gradients reduced to who needs them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
from torch import nn
from torch.optim import Optimizer

from ..callbacks.ddp import synchronise_last
from ..engine.arguments import TrainingArguments
from ..engine.run import Run
from ..events.callback import Callback
from ..events.errors import ArgumentError
from ..events.stages import Stage


@dataclass
class ShardedDDP(Callback):
    """Trains on several processes, each holding its share of the optimizer's state (ZeRO stage 1 and 2).

    The weights come out as those of DDP. Start with `torchrun --nproc_per_node=N`.
    """

    stage = Stage.PREPARE
    arguments = ("sharded_ddp",)

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
            wrap_optimizer=_shard,
            wrap_model=ShardedDataParallel,
            synchronise=synchronise_last,
            clip=_clip,
            zero_grad=_zero_in_place,
            optimizer_state=_whole_state,
        )


def _shard(optimizer: Optimizer) -> OSS:
    """Return the optimizer's work, shared out: the same class and options on each process's part of the weights."""
    options = inspect.signature(type(optimizer)).parameters
    defaults = {name: value for name, value in optimizer.defaults.items() if name in options}
    return OSS(optimizer.param_groups, optim=type(optimizer), **defaults)


def _clip(optimizer: Any, parameters: list[nn.Parameter], max_norm: float) -> torch.Tensor:
    # A process has only its own share of the reduced gradients, so the norm is the optimizer's to compute.
    norm: torch.Tensor = optimizer.clip_grad_norm(max_norm if max_norm > 0 else float("inf"))
    return norm


def _zero_in_place(model: nn.Module, optimizer: Optimizer) -> None:
    # Gradients are views into the buckets that are reduced. Setting them to None, torch's default, would cut them off,
    # and the processes would go on with gradients that nobody averaged.
    model.zero_grad(set_to_none=False)


def _whole_state(optimizer: Any) -> dict[str, Any]:
    optimizer.consolidate_state_dict()
    return optimizer.state_dict() if torch.distributed.get_rank() == 0 else {}
