"""Train on several processes, each with all weights: torch's DistributedDataParallel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..engine.arguments import TrainingArguments
from ..engine.run import Run
from ..events.callback import Callback
from ..events.errors import ArgumentError
from ..events.stages import Stage


@dataclass
class DDP(Callback):
    """Averages the gradients of all processes while they are computed."""

    stage = Stage.PREPARE
    arguments = ("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph")

    find_unused_parameters: bool | None = None
    """Look for weights that a step does not use; by default only for models other than those of transformers."""
    bucket_cap_mb: int | None = None
    """Size of the gradient buckets in MiB; by default torch's 25."""
    broadcast_buffers: bool | None = None
    """Copy the first process's buffers to the others before each forward; by default yes."""
    static_graph: bool | None = None
    """Rely on each step using the same weights in the same order; by default no."""

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> DDP | None:
        if args.world_size == 1 or args.way_to_shard not in ("", "optimizer"):
            return None
        return cls(
            *(
                args.ddp_find_unused_parameters,
                args.ddp_bucket_cap_mb,
                args.ddp_broadcast_buffers,
                args.ddp_static_graph,
            )
        )

    def on_setup(self, run: Run) -> None:
        if run.ranks.alone:
            raise ArgumentError(
                "DDP is for several processes, and this is a single one: start it with torchrun --nproc_per_node=N."
            )
        if run.mode == "train":
            run.seams.fill("DDP", wrap_model=self._wrap(run), synchronise=synchronise_last)

    def _wrap(self, run: Run) -> Any:
        unused = self.find_unused_parameters
        if unused is None:
            unused = not hasattr(run.model, "save_pretrained")
        options: dict[str, Any] = {"find_unused_parameters": unused}
        for name in ("bucket_cap_mb", "broadcast_buffers", "static_graph"):
            if getattr(self, name) is not None:
                options[name] = getattr(self, name)
        device = run.args.device
        if device.type == "cuda":
            options["device_ids"] = [device.index]
        return lambda model, optimizer: DistributedDataParallel(model, **options)


def synchronise_last(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Leave gradients on their process until the last batch of a step."""
    no_sync: AbstractContextManager[Any] = nullcontext() if last else model.no_sync()  # type: ignore[operator]
    return no_sync
