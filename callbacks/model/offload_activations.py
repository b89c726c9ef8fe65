"""Move the activations of chosen blocks to host memory between forward and backward."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Conflict
from ...events.errors import ArgumentError, ModelError
from ...events.stages import Stage
from .blocks import CONTAINERS, Kinds, modules_of
from .compile_model import Compile
from .forwards import replace_forward
from .gradient_checkpointing import GradientCheckpointing

logger = logging.getLogger(__name__)


@dataclass
class OffloadActivations(Callback):
    """Copies activations to host memory in forward, and back to the GPU in backward.

    Between forward and backward, the activations then need no GPU memory. Each step takes longer, because the step
    copies the activations twice. The copies have the same values, so training reaches the same weights as without the
    callback. On a CPU, these weights are equal bit for bit. Parameters and small activations stay on the GPU.

    If backward needs an activation, the model must not change this activation in place. Without the callback, torch
    raises an error for such a change. With the callback, torch cannot detect all of these changes.

        OffloadActivations(blocks=(Block,))    # the activations of these blocks
        OffloadActivations()                   # the activations of the whole model

    On a CPU the callback saves no memory, and logs a warning.

    Raises:
        ArgumentError: if `min_bytes` is negative.
        ModelError: if the model has no module of a class in `blocks`, or if a class in `blocks` has no forward.
    """

    stage = Stage.PREPARE
    conflicts_with = (
        Conflict(GradientCheckpointing, "it stores no activations that could be copied. Use only one of them."),
        Conflict(Compile, "compiled code chooses itself which activations it stores. Leave one of them out."),
    )

    blocks: Kinds = ()
    """The classes of the modules to offload, or the names of these classes. Default: the whole model."""
    min_bytes: int = 1024 * 1024
    """The smallest size of a tensor that the callback copies, in bytes. Smaller tensors stay on the GPU."""
    pin_memory: bool = True
    """Whether the copies are in pinned host memory. Copies to and from pinned memory are faster. The system cannot swap
    pinned memory out."""
    offloaded_bytes: int = field(default=0, init=False, compare=False)
    """The number of bytes that the last step copied to the host."""
    kept_bytes: int = field(default=0, init=False, compare=False)
    """The number of bytes of small activations that the last step did not copy."""
    _undo: list[Callable[[], None]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.min_bytes < 0:
            raise ArgumentError(f"OffloadActivations(min_bytes={self.min_bytes}): set 0 or more.")

    def on_setup(self, run: Run) -> None:
        self.offloaded_bytes = self.kept_bytes = 0
        if run.mode != "train":
            return
        if run.device.type == "cpu":
            logger.warning("OffloadActivations saves no memory here: the model and its activations are on the CPU.")
        for module in modules_of(run.model, self.blocks) if self.blocks else [run.model]:
            if isinstance(module, CONTAINERS):
                raise ModelError(
                    f"OffloadActivations(blocks=({type(module).__name__},)): the class has no forward. Name the class "
                    "of its members."
                )
            self._undo.append(replace_forward(module, self._offloading(module)))

    def on_step_begin(self) -> None:
        self.offloaded_bytes = self.kept_bytes = 0

    def _offloading(self, module: nn.Module) -> Callable[..., Any]:
        forward = module.forward

        def offloading(*args: Any, **kwargs: Any) -> Any:
            # In each forward, because FSDP gathers the weights of a block into new storage.
            weights = {_storage(weight) for weight in module.parameters()}
            with saved_tensors_hooks(lambda tensor: self._pack(tensor, weights), _unpack):
                return forward(*args, **kwargs)

        return offloading

    def _pack(self, tensor: torch.Tensor, weights: set[int]) -> _Saved:
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or _storage(tensor) in weights:
            return tensor, tensor.device, tensor._version
        if tensor.nbytes < self.min_bytes:
            self.kept_bytes += tensor.nbytes
            return tensor, tensor.device, tensor._version
        self.offloaded_bytes += tensor.nbytes
        pinned = self.pin_memory and tensor.device.type == "cuda"
        # With the strides of the tensor, so that backward computes with the same layout.
        copy = torch.empty_like(tensor, device="cpu", pin_memory=pinned, requires_grad=False)
        return copy.copy_(tensor.detach(), non_blocking=pinned), tensor.device, None

    def on_close(self) -> None:
        undo, self._undo = self._undo, []
        for step in undo:
            step()


_Saved = tuple[torch.Tensor, torch.device, int | None]
"""A saved tensor, its device in forward, and its version. torch increases the version with each change in place. For a
copy in host memory, the version is None."""


def _unpack(saved: _Saved) -> torch.Tensor:
    tensor, device, version = saved
    if version is not None and tensor._version != version:
        raise RuntimeError(
            "A tensor that backward needs was changed in place after the forward of a module with OffloadActivations. "
            "Remove the in-place operation."
        )
    return tensor.to(device, non_blocking=True)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
