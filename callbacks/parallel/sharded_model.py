"""What callbacks that split a model over the processes have in common, whoever's code splits it."""

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
    """Splits the weights over the processes, with their gradients and optimizer states.

    A subclass says what splits them, and which optimizers are made of the parts.
    """

    stage = Stage.PREPARE
    instead_of = (DDP,)
    capabilities = frozenset({Capability.PLACES_MODEL, Capability.SHARDS_MODEL})

    wrap: Kinds | int | None = None
    """What is gathered at once: modules of these classes, or so named, or of at least so many weights; by default what
    a model of transformers says (`_no_split_modules`), else the members of `nn.ModuleList`s. `()` gathers the whole
    model."""
    reshard_after_forward: bool = True
    """Let go of gathered weights between forward and backward: less memory, one more gathering (stage 3, not 2)."""
    offload: bool = False
    """Keep weights, gradients and optimizer states in the host's memory, and update the weights there."""

    def __post_init__(self) -> None:
        if self.wrap is not None and not isinstance(self.wrap, int):
            self.wrap = tuple(self.wrap)

    def has_parts(self, run: Run) -> bool:
        """Say whether the optimizer that a run was given is of the parts that this made before."""
        raise NotImplementedError

    def refuse_unsplittable(self, run: Run) -> None:
        """Refuse a run of which the weights cannot be split.

        Raises:
            ArgumentError: naming the remedy.
        """
        name = type(self).__name__
        if run.ranks.single_process:
            raise ArgumentError(
                f"{name} splits the weights among processes, and this is a single one: start it with torchrun "
                "--nproc_per_node=N."
            )
        if run.args.auto_find_batch_size:
            raise ArgumentError(
                f"`auto_find_batch_size` begins anew with the whole weights, which {name} splits: set "
                "`per_device_train_batch_size`."
            )
        if run.optimizer is not None and run.mode == "train" and not self.has_parts(run):
            raise ArgumentError(
                f"`optimizers` has an optimizer of the whole weights, which {name} splits: give its class and "
                "options, as `optimizer_cls_and_kwargs=(AdamW, {'lr': 1e-4})`, and it is made of the parts."
            )

    @order(Stage.PREPARE)
    def on_evaluate_begin(self, model: nn.Module) -> None:
        send_buffers(model)

    @order(Stage.PREPARE)
    def on_train_end(self, model: nn.Module) -> None:
        send_buffers(model)
