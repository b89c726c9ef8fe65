"""The Trainer's methods for the optimizer and the learning-rate schedule."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any, cast

import torch
from torch import nn

from ...events.capabilities import Capability
from ...events.composition import provides
from ...events.errors import ArgumentError
from ..arguments import TrainingArguments
from ..loss.loss_module import module_of, trainable_of
from ..loss.reachable import untrained_modules
from ..optim.build import (
    build_given,
    build_optimizer,
    class_and_options,
    decay_parameter_names,
    parameter_groups,
)
from ..optim.closures import closure_refusal
from ..optim.extra_parameters import ExtraParameters
from ..optim.group_rates import with_own_rates
from ..optim.low_bit import sharding_refusal, share_rounding_noise
from ..optim.schedules import get_scheduler
from ..run import Run
from .base import TrainerBase
from .overrides import is_overridden

logger = logging.getLogger(__name__)


class OptimizerMethods(TrainerBase):
    """Methods that build the optimizer and the schedule, and return values such as the learning rates."""

    optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None
    criterion: Any
    compute_loss_func: Any
    _extra_parameters: Sequence[nn.Parameter] = ()
    """Parameters outside of the model that the optimizer updates: the parameters of a loss module, and parameters that
    the user put into the optimizer."""
    _unclipped_parameters: Sequence[nn.Parameter] = ()
    """Extra parameters that the user put into the optimizer. As in transformers, their gradients are not clipped."""
    _told_untrained = False
    """Whether the warning about untrained modules of a loss function was logged."""
    _given_optimizers: tuple[Any, Any]
    """The optimizer and the schedule that the user passed as `optimizers`; None for one that the arguments define."""
    _set_schedule: Any = None
    """The schedule that the program, or an override, set as `trainer.lr_scheduler`; None without one."""

    @property
    def optimizer(self) -> Any:
        """The optimizer. Before the first training: the optimizer that the user passed, or None."""
        return self.run.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        self.run.optimizer = optimizer

    @property
    def lr_scheduler(self) -> Any:
        """The learning-rate schedule. Before the first training: the schedule that the user passed, or None."""
        return self.run.lr_scheduler

    @lr_scheduler.setter
    def lr_scheduler(self, scheduler: Any) -> None:
        self.run.lr_scheduler = self._set_schedule = scheduler

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Create the optimizer and the schedule.

        To use an optimizer or a schedule of your own, override this method, `create_optimizer` or `create_scheduler`.

        Args:
            num_training_steps: optimizer steps of the whole run.
        """
        self.create_optimizer()
        self.create_scheduler(num_training_steps)

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """If the run has no optimizer, create one from the arguments. Return the optimizer of the run.

        Args:
            model: the model with the parameters; None for the model of the trainer.
        """
        if self.run.optimizer is None:
            args, model = self.args, self.run.model if model is None else model
            # An override may change one of the groups. A callback that keeps the groups cannot divide them again for a
            # checkpoint with other groups.
            keeps = provides(self.bus.subscribers.values(), Capability.KEEPS_GROUPS)
            split = keeps or is_overridden(self, "create_optimizer")
            groups = self._make_groups(model, args.weight_decay, always_split=split)
            given = self.optimizer_cls_and_kwargs
            if given is None and is_overridden(self, "get_optimizer_cls_and_kwargs"):
                given = self.get_optimizer_cls_and_kwargs(args, model)
            if given is not None:
                self.run.optimizer = build_given(*given, model, groups)
            else:
                self.run.optimizer = build_optimizer(
                    args.optim,
                    groups,
                    lr=args.learning_rate,
                    betas=(args.adam_beta1, args.adam_beta2),
                    eps=args.adam_epsilon,
                    weight_decay=args.weight_decay,
                    warmup_steps=args.get_warmup_steps(self.run.state.max_steps),
                    optim_args=args.optim_args,
                    model=model,
                    target_modules=args.optim_target_modules,
                )
        return self.run.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """If the run has no learning-rate schedule, create one from the arguments. Return the schedule of the run.

        Args:
            num_training_steps: optimizer steps of the whole run.
            optimizer: the optimizer to schedule; by default the optimizer of the run.
        """
        if self.run.lr_scheduler is None:
            self.run.lr_scheduler = get_scheduler(
                self.args.lr_scheduler_type,
                self.run.optimizer if optimizer is None else optimizer,
                self.args.get_warmup_steps(num_training_steps),
                num_training_steps,
                **(self.args.lr_scheduler_kwargs or {}),
            )
        return self.run.lr_scheduler

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: nn.Module | None = None) -> tuple[Any, Any]:
        """Return the optimizer class that the arguments name, and its options.

        If a subclass overrides this method, the trainer builds the optimizer from the returned class and options. The
        input `optimizer_cls_and_kwargs` of the Trainer has priority over the override.

        Args:
            args: the training arguments, which name the optimizer.
            model: not used.

        Raises:
            ArgumentError: for an option that the optimizer does not accept.
            MissingExtra: if the optimizer's package is not installed.
        """
        return class_and_options(
            args.optim,
            lr=args.learning_rate,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
            weight_decay=args.weight_decay,
            warmup_steps=args.get_warmup_steps(args.max_steps),
            optim_args=args.optim_args,
        )

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters with weight decay: all except biases and weights of normalisation layers.

        Override this method for another choice.
        """
        decaying = decay_parameter_names(model)
        return [name for name, _ in model.named_parameters() if name in decaying]

    def get_learning_rates(self) -> list[float]:
        """Return the learning rate of each parameter group.

        Raises:
            ArgumentError: if there is no optimizer yet.
        """
        return [group["lr"] for group in self._parameter_groups()]

    def get_optimizer_group(self, param: nn.Parameter | None = None) -> Any:
        """Return the parameter group that contains `param`; None if no group contains this parameter.

        Args:
            param: the parameter. If it is None, the method returns a list with one list of parameters per group.

        Raises:
            ArgumentError: if there is no optimizer yet.
        """
        groups = self._parameter_groups()
        if param is None:
            return [group["params"] for group in groups]
        return next((group for group in groups if any(each is param for each in group["params"])), None)

    def _parameter_groups(self) -> list[dict[str, Any]]:
        if self.run.optimizer is None:
            raise ArgumentError("There is no optimizer yet. Call this during or after training.")
        groups: list[dict[str, Any]] = self.run.optimizer.param_groups
        return groups

    # Building, through the seams.

    def _make_groups(
        self, model: nn.Module, weight_decay: float, *, always_split: bool = False
    ) -> list[dict[str, Any]]:
        """Build the parameter groups of an optimizer, with the learning rates of the argument `learning_rates`.

        `get_decay_parameter_names` selects the parameters with weight decay. The function `parameter_groups` describes
        the arguments of this method.

        Raises:
            ArgumentError: if no parameter of the model requires a gradient, or if a pattern in `learning_rates` selects
                no parameter.
        """
        decaying = self.get_decay_parameter_names(model)
        groups = parameter_groups(model, weight_decay, decaying, always_split=always_split)
        return with_own_rates(groups, model, self.args.learning_rates) if self.args.learning_rates else groups

    def _loss_groups(self, weight_decay: float, held: Collection[nn.Parameter] = ()) -> list[dict[str, Any]]:
        """Build the parameter groups of a loss module, without parameters of the model and those in `held`."""
        module = module_of(self.criterion or self.compute_loss_func)
        own = {*trainable_of(module, self.run.model)}.difference(held)
        if module is None or not own:
            return []
        groups = [
            {**group, "params": [weight for weight in group["params"] if weight in own]}
            for group in parameter_groups(module, weight_decay)
        ]
        return [group for group in groups if group["params"]]

    def _use_given_optimizers(self) -> None:
        """Set the optimizer and the schedule of the run to the objects of the user; None if there are none."""
        self.run.optimizer, self.run.lr_scheduler = self._given_optimizers

    def _forget_schedule(self) -> None:
        """Drop the schedule of an earlier training, because a new training may have another length.

        A schedule of the user stays, as in transformers.
        """
        if self._given_optimizers[1] is None and self._own_schedule() is None:
            self.run.lr_scheduler = None

    def _replace_schedule(self, schedule: Any) -> None:
        """Use another schedule in the current training. The next training makes its own schedule again."""
        self.run.lr_scheduler = schedule

    def _own_schedule(self) -> Any:
        """Return the schedule of the run if the program or an override set it. Otherwise return None.

        If the schedule belongs to an earlier optimizer, and `create_scheduler` is overridden, the result is None. The
        override then creates another schedule.
        """
        run, schedule = self.run, self._set_schedule
        if schedule is not run.lr_scheduler:
            return None
        outdated = getattr(schedule, "optimizer", run.optimizer) is not run.optimizer
        return None if outdated and is_overridden(self, "create_scheduler") else schedule

    def _make_optimizer(self, num_training_steps: int) -> None:
        """Build the optimizer through the seam `make_optimizer`.

        Raises:
            ArgumentError: if the optimizer needs a closure, or does not work with the way to shard. Also if the
                criterion or loss function has trainable parameters that the model lacks, and the optimizer comes from
                a callback. Also if the run already has a schedule, and this schedule was built for another optimizer.
        """
        run = self.run
        self._extra_parameters = self._unclipped_parameters = ()
        if is_overridden(self, "create_optimizer_and_scheduler"):
            self.create_optimizer_and_scheduler(num_training_steps)
        calls: list[None] = []

        def create() -> Any:
            calls.append(None)
            created = self._create_complete_optimizer()
            if refusal := sharding_refusal(run.optimizer if created is None else created, _sharded_by(run)):
                raise ArgumentError(refusal)
            return created

        run.optimizer = run.seams.make_optimizer(create)
        module = module_of(self.criterion or self.compute_loss_func)
        if not calls and module is not None and trainable_of(module, run.model):
            raise ArgumentError(_updates_the_model_only(run.seams.filled_by("make_optimizer"), module))
        if not run.seams.filled_by("step") and (refusal := closure_refusal(run.optimizer)):
            raise ArgumentError(refusal)
        share_rounding_noise(run.optimizer, self.args.seed, lambda: run.state.global_step)
        self._keep_extra_parameters()
        if getattr(run.lr_scheduler, "optimizer", run.optimizer) is not run.optimizer:
            raise ArgumentError(
                f"The schedule {type(run.lr_scheduler).__name__} belongs to an optimizer that "
                f"{run.seams.filled_by('make_optimizer') or 'another'} replaced. Pass only the optimizer, and build "
                "the schedule with `lr_scheduler_type` or in an override of `create_scheduler`."
            )

    def _keep_extra_parameters(self) -> None:
        """Attach an `ExtraParameters`, if the optimizer has parameters of neither the model nor the loss module.

        The method first detaches the `ExtraParameters` of an earlier session.
        """
        for owner_id, attached in self.bus.subscribers.items():
            if isinstance(attached, ExtraParameters):
                self.bus.detach(owner_id)
        if self._unclipped_parameters:
            self.bus.attach(ExtraParameters(self._unclipped_parameters))

    def _create_complete_optimizer(self) -> Any:
        """Create the optimizer, and let it update the parameters of a loss module too.

        Returns:
            The optimizer; None if an override of `create_optimizer` returns None.

        Raises:
            ArgumentError: if the schedule of the user has no learning rate for the parameters of the loss module. Also
                if the way to shard does not update these parameters.
        """
        run, args = self.run, self.args
        created = self.create_optimizer()
        optimizer = run.optimizer if created is None else created
        if not isinstance(optimizer, torch.optim.Optimizer):
            self._extra_parameters = self._unclipped_parameters = ()
            return created
        module = module_of(self.criterion or self.compute_loss_func)
        held = {weight for group in optimizer.param_groups for weight in group["params"]}
        missing = [weight for weight in trainable_of(module, run.model) if weight not in held]
        if missing and module is not None:
            kind, owner = type(module).__name__, run.seams.filled_by("make_optimizer")
            if getattr(run.lr_scheduler, "optimizer", None) is optimizer:
                raise ArgumentError(
                    f"The loss module {kind} has parameters that the optimizer of `optimizers` does not hold, and the "
                    "schedule of `optimizers` has no learning rate for them. Add them to the optimizer, or freeze them "
                    "with `requires_grad_(False)`."
                )
            if owner in ("DeepSpeed", "ShardedDDP", "FairscaleFSDP"):
                raise ArgumentError(_updates_the_model_only(owner, module))
            for group in self._loss_groups(args.weight_decay, held):
                optimizer.add_param_group(group)
            held.update(missing)
        own = set(run.model.parameters())
        self._tell_untrained(held | own)
        self._extra_parameters = [
            weight for group in optimizer.param_groups for weight in group["params"] if weight not in own
        ]
        own.update(() if module is None else module.parameters())
        self._unclipped_parameters = [weight for weight in self._extra_parameters if weight not in own]
        return created

    def _tell_untrained(self, trained: set[Any]) -> None:
        """Warn once if the loss function uses modules that the run does not train.

        Args:
            trained: the parameters of the model and of the optimizer. The warning lists each module of the loss
                function that has a trainable parameter outside of this set.
        """
        found = untrained_modules(self.criterion or self.compute_loss_func, trained)
        if is_overridden(self, "compute_loss"):  # a module in eval mode is a teacher or a reference
            found += [each for each in untrained_modules(cast(Any, self).compute_loss, trained) if each.training]
        if found and not self._told_untrained:
            self._told_untrained = True
            logger.warning(
                "The loss function uses the module %s, which is not part of the model. Its parameters are not trained "
                "and not saved. To train, clip and save them, pass a module that contains it as `criterion`. To train "
                "and save them without clipping, as in transformers, add them to the optimizer of `optimizers`. If "
                "they need no training, call `requires_grad_(False)` on the module.",
                ", ".join(type(each).__name__ for each in found),
            )

    def _make_schedule(self, num_training_steps: int) -> None:
        """Build the schedule through the seam `make_schedule`."""

        def create() -> Any:
            self.create_scheduler(num_training_steps)
            return self.run.lr_scheduler  # an override of `create_scheduler` may return nothing

        self.run.lr_scheduler = self.run.seams.make_schedule(create)


def _sharded_by(run: Run) -> str:
    """Return the id of the callback that shards the weights or the optimizer state; "" if none does."""
    return run.seams.filled_by("optimizer_state") or run.seams.filled_by("model_state")


def _updates_the_model_only(owner: str, module: nn.Module) -> str:
    return (
        f"{owner} updates only the parameters of the model, but the loss module {type(module).__name__} also has "
        "parameters. Move the loss module into the model and return the loss from `forward`, or use DDP or FSDP."
    )
