"""Train on several processes, each with all weights: torch's DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError, ModelError, nearest
from ...events.stages import Stage, order
from ..model.gradient_checkpointing import GradientCheckpointing
from .wrapping import Wrapping

HOOKS: dict[str, Callable[..., Any]] = {
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "powersgd": powerSGD_hook.powerSGD_hook,
    "batched_powersgd": powerSGD_hook.batched_powerSGD_hook,
}
"""How gradients may travel, by name: as halves of either kind, or as the factors of a matrix of low rank."""


@dataclass
class DDP(Callback):
    """Averages the gradients of all processes while they are computed."""

    stage = Stage.PREPARE
    arguments = ("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph")

    find_unused_parameters: bool | None = None
    """Look for weights that a step does not use; by default yes, unless activations are recomputed."""
    bucket_cap_mb: int | None = None
    """Size of the gradient buckets in MiB; by default torch's 25."""
    broadcast_buffers: bool | None = None
    """Copy the first process's buffers to the others before each forward; by default yes."""
    static_graph: bool | None = None
    """Rely on each step using the same weights in the same order; by default no."""
    comm_hook: str | Callable[[Any, Any], Any] | None = None
    """How gradients travel: `fp16`, `bf16`, `powersgd`, `batched_powersgd`, or a hook as `register_comm_hook` takes it,
    whose state is None. By default as they are."""
    comm_options: dict[str, Any] = field(default_factory=dict)
    """Options of torch's `PowerSGDState`, as `matrix_approximation_rank`. Its memory begins anew in a resumed run, and
    where weights are frozen or thawed."""
    _wrapping: Wrapping | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.comm_hook, str):
            name = self.comm_hook.lower().replace("power_sgd", "powersgd")
            if name not in HOOKS:
                raise ArgumentError(
                    f"DDP(comm_hook={self.comm_hook!r}){nearest(name, HOOKS)} Known: {', '.join(HOOKS)}, or a function."
                )
            self.comm_hook = name
        if self.comm_options and not self._low_rank:
            raise ArgumentError(f"DDP(comm_options={self.comm_options}) are for powersgd: give `comm_hook='powersgd'`.")
        if self._low_rank and self.find_unused_parameters:
            raise ArgumentError(
                f"DDP(comm_hook={self.comm_hook!r}, find_unused_parameters=True): what is sent in between to find them "
                "mixes with the factors; leave out one of the two."
            )

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
        if run.ranks.single_process:
            raise ArgumentError(
                "DDP is for several processes, and this is a single one: start it with torchrun --nproc_per_node=N."
            )
        if run.mode == "train":
            if self.comm_hook == "bf16" and dist.get_backend() != "nccl":
                raise ArgumentError(
                    f"DDP(comm_hook='bf16') needs the backend nccl, and this is {dist.get_backend()}, which does not "
                    "add up bfloat16: take 'fp16'."
                )
            self._wrapping = Wrapping(run, lambda model, _: self._wrap(run, model))
            run.seams.fill("DDP", wrap_model=self._wrapping.wrap, synchronise=self._synchronise)

    @order(Stage.RELEASE)
    def on_step_begin(self) -> None:
        if self._wrapping is not None:
            self._wrapping.follow()  # after all who may freeze or thaw weights

    def _wrap(self, run: Run, model: nn.Module) -> nn.Module:
        unused = self.find_unused_parameters
        if unused is None:
            # Recomputed activations are used once more behind torch's back, where it looks for the unused.
            unused = not self._low_rank and not recomputes(run)
        options: dict[str, Any] = {"find_unused_parameters": unused}
        if run.seams.filled_by("make_optimizer") == "ShardedOptimizer":
            options["gradient_as_bucket_view"] = True  # it is there to save memory
        for name in ("bucket_cap_mb", "broadcast_buffers", "static_graph"):
            if getattr(self, name) is not None:
                options[name] = getattr(self, name)
        if self._low_rank and dist.get_backend() == "gloo":
            # The factors of a bucket are sent one after the other, from a thread; those of a second bucket would come
            # between, in another order on each process.
            options["bucket_cap_mb"] = sum(weight.nbytes for weight in model.parameters()) // 2**20 + 1
        device = run.args.device
        if device.type == "cuda":
            options["device_ids"] = [device.index]
        wrapped = DistributedDataParallel(model, **options)
        if self.comm_hook is not None:
            hook = HOOKS[self.comm_hook] if isinstance(self.comm_hook, str) else self.comm_hook
            state = powerSGD_hook.PowerSGDState(None, **self.comm_options) if self._low_rank else None
            wrapped.register_comm_hook(state, hook)
        return wrapped

    @property
    def _low_rank(self) -> bool:
        return isinstance(self.comm_hook, str) and "powersgd" in self.comm_hook

    @contextmanager
    def _synchronise(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Leave gradients on their process until the last batch of a step."""
        if self.static_graph and not last:
            raise ArgumentError(
                "DDP(static_graph=True) goes with steps of one batch: leave it out, or set "
                "`gradient_accumulation_steps=1`."
            )
        assert self._wrapping is not None
        try:
            with self._wrapping.watched(synchronise_last(model, last), last):
                yield
        except RuntimeError as error:
            if self._low_rank and "finished reduction in the prior iteration" in str(error):
                raise ModelError(
                    f"The last step did not use all weights, and DDP(comm_hook={self.comm_hook!r}) waits for the "
                    "gradients of all. Leave `comm_hook` out, or take 'fp16', which both go with looking for the "
                    "unused ones; if it is the same weights in every step, freeze them, as Freeze() does."
                ) from error
            raise

    def on_train_end(self, run: Run) -> None:
        if self.broadcast_buffers is not False:
            send_buffers(run.model)


def send_buffers(model: nn.Module) -> None:
    """Send the first process's buffers to the others, as DDP does before each forward of a step.

    Done after the last one, what is measured then is the model that is saved.
    """
    for buffer in model.buffers():
        dist.broadcast(buffer.detach(), 0)


def recomputes(run: Run) -> bool:
    """Say whether activations are recomputed in the backward pass, by a callback or by the model itself."""
    return any(isinstance(callback, GradientCheckpointing) for callback in run.bus.subscribers.values()) or any(
        getattr(module, "gradient_checkpointing", False) is True for module in run.model.modules()
    )


def synchronise_last(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Leave gradients on their process until the last batch of a step."""
    no_sync: AbstractContextManager[Any] = nullcontext() if last else model.no_sync()  # type: ignore[operator]
    return no_sync
