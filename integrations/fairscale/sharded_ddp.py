"""Shard optimizer states and gradients over the ranks: fairscale's OSS and ShardedDataParallel."""

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
from ...events.capabilities import Capability
from ...events.errors import ArgumentError, ModelError
from ...events.stages import Stage, order


class TensorSync(ShardedDataParallel):  # type: ignore[misc]
    """fairscale's wrapper, with a change: when the wrapper is built, rank 0 sends only the tensors of the state dict.

    fairscale itself sends every value of the state dict, and fails if a module's extra state is not a tensor. With this
    class, each rank keeps its own extra state, as with DDP.
    """

    def _sync_params_and_buffers(self) -> None:
        values = self.module.state_dict().values()
        for tensor in (value for value in values if isinstance(value, torch.Tensor)):
            torch.distributed.broadcast(tensor, self._reference_global_rank, group=self._process_group)


@dataclass
class ShardedDDP(Callback):
    """Trains with fairscale. Each rank holds one shard of optimizer state and gradients (ZeRO stages 1 and 2).

    Set `sharded_ddp="simple"` in the arguments, or add `ShardedDDP()` to the callbacks, and start the program with
    `torchrun --nproc_per_node=N`. Training reaches the same weights as with DDP.

    Raises:
        ArgumentError: if the program runs in a single process, if you pass an optimizer object, or if the optimizer
            cannot be sharded.
        ModelError: if fairscale assigns all weights to one rank, for example the only weight of a model; if the weights
            have several dtypes; or if a gradient is sparse.
    """

    stage = Stage.PREPARE
    arguments = ("sharded_ddp",)
    instead_of = (DDP,)
    capabilities = frozenset({Capability.KEEPS_GROUPS})

    _wrapping: Wrapping | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> ShardedDDP | None:
        return cls() if args.way_to_shard == "fairscale" else None

    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            return
        if run.ranks.single_process:
            raise ArgumentError(
                "Using sharded DDP only works in distributed training, but this is a single process: start the program "
                "with torchrun --nproc_per_node=N."
            )
        refuse_optimizer(run, OSS, "ShardedDDP")
        self._wrapping = Wrapping(run, partial(_wrap, run))
        gradients = _Gradients(run, self._wrapping)
        run.seams.fill(
            "ShardedDDP",
            make_optimizer=_shard_optimizer,
            wrap_model=self._wrapping.wrap,
            synchronise=gradients.synchronise,
            clip=gradients.clip,
            full_gradients=gradients.gather,
            optimizer_state=_full_state(run.args),
        )

    @order(Stage.RELEASE)
    def on_step_begin(self, run: Run) -> None:
        if self._wrapping is not None:
            self._wrapping.follow()  # after the callbacks that freeze or unfreeze weights
            # fairscale skips this in `no_sync()`, which every forward uses here.
            wrapped: Any = run.model_wrapped
            wrapped.sync_buffers(blocking=True)

    def on_train_end(self, run: Run) -> None:
        send_buffers(run.model)

    def on_close(self, run: Run) -> None:
        _remove_hooks(run.model_wrapped)


def _shard_optimizer(make: Callable[[], Optimizer]) -> OSS:
    """Build fairscale's optimizer OSS. On each rank, OSS updates one shard of the weights.

    OSS gets the class, the options and the groups of the optimizer that `make` builds. If `make` returns an OSS of an
    earlier session, the function returns this OSS.
    """
    optimizer = make()
    if isinstance(optimizer, OSS):  # the trainer has trained before
        return optimizer
    return OSS(optimizer.param_groups, optim=type(optimizer), **options_to_share(optimizer, "ShardedDDP"))


def _wrap(run: Run, model: nn.Module, optimizer: Any) -> nn.Module:
    sizes = [
        sum(weight.numel() for group in part for weight in group["params"]) for part in optimizer.partition_parameters()
    ]
    if max(sizes) == sum(sizes):
        raise ModelError(
            f"ShardedDDP assigns full weights to ranks, but {type(model).__name__} has too few weights for that: leave "
            "`sharded_ddp` out."
        )
    scaler = run.seams.scaler
    if isinstance(scaler, torch.amp.GradScaler) and not isinstance(scaler, ShardedGradScaler):
        # A rank sees overflows in its own shard only, and all ranks must skip the same steps.
        device, group = run.args.device.type, optimizer.group
        run.seams.scaler = ShardedGradScaler(device, init_scale=scaler.get_scale(), process_group=group)
    _remove_hooks(run.model_wrapped)
    # Without buffers a gradient belongs to its weight, and may be None as with DDP. `Wrapping.follow` replaces the
    # automatic refresh of trainable weights.
    wrapped: nn.Module = TensorSync(model, optimizer, reduce_buffer_size=0, auto_refresh_trainable=False)
    return wrapped


def _remove_hooks(wrapped: Any) -> None:
    """Remove the gradient hooks of `wrapped`, if it is a `ShardedDataParallel`.

    A new wrapper of the same model adds new hooks. With the old hooks too, the ranks would reduce each gradient twice.
    """
    if isinstance(wrapped, ShardedDataParallel):
        for hook in wrapped._grad_hooks:
            hook.remove()
        for kept in (wrapped._grad_hooks, wrapped._grad_accs, wrapped._manual_reduce):
            kept.clear()


