"""fairscale: the optimizer's state sharded over the processes (OSS), and gradients reduced to who needs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.optim import Optimizer

from ..callbacks.ddp import DDP, synchronise_last
from ..callbacks.sharded_optimizer import options_of, refuse_optimizer
from ..engine.arguments import TrainingArguments
from ..engine.ranks import Ranks
from ..engine.run import Run
from ..engine.seams import Clip
from ..events.callback import Callback
from ..events.errors import ArgumentError, ModelError, SubscriptionError
from ..events.stages import Stage


@dataclass
class ShardedDDP(Callback):
    """Trains on several processes, each holding its share of the optimizer's state (ZeRO stage 1 and 2).

    The weights come out as those of DDP. Start with `torchrun --nproc_per_node=N`.
    """

    stage = Stage.PREPARE
    arguments = ("sharded_ddp",)
    instead_of = (DDP,)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> ShardedDDP | None:
        return cls() if args.way_to_shard == "fairscale" else None

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            return
        if run.ranks.alone:
            raise ArgumentError(
                "Using sharded DDP only works in distributed training: start it with torchrun --nproc_per_node=N."
            )
        refuse_optimizer(run, OSS, "ShardedDDP")
        run.seams.fill(
            "ShardedDDP",
            make_optimizer=_shard,
            wrap_model=partial(_wrap, run),
            synchronise=synchronise_last,
            clip=_clip_shares(run),
            zero_grad=_zero_in_place,
            optimizer_state=_whole_state(run.ranks),
        )

    def on_close(self, run: Run) -> None:
        wrapped: Any = run.model_wrapped
        if isinstance(wrapped, ShardedDataParallel):
            # Its hooks stay on the weights otherwise, and would reduce gradients beside those of the next training.
            for hook in wrapped._grad_hooks:
                hook.remove()
            for kept in (wrapped._grad_hooks, wrapped._grad_accs, wrapped._manual_reduce):
                kept.clear()


def _shard(make: Callable[[], Optimizer]) -> OSS:
    """Return the optimizer's work, shared out: the same class and options on each process's part of the weights."""
    optimizer = make()
    if isinstance(optimizer, OSS):  # a trainer that trains once more
        return optimizer
    return OSS(optimizer.param_groups, optim=type(optimizer), **options_of(optimizer))


def _wrap(run: Run, model: nn.Module, optimizer: Any) -> nn.Module:
    shares = [
        sum(weight.numel() for group in part for weight in group["params"]) for part in optimizer.partition_parameters()
    ]
    if max(shares) == sum(shares):
        raise ModelError(
            f"ShardedDDP gives each process whole weights to update, and {type(model).__name__} has too few for that: "
            "leave `sharded_ddp` out."
        )
    scaler = run.seams.scaler
    if isinstance(scaler, torch.amp.GradScaler):
        # Each process sees overflows in its own share only, and all must leave out the same steps.
        device, group = run.args.device.type, optimizer.group
        run.seams.scaler = ShardedGradScaler(device, init_scale=scaler.get_scale(), process_group=group)
    # It sets itself up anew after each evaluation, which is no news.
    wrapped: nn.Module = ShardedDataParallel(model, optimizer, warn_on_trainable_params_changed=False)
    return wrapped


def _clip_shares(run: Run) -> Clip:
    """Return clipping for gradients of which each process has only its own share reduced.

    The norms of the single gradients are exchanged, not their sum, so that the whole norm is added up as torch adds it,
    and comes out with the same bits.
    """

    ranks = run.ranks

    def clip(optimizer: Any, parameters: list[nn.Parameter], max_norm: float) -> torch.Tensor:
        _refuse_lost_gradients(run.model_wrapped)
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


def _refuse_lost_gradients(wrapped: Any) -> None:
    """Refuse gradients that are no longer where fairscale averages them: each process would go on with its own.

    Raises:
        SubscriptionError: if there are such, naming what sets gradients to None, which is torch's default.
    """
    places = {bucket.buffer.untyped_storage().data_ptr() for bucket in wrapped._bucket_list}
    for weight, shared in zip(wrapped._trainable_params, wrapped._should_bucket_grad):
        if shared and (weight.grad is None or weight.grad.untyped_storage().data_ptr() not in places):
            raise SubscriptionError(
                "Gradients were set to None, and fairscale no longer averages them over the processes: the weights "
                "would come out wrong. Leave it to the trainer, or clear them with `zero_grad(set_to_none=False)`."
            )


def _zero_in_place(parameters: list[nn.Parameter]) -> None:
    # Gradients are views into the buckets that are reduced. Setting them to None, torch's default, would cut them off,
    # and the processes would go on with gradients that nobody averaged.
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.detach_().zero_()


def _whole_state(ranks: Ranks) -> Callable[[Any], dict[str, Any]]:
    def whole_state(optimizer: Any) -> dict[str, Any]:
        optimizer.consolidate_state_dict()  # on all processes: it gathers
        state: dict[str, Any] = optimizer.state_dict() if ranks.rank == 0 else {}
        optimizer._all_states.clear()  # it would keep all that it gathered until it gathers again
        return state

    return whole_state
