"""Fused optimizer updates that give sharded weights the same values, bit for bit, as full weights.

On the CPU, a fused optimizer updates a tensor in groups of numbers that fill a vector register. It updates the numbers
after the last full group one by one, with another rounding. If a shard starts or ends inside a group of the full
tensor, some numbers of the shard would be rounded in another way than in the full tensor.

The hooks of this module replace the result of such an update. They put a copy of the old shard at its position in a
tensor of the full size. They update this tensor, and copy the result into the shard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...engine.checkpoint.format.sharded import Region, is_split, own_region
from ..parallel.sharded_optimizer import options_of
from ..parallel.split_weights import local_part

REGISTERS = 64
"""A number of elements that fills whole registers, for every register width and dtype."""


def exact_fused_update(optimizer: Optimizer) -> Callable[[], None]:
    """Add hooks to a fused optimizer, so that sharded weights get the same values, bit for bit, as full weights.

    Args:
        optimizer: an optimizer of sharded weights. Parameter groups without `fused=True` are not affected.

    Returns:
        A function that removes the hooks from the optimizer.
    """
    shards: list[_Shard] = []

    def remember(optimizer: Optimizer, *_: Any) -> None:
        shards[:] = [
            _Shard(weight, group, local_part(weight).clone(), {k: _copy(v) for k, v in optimizer.state[weight].items()})
            for group in optimizer.param_groups
            if group.get("fused")
            for weight in group["params"]
            if weight.grad is not None and is_split(weight) and _ends_within_registers(own_region(weight), weight.shape)
        ]

    def update_again(optimizer: Optimizer, *_: Any) -> None:
        for shard in shards:
            shard.update(optimizer)
        shards.clear()

    hooks = optimizer.register_step_pre_hook(remember), optimizer.register_step_post_hook(update_again)

    def undo() -> None:
        for hook in hooks:
            hook.remove()

    return undo


def _ends_within_registers(part: Region, whole: torch.Size) -> bool:
    """Return whether a shard starts or ends inside a group of `REGISTERS` elements of the full tensor.

    The shard must be a part along the first dimension. Return False for an empty shard, and for a shard that is the
    full tensor. A shard that ends together with the full tensor does not end inside a group.
    """
    begins, size = part.begin[0] * prod(whole[1:]), prod(part.shape)
    ends = begins + size
    return 0 < size < whole.numel() and not (
        begins % REGISTERS == 0 and (ends % REGISTERS == 0 or ends == whole.numel())
    )


def _copy(value: Any) -> Any:
    return local_part(value).clone() if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True)
class _Shard:
    """A sharded weight, with copies of this rank's shard and optimizer state from before a step.

    The method `update` repeats the step from the copies.
    """

    weight: Any
    group: dict[str, Any]
    part: torch.Tensor
    state: dict[str, Any]

    @torch.no_grad()
    def update(self, optimizer: Optimizer) -> None:
        place = own_region(self.weight).slices((0,) * self.weight.dim())

        def whole(part: Any) -> Any:
            if not isinstance(part, torch.Tensor) or part.shape != self.part.shape:
                return part
            made = part.new_zeros(self.weight.shape)
            made[place] = part
            return made

        stand_in = nn.Parameter(whole(self.part))
        stand_in.grad = whole(local_part(self.weight.grad))
        twin = type(optimizer)([{**self.group, "params": [stand_in]}], **options_of(optimizer))
        twin.state[stand_in] = {name: whole(value) for name, value in self.state.items()}
        twin.step()
        local_part(self.weight).copy_(stand_in[place])
        for name, value in optimizer.state[self.weight].items():
            if is_split(value):
                local_part(value).copy_(twin.state[stand_in][name][place])
