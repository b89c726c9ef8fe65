"""The class `Accelerator`, which replaces accelerate's `Accelerator`."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from ...events.capabilities import Capability
from ...events.composition import provides
from ...events.errors import ArgumentError, nearest
from ..arguments.accelerator_config import AcceleratorConfig
from ..data.batches import map_tensors
from ..data.loader import Loader
from ..data.open_loaders import last_batch
from ..data.prepared import PreparedLoader
from ..run import Run
from ..stepper import Stepper
from .accelerator_gradients import GradientMethods
from .accelerator_state import AcceleratorState

logger = logging.getLogger(__name__)

_CHECKPOINT = "`trainer.save_model` writes the model. `control.request('save')` requests a checkpoint."
_TRACKER = "call `trainer.log`, and list trackers in `report_to`."
_PREPARE = "call `prepare`. The Trainer prepares what it uses."
_STEP = "a callback can change the step through a seam. See `docs/plugins/advanced.md`."
_MAIN = "use `is_main_process` or `is_local_main_process` as a condition."
_FLAG = "callbacks raise flags on `trainer.control`. All ranks see the flags."

INSTEAD: dict[str, str] = {
    **dict.fromkeys(("save", "save_model", "save_state", "load_state", "register_for_checkpointing"), _CHECKPOINT),
    **dict.fromkeys(("register_save_state_pre_hook", "register_load_state_pre_hook", "save_iteration"), _CHECKPOINT),
    **dict.fromkeys(("get_state_dict", "should_save_model", "skip_first_batches"), _CHECKPOINT),
    **dict.fromkeys(("log", "init_trackers", "get_tracker", "end_training", "logging_dir", "project_dir"), _TRACKER),
    **dict.fromkeys(("prepare_data_loader", "prepare_optimizer", "prepare_scheduler", "verify_device_map"), _PREPARE),
    **dict.fromkeys(("lomo_backward", "trigger_sync_in_backward"), _STEP),
    **dict.fromkeys(("optimizer_step_was_skipped", "join_uneven_inputs", "profile"), _STEP),
    **dict.fromkeys(
        ("on_main_process", "on_local_main_process", "on_last_process", "on_process", "on_local_process"), _MAIN
    ),
    "dataloader_config": "set `accelerator_config` in the arguments.",
    "split_between_processes": "take `rows[accelerator.process_index :: accelerator.num_processes]`.",
    **dict.fromkeys(("set_trigger", "check_trigger"), _FLAG),
}
"""Name that accelerate's `Accelerator` has and `Accelerator` of trainbus does not -> what to use instead.

