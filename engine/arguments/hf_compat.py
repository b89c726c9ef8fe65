"""Properties and setters of the arguments with the names that transformers uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, ClassVar, cast

import torch

from ...events.errors import ArgumentError
from ..distributed.ranks import Ranks
from ._base import IntervalStrategy, Strategy
from .hub import HubStrategy
from .unique_keys import parse_json
from .unsupported import unsupported_arguments


class ParallelMode(Strategy):
    """Whether one device, several devices or several processes train."""

    NOT_PARALLEL = "not_parallel"
    """One process on the CPU, or on one GPU."""
    NOT_DISTRIBUTED = "not_distributed"
    """One process on several GPUs."""
    DISTRIBUTED = "distributed"
    """Several processes, each with its own device."""

    def __eq__(self, other: object) -> bool:
        # The members of the enum in transformers are not texts.
        return str(self) == (other.value if isinstance(other, Enum) else other)

    __hash__ = Strategy.__hash__


@dataclass(frozen=True)
class DistributedState:
    """The processes of a run, under the names of accelerate's `PartialState`."""

    distributed_type: str
    """`NO`, `MULTI_CPU`, `MULTI_GPU`, `FSDP` (several GPUs, sharded by FSDP) or `DEEPSPEED`."""
    num_processes: int
    """The world size."""
    process_index: int
    """The rank of this process."""
    local_process_index: int
    """The local rank of this process."""
    device: torch.device
    """The device of this process."""
    join: Callable[[], Ranks] = field(default=Ranks.from_environment, repr=False, compare=False)
    """A function that joins the process group if necessary, and returns the ranks."""

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is local rank 0."""
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last rank."""
        return self.process_index == self.num_processes - 1

    @property
    def use_distributed(self) -> bool:
        """Whether there are several processes."""
        return self.num_processes > 1

    def main_process_first(self) -> AbstractContextManager[None]:
        """Return a context that rank 0 executes before the other ranks."""
        return self.join().main_first(local=False)

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """Return a context that the first rank of each machine executes before the other ranks."""
        return self.join().main_first(local=True)

    def wait_for_everyone(self) -> None:
        """Wait until all ranks call this method."""
        self.join().barrier()

    def print(self, *values: Any, **options: Any) -> None:
        """Print on local rank 0."""
        if self.is_local_main_process:
            print(*values, **options)


