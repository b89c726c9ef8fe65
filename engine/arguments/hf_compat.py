"""What scripts ask of the arguments, and how they set several at once, under the names of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from ...events.errors import ArgumentError
from ..distributed.ranks import Ranks
from ._base import IntervalStrategy, Strategy
from .hub import HubStrategy


class ParallelMode(Strategy):
    """How the training is spread."""

    NOT_PARALLEL = "not_parallel"
    """One process on the CPU, or on one GPU."""
    NOT_DISTRIBUTED = "not_distributed"
    """One process on several GPUs."""
    DISTRIBUTED = "distributed"
    """Several processes, each with its device."""


class Familiar:
    """Properties, and setters that change several arguments at once and check them as the constructor does."""

    @property
    def parallel_mode(self) -> ParallelMode:
        """How the training is spread."""
        if not Ranks.from_environment().single_process:
            return ParallelMode.DISTRIBUTED
        args: Any = self
        return ParallelMode.NOT_DISTRIBUTED if args.n_gpu > 1 else ParallelMode.NOT_PARALLEL

    @property
    def place_model_on_device(self) -> bool:
        """Whether the trainer moves the model to its device: always."""
        return True

    @property
    def ddp_timeout_delta(self) -> timedelta:
        """`ddp_timeout` as a duration."""
        whole: Any = self  # of which another group has the field
        seconds: int = whole.ddp_timeout
        return timedelta(seconds=seconds)

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Have the first process do something before the others, as to fill a cache that those read.

        Args:
            local: the first of each machine; else the first of all.
            desc: what is done; for readers of the script.
        """
        args: Any = self
        ranks = Ranks.from_environment()
        ranks.join(args.device, args.ddp_backend, args.ddp_timeout)
        with ranks.main_first(local):
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
        """Set how the model is trained, and return the arguments.

        `activation_checkpointing` and `gradient_checkpointing` are two names of one thing; the latter counts if given.
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
        """Set when and how the model is evaluated, and return the arguments."""
        if strategy == IntervalStrategy.STEPS and steps == 0:
            raise ArgumentError("`steps` is 0; give 1 or more, or `strategy='no'`.")
        return self._set(
            do_eval=False,  # which follows from the strategy
            eval_strategy=strategy,
            eval_steps=steps,
            per_device_eval_batch_size=batch_size,
            eval_accumulation_steps=accumulation_steps,
            eval_delay=delay or 0,
            prediction_loss_only=loss_only,
        )

    def set_testing(self, batch_size: int = 8, loss_only: bool = False) -> Any:
        """Set how predictions are made, and return the arguments."""
        return self._set(do_predict=True, per_device_eval_batch_size=batch_size, prediction_loss_only=loss_only)

    def set_save(
        self, strategy: str = "steps", steps: int = 500, total_limit: int | None = None, on_each_node: bool = False
    ) -> Any:
        """Set when checkpoints are written and how many are kept, and return the arguments."""
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
        """Set when and where values are logged, and return the arguments."""
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
        """Set what is pushed to the hub, and return the arguments."""
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
        """Set the optimizer, and return the arguments."""
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
        """Set the schedule and how long it is, and return the arguments."""
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
        """Set how batches are made, and return the arguments."""
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
        """Change fields and check all of them; if something is wrong, none is changed."""
        before = dict(vars(self))
        vars(self).update(values)
        checked: Any = self
        try:
            checked._settle()
        except ArgumentError:
            vars(self).update(before)
            raise
        return self