The error for any name outside this table has a general hint.
"""


REDUCTIONS = ("mean", "sum", "max", "none")
"""The reductions of `Accelerator.reduce`."""


@dataclass
class Accelerator(GradientMethods):
    """The object that replaces accelerate's `Accelerator`. Its methods work on the run of the Trainer."""

    run: Run
    """The run."""
    stepper: Stepper | None
    """The object that runs the training steps; None before training."""
    seed: int = 0
    """The seed of the data order."""
    _even_batches: bool | None = None
    """The value that a program assigned to `even_batches`; None if no program assigned a value."""

    @property
    def device(self) -> torch.device:
        """The device of the batches."""
        return self.run.device

    @property
    def num_processes(self) -> int:
        """The world size."""
        return self.run.ranks.world_size

    @property
    def process_index(self) -> int:
        """The rank of this process."""
        return self.run.ranks.rank

    @property
    def local_process_index(self) -> int:
        """The local rank of this process."""
        return self.run.ranks.local_rank

    @property
    def is_main_process(self) -> bool:
        """Whether this process has rank 0."""
        return self.run.ranks.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this process has local rank 0."""
        return self.run.ranks.local_rank == 0

    def unwrap_model(
        self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> nn.Module:
        """Return a model without wrappers. For the wrapped model of the run, return `trainer.model`.

        Args:
            model: a module. If it is not the wrapped model of the run, the method removes the wrappers of
                `DataParallel`, `DistributedDataParallel` and `torch.compile`.
            keep_fp32_wrapper: not used, because mixed precision does not change the `forward` of the model.
            keep_torch_compile: not used. The method removes the wrapper of `torch.compile` in any case.
        """
        if model is self.run.model_wrapped:
            return self.run.model
        inner: Any = model
        while hasattr(inner, "_orig_mod") or isinstance(inner, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = getattr(inner, "_orig_mod", None) or inner.module
        unwrapped: nn.Module = inner
        return unwrapped

    @property
    def state(self) -> AcceleratorState:
        """An object with the attributes of accelerate's `AcceleratorState`, such as `num_processes`."""
        return AcceleratorState(self)

    @property
    def parallelism_config(self) -> None:
        """Always None: tensor, context and sequence parallelism are not supported."""
        return None

    @property
    def even_batches(self) -> bool:
        """Whether samples are repeated so that all ranks get equally many batches.

        A program for accelerate may assign a value, but the loaders do not change.
        """
        return self._config.even_batches if self._even_batches is None else self._even_batches

    @even_batches.setter
    def even_batches(self, even: bool) -> None:
        self._even_batches = even

    def prepare(self, *parts: Any, **options: Any) -> Any:
        """Prepare loaders and models for the run. Return the prepared object; a tuple for several objects.

        - A `DataLoader` that the program built itself becomes a loader that gives each rank its part of the batches.
        - The Trainer's model is returned wrapped. Any other model is moved to the device.
        - Optimizers, schedules and other objects are returned unchanged.

        Args:
            *parts: the objects.
            **options: not used.
        """
        prepared = tuple(self._prepared(part) for part in parts)
        return prepared[0] if len(prepared) == 1 else prepared

    def _prepared(self, part: Any) -> Any:
        if isinstance(part, nn.Module):
            return self.prepare_model(part)
        if isinstance(part, DataLoader) and not isinstance(part, Loader):
            return PreparedLoader(part, self.run.ranks, self.seed)
        return part

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """If `model` is the model of the run, return its wrapper. Move any other model to the device and return it.

        With several ranks, warn if another model has trainable weights that the model of the run does not share. The
        ranks do not average the gradients of these weights.

        Args:
            model: a module.
            device_placement: not used. Another model is moved in any case.
            evaluation_mode: True if the program never trains the model. This turns off the warning.
        """
        if model is self.run.model or model is self.run.model_wrapped:
            return self.run.model_wrapped
        if not (evaluation_mode or self.run.ranks.single_process) and self._has_other_weights(model):
            logger.warning(
                "`accelerator.prepare` does not wrap this %s, so the ranks do not average its gradients. Train only "
                "the model of the Trainer. If the model is not trained, call "
                "`accelerator.prepare_model(model, evaluation_mode=True)`.",
                type(model).__name__,
            )
        return model.to(self.device)

    def _has_other_weights(self, model: nn.Module) -> bool:
        """Return whether a model has trainable weights that the model of the run does not share."""
        of_run = {id(weight) for weight in self.run.model.parameters()}
        return any(weight.requires_grad and id(weight) not in of_run for weight in model.parameters())

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return the sum, the mean or the maximum of tensors over all ranks.

        Args:
            tensor: a tensor, or dicts, lists or tuples of tensors.
            reduction: `sum`, `mean` or `max`. As in accelerate, `none` also gives the sum.
            scale: not used. It is for XLA devices, as in accelerate.

        Raises:
            ArgumentError: for another reduction.
        """
        if reduction not in REDUCTIONS:
            raise ArgumentError(
                f"`accelerator.reduce` has no reduction {reduction!r}{nearest(reduction, REDUCTIONS)} There are: "
                f"{', '.join(REDUCTIONS)}."
            )
        return map_tensors(lambda each: self._reduced(each, reduction), tensor)

    def _reduced(self, tensor: torch.Tensor, reduction: str) -> torch.Tensor:
        ranks = self.run.ranks
        if ranks.single_process:
            return tensor.clone()
        if reduction == "max":
            return ranks.gather(tensor[None]).amax(0)
        return ranks.sum(tensor) / ranks.world_size if reduction == "mean" else ranks.sum(tensor)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Return tensors, padded along `dim` to the largest size on any rank.

        Args:
            tensor: a tensor, or dicts, lists or tuples of tensors.
            dim: the dimension to pad. Tensors without this dimension are returned unchanged.
            pad_index: the value to pad with.
            pad_first: pad at the start of the dimension; by default at the end.
        """

        def padded(each: torch.Tensor) -> torch.Tensor:
            if not -each.dim() <= dim < each.dim() or self.num_processes == 1:
                return each
            own, axis = each.shape[dim], dim % each.dim()
            largest = max(int(size) for (size,) in self.run.ranks.gather_numbers(own))
            shape = [*each.shape[:axis], largest - own, *each.shape[axis + 1 :]]
            filling = each.new_full(shape, pad_index)
            return torch.cat((filling, each) if pad_first else (each, filling), dim=axis)

        return map_tensors(padded, tensor)

    def gather(self, tensor: Any) -> Any:
        """Return the tensors of all ranks, concatenated along the first dimension.

        `tensor` is a tensor, or dicts, lists or tuples of tensors. A tensor must have the same shape on all ranks.
        `gather_for_metrics` also accepts different shapes.
        """
        return map_tensors(self.run.ranks.gather, tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Return the tensors of all ranks, concatenated along the first dimension.

        The size of the first dimension may differ by rank. If the second dimension differs by rank, the
        shorter tensors are padded with -100.

        With several ranks, a loader repeats samples to fill up its last batches. The method removes the results of
        repeated samples if `input_data` has one result for each sample of the newest batch. With another number of
        results, all results stay. They also stay if the number of repeated samples is unknown, as for some streams. In
        nested loops over loaders, the newest batch comes from the inner loader.

        Args:
            input_data: a tensor, dicts, lists or tuples of tensors, or a list of objects.
            use_gather_object: join the lists of objects of all ranks. Data without tensors is joined in any case.
        """
        if self.num_processes == 1:
            return input_data
        if use_gather_object or not _has_tensors(input_data):
            own = self._without_repeated(input_data) if isinstance(input_data, list) else input_data
            return [each for part in self.run.ranks.gather_objects(own) for each in part]
        return map_tensors(lambda each: self.run.ranks.gather_padded(self._without_repeated(each)), input_data)

    def _without_repeated(self, results: Any) -> Any:
        """Return results without the results of repeated samples, which only fill up the last batches of a loader.

        Return `results` unchanged if its length differs from the number of samples in the last batch of this rank.
        """
        if self.stepper is not None and self._in_training and not self.stepper.completing:
            return results  # the loader is ahead: it has read all batches of the step
        samples, repeated = last_batch()
        if not repeated or (isinstance(results, torch.Tensor) and results.dim() == 0):
            return results
        return results[: len(results) - repeated] if len(results) == samples else results

    @property
    def distributed_type(self) -> str:
        """The type of distributed training, as in accelerate: `NO`, `MULTI_CPU`, `MULTI_GPU`, `FSDP` or `DEEPSPEED`.

        The type is `FSDP` if a run on several GPUs uses the callback `FSDP`, or an argument that adds it.
        """
        kind = self.run.args.distributed_state.distributed_type
        sharded = provides(self.run.bus.subscribers.values(), Capability.FSDP)
        return "FSDP" if sharded and kind == "MULTI_GPU" else kind

    @property
    def mixed_precision(self) -> str:
        """The precision of forward and backward: `no`, `bf16` or `fp16`."""
        return self.run.args.mixed_precision

    @property
    def gradient_accumulation_steps(self) -> int:
        """The argument `gradient_accumulation_steps`: the number of batches of a step."""
        return self.run.args.gradient_accumulation_steps

    @property
    def split_batches(self) -> bool:
        """The key `split_batches` of `accelerator_config`."""
        return self._config.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        """The key `dispatch_batches` of `accelerator_config`; None if the key is not set."""
        return self._config.dispatch_batches

    @property
    def use_seedable_sampler(self) -> bool:
        """The key `use_seedable_sampler` of `accelerator_config`."""
        return self._config.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        """The key `non_blocking` of `accelerator_config`."""
        return self._config.non_blocking

    @property
    def _config(self) -> AcceleratorConfig:
        return AcceleratorConfig.read(self.run.args.accelerator_config)

    def free_memory(self, *parts: Any) -> list[Any]:
        """Return a list with one None per argument. The Trainer frees its objects when a session ends."""
        return [None] * len(parts)

    @property
    def use_distributed(self) -> bool:
        """Whether there are several ranks."""
        return self.num_processes > 1

    @property
    def is_last_process(self) -> bool:
        """Whether this process has the last rank."""
        return self.process_index == self.num_processes - 1

    def main_process_first(self) -> AbstractContextManager[None]:
        """Return a context that rank 0 enters first. The other ranks wait until rank 0 has left the context."""
        return self.run.ranks.main_first(local=False)

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """Return a context that the first rank of each machine enters first.

        The other ranks wait until the first rank of each machine has left the context.
        """
        return self.run.ranks.main_first(local=True)

    if not TYPE_CHECKING:  # a type checker would otherwise accept every misspelt attribute

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            instead = INSTEAD.get(name, "trainbus does not use accelerate. Use the methods of the trainer.")
            raise AttributeError(f"`trainer.accelerator` has no {name!r}: {instead}")

    def wait_for_everyone(self) -> None:
        """Wait until all ranks call this method."""
        self.run.ranks.barrier()

    def print(self, *values: Any, **options: Any) -> None:
        """Print on local rank 0."""
        if self.is_local_main_process:
            print(*values, **options)

    def autocast(self, autocast_handler: None = None) -> AbstractContextManager[Any]:
        """Return the autocast context of the run. Without mixed precision, the context does nothing.

        Callbacks set the context when a session begins. Outside of a session, the arguments set it.

        Args:
            autocast_handler: must be None. Set `bf16` or `fp16` in the arguments.
        """
        if autocast_handler is not None:
            raise ArgumentError("`accelerator.autocast` takes no handler. Set `bf16` or `fp16` in the arguments.")
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.mixed_precision)
        if self.run.mode or dtype is None or self.run.args.way_to_shard == "deepspeed":
            return self.run.seams.autocast()
        return torch.autocast(self.device.type, dtype=dtype)


def _has_tensors(data: Any) -> bool:
    """Return whether nested values contain a tensor."""
    found: list[torch.Tensor] = []
    map_tensors(found.append, data)
    return bool(found)
