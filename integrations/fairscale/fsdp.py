"""Shard weights, gradients and optimizer states over the ranks, on CUDA: fairscale's FullyShardedDataParallel."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.optim import Optimizer

from ...callbacks.model.blocks import blocks_of
from ...callbacks.model.compile_model import Compile
from ...callbacks.model.ema import EMA
from ...callbacks.parallel.ddp import send_buffers, synchronise_last
from ...callbacks.parallel.sharded_model import ShardedModel
from ...callbacks.precision.mixed_precision import MixedPrecision
from ...engine.arguments import TrainingArguments
from ...engine.optim.registry import is_shape_dependent
from ...engine.run import Run
from ...engine.seams import load_model
from ...events.callback import Callback
from ...events.capabilities import Conflict
from ...events.errors import ArgumentError, ModelError
from ...events.stages import Stage, order
from .fsdp_units import (
    FSDPUnit,
    free_full_weights,
    gather_optimizer_state,
    gather_weights,
    init_units,
    load_optimizer_state,
    plain_name,
    release_process_groups,
    shard_model,
)

USE_FSDP2 = "remove the word 'fairscale' to use PyTorch's FSDP2, which does the same"
"""The end of most errors of this module: what to do."""


def has_cuda(device: torch.device) -> bool:
    """Return whether a device is a CUDA device. fairscale's FSDP works on CUDA devices only."""
    return device.type == "cuda"


@dataclass
class FairscaleFSDP(ShardedModel):
    """Shards weights, gradients and optimizer states over the ranks with fairscale (ZeRO stages 2 and 3).

    Set `sharded_ddp="zero_dp_3 fairscale"` in the arguments to use the callback, and start the program with
    `torchrun --nproc_per_node=N`. This callback works on CUDA only. The callback `FSDP` is the better choice for most
    runs. `FSDP` uses PyTorch's FSDP2, works on every device and supports more features. To select `FSDP`, leave out the
    word `fairscale`: `sharded_ddp="zero_dp_3"`.

    After the run, the model stays sharded, and evaluation, prediction and further training use the sharded model.
    Checkpoints hold full weights. The optimizer must compute the update of each element from this element alone, as
    AdamW and SGD do. With `fp16=True`, the weights stay float32 and autocast computes in half precision, as without
    sharding. `bf16=True` is not supported.

    Raises:
        ArgumentError: in a single process, on a device other than CUDA, for an optimizer that depends on the shape of a
            weight, or for a setting that is not supported.
        ModelError: if a weight is not float32 or is on the meta device, or if another trainer has sharded the model.
    """

    arguments = ("sharded_ddp",)
    conflicts_with = (
        Conflict(EMA, f"the average would cover the shard of one rank only; {USE_FSDP2}."),
        Conflict(Compile, f"compiled code needs weights that keep their storage; {USE_FSDP2}."),
    )

    bucket_cap_mb: int = 25
    """The size of a bucket, in MiB. The ranks reduce the small gradients of a bucket together. 0: no buckets. The
    memory of a bucket is freed after the update of the weights."""
    _root: FSDPUnit | None = field(default=None, init=False, repr=False, compare=False)
    """The outermost unit, which wraps the model."""

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> FairscaleFSDP | None:
        if args.way_to_shard != "fairscale_fsdp":
            return None
        _require_cuda(args.device)
        words = args.sharded_ddp_words
        return cls(
            wrap=None if "auto_wrap" in words else (),
            reshard_after_forward="zero_dp_3" in words,
            offload="offload" in words,
        )

    def conflict_with(self, other: Callback) -> str:
        if isinstance(other, MixedPrecision) and other.dtype == "bf16":
            return f"its bf16 is not supported; {USE_FSDP2}."
        return super().conflict_with(other)

    def on_setup(self, run: Run) -> None:
        self._check(run)
        device, ranks, saves = run.args.device, run.ranks, run.args.should_save
        if run.mode == "train":
            run.seams.fill(
                "FairscaleFSDP",
                prepare_model=lambda model: self._shard(run, model),
                wrap_model=lambda model, optimizer: self._wrap(run, optimizer),
                synchronise=synchronise_last,
                clip=self._clip,
                full_gradients=_refuse_full_gradients,
                optimizer_state=lambda optimizer: gather_optimizer_state(optimizer, device, ranks, saves),
                load_optimizer=lambda optimizer, state: load_optimizer_state(self._wrapped, optimizer, state),
            )
        else:
            self._shard(run, run.model)
            run.wrap(self._wrapped)
        run.seams.fill(
            "FairscaleFSDP",
            model_state=lambda model: gather_weights(self._wrapped, model, device, ranks, saves),
            load_model=_load_weights,
        )

    def _check(self, run: Run) -> None:
        self.check_shardable(run)
        args = run.args
        _require_cuda(args.device)
        if getattr(args, "predict_with_generate", False):
            raise ArgumentError(
                "`predict_with_generate` uses weights outside of forward, where FairscaleFSDP holds shards only; "
                f"{USE_FSDP2}."
            )

    def holds_shards(self, run: Run) -> bool:
        return all(hasattr(weight, "_is_sharded") for group in run.optimizer.param_groups for weight in group["params"])

    @property
    def _wrapped(self) -> FSDPUnit:
        assert self._root is not None
        return self._root

    def _shard(self, run: Run, model: nn.Module) -> nn.Module:
        if self._root is None or self._root.module.module is not model:
            self._root = shard_model(
                model,
                blocks_of(model, self.wrap),
                run.args.device,
                offload=self.offload,
                reshard=self.reshard_after_forward,
                bucket_mb=self.bucket_cap_mb,
            )
        init_units(self._root)
        if run.mode != "train":
            send_buffers(model)
        return model

    def _wrap(self, run: Run, optimizer: Optimizer | None) -> FSDPUnit:
        _require_elementwise(type(optimizer).__name__)
        scaler = run.seams.scaler
        if isinstance(scaler, torch.amp.GradScaler):
            # A rank sees overflows in its own shards only, and all ranks must skip the same steps.
            device, group = run.args.device.type, dist.group.WORLD
            run.seams.scaler = _GradScaler(device, init_scale=scaler.get_scale(), process_group=group)
        return self._wrapped

    def _clip(self, optimizer: Any, parameters: list[nn.Parameter], max_norm: float) -> torch.Tensor:
        given = {id(weight) for weight in parameters}
        others = [(weight, weight.grad) for weight in self._wrapped.params_with_grad if id(weight) not in given]
        for weight, _ in others:  # fairscale clips all weights with a gradient
            weight.grad = None
        norm: torch.Tensor = self._wrapped.clip_grad_norm_(max_norm or inf)  # infinity only measures
        for weight, gradient in others:
            weight.grad = gradient
        return norm

    @order(Stage.PREPARE)
    def on_evaluate_end(self) -> None:
        free_full_weights(self._wrapped)

    @order(Stage.PREPARE)
    def on_exception(self) -> None:
        if self._root is not None:
            free_full_weights(self._root, failed=True)
            init_units(self._root)

    def on_close(self) -> None:
        if self._root is not None:
            free_full_weights(self._root)

    def on_end(self) -> None:
        self._root = None
        release_process_groups()


