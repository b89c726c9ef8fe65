"""Shard weights, gradients and optimizer state over ranks: PyTorch's FSDP2."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from torch import nn

from ...engine.arguments import TrainingArguments
from ...engine.distributed.strategies import Strategy
from ...engine.run import Run
from ...events.capabilities import Capability
from ...events.errors import ArgumentError, ModelError
from ...events.stages import Stage, order
from ..model.blocks import blocks_of
from ..model.forwards import recomputed, replace_forward
from ..precision.exact_fused_update import exact_fused_update
from ..precision.mixed_precision import DTYPES
from .ddp import send_buffers
from .sharded_model import ShardedModel
from .split_weights import clip_shards, gathered_gradients, gathered_state, gathered_weights
from .wrapping import trainable

logger = logging.getLogger(__name__)


@dataclass
class FSDP(ShardedModel):
    """Shards weights, gradients and optimizer state over the ranks (ZeRO stages 2 and 3).

    Set `fsdp=True` in the arguments, or add `FSDP()` to the callbacks, and start the program with
    `torchrun --nproc_per_node=N`. The field `wrap` divides the model into units. FSDP gathers the weights of a unit
    when this unit computes. In each step, all ranks must compute with the same units, because all ranks gather each
    unit together. Checkpoints hold whole weights. After the run, the model stays sharded, and evaluation, saving and
    further training use the sharded model.

    With `bf16=True` or `fp16=True`, the weights stay float32 and autocast computes in half precision, as without
    sharding.

    Raises:
        ArgumentError: if there is only one process, or if `degree` is below 2 or does not divide the world size. Also
            if `mixed_precision` is unknown, or is `fp16` without the argument `fp16=True`. Also if the user passed an
            optimizer object instead of its class and options, or if `auto_find_batch_size` is True.
        ModelError: if a weight cannot be sharded, or if a weight of a model on the meta device gets no values.
    """

    arguments = ("fsdp", "fsdp_config", "sharded_ddp", "sharding", "sharding_degree")
    capabilities = ShardedModel.capabilities | {Capability.FSDP}

    degree: int | None = None
    """The number of ranks over which one copy of the weights is sharded, such as the ranks of one machine. None: all
    ranks."""
    mixed_precision: Literal["bf16", "fp16"] | None = None
    """The dtype of gathered weights and of the computation: `bf16` or `fp16`. None: the dtype of the weights. Gradients
    are reduced in float32 with `bf16` and `fp16` too. `fp16` also needs the argument `fp16=True`."""
    activation_checkpointing: bool = False
    """True: backward recomputes the activations of each unit, so forward does not store these activations."""
    whole_optimizer: bool = False
    """True: a checkpoint has the whole optimizer state in one file. False: a checkpoint has one file per rank."""
    exact: bool | None = None
    """Whether training gives the same weights as DDP. On two ranks, the weights are equal bit for bit. On more ranks,
    their last digit may differ. Default: True on the CPU, False on other devices. With True, each step takes longer,
    because all ranks gather the gradients once more to compute their norm. A fused optimizer then rounds the update of
    a shard in the same way as the update of the whole weight."""
    _trained: list[bool] | None = field(default=None, init=False, repr=False, compare=False)
    _was_empty: bool = field(default=False, init=False, repr=False, compare=False)
    _undo: list[Callable[[], None]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree is not None and self.degree < 2:
            raise ArgumentError(f"FSDP(degree={self.degree}): set it to 2 or more ranks, or to None for all ranks.")
        if self.mixed_precision is not None and self.mixed_precision not in DTYPES:
            raise ArgumentError(f"FSDP(mixed_precision={self.mixed_precision!r}): set it to 'bf16', 'fp16' or None.")
        # Import it before the process group exists: some of torch's functions would hold the group as a default.
        assert self._backend

    @property
    def _backend(self) -> Any:
        """The module `fully_shard`. Its import takes a second. Runs without FSDP do not import it."""
        from . import fully_shard

        return fully_shard

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> FSDP | None:
        if args.sharding_strategy is not Strategy.FSDP or args.world_size == 1:
            if args.sharding_degree == 1 and args.world_size > 1:
                logger.warning("`sharding_degree=1` shards nothing, so the run uses DDP.")
            return None
        options = args.fsdp_options
        if options.ignored and args.should_log:
            logger.warning("fsdp_config: %s has no effect with FSDP2; remove it.", ", ".join(options.ignored))
        degree = args.sharding_degree
        if options.within_node and degree == -1:
            degree = int(os.environ.get("LOCAL_WORLD_SIZE", args.world_size))
        return cls(
            wrap=options.wrap,
            reshard_after_forward=options.reshard_after_forward,
            offload=options.offload,
            degree=None if degree in (-1, args.world_size) else degree,
            mixed_precision=options.mixed_precision,  # type: ignore[arg-type]
            activation_checkpointing=options.activation_checkpointing,
            whole_optimizer=options.whole_optimizer,
        )

    def on_setup(self, run: Run) -> None:
        self._check(run)
        device, saves = run.args.device, run.args.should_save
        run.seams.fill("FSDP", model_state=gathered_weights(device, saves))
        if run.mode != "train":
            self._shard(run, run.model)
            send_buffers(run.model)
            return
        run.seams.fill(
            "FSDP",
            prepare_model=partial(self._shard, run),
            synchronise=self._synchronise,
            clip=clip_shards(run.ranks, device, self._is_exact(run)),
            full_gradients=gathered_gradients(device),
        )
        if self.whole_optimizer:
            run.seams.fill("FSDP", optimizer_state=gathered_state(device, saves))

    def _check(self, run: Run) -> None:
        self.check_shardable(run)
        world = run.ranks.world_size
        if self.degree is not None and world % self.degree:
            raise ArgumentError(f"FSDP(degree={self.degree}) does not divide the world size {world}. Set a divisor.")
        if self.mixed_precision == "fp16" and not run.args.fp16:
            raise ArgumentError(
                "FSDP(mixed_precision='fp16') needs loss scaling, or gradients underflow: set `fp16=True`, or "
                "use 'bf16'."
            )

    def _is_exact(self, run: Run) -> bool:
        return run.args.device.type == "cpu" if self.exact is None else self.exact

    def holds_shards(self, run: Run) -> bool:
        own = {*run.model.parameters()}
        return self._backend.is_sharded_model(run.model) and all(
            weight in own for group in run.optimizer.param_groups for weight in group["params"]
        )

    def _shard(self, run: Run, model: nn.Module) -> nn.Module:
        work, device = self._backend, run.args.device
        blocks = blocks_of(model, self.wrap)
        if self.activation_checkpointing and run.mode == "train":
            for block in blocks:
                self._undo.append(replace_forward(block, recomputed(block.forward)))
        if not work.is_sharded_model(model):
            half = None if self.mixed_precision is None else DTYPES[self.mixed_precision]
            mesh = work.mesh_of(device, run.ranks.world_size, self.degree)
            self._was_empty = any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
            layout = work.ShardLayout(device, mesh, self.reshard_after_forward, self.offload, half)
            work.shard_model(model, blocks, layout, run.ranks)
            self._trained = trainable(model.parameters())
        return model

    def _synchronise(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        self._backend.synchronise(model, last)
        return nullcontext()

    @order(Stage.PREPARE)
    def on_train_begin(self, run: Run, model: nn.Module) -> None:
        if self._is_exact(run):
            self._undo.append(exact_fused_update(run.optimizer))
        if not any(run.ranks.gather_objects(self._was_empty)):
            return
        self._was_empty = False
        lacking = sorted(
            {name for names in run.ranks.gather_objects(self._backend.unfilled_tensors(model)) for name in names}
        )
        if lacking:
            raise ModelError(
                f"The model is on the meta device, and these tensors have no values: {', '.join(lacking[:20])}. Give "
                "their modules a `reset_parameters`, resume from a checkpoint, or create the model on another device."
            )

    @order(Stage.PREPARE)
    def on_step_begin(self, model: nn.Module) -> None:
        trained = trainable(model.parameters())
        if trained != self._trained:
            self._backend.update_requires_grad(model)
            self._trained = trained

    @order(Stage.PREPARE)
    def on_evaluate_end(self, model: nn.Module) -> None:
        self._backend.reshard_all(model)

    @order(Stage.PREPARE)
    def on_exception(self, model: nn.Module) -> None:
        self._backend.reshard_all(model, failed=True)

    def on_close(self, model: nn.Module) -> None:
        undo, self._undo = self._undo, []
        for step in undo:
            step()
        self._backend.reshard_all(model)

    def on_end(self) -> None:
        self._backend.release_process_groups()
