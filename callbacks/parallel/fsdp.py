"""Split weights, gradients and optimizer states over processes: PyTorch's FSDP2."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from torch import nn
from torch.utils.checkpoint import checkpoint

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.capabilities import Capability
from ...events.errors import ArgumentError, ModelError
from ...events.stages import Stage, order
from ..model.blocks import blocks_of
from ..model.forwards import replace_forward
from ..precision.exact_fused_update import exact_fused_update
from ..precision.half_evaluation import HalfEvaluation
from ..precision.mixed_precision import DTYPES
from .ddp import send_buffers
from .sharded_model import ShardedModel
from .split_weights import clip_parts, gathered_state, gathered_weights
from .wrapping import trainable

logger = logging.getLogger(__name__)


@dataclass
class FSDP(ShardedModel):
    """Splits the weights over the processes, with their gradients and optimizer states (ZeRO stages 2 and 3).

    A block of the model is gathered when it computes. The model stays split after the run, and is evaluated, saved and
    trained on as such; it is saved whole. In each step all processes must use the same weights. Start with
    `torchrun --nproc_per_node=N`.

    `bf16` and `fp16` mean what they mean without it: float32 weights, and autocast.
    """

    arguments = ("fsdp", "fsdp_config", "sharded_ddp", "sharding", "sharding_degree")
    capabilities = ShardedModel.capabilities | {Capability.FSDP}

    degree: int | None = None
    """How many processes share one copy of the weights, as those of one machine; None for all."""
    mixed_precision: Literal["bf16", "fp16"] | None = None
    """Gather the weights and compute in half precision, beyond what autocast does; gradients add up in float32."""
    activation_checkpointing: bool = False
    """Compute the activations of each block again in the backward pass instead of keeping them."""
    whole_optimizer: bool = False
    """Gather the optimizer's state when it is saved, into one file, instead of writing one for each process."""
    exact: bool | None = None
    """Reach DDP's weights to the last bit: gradients are gathered once more to measure their norm, and fused updates
    round as those of whole weights. None does so on the CPU only, where bits are compared and speed is not sought."""
    _trained: list[bool] | None = field(default=None, init=False, repr=False, compare=False)
    _was_empty: bool = field(default=False, init=False, repr=False, compare=False)
    _undo: list[Callable[[], None]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree is not None and self.degree < 2:
            raise ArgumentError(f"FSDP(degree={self.degree}): at least 2 processes share the weights, or None for all.")
        if self.mixed_precision is not None and self.mixed_precision not in DTYPES:
            raise ArgumentError(f"FSDP(mixed_precision={self.mixed_precision!r}): it is 'bf16', 'fp16' or None.")
        # Imported while there is no process group: some of torch's functions would hold that as a default.
        assert self._torchs

    @property
    def _torchs(self) -> Any:
        """What does the work: it takes a second to import, which only those who split wait for."""
        from . import fully_shard

        return fully_shard

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> FSDP | None:
        if args.way_to_shard != "fsdp" or args.world_size == 1:
            if args.sharding_degree == 1 and args.world_size > 1:
                logger.warning("`sharding_degree=1` splits nothing: each process holds all, as with DDP.")
            return None
        wanted = args.splitting
        if wanted.ignored and args.should_log:
            logger.warning("fsdp_config: %s: of no effect with FSDP2; leave it out.", ", ".join(wanted.ignored))
        degree = args.sharding_degree
        if wanted.within_node and degree == -1:
            degree = int(os.environ.get("LOCAL_WORLD_SIZE", args.world_size))
        return cls(
            wrap=wanted.wrap,
            reshard_after_forward=wanted.reshard_after_forward,
            offload=wanted.offload,
            degree=None if degree in (-1, args.world_size) else degree,
            mixed_precision=wanted.mixed_precision,  # type: ignore[arg-type]
            activation_checkpointing=wanted.activation_checkpointing,
            whole_optimizer=wanted.whole_optimizer,
        )

    def on_setup(self, run: Run) -> None:
        self._check(run)
        device, saves = run.args.device, run.args.should_save
        run.seams.fill("FSDP", model_state=gathered_weights(device, saves))
        if run.mode != "train":
            self._split(run, run.model)
            send_buffers(run.model)
            return
        run.seams.fill(
            "FSDP",
            prepare_model=partial(self._split, run),
            synchronise=self._synchronise,
            clip=clip_parts(run.ranks, device, self._is_exact(run)),
        )
        if self.whole_optimizer:
            run.seams.fill("FSDP", optimizer_state=gathered_state(device, saves))

    def _check(self, run: Run) -> None:
        self.refuse_unsplittable(run)
        world = run.ranks.world_size
        if self.degree is not None and world % self.degree:
            raise ArgumentError(f"FSDP(degree={self.degree}) does not divide the {world} processes of this run.")
        if any(isinstance(callback, HalfEvaluation) for callback in run.bus.subscribers.values()):
            raise ArgumentError(
                "`bf16_full_eval` and `fp16_full_eval` turn whole weights to half precision, and FSDP splits them: "
                "leave them out; `fsdp_config={'mixed_precision': 'bf16'}` computes in half precision throughout."
            )
        if self.mixed_precision == "fp16" and not run.args.fp16:
            raise ArgumentError(
                "FSDP(mixed_precision='fp16') needs a scaled loss, or gradients vanish: give `fp16=True`, or 'bf16'."
            )

    def _is_exact(self, run: Run) -> bool:
        return run.args.device.type == "cpu" if self.exact is None else self.exact

    def has_parts(self, run: Run) -> bool:
        own = {*run.model.parameters()}
        return self._torchs.is_split_model(run.model) and all(
            weight in own for group in run.optimizer.param_groups for weight in group["params"]
        )

    def _split(self, run: Run, model: nn.Module) -> nn.Module:
        work, device = self._torchs, run.args.device
        blocks = blocks_of(model, self.wrap)
        if self.activation_checkpointing and run.mode == "train":
            for block in blocks:
                recomputed = partial(checkpoint, block.forward, use_reentrant=False)
                self._undo.append(replace_forward(block, recomputed))
        if not work.is_split_model(model):
            half = None if self.mixed_precision is None else DTYPES[self.mixed_precision]
            mesh = work.mesh_of(device, run.ranks.world_size, self.degree)
            self._was_empty = any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
            work.split(model, blocks, work.Way(device, mesh, self.reshard_after_forward, self.offload, half), run.ranks)
            self._trained = trainable(model.parameters())
        return model

    def _synchronise(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        self._torchs.synchronise(model, last)
        return nullcontext()

    @order(Stage.PREPARE)
    def on_train_begin(self, run: Run, model: nn.Module) -> None:
        if self._is_exact(run):
            self._undo.append(exact_fused_update(run.optimizer))
        if not any(run.ranks.gather_objects(self._was_empty)):
            return
        self._was_empty = False
        lacking = sorted(
            {name for names in run.ranks.gather_objects(self._torchs.never_filled(model)) for name in names}
        )
        if lacking:
            raise ModelError(
                f"The model was made on the meta device, and nothing gave values to {', '.join(lacking[:20])}: give "
                "their modules a `reset_parameters`, resume from a checkpoint, or make the model elsewhere."
            )

    @order(Stage.PREPARE)
    def on_step_begin(self, model: nn.Module) -> None:
        trained = trainable(model.parameters())
        if trained != self._trained:
            self._torchs.follow_trainable(model)
            self._trained = trained

    @order(Stage.PREPARE)
    def on_evaluate_end(self, model: nn.Module) -> None:
        self._torchs.together_again(model)

    @order(Stage.PREPARE)
    def on_exception(self, model: nn.Module) -> None:
        self._torchs.together_again(model, failed=True)

    def on_close(self, model: nn.Module) -> None:
        undo, self._undo = self._undo, []
        for step in undo:
            step()
        self._torchs.together_again(model)

    def on_end(self) -> None:
        self._torchs.release()
