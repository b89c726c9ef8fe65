"""Trainer: arguments, model and data in, a run out. The composition root, and the only file that knows all rooms."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..callbacks.compose import compose
from ..callbacks.optimizer.schedule_free import ScheduleFree
from ..events.capabilities import Capability
from ..events.composition import provides
from ..events.control import TrainerControl
from ..events.errors import ArgumentError, ModelError
from ..events.state import TrainerState
from ..integrations import found_callbacks, load, search_backend
from .api.callbacks import Subscribing
from .api.evaluation import Evaluating
from .api.introspection import Asking
from .api.overrides import adapt_overrides
from .api.publishing import Publishing
from .api.search import Searching
from .api.validation import check_given, collator_for, training_arguments
from .arguments import TrainingArguments
from .checkpoint import store
from .checkpoint.read.choosing import folder_to_resume
from .checkpoint.read.resumption import NoResumption, Resumption
from .data.build import length_of
from .data.collators.default import Collator
from .data.feed import Feed
from .data.plan import Plan, plan_run
from .distributed.consensus import agreement, agreement_on_updates
from .distributed.consistency import check_built
from .distributed.failures import introduce
from .distributed.ranks import Ranks
from .evaluation.outputs import EvalPrediction, TrainOutput, print_messages, set_seed
from .loop import Loop
from .loss.objective import Objective
from .optim.build import build_given, build_optimizer, parameter_groups
from .optim.schedules import get_scheduler
from .run import Run
from .search.batch_size import memory_explained, with_smaller_batches
from .session import session
from .stepper import Stepper

logger = logging.getLogger(__name__)


class Trainer(Asking, Publishing, Evaluating, Subscribing, Searching):
    """Trains, evaluates and predicts, announcing every moment to a list of callbacks.

    Args:
        model: any torch module that returns its loss, or its logits if `criterion` or `compute_loss_func` is given.
        args: how to train; by default `TrainingArguments("tmp_trainer")`.
        data_collator: from a list of rows to a batch; by default stacks tensors, or pads with `processing_class`.
        train_dataset: a map-style or iterable dataset of rows, as dicts or tuples.
        eval_dataset: the same for evaluation, or several in a dict by name.
        processing_class: the tokenizer or processor of the model; saved with it.
        model_init: returns a new model, in place of `model`; called again at each `train()`. If it takes a parameter,
            that is the trial of a hyperparameter search, or None.
        compute_loss_func: `(outputs, labels, num_items_in_batch=...) -> loss`, dividing by the items itself.
        compute_metrics: `(EvalPrediction) -> {name: number}`, called once per evaluation with all predictions.
        callbacks: what the run does beside training: callbacks, or classes of such, in any order.
        optimizers: an optimizer and a schedule to use instead of those that `args` names; either may be None.
        optimizer_cls_and_kwargs: an optimizer's class and options, in place of the name in `args`.
        preprocess_logits_for_metrics: `(logits, labels) -> what to keep of them` for each evaluation batch.
        criterion: `(logits, labels) -> loss`, a mean over the batch, for models that return logits only.
        tokenizer: the older name of `processing_class`.

    Raises:
        ArgumentError: for arguments that contradict each other or the data, all named.
        SubscriptionError: for callbacks that cannot be attached.
    """

    _integration = staticmethod(load)
    search_backend = staticmethod(search_backend)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        adapt_overrides(cls)

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Collator | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., torch.Tensor] | None = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, Any]] | None = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        *,
        criterion: Callable[[Any, Any], torch.Tensor] | None = None,
        tokenizer: Any = None,
    ) -> None:
        self._given = {name: value for name, value in locals().items() if name != "self"}
        self._functions = {}
        self.args = args = training_arguments(args)
        set_seed(args.seed, args.full_determinism)
        if args.own_log_level != "passive":
            print_messages(args.get_process_log_level())
        # Before the process group: what a callback imports must not find it, see Ranks.join.
        switched = ScheduleFree.for_optimizers(args, optimizers[0], *(optimizer_cls_and_kwargs or ())[:1])
        composed = compose(args, callbacks or [], [*found_callbacks(args), switched])
        ranks = Ranks.from_environment()
        ranks.join(args.device, args.ddp_backend, args.ddp_timeout)
        introduce(ranks)
        if model is not None and not isinstance(model, nn.Module):
            raise ArgumentError(
                f"`model` is a {type(model).__name__}; pass a torch.nn.Module, such as `from_pretrained(name)` returns."
            )
        if (model is None) == (model_init is None):
            raise ArgumentError("Pass either `model` or `model_init` to the Trainer, one of the two.")
        self.model_init = model_init
        self.criterion, self.compute_loss_func = criterion, compute_loss_func
        model = model if model_init is None else self.call_model_init()
        assert model is not None

        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        processing_class = processing_class if processing_class is not None else tokenizer
        self.data_collator = data_collator or collator_for(processing_class)
        self.compute_metrics = compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self._given_optimizers = optimizers
        check_given(self)

        state = TrainerState(
            is_local_process_zero=ranks.local_rank == 0,
            is_world_process_zero=ranks.rank == 0,
            train_batch_size=args.train_batch_size,
        )
        control = TrainerControl(ranks.rank)
        self._places_model = not provides(composed, Capability.PLACES_MODEL)
        self.run = Run(args, state, control, self._placed(model), ranks, self, processing_class=processing_class)
        self.bus = self.run.bus
        self._adopt(self.run.model)
        for callback in composed:
            self.bus.attach(callback)
        self.bus.resolve()
        self.bus.announce("on_init_end")
        self._built_with = self.bus.subscribers

    # Training.

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, and return the number of steps, the mean training loss and the summary.

        Args:
            resume_from_checkpoint: a checkpoint's folder to go on from, or True for the newest good one in
                `args.output_dir`; "auto" for that, or to begin anew where there is no checkpoint at all.
            trial: the trial of a hyperparameter search that this is, for `model_init`.
            ignore_keys_for_eval: keys of the model's outputs that are no predictions, in evaluations on the way.

        Raises:
            DataError: for an empty dataset. ModelError: for a model that does not fit the data, or returns no loss.
            CheckpointError: if there is nothing to resume from, or it is damaged.
            RankFailure: if another process of the run fails, is gone, or does not answer within `ddp_timeout`.
        """
        self._ignore_keys = ignore_keys_for_eval
        self.run.train_batch_size = self.args.train_batch_size
        begin = cache(lambda: self._begin(resume_from_checkpoint))  # once, whatever is tried from there on
        if self.args.auto_find_batch_size and self.run.ranks.single_process:
            return with_smaller_batches(self.run, lambda: self._train(begin, trial))
        return self._train(begin, trial)

    def _begin(self, resume_from_checkpoint: str | bool | None) -> Path | None:
        """Return the checkpoint to go on from; a batch size that was found back then is the first to try."""
        run = self.run
        folder = folder_to_resume(run, resume_from_checkpoint)
        if folder is not None and self.args.auto_find_batch_size:
            run.train_batch_size = store.read_state(folder).get("train_batch_size") or run.train_batch_size
        return folder

    def _train(self, begin: Callable[[], Path | None], trial: Any) -> TrainOutput:
        run, args = self.run, self.args
        with session(run, "train"), memory_explained(run):
            folder = begin()
            if self.model_init is not None:
                set_seed(args.seed, args.full_determinism)
                self._adopt(self._placed(self.call_model_init(trial)))
            resumption = Resumption(run, folder) if folder is not None else NoResumption(run)
            run.data_seed = resumption.data_seed(args.data_seed)
            run.train_dataloader = self.get_train_dataloader()
            run.plan = self._plan(run.train_dataloader)
            run.state, run.position = resumption.begin(run.plan)
            self._assemble(run.plan)
            check_built(run, self._rows_to_evaluate())
            feed = Feed(
                *(run.train_dataloader, args.gradient_accumulation_steps, args.device, run.ranks.world_size),
                non_blocking=args.non_blocking,
            )
            run.begin()
            resumption.restore(feed)
            agree = agreement(run)
            self._stepper = Stepper(
                run,
                self.training_step,
                self.count_items,
                max_grad_norm=args.max_grad_norm or 0.0,
                filter_nonfinite=args.logging_nan_inf_filter,
                agree=agreement_on_updates(run, agree),
            )
            loop = Loop(
                *(self.bus, run.state, run.control, feed, self._stepper),
                epochs=run.plan.epochs,
                batches_per_epoch=run.plan.batches_per_epoch,
                position=run.position,
                agree=agree,
            )
            loop.run()
            summary = run.summary()
            return TrainOutput(run.state.global_step, summary["train_loss"], summary)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward of one batch; return its loss, detached, divided by the batches of its step.

        Override it to change how a batch is learned from.
        """
        if not model.training:
            model.train()
        inputs = self._prepare_inputs(inputs)
        loss: torch.Tensor = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        if loss.dim() > 0:
            loss = loss.mean()
        scaled = self.loss_is_scaled_for_ga
        if scaled is None:
            counted = self.objective.takes_item_count and num_items_in_batch is not None
            scaled = counted or self.compute_loss_func is not None
        if not scaled and self._stepper.accumulating > 1:
            loss = loss / self._stepper.accumulating
        self._stepper.backward(loss)
        loss = self.run.loss  # which a handler of `on_loss` may have replaced
        return loss.detach()

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Make the optimizer and the schedule. Override it, or one of the two it calls."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps)

    def create_optimizer(self) -> Any:
        """Make the optimizer from the arguments, unless there is one."""
        if self.run.optimizer is None:
            args, model = self.args, self.run.model
            groups = parameter_groups(model, args.weight_decay, self.get_decay_parameter_names(model))
            given = self.optimizer_cls_and_kwargs
            if given is None and type(self).get_optimizer_cls_and_kwargs is not Asking.get_optimizer_cls_and_kwargs:
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
        """Make the learning-rate schedule from the arguments, unless there is one."""
        if self.run.lr_scheduler is None:
            self.run.lr_scheduler = get_scheduler(
                self.args.lr_scheduler_type,
                self.run.optimizer if optimizer is None else optimizer,
                self.args.get_warmup_steps(num_training_steps),
                num_training_steps,
                **(self.args.lr_scheduler_kwargs or {}),
            )
        return self.run.lr_scheduler

    # Inside.

    def _plan(self, loader: Any) -> Plan:
        args = self.args
        return plan_run(
            batches=length_of(loader),
            examples=length_of(getattr(loader, "dataset", None)),
            max_steps=args.max_steps,
            num_train_epochs=args.num_train_epochs,
            batch_size=self.run.train_batch_size,
            accumulate=args.gradient_accumulation_steps,
            world_size=self.run.ranks.world_size,
        )

    def _adopt(self, model: nn.Module) -> None:
        """Take a model as the one of the run, and look at how its loss is computed."""
        args, run = self.args, self.run
        run.model = run.model_wrapped = model
        config: Any = getattr(model, "config", None)
        if hasattr(config, "use_cache"):
            config.use_cache = args.use_cache  # keys and values are kept for generating; training only pays for them
        run.optimizer, run.lr_scheduler = self._given_optimizers
        self.objective = Objective(
            model,
            criterion=self.criterion,
            compute_loss_func=self.compute_loss_func,
            label_smoothing=args.label_smoothing_factor,
            label_names=args.label_names,
        )
        self.objective.set(**self._objective_settings)

    def _assemble(self, plan: Plan) -> None:
        """Have the callbacks fill the seams, then build optimizer, wrapped model and schedule through them."""
        run = self.run
        if self._given_optimizers[1] is None:
            run.lr_scheduler = None  # one that was made for an earlier run has that run's length
        self.bus.announce("on_setup")
        run.model = run.seams.prepare_model(run.model)
        if type(self).create_optimizer_and_scheduler is not Trainer.create_optimizer_and_scheduler:
            self.create_optimizer_and_scheduler(plan.max_steps)
        run.optimizer = run.seams.make_optimizer(self.create_optimizer)
        self._check_schedule()
        run.model_wrapped = run.seams.wrap_model(run.model, run.optimizer)
        run.model_wrapped.train()  # a new wrapper says that it trains, whatever an evaluation left inside of it
        run.lr_scheduler = run.seams.make_schedule(lambda: self._make_schedule(plan))
        run.seams.zero_grad(list(run.model.parameters()))

    def _placed(self, model: nn.Module) -> nn.Module:
        """Return a model on its device, unless a callback sees to that, as one that splits it does."""
        if not self._places_model:
            return model
        if any(weight.is_meta for weight in model.parameters()):
            raise ModelError(
                f"{type(model).__name__} was made on the meta device, and its weights have no values. With `fsdp=True` "
                "they are made, part by part; without it, make the model on another device."
            )
        return model.to(self.args.device)

    def _make_schedule(self, plan: Plan) -> Any:
        self.create_scheduler(plan.max_steps)
        return self.run.lr_scheduler  # which is what counts, also of an override that returns nothing

    def _check_schedule(self) -> None:
        """Refuse a schedule that would go on moving an optimizer which a callback has replaced."""
        run = self.run
        if getattr(run.lr_scheduler, "optimizer", run.optimizer) is not run.optimizer:
            raise ArgumentError(
                f"The schedule {type(run.lr_scheduler).__name__} moves an optimizer that "
                f"{run.seams.filled_by('make_optimizer') or 'another'} has replaced: give the optimizer only, and have "
                "the schedule made by `lr_scheduler_type`, or by a `create_scheduler` of your own."
            )
