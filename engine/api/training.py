"""The Trainer's methods for training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import cache
from typing import Any

import torch
from torch import nn

from ...events.errors import ArgumentError, ModelError
from ...events.keywords import checked_keywords
from ..checkpoint.read.choosing import checkpoint_to_resume
from ..checkpoint.read.resumption import FreshStart, Resumption
from ..checkpoint.read.saved import SavedCheckpoint
from ..data.build import epoch_rows, length_of
from ..data.feed import Feed
from ..data.packing.collator import collator_for
from ..data.plan import RunPlan, plan_run
from ..data.samplers import BatchedSampler
from ..data.stateful import adopt_state
from ..distributed.agreement import agreement
from ..distributed.consistency import compare_training
from ..evaluation.modes import begin_training, to_train
from ..evaluation.outputs import TrainOutput
from ..loss.gradient_errors import check_loss
from ..search.batch_size import memory_explained, with_smaller_batches
from ..session import session
from ..stepper import Stepper
from .banner import announce_training
from .dry_batch.dry_run import dry_batch
from .dry_batch.report import DryBatchReport
from .evaluation import EvaluationMethods
from .optimizers import OptimizerMethods
from .overridden_service import loop_of
from .search import SearchMethods
from .seeding import set_seed
from .tracebacks import short_tracebacks


class TrainingMethods(EvaluationMethods, OptimizerMethods, SearchMethods):
    """Trains the model."""

    _stepper: Stepper
    _places_model: bool
    """Whether the Trainer moves the model to its device. A callback that shards the model moves the model itself."""

    @short_tracebacks
    @checked_keywords
    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train. Return the number of steps, the mean training loss, and metrics of the session such as its runtime.

        Args:
            resume_from_checkpoint: a checkpoint folder to resume from, or True for the newest good checkpoint in
                `args.output_dir`. "auto" is the same as True if there is a checkpoint, and starts a new run otherwise.
                None and False start a new run.
            trial: the trial of a hyperparameter search. `model_init` receives it.
            ignore_keys_for_eval: keys of the model's outputs that are not predictions, for evaluations during
                training.

        Raises:
            ArgumentError: if the trainer is training, evaluating or predicting, such as in a handler.
            DataError: for an empty dataset.
            ModelError: for a model that does not fit the data, or that returns no loss.
            CheckpointError: if there is nothing to resume from, or if the checkpoint is damaged.
            RankFailure: if another rank fails, ends, or does not answer within `ddp_timeout` seconds.
        """
        self._check_idle("train")
        self._follow_arguments()
        self.bus.isolation.begin()
        self._ignore_keys = ignore_keys_for_eval
        self.run.use_batch_size(self._wanted_batch_size)
        self.run.session.resume_requested = bool(resume_from_checkpoint)
        self.args.check_resumes(resume_from_checkpoint)
        choose = cache(lambda: self._choose_checkpoint(resume_from_checkpoint))  # once for all attempts
        if self.args.auto_find_batch_size and self.run.ranks.single_process:
            return with_smaller_batches(self.run, lambda: self._train(choose, trial))
        return self._train(choose, trial)

    def _check_idle(self, method: str) -> None:
        """Raise an ArgumentError if the trainer is training, evaluating or predicting."""
        if self.run.mode:
            raise ArgumentError(
                f"`{method}` cannot start a training during {self.run.mode}(). A handler or an overridden method calls "
                f"it. Call it after {self.run.mode}() has returned, or train another model with another Trainer. To "
                "make this training longer, set `max_steps` or `num_train_epochs`."
            )

    def _choose_checkpoint(self, resume_from_checkpoint: str | bool | None) -> SavedCheckpoint | None:
        """Return the checkpoint to resume from; None for a new run.

        With `auto_find_batch_size`, also set the batch size that the checkpoint stores.
        """
        run = self.run
        checkpoint = checkpoint_to_resume(run, resume_from_checkpoint)
        if checkpoint is not None and self.args.auto_find_batch_size:
            run.use_batch_size(checkpoint.state.get("train_batch_size") or run.train_batch_size)
        return checkpoint

    def _train(self, choose: Callable[[], SavedCheckpoint | None], trial: Any) -> TrainOutput:
        run = self.run
        with session(run, "train"), memory_explained(run):
            self._follow_loss()
            checkpoint = choose()
            output: TrainOutput = self._at(
                "_inner_training_loop",
                lambda: self._train_from(checkpoint, trial),
                batch_size=run.train_batch_size,
                args=self.args,
                resume_from_checkpoint=None if checkpoint is None else str(checkpoint.path),
                trial=trial,
                ignore_keys_for_eval=self._ignore_keys,
            )
            return output

    def _train_from(self, checkpoint: SavedCheckpoint | None, trial: Any) -> TrainOutput:
        run, args = self.run, self.args
        if self.model_init is not None:
            set_seed(args.seed, args.full_determinism)
            self._use_model(self._placed(self.call_model_init(trial)))
        resumption = Resumption(run, checkpoint) if checkpoint is not None else FreshStart(run)
        run.data_seed = resumption.data_seed(args.data_seed)
        run.train_dataloader = adopt_state(self.get_train_dataloader())
        run.state, run.plan, run.position = resumption.begin(self._plan_run(run.train_dataloader))
        self._assemble(run.plan)
        compare_training(run, self._known_eval_datasets())
        feed = Feed(
            run.train_dataloader,
            args.gradient_accumulation_steps,
            args.device,
            run.ranks.world_size,
            non_blocking=args.non_blocking,
            activity=run.activity,
            accumulation_in=args.accumulation_in,
            collect=self._collect if "get_batch_samples" in self._overridden else None,
            timeline=run.bus.timeline,
            position=run.position,
            batches_per_epoch=run.plan.batches_per_epoch,
        )
        run.begin()
        run.bus.timeline.open(run.activity)
        resumption.restore(feed)
        agree, agree_before_update = agreement(run)
        self._stepper = Stepper(
            run,
            run.seams.train_batch(self.training_step),
            self.count_items,
            check_arguments=self._argument_check(),
            agree=agree_before_update,
            extra_parameters=self._extra_parameters,
            learning_rate=self._get_learning_rate if "_get_learning_rate" in self._overridden else None,
            unclipped_parameters=self._unclipped_parameters,
        )
        run.seams.close("train_batch")
        loop = loop_of(
            self,
            run.state,
            run.control,
            feed,
            self._stepper,
            epochs=run.plan.epochs,
            batches_per_epoch=run.plan.batches_per_epoch,
            position=run.position,
            agree=agree,
        )
        announce_training(self)
        with closing(feed), self._stepper.following_parameters():
            loop.run()
        self._at("_finish_current_push", lambda: None)
        summary = run.summary()
        return TrainOutput(run.state.global_step, summary["train_loss"], summary)

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train, and return the output of the training.

        In an override, `super()._inner_training_loop(...)` runs the training that `train()` has begun, and ignores the
        parameters. A call by the program itself does the same as `train()`.

        Args:
            batch_size: the batch size of the arguments, or None.
            args: other training arguments, or None.
            resume_from_checkpoint: the checkpoint to resume from, as in `train`.
            trial: the trial of a hyperparameter search.
            ignore_keys_for_eval: keys of the model's outputs that are not predictions.

        Raises:
            ArgumentError: if the program itself calls this method during a training, or with another batch size than
                the batch size of the arguments.
        """
        if self._is_work("_inner_training_loop"):
            return self._work("_inner_training_loop")
        self._check_idle("_inner_training_loop")
        if args is not None:
            self.args = args
        if batch_size not in (None, self._wanted_batch_size):
            raise ArgumentError(
                f"_inner_training_loop(batch_size={batch_size}) differs from the batch size, "
                f"{self._wanted_batch_size}. Set `args.per_device_train_batch_size` instead."
            )
        with self._calling("_inner_training_loop"):
            return TrainingMethods.train(self, resume_from_checkpoint, trial, ignore_keys_for_eval)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Run forward and backward of one batch, and return the detached loss of the batch.

        If the loss is a mean over the batch, the method divides the loss by the number of batches of the step. Override
        this method to change forward or backward.

        Args:
            model: the model, wrapped.
            inputs: the batch, on its device.
            num_items_in_batch: the number of labels in the whole step, without ignored labels (-100), as a scalar
                tensor. `compute_loss` divides the loss by it. None: the loss is a mean over the batch.
        """
        if not model.training:
            to_train(model)
        inputs = self._prepare_inputs(inputs)
        loss: torch.Tensor
        if self._overridden and self._has_loss_context:
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        else:
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        check_loss(loss)
        if loss.dim() > 0:
            loss = loss.mean()
        stepper = self._stepper
        if stepper.accumulating > 1 and not self._loss_is_scaled(num_items_in_batch):
            loss = loss / stepper.accumulating
        stepper.backward(loss)
        loss = self.run.step.loss  # a handler of `on_loss` may have replaced it
        return loss.detach()

    def _dry_batch(self, forward: bool, metrics: list[str]) -> DryBatchReport:
        """Check the training before its first step. The function `dry_batch` describes the parameters."""
        return dry_batch(self, forward, metrics)

    # Building.

    def _plan_run(self, loader: Any) -> RunPlan:
        args, batches, examples = self.args, length_of(loader), length_of(getattr(loader, "dataset", None))
        sampler = getattr(loader, "batch_sampler", None)
        if args.limit_train_batches is not None and not isinstance(sampler, BatchedSampler):
            raise ArgumentError(
                f"`limit_train_batches={args.limit_train_batches}` does not limit a loader of your own, here a "
                f"{type(loader).__name__}. Limit it in `get_train_dataloader`, or set `max_steps`."
            )
        if isinstance(sampler, BatchedSampler) and sampler.limit is not None and examples is not None:
            examples = min(examples, sampler.limit * sampler.stride)
        return plan_run(
            batches=batches,
            examples=examples,
            max_steps=args.max_steps,
            num_train_epochs=args.num_train_epochs,
            batch_size=self.run.train_batch_size,
            accumulate=args.gradient_accumulation_steps,
            world_size=self.run.ranks.world_size,
            accumulation_in=args.accumulation_in if args.gradient_accumulation_schedule else None,
            epoch_rows=epoch_rows(loader, self.run.train_batch_size, self.run.ranks.world_size),
        )

    def _use_model(self, model: nn.Module) -> None:
        """Replace the model of the run with `model`. Build `self.objective`, which computes the loss of this model."""
        run = self.run
        run.replace_model(model)
        config: Any = getattr(model, "config", None)
        if hasattr(config, "use_cache") or hasattr(config, "save_pretrained"):
            config.use_cache = self.args.use_cache  # training never reads the key-value cache
        self._use_given_optimizers()
        self.objective = self._build_objective(model)
        collator_for(self.data_collator, model, training=True)  # refuses a model that it does not fit

    def _assemble(self, plan: RunPlan) -> None:
        """Announce `on_setup`, and then build the optimizer, the wrapped model and the schedule.

        In `on_setup`, callbacks may replace the seams that build these objects.

        Args:
            plan: the length of the run.
        """
        run = self.run
        self._forget_schedule()
        run.callback_states.forget_carried()
        self.bus.announce("on_setup")
        run.model = run.seams.prepare_model(run.model)
        self._make_optimizer(plan.max_steps)
        run.seams.clip = self._through_overrides(run.seams.clip)
        run.wrap(self._at("_wrap_model", lambda: run.seams.wrap_model(run.model, run.optimizer), run.model))
        begin_training(run.model_wrapped)  # the train mode of a new wrapper may differ from the mode of its module
        self._make_schedule(plan.max_steps)
        run.seams.close("prepare_model", "make_optimizer", "wrap_model", "make_schedule")
        run.seams.zero_grad([*run.model.parameters(), *self._extra_parameters])

    def _placed(self, model: nn.Module) -> nn.Module:
        """Move a model to the device and return it. If a callback moves the model itself, return the model unchanged.

        Raises:
            ModelError: if the model is on the meta device, and no callback materialises its weights.
        """
        if not self._places_model:
            return model
        if any(weight.is_meta for weight in model.parameters()):
            raise ModelError(
                f"{type(model).__name__} is on the meta device, so its weights have no values. Set `fsdp=True`, which "
                "materialises one shard per rank, or create the model on another device."
            )
        device = self.args.device
        self._at("_move_model_to_device", lambda: model.to(device), model, device)
        return model