class HFMethods:
    """Properties and setters of the arguments, with the names that transformers uses.

    A setter changes several arguments, checks them as the constructor does, and returns the arguments. If a value is
    invalid, the setter raises `ArgumentError` and changes nothing.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        *("accelerator_config", "fsdp_config", "deepspeed", "activation_checkpointing_kwargs"),
        *("gradient_checkpointing_kwargs", "lr_scheduler_kwargs"),
    ]
    """Fields that take a JSON object as text. A subclass extends the list for fields of its own."""
    deepspeed_plugin = fsdp_plugin_args = None
    """Objects of accelerate. Always None, because trainbus does not use accelerate."""

    @property
    def parallelism_config(self) -> None:
        """None: tensor and sequence parallelism of accelerate are not supported."""
        return None

    @parallelism_config.setter
    def parallelism_config(self, value: Any) -> None:
        if value is not None:
            raise ArgumentError(
                f"`parallelism_config` is not supported: {unsupported_arguments()['parallelism_config']}"
            )

    @property
    def mixed_precision(self) -> str:
        """The precision of forward and backward: `no`, `bf16` or `fp16`."""
        args: Any = self
        return "fp16" if args.fp16 else "bf16" if args.bf16 else "no"

    @property
    def _setup_devices(self) -> torch.device:
        """`device`, under the name that transformers uses."""
        args: Any = self
        device: torch.device = args.device
        return device

    @property
    def _n_gpu(self) -> int:
        """`n_gpu`, under an older name."""
        args: Any = self
        return int(args.n_gpu)

    def _read_json_fields(self) -> None:
        """Parse JSON text in the fields that `_VALID_DICT_FIELDS` lists. A subclass may add its fields to this list."""
        for name in self._VALID_DICT_FIELDS:
            value = getattr(self, name, None)
            if isinstance(value, str) and value.startswith("{"):
                try:
                    setattr(self, name, parse_json(value))
                except ValueError as error:
                    raise ArgumentError(f"`{name}` is {value!r}, which is not JSON ({error}).") from error

    @property
    def parallel_mode(self) -> ParallelMode:
        """Whether one device, several devices or several processes train."""
        if not Ranks.from_environment().single_process:
            return ParallelMode.DISTRIBUTED
        args: Any = self
        return ParallelMode.NOT_DISTRIBUTED if args.n_gpu > 1 else ParallelMode.NOT_PARALLEL

    @property
    def place_model_on_device(self) -> bool:
        """Whether the trainer moves the model to the device. Always True."""
        return True

    @property
    def distributed_state(self) -> DistributedState:
        """The processes and the device, as accelerate's `PartialState` names them."""
        ranks, args = Ranks.from_environment(), cast(Any, self)
        on_gpus = "FSDP" if args.way_to_shard == "fsdp" else "MULTI_GPU"
        kind = "NO" if ranks.single_process else on_gpus if args.device.type == "cuda" else "MULTI_CPU"
        return DistributedState(
            "DEEPSPEED" if args.deepspeed else kind,
            *(ranks.world_size, ranks.rank, ranks.local_rank, args.device, self._join_ranks),
        )

    def _join_ranks(self) -> Ranks:
        """Join the process group if this process is not in a group yet, and return the ranks."""
        args: Any = self
        ranks = Ranks.from_environment()
        ranks.join(args.device, args.ddp_backend, args.ddp_timeout)
        return ranks

    @property
    def ddp_timeout_delta(self) -> timedelta:
        """`ddp_timeout` as a duration."""
        args: Any = self  # another group declares the field
        return timedelta(seconds=args.ddp_timeout)

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Run the block on the main process first, then on the other processes, for example to fill a shared cache.

        Args:
            local: True: the first rank of each machine is a main process. False: only rank 0 is the main process.
            desc: A description of the work. Not used.
        """
        with self._join_ranks().main_first(local):
            yield

    def set_training(
        self,
        learning_rate: float = 5e-5,
        batch_size: int = 8,
        weight_decay: float = 0,
        num_epochs: float = 3,
        max_steps: int = -1,
        gradient_accumulation_steps: int = 1,
        seed: int = 42,
        activation_checkpointing: bool = False,
        gradient_checkpointing: bool | None = None,
    ) -> Any:
        """Set the basic training arguments, and set `do_train` to True.

        `activation_checkpointing` is an alias of `gradient_checkpointing`. If both are given,
        `gradient_checkpointing` wins.
        """
        return self._set(
            do_train=True,
            learning_rate=learning_rate,
            per_device_train_batch_size=batch_size,
            weight_decay=weight_decay,
            num_train_epochs=num_epochs,
            max_steps=max_steps,
            gradient_accumulation_steps=gradient_accumulation_steps,
            seed=seed,
            gradient_checkpointing=(
                activation_checkpointing if gradient_checkpointing is None else gradient_checkpointing
            ),
        )

    def set_evaluate(
        self,
        strategy: str = "no",
        steps: int = 500,
        batch_size: int = 8,
        accumulation_steps: int | None = None,
        delay: float | None = None,
        loss_only: bool = False,
    ) -> Any:
        """Set when and how the model is evaluated.

        Raises:
            ArgumentError: `strategy` is "steps" and `steps` is 0, or a value is invalid.
        """
        if strategy == IntervalStrategy.STEPS and steps == 0:
            raise ArgumentError("`steps` is 0; set it to 1 or more, or set `strategy='no'`.")
        return self._set(
            do_eval=False,  # the check derives it from the strategy
            eval_strategy=strategy,
            eval_steps=steps,
            per_device_eval_batch_size=batch_size,
            eval_accumulation_steps=accumulation_steps,
            eval_delay=delay or 0,
            prediction_loss_only=loss_only,
        )

    def set_testing(self, batch_size: int = 8, loss_only: bool = False) -> Any:
        """Set `do_predict` to True, and set the evaluation batch size and `prediction_loss_only`."""
        return self._set(do_predict=True, per_device_eval_batch_size=batch_size, prediction_loss_only=loss_only)

    def set_save(
        self, strategy: str = "steps", steps: int = 500, total_limit: int | None = None, on_each_node: bool = False
    ) -> Any:
        """Set when checkpoints are saved and how many are kept."""
        return self._set(
            save_strategy=strategy, save_steps=steps, save_total_limit=total_limit, save_on_each_node=on_each_node
        )

    def set_logging(
        self,
        strategy: str = "steps",
        steps: int = 500,
        report_to: str | list[str] = "none",
        level: str = "passive",
        first_step: bool = False,
        nan_inf_filter: bool = False,
        on_each_node: bool = False,
        replica_level: str = "passive",
    ) -> Any:
        """Set when and where values are logged."""
        return self._set(
            logging_strategy=strategy,
            logging_steps=steps,
            report_to=report_to,
            log_level=level,
            logging_first_step=first_step,
            logging_nan_inf_filter=nan_inf_filter,
            log_on_each_node=on_each_node,
            log_level_replica=replica_level,
        )

    def set_push_to_hub(
        self,
        model_id: str,
        strategy: str = HubStrategy.EVERY_SAVE,
        token: str | None = None,
        private_repo: bool | None = None,
        always_push: bool = False,
        revision: str | None = None,
    ) -> Any:
        """Set `push_to_hub` to True, and set the options of pushing."""
        return self._set(
            push_to_hub=True,
            hub_model_id=model_id,
            hub_strategy=strategy,
            hub_token=token,
            hub_private_repo=private_repo,
            hub_always_push=always_push,
            hub_revision=revision,
        )

    def set_optimizer(
        self,
        name: str = "adamw_torch",
        learning_rate: float = 5e-5,
        weight_decay: float = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        args: str | None = None,
    ) -> Any:
        """Set the optimizer and its options."""
        return self._set(
            optim=name,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            adam_beta1=beta1,
            adam_beta2=beta2,
            adam_epsilon=epsilon,
            optim_args=args,
        )

    def set_lr_scheduler(
        self, name: str = "linear", num_epochs: float = 3.0, max_steps: int = -1, warmup_steps: float = 0
    ) -> Any:
        """Set the learning rate schedule and its length."""
        return self._set(
            lr_scheduler_type=name, num_train_epochs=num_epochs, max_steps=max_steps, warmup_steps=warmup_steps
        )

    def set_dataloader(
        self,
        train_batch_size: int = 8,
        eval_batch_size: int = 8,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = True,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: str | None = None,
        in_order: bool = True,
        auto_find_batch_size: bool = False,
        ignore_data_skip: bool = False,
        sampler_seed: int | None = None,
    ) -> Any:
        """Set how batches are built and loaded."""
        return self._set(
            per_device_train_batch_size=train_batch_size,
            per_device_eval_batch_size=eval_batch_size,
            dataloader_drop_last=drop_last,
            dataloader_num_workers=num_workers,
            dataloader_pin_memory=pin_memory,
            dataloader_persistent_workers=persistent_workers,
            dataloader_prefetch_factor=prefetch_factor,
            dataloader_multiprocessing_context=multiprocessing_context,
            dataloader_in_order=in_order,
            auto_find_batch_size=auto_find_batch_size,
            ignore_data_skip=ignore_data_skip,
            data_seed=sampler_seed,
        )

    def _set(self, **values: Any) -> Any:
        """Set fields, check all fields, and return the arguments.

        Raises:
            ArgumentError: If a check fails. The fields then have their former values.
        """
        before = dict(vars(self))
        vars(self).update(values)
        checked: Any = self
        try:
            checked._normalize_and_check()
        except ArgumentError:
            vars(self).update(before)
            raise
        return self
