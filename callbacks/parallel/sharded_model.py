"""The base class of callbacks that shard a model over ranks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.errors import ArgumentError
from ...events.stages import Stage, order
from ..model.blocks import Kinds
from .ddp import DDP, send_buffers


@dataclass
class ShardedModel(Callback):
    """Base class of callbacks that shard weights, gradients and optimizer state over the ranks.

    A subclass implements the sharding and the method `holds_shards`.
    """

    stage = Stage.PREPARE
    instead_of = (DDP,)
    capabilities = frozenset({Capability.PLACES_MODEL, Capability.SHARDS_MODEL})

    wrap: Kinds | int | None = None
    """The units: modules whose weights are gathered and freed together. Pass the classes of the units, the names of
    these classes, or a number. The number is the smallest number of parameter elements of a unit. Elements of units
    inside a module do not count for this module. Default: the classes in `_no_split_modules` of a
    transformers model, or else the members of the outermost `nn.ModuleList`s. `()`: the whole model is one unit."""
    reshard_after_forward: bool = True
    """Whether gathered weights are freed between forward and backward. True is ZeRO stage 3, False is ZeRO stage 2.
    Stage 3 saves memory, but gathers the weights a second time for backward."""
    offload: bool = False
    """True: weights, gradients and optimizer state stay in host memory, and the CPU updates the weights."""

    def __post_init__(self) -> None:
        if self.wrap is not None and not isinstance(self.wrap, int):
            self.wrap = tuple(self.wrap)

    def holds_shards(self, run: Run) -> bool:
        """Return whether the run's optimizer has shards of weights, for example because an earlier session built it."""
        raise NotImplementedError

    def check_shardable(self, run: Run) -> None:
        """Raise an error if this callback cannot shard the weights of a run.

        Raises:
            ArgumentError: if there is only one process, if `auto_find_batch_size` is True, or if the user passed an
                optimizer object instead of its class and options. The error says what to do.
        """
        name = type(self).__name__
        if run.ranks.single_process:
            raise ArgumentError(
                f"{name} shards the weights over ranks, but this is a single process: start it with torchrun "
                "--nproc_per_node=N."
            )
        if run.args.auto_find_batch_size:
            raise ArgumentError(
                f"`auto_find_batch_size` restarts with whole weights, but {name} shards them: set "
                "`per_device_train_batch_size` instead."
            )
        if run.optimizer is not None and run.mode == "train" and not self.holds_shards(run):
            raise ArgumentError(
                f"`optimizers` has an optimizer of the whole weights, but {name} shards them: pass its class and "
                "options, such as `optimizer_cls_and_kwargs=(AdamW, {'lr': 1e-4})`. The run builds it from the shards."
            )

    @order(Stage.PREPARE)
    def on_evaluate_begin(self, model: nn.Module) -> None:
        send_buffers(model)

    @order(Stage.PREPARE)
    def on_train_end(self, model: nn.Module) -> None:
        send_buffers(model)