class _Gradients:
    """Averages the gradients over the ranks at the end of a step.

    All ranks send the gradients in the same order, after the last backward of the step. fairscale itself sends each
    gradient during backward. If two ranks used different parameters in forward, their orders would differ. The ranks
    would then mix up the gradients, or wait for each other.
    """

    def __init__(self, run: Run, wrapping: Wrapping) -> None:
        self.run, self.ranks, self.wrapping = run, run.ranks, wrapping
        self.used: list[nn.Parameter] = []
        """The weights that any rank used in this step, in the order of the model."""
        self.measured: set[int] = set()
        """The ids of the weights whose gradient norm this rank computes."""
        self.averaged = False
        """Whether the gradients of the current step are averaged."""

    @contextmanager
    def synchronise(self, wrapped: Any, last: bool) -> Iterator[None]:
        """Prevent fairscale from sending gradients inside a `with` block.

        Args:
            wrapped: the model in fairscale's wrapper.
            last: whether the block computes the last batch of a step. If True, average the gradients over the ranks
                when the block ends.
        """
        self.averaged = False
        with self.wrapping.watched(wrapped.no_sync(), last):
            yield
        if last:
            self._average(wrapped)
            self.averaged = True

    @torch.no_grad()
    def _average(self, wrapped: Any) -> None:
        """Average the gradients of the step over the ranks.

        - A weight in the optimizer: the rank that updates the weight gets the average. On all other ranks, the gradient
          becomes None.
        - A weight that is not in the optimizer: all ranks get the average, for the total norm of the gradients.
        - A weight that no rank used: the gradient stays None.

        Raises:
            ModelError: if a gradient is sparse.
        """
        weights = [weight for weight in self.wrapping.weights if weight.requires_grad]
        used_here = torch.tensor([float(weight.grad is not None) for weight in weights], device=self.run.device)
        uses = self.ranks.sum(used_here).tolist()
        self.used = [weight for weight, ranks in zip(weights, uses) if ranks]
        reduce = dict(zip(wrapped._trainable_params, wrapped._manual_reduce))
        owner = wrapped._trainable_param_to_rank
        self.measured = {id(weight) for weight in self.used if owner.get(weight, 0) == self.ranks.rank}
        wrapped._bucket_flush_callback_set = True  # the handles are consumed below
        for weight in self.used:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            if weight.grad.is_sparse:
                raise ModelError(
                    "ShardedDDP averages dense gradients only: build embeddings with `sparse=False`, or leave "
                    "`sharded_ddp` out."
                )
            if weight in reduce:
                reduce[weight]()
            else:
                weight.grad.copy_(self.ranks.sum(weight.grad.div_(self.ranks.world_size)))
        wrapped._consume_work_handles()
        wrapped._grad_to_be_reduced = [False] * len(wrapped._trainable_params)

    @torch.no_grad()
    def gather(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """Gather the averaged gradients on every rank, by name of the weight. Every rank must call this method.

        Weights that no rank used in this step are left out.
        """
        used = {id(weight) for weight in self.used}
        return {
            name: self.ranks.sum(
                weight.grad.clone()
                if weight.grad is not None and id(weight) in self.measured
                else torch.zeros_like(weight)
            )
            for name, weight in model.named_parameters()
            if id(weight) in used
        }

    def clip(self, optimizer: Any, parameters: list[nn.Parameter], max_norm: float) -> torch.Tensor:
        """Clip gradients that are sharded over the ranks, and return their total norm before clipping.

        Each rank receives the norm of every gradient, and combines the norms in the same order as torch. So the total
        norm equals the total norm of torch bit for bit. All ranks must pass the same parameters.

        Raises:
            ArgumentError: if the gradients of this step are not averaged yet. They are averaged after `training_step`.
        """
        if not self.averaged:
            raise ArgumentError(
                "ShardedDDP averages the gradients after `training_step`, so a training step cannot clip them. Set "
                "`max_grad_norm`, or call `accelerator.clip_grad_norm_` in a handler of `on_gradients`."
            )
        given = {id(parameter) for parameter in parameters}
        used = [parameter for parameter in self.used if id(parameter) in given]
        if not used:
            return torch.zeros((), device=self.run.device)
        norms = [
            parameter.new_zeros(())
            if parameter.grad is None or id(parameter) not in self.measured
            else torch.linalg.vector_norm(parameter.grad)
            for parameter in used
        ]
        total: torch.Tensor = torch.linalg.vector_norm(self.ranks.sum(torch.stack(norms)))
        if max_norm > 0:
            nn.utils.clip_grads_with_norm_([p for p in used if p.grad is not None], max_norm, total)
        return total


def _full_state(args: TrainingArguments) -> Callable[[Any], dict[str, Any]]:
    def full_state(optimizer: Any) -> dict[str, Any]:
        optimizer.consolidate_state_dict(-1 if args.save_on_each_node else 0)  # on all ranks, or on rank 0
        state: dict[str, Any] = optimizer.state_dict() if args.should_save else {}
        optimizer._all_states.clear()  # otherwise it keeps the gathered states until the next save
        return state

    return full_state
