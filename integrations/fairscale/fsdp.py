"""fairscale's FullyShardedDataParallel: weights, gradients and optimizer states split over the processes, on CUDA."""

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
from ...callbacks.precision.half_evaluation import HalfEvaluation
from ...callbacks.precision.mixed_precision import MixedPrecision
from ...engine.arguments import TrainingArguments
from ...engine.optim.registry import is_shape_dependent
from ...engine.run import Run
from ...engine.seams import load_model
from ...events.errors import ArgumentError
from ...events.stages import Stage, order
from .fsdp_units import (
    Unit,
    gathered_state,
    gathered_weights,
    load_state,
    make_ready,
    plain_name,
    release,
    rest,
    split,
)

LEAVE_OUT = "leave the word 'fairscale' out, and PyTorch's FSDP2 does the same"
"""What helps wherever this does not."""


def has_cuda(device: torch.device) -> bool:
    """Say whether fairscale finds on a device the streams that it works with."""
    return device.type == "cuda"


@dataclass
class FairscaleFSDP(ShardedModel):
    """Splits the weights over the processes by fairscale, with their gradients and optimizer states (ZeRO 2 and 3).

    It is what `sharded_ddp='zero_dp_3'` meant once, and works on CUDA only; `FSDP` is PyTorch's own, works everywhere
    and with more beside it. The model stays split after the run: the trainer evaluates, predicts and trains on with it,
    and saves it whole. The optimizer is one that treats each number for itself, as AdamW and SGD do. Start with
    `torchrun --nproc_per_node=N`.

    `fp16` means what it means without it: float32 weights, and autocast.
    """

    arguments = ("sharded_ddp",)

    bucket_cap_mb: int = 25
    """MiB of small gradients that are sent at once, from buffers that stay until the update; 0 sends each by itself."""
    _root: Unit | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> FairscaleFSDP | None:
        if args.way_to_shard != "fairscale_fsdp":
            return None
        _refuse_without_cuda(args.device)
        words = args.sharded_ddp_words
        return cls(
            wrap=None if "auto_wrap" in words else (),
            reshard_after_forward="zero_dp_3" in words,
            offload="offload" in words,
        )

    def on_setup(self, run: Run) -> None:
        self._check(run)
        training = run.mode == "train"
        if training:
            run.seams.fill(
                "FairscaleFSDP",
                prepare_model=lambda model: self._split(run, model),
                wrap_model=lambda model, optimizer: self._wrapped(run, optimizer),
                synchronise=synchronise_last,
                clip=self._clip,
                optimizer_state=gathered_state(run.args.device, run.ranks, run.args.should_save),
                load_optimizer=lambda optimizer, state: load_state(self._whole)(optimizer, state),
            )
        else:
            self._split(run, run.model)
            run.model_wrapped = self._whole
        run.seams.fill("FairscaleFSDP", model_state=lambda model: self._model_state(run, model), load_model=_load)

    def _check(self, run: Run) -> None:
        self.refuse_unsplittable(run)
        args = run.args
        _refuse_without_cuda(args.device)
        others = [*run.bus.subscribers.values()]
        if args.bf16 or any(isinstance(other, MixedPrecision) and other.dtype == "bf16" for other in others):
            raise ArgumentError(f"FairscaleFSDP is not supported with bf16; {LEAVE_OUT}.")
        for kind, why in (
            (EMA, f"would save the average of one process's part only; {LEAVE_OUT}."),
            (Compile, f"compiles a model whose weights keep their places; {LEAVE_OUT}."),
            (HalfEvaluation, "turns whole weights to half precision, and FairscaleFSDP splits them: leave it out."),
        ):
            if any(isinstance(other, kind) for other in others):
                raise ArgumentError(f"{kind.__name__} does not go with FairscaleFSDP: it {why}")
        if getattr(args, "predict_with_generate", False):
            raise ArgumentError(
                "`predict_with_generate` uses weights outside of forward, where FairscaleFSDP has parts of them; "
                f"{LEAVE_OUT}."
            )

    def has_parts(self, run: Run) -> bool:
        return all(hasattr(weight, "_is_sharded") for group in run.optimizer.param_groups for weight in group["params"])

    @property
    def _whole(self) -> Unit:
        assert self._root is not None
        return self._root

    def _split(self, run: Run, model: nn.Module) -> nn.Module:
        if self._root is None or self._root.module.module is not model:
            self._root = split(
                model,
                blocks_of(model, self.wrap),
                run.args.device,
                offload=self.offload,
                reshard=self.reshard_after_forward,
                bucket_mb=self.bucket_cap_mb,
            )
        make_ready(self._root)
        if run.mode != "train":
            send_buffers(model)
        return model

    def _wrapped(self, run: Run, optimizer: Optimizer | None) -> Unit:
        _refuse_shaped(type(optimizer).__name__)
        scaler = run.seams.scaler
        if isinstance(scaler, torch.amp.GradScaler):
            # Each process sees overflows in its own parts only, and all must leave out the same steps.
            device, group = run.args.device.type, dist.group.WORLD
            run.seams.scaler = _Scaler(device, init_scale=scaler.get_scale(), process_group=group)
        return self._whole

    def _clip(self, optimizer: Any, parameters: list[nn.Parameter], max_norm: float) -> torch.Tensor:
        norm: torch.Tensor = self._whole.clip_grad_norm_(max_norm or inf)  # to infinity: only measured
        return norm

    def _model_state(self, run: Run, model: nn.Module) -> dict[str, torch.Tensor]:
        return gathered_weights(self._whole, run.args.device, run.ranks, run.args.should_save)(model)

    @order(Stage.PREPARE)
    def on_evaluate_end(self) -> None:
        rest(self._whole)

    @order(Stage.PREPARE)
    def on_exception(self) -> None:
        if self._root is not None:
            rest(self._root, failed=True)
            make_ready(self._root)

    def on_close(self) -> None:
        if self._root is not None:
            rest(self._root)

    def on_end(self) -> None:
        self._root = None
        release()


class _Scaler(ShardedGradScaler):
    """Has all processes leave out a step in which one of them found an overflow, with fused optimizers too."""

    def unscale_(self, optimizer: Optimizer) -> None:
        super().unscale_(optimizer)
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        # A fused optimizer subtracts this number from its count of steps, which has no dimension.
        found.update({device: overflow.reshape(()) for device, overflow in found.items()})


def _refuse_without_cuda(device: torch.device) -> None:
    if not has_cuda(device):
        raise ArgumentError(
            f"fairscale's FullyShardedDataParallel works on CUDA only, and this run is on {device.type}: {LEAVE_OUT}."
        )


def _refuse_shaped(kind: str) -> None:
    """Refuse an optimizer that would do something else to parts than to whole weights."""
    if is_shape_dependent(kind):
        raise ArgumentError(
            f"{kind} looks at the shape of a weight, and with FairscaleFSDP each process has a flat part of it: take "
            "another optimizer, as 'adamw_torch', or leave FairscaleFSDP out."
        )


def _load(model: nn.Module, state: dict[str, torch.Tensor]) -> tuple[list[str], list[str]]:
    missing, unexpected = load_model(model, state)
    return [*map(plain_name, missing)], [*map(plain_name, unexpected)]