class _GradScaler(ShardedGradScaler):
    """fairscale's loss scaler for sharded gradients, changed so that it works with fused optimizers.

    If one rank finds an overflow, all ranks skip the step.
    """

    def unscale_(self, optimizer: Optimizer) -> None:
        super().unscale_(optimizer)
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        # A fused optimizer subtracts this number from its step, which is a tensor without a dimension.
        found.update({device: overflow.reshape(()) for device, overflow in found.items()})


def _require_cuda(device: torch.device) -> None:
    if not has_cuda(device):
        raise ArgumentError(
            f"fairscale's FullyShardedDataParallel works on CUDA only, but this run is on {device.type}: {USE_FSDP2}."
        )


def _require_elementwise(kind: str) -> None:
    """Raise an `ArgumentError` if optimizers of the class `kind` give other results on shards than on full weights."""
    if is_shape_dependent(kind):
        raise ArgumentError(
            f"{kind} depends on the shape of a weight, and with FairscaleFSDP each rank has a flat shard of it: use "
            "another optimizer, such as 'adamw_torch', or leave FairscaleFSDP out."
        )


def _load_weights(model: nn.Module, state: dict[str, torch.Tensor]) -> tuple[list[str], list[str]]:
    missing, unexpected = load_model(model, state)
    return [*map(plain_name, missing)], [*map(plain_name, unexpected)]


def _refuse_full_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    raise ModelError(
        "`run.full_gradients()` does not work with FairscaleFSDP, which keeps flat shards of the gradients; "
        f"{USE_FSDP2}."
    )
