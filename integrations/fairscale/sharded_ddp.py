"""fairscale: the optimizer's state sharded over the processes (OSS), and gradients reduced to who needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim.oss import OSS
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.optim import Optimizer

from ...callbacks.parallel.ddp import DDP, send_buffers
from ...callbacks.parallel.sharded_optimizer import options_to_share, refuse_optimizer
from ...callbacks.parallel.wrapping import Wrapping
from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError, ModelError
from ...events.stages import Stage, order


@dataclass
class ShardedDDP(Callback):
    """Trains on several processes, each holding its share of the optimizer's state (ZeRO stage 1 and 2).

    The weights come out as those of DDP. Start with `torchrun --nproc_per_node=N`.
    """

    stage = Stage.PREPARE
    arguments = ("sharded_ddp",)
    instead_of = (DDP,)

    _wrapping: Wrapping | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> ShardedDDP | None:
        return cls() if args.way_to_shard == "fairscale" else None

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            return
        if run.ranks.single_process:
            raise ArgumentError(
                "Using sharded DDP only works in distributed training: start it with torchrun --nproc_per_node=N."
            )
        refuse_optimizer(run, OSS, "ShardedDDP")
        self._wrapping = Wrapping(run, partial(_wrap, run))
        gradients = _Gradients(run, self._wrapping)
        run.seams.fill(
            "ShardedDDP",
            make_optimizer=_shard,
            wrap_model=self._wrapping.wrap,
            synchronise=gradients.synchronise,
            clip=gradients.clip,
            optimizer_state=_whole_state(run.args),
        )

    @order(Stage.RELEASE)
    def on_step_begin(self, run: Run) -> None:
        if self._wrapping is not None:
            self._wrapping.follow()  # after all who may freeze or thaw weights
            # It would do so in each forward but those that only accumulate, which all do here.
            wrapped: Any = run.model_wrapped
            wrapped.sync_buffers(blocking=True)

    def on_train_end(self, run: Run) -> None:
        send_buffers(run.model)

    def on_close(self, run: Run) -> None:
        _unhook(run.model_wrapped)


def _shard(make: Callable[[], Optimizer]) -> OSS:
    """Return the optimizer's work, shared out: the same class and options on each process's part of the weights."""
    optimizer = make()
    if isinstance(optimizer, OSS):  # a trainer that trains once more
        return optimizer
    return OSS(optimizer.param_groups, optim=type(optimizer), **options_to_share(optimizer, "ShardedDDP"))


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
    if isinstance(scaler, torch.amp.GradScaler) and not isinstance(scaler, ShardedGradScaler):
        # Each process sees overflows in its own share only, and all must leave out the same steps.
        device, group = run.args.device.type, optimizer.group
        run.seams.scaler = ShardedGradScaler(device, init_scale=scaler.get_scale(), process_group=group)
    _unhook(run.model_wrapped)
    # Without buffers a gradient is its weight's own, and may be None as under DDP. What is trained is followed here.
    wrapped: nn.Module = ShardedDataParallel(model, optimizer, reduce_buffer_size=0, auto_refresh_trainable=False)
    return wrapped


def _unhook(wrapped: Any) -> None:
    """Take the hooks off the weights, which would reduce gradients beside those of the next one that wraps them."""
    if isinstance(wrapped, ShardedDataParallel):
        for hook in wrapped._grad_hooks:
            hook.remove()
        for kept in (wrapped._grad_hooks, wrapped._grad_accs, wrapped._manual_reduce):
            kept.clear()


class _Gradients:
    """Averages the gradients of a step when all of them are there, each for the process that updates its weight.

    fairscale would send each as soon as it is there. Processes that do not use the same weights would then send
    different ones, or in another order, and mix them up or wait for each other.
    """

    def __init__(self, run: Run, wrapping: Wrapping) -> None:
        self.run, self.ranks, self.wrapping = run, run.ranks, wrapping
        self.used: list[nn.Parameter] = []
        """The weights that some process used in this step, in the model's order."""
        self.measured: set[int] = set()
        """The ids of those whose gradient this process measures."""

    @contextmanager
    def synchronise(self, wrapped: Any, last: bool) -> Iterator[None]:
        """Keep gradients on their process until the last batch of a step is done, and average them then."""
        with self.wrapping.watched(wrapped.no_sync(), last):
            yield
        if last:
            self._average(wrapped)

    @torch.no_grad()
    def _average(self, wrapped: Any) -> None:
        """Give each process the averages of its share, and None for the others; a weight that nobody used keeps None.

        A weight that the optimizer does not have is nobody's, and averaged for all: it counts for the norm.
        """
        weights = [weight for weight in self.wrapping.weights if weight.requires_grad]
        here = torch.tensor([float(weight.grad is not None) for weight in weights], device=self.run.device)
        anywhere = self.ranks.sum(here).tolist()
        self.used = [weight for weight, processes in zip(weights, anywhere) if processes]
        reduce = dict(zip(wrapped._trainable_params, wrapped._manual_reduce))
        owner = wrapped._trainable_param_to_rank
        self.measured = {id(weight) for weight in self.used if owner.get(weight, 0) == self.ranks.rank}
        wrapped._bucket_flush_callback_set = True  # it is done with below
        for weight in self.used:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            if weight.grad.is_sparse:
                raise ModelError(
                    "ShardedDDP averages dense gradients only: make embeddings with `sparse=False`, or leave out "
                    "`sharded_ddp`."
                )
            if weight in reduce:
                reduce[weight]()
            else:
                weight.grad.copy_(self.ranks.sum(weight.grad.div_(self.ranks.world_size)))
        wrapped._consume_work_handles()
        wrapped._grad_to_be_reduced = [False] * len(wrapped._trainable_params)

    def clip(self, optimizer: Any, parameters: list[nn.Parameter], max_norm: float) -> torch.Tensor:
        """Clip gradients of which each process has its own share.

        The norms of the single gradients are exchanged, not their sum, so that the whole norm is added up as torch adds
        it, and comes out with the same bits.
        """
        if not self.used:
            return torch.zeros((), device=self.run.device)
        norms = [
            parameter.new_zeros(())
            if parameter.grad is None or id(parameter) not in self.measured
            else torch.linalg.vector_norm(parameter.grad)
            for parameter in self.used
        ]
        total: torch.Tensor = torch.linalg.vector_norm(self.ranks.sum(torch.stack(norms)))
        if max_norm > 0:
            nn.utils.clip_grads_with_norm_([p for p in self.used if p.grad is not None], max_norm, total)
        return total


def _whole_state(args: TrainingArguments) -> Callable[[Any], dict[str, Any]]:
    def whole_state(optimizer: Any) -> dict[str, Any]:
        optimizer.consolidate_state_dict(-1 if args.save_on_each_node else 0)  # to all, or to the first
        state: dict[str, Any] = optimizer.state_dict() if args.should_save else {}
        optimizer._all_states.clear()  # it would keep all that it gathered until it gathers again
        return state

    return whole_state
