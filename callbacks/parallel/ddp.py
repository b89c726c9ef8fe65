"""Train on several ranks, each with a full replica of the model: torch's DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...engine.arguments import TrainingArguments
from ...engine.distributed.strategies import Strategy
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import ArgumentError, ModelError, nearest
from ...events.stages import Stage, order
from ..model.gradient_checkpointing import GradientCheckpointing
from .wrapping import Wrapping

HOOKS = {
    "fp16": "default_hooks.fp16_compress_hook",
    "bf16": "default_hooks.bf16_compress_hook",
    "powersgd": "powerSGD_hook.powerSGD_hook",
    "batched_powersgd": "powerSGD_hook.batched_powerSGD_hook",
}
"""Communication hooks by name: half-precision gradients, or PowerSGD's low-rank approximation. Each value is the module
and the function in torch's package `ddp_comm_hooks`."""


@dataclass
class DDP(Callback):
    """Trains with a full replica of the model on each rank, and averages the gradients of all ranks during backward.

    By default, a trainer with several ranks has this callback. The callbacks `FSDP`, `FairscaleFSDP`, `ShardedDDP` and
    `DeepSpeed` replace `DDP`. Start the program with `torchrun --nproc_per_node=N`.

    Raises:
        ArgumentError: if there is only one process, if `comm_hook` is unknown or does not work with the backend, or if
            two settings exclude each other.
        ModelError: if a step bypasses the DDP wrapper.
    """

    stage = Stage.PREPARE
    arguments = ("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph")

    find_unused_parameters: bool | None = None
    """Whether DDP searches for weights that a step does not use. None: True, except if backward recomputes activations
    or if `comm_hook` is a PowerSGD hook."""
    bucket_cap_mb: int | None = None
    """The size of the gradient buckets, in MiB. None: torch's default, 25."""
    broadcast_buffers: bool | None = None
    """Whether DDP copies the buffers of rank 0 to all ranks before each forward. None: torch's default, True."""
    static_graph: bool | None = None
    """Whether every step uses the same weights in the same order. None: torch's default, False."""
    comm_hook: str | Callable[[Any, Any], Any] | None = None
    """A hook that compresses the gradients: `fp16`, `bf16`, `powersgd`, `batched_powersgd`, or a function for
    `register_comm_hook`. The function receives None as its state. `bf16` needs the backend NCCL. None: DDP sends the
    gradients unchanged."""
    comm_options: dict[str, Any] = field(default_factory=dict)
    """Options of torch's `PowerSGDState`, such as `matrix_approximation_rank`. Only the two PowerSGD hooks accept
    options. PowerSGD adds the error of its approximation to the gradients of the next step. This error is lost if the
    run resumes, or if weights are frozen or unfrozen."""
    _wrapping: Wrapping | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.comm_hook, str):
            name = self.comm_hook.lower().replace("power_sgd", "powersgd")
            if name not in HOOKS:
                raise ArgumentError(
                    f"DDP(comm_hook={self.comm_hook!r}): the hook is unknown{nearest(name, HOOKS)} "
                    f"Known: {', '.join(HOOKS)}, or a function."
                )
            self.comm_hook = name
        if self.comm_options and not self._low_rank:
            raise ArgumentError(
                f"DDP(comm_options={self.comm_options}) applies to powersgd only: set `comm_hook='powersgd'`."
            )
        if self._low_rank and self.find_unused_parameters:
            raise ArgumentError(
                f"DDP(comm_hook={self.comm_hook!r}, find_unused_parameters=True) is not supported: the messages of the "
                "search for unused parameters would mix with the factors that the hook sends. Remove one of the two."
            )

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> DDP | None:
        if args.world_size == 1 or args.sharding_strategy not in (Strategy.DDP, Strategy.OPTIMIZER):
            return None
        return cls(
            args.ddp_find_unused_parameters,
            args.ddp_bucket_cap_mb,
            args.ddp_broadcast_buffers,
            args.ddp_static_graph,
        )

    def on_setup(self, run: Run) -> None:
        if run.ranks.single_process:
            raise ArgumentError(
                "DDP needs several ranks, but this is a single process: start it with torchrun --nproc_per_node=N."
            )
        if run.mode == "train":
            if self.comm_hook == "bf16" and dist.get_backend() != "nccl":
                raise ArgumentError(
                    f"DDP(comm_hook='bf16') needs the backend nccl. The backend {dist.get_backend()} cannot reduce "
                    "bfloat16: use 'fp16'."
                )
            self._wrapping = Wrapping(run, lambda model, _: self._wrap(run, model))
            run.seams.fill("DDP", wrap_model=self._wrapping.wrap, synchronise=self._synchronise)

    @order(Stage.RELEASE)
    def on_step_begin(self) -> None:
        if self._wrapping is not None:
            self._wrapping.follow()  # after the callbacks that may freeze or unfreeze weights

    def _wrap(self, run: Run, model: nn.Module) -> nn.Module:
        unused = self.find_unused_parameters
        if unused is None:
            # With recomputed activations, a second forward runs inside backward, which the search does not expect.
            unused = not self._low_rank and not recomputes_activations(run)
        options: dict[str, Any] = {"find_unused_parameters": unused}
        if run.seams.filled_by("make_optimizer") == "ShardedOptimizer":
            options["gradient_as_bucket_view"] = True  # stage 1 is used to save memory
        for name in ("bucket_cap_mb", "broadcast_buffers", "static_graph"):
            if getattr(self, name) is not None:
                options[name] = getattr(self, name)
        if self._low_rank and dist.get_backend() == "gloo":
            # A thread sends the factors of a bucket one after the other. With a second bucket, the messages would mix,
            # in another order on each rank.
            options["bucket_cap_mb"] = sum(weight.nbytes for weight in model.parameters()) // 2**20 + 1
        device = run.args.device
        if device.type == "cuda":
            options["device_ids"] = [device.index]
        wrapped = DistributedDataParallel(model, **options)
        if self.comm_hook is not None:
            wrapped.register_comm_hook(*self._state_and_hook(self.comm_hook))
        return wrapped

    def _state_and_hook(self, hook: str | Callable[[Any, Any], Any]) -> tuple[Any, Callable[..., Any]]:
        """Return the state and the function of a communication hook. The state is None except for PowerSGD."""
        if not isinstance(hook, str):
            return None, hook
        name, function = HOOKS[hook].split(".")
        hooks = import_module(f"torch.distributed.algorithms.ddp_comm_hooks.{name}")  # few programs set a hook
        state = hooks.PowerSGDState(None, **self.comm_options) if self._low_rank else None
        return state, getattr(hooks, function)

    @property
    def _low_rank(self) -> bool:
        return isinstance(self.comm_hook, str) and "powersgd" in self.comm_hook

    @contextmanager
    def _synchronise(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Enter a context in which DDP reduces gradients only if `last` is True: in the last batch of a step.

        Raises:
            ArgumentError: if `static_graph` is True and the step has several batches.
            ModelError: if the step bypasses the DDP wrapper. Also if `comm_hook` is PowerSGD and the previous step did
                not use all weights.
        """
        if self.static_graph and not last:
            raise ArgumentError(
                "DDP(static_graph=True) needs steps of one batch: remove it, or set `gradient_accumulation_steps=1`."
            )
        assert self._wrapping is not None
        try:
            with self._wrapping.watched(synchronise_last(model, last), last):
                yield
        except RuntimeError as error:
            if self._low_rank and "finished reduction in the prior iteration" in str(error):
                raise ModelError(
                    f"The last step did not use all weights, but DDP(comm_hook={self.comm_hook!r}) waits for all "
                    "gradients. Remove `comm_hook`, or use 'fp16': both work with the search for unused weights. If "
                    "the unused weights are the same in every step, freeze them, for example with Freeze()."
                ) from error
            raise

    def on_train_end(self, run: Run) -> None:
        if self.broadcast_buffers is not False:
            send_buffers(run.model)


def send_buffers(model: nn.Module) -> None:
    """Copy the buffers of rank 0 to all ranks, as DDP does before each forward of a step.

    Call this function before an evaluation, and after the last step. All ranks then evaluate with the buffers of rank
    0. Checkpoints contain these buffers.
    """
    for buffer in model.buffers():
        dist.broadcast(buffer.detach(), 0)


def recomputes_activations(run: Run) -> bool:
    """Return whether backward recomputes activations: by `GradientCheckpointing`, or by a setting of the model."""
    return any(isinstance(callback, GradientCheckpointing) for callback in run.bus.subscribers.values()) or any(
        getattr(module, "gradient_checkpointing", False) is True for module in run.model.modules()
    )


def synchronise_last(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Return a context in which DDP reduces gradients only if `last` is True: in the last batch of a step."""
    no_sync: AbstractContextManager[Any] = nullcontext() if last else model.no_sync()  # type: ignore[operator]
    return no_sync
