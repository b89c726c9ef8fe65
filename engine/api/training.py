"""The Trainer's methods for training."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...events.errors import ModelError
from ..checkpoint import store
from ..checkpoint.read.choosing import folder_to_resume
from ..checkpoint.read.resumption import NoResumption, Resumption
from ..data.build import length_of
from ..data.feed import Feed
from ..data.plan import RunPlan, plan_run
from ..distributed.consensus import agreement, agreement_on_updates
from ..distributed.consistency import compare_training
from ..evaluation.outputs import TrainOutput
from ..loop import Loop
from ..search.batch_size import memory_explained, with_smaller_batches
from ..session import session
from ..stepper import Stepper
from .evaluation import EvaluationMethods
from .optimizers import OptimizerMethods
from .search import SearchMethods
from .seeding import set_seed


class TrainingMethods(EvaluationMethods, OptimizerMethods, SearchMethods):
    """Trains the model."""

    _stepper: Stepper
    _places_model: bool
    """Whether the Trainer moves the model to its device. A callback that shards the model does so itself."""

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train. Return the number of steps, the mean training loss and the summary.

        Args:
            resume_from_checkpoint: a checkpoint folder to resume from, or True for the newest good checkpoint in
                `args.output_dir`. "auto" is True if there is a checkpoint, and starts a new run if there is none.
            trial: the trial of a hyperparameter search, for `model_init`.
            ignore_keys_for_eval: keys of the model's outputs that are not predictions, for evaluations during
                training.

        Raises:
            DataError: for an empty dataset.
            ModelError: for a model that does not fit the data, or that returns no loss.
            CheckpointError: if there is nothing to resume from, or if the checkpoint is damaged.
            RankFailure: if another rank fails, ends, or does not answer within `ddp_timeout` seconds.
        """
        self._ignore_keys = ignore_keys_for_eval
        self.run.use_batch_size(self.args.train_batch_size)
        choose = cache(lambda: self._choose_checkpoint(resume_from_checkpoint))  # once for all attempts
        if self.args.auto_find_batch_size and self.run.ranks.single_process:
            return with_smaller_batches(self.run, lambda: self._train(choose, trial))
        return self._train(choose, trial)

    def _choose_checkpoint(self, resume_from_checkpoint: str | bool | None) -> Path | None:
        """Return the checkpoint to resume from. A batch size that an earlier session found is the first to try."""
        run = self.run
        folder = folder_to_resume(run, resume_from_checkpoint)
        if folder is not None and self.args.auto_find_batch_size:
            run.use_batch_size(store.read_state(folder).get("train_batch_size") or run.train_batch_size)
        return folder

    def _train(self, choose: Callable[[], Path | None], trial: Any) -> TrainOutput:
        run, args = self.run, self.args
        with session(run, "train"), memory_explained(run):
            folder = choose()
            if self.model_init is not None:
                set_seed(args.seed, args.full_determinism)
                self._use_model(self._placed(self.call_model_init(trial)))
            resumption = Resumption(run, folder) if folder is not None else NoResumption(run)
            run.data_seed = resumption.data_seed(args.data_seed)
            run.train_dataloader = self.get_train_dataloader()
            run.plan = self._plan_run(run.train_dataloader)
            run.state, run.position = resumption.begin(run.plan)
            self._assemble(run.plan)
            compare_training(run, self._known_eval_datasets())
            feed = Feed(
                run.train_dataloader,
                args.gradient_accumulation_steps,
                args.device,
                run.ranks.world_size,
                non_blocking=args.non_blocking,
                activity=run.activity,
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
                self.bus,
                run.state,
                run.control,
                feed,
                self._stepper,
                epochs=run.plan.epochs,
                batches_per_epoch=run.plan.batches_per_epoch,
                position=run.position,
                agree=agree,
            )
            loop.run()
            summary = run.summary()
            return TrainOutput(run.state.global_step, summary["train_loss"], summary)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Run forward and backward of one batch. Return its loss, detached, divided by the batches of its step.

        Override it to change how a batch is trained on.

        Args:
            model: the model, wrapped.
            inputs: the batch, on its device.
            num_items_in_batch: the label items of the whole step, a scalar tensor; None for a mean over the batch.
        """
        if not model.training:
            model.train()
        inputs = self._prepare_inputs(inputs)
        loss: torch.Tensor = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        if loss.dim() > 0:
            loss = loss.mean()
        stepper = self._stepper
        if stepper.accumulating > 1 and not self._loss_is_scaled(num_items_in_batch):
            loss = loss / stepper.accumulating
        stepper.backward(loss)
        loss = self.run.step.loss  # a handler of `on_loss` may have replaced it
        return loss.detach()

    # Building.

    def _plan_run(self, loader: Any) -> RunPlan:
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

    def _use_model(self, model: nn.Module) -> None:
        """Make a model the model of the run, and find out how its loss is computed."""
        run = self.run
        run.replace_model(model)
        config: Any = getattr(model, "config", None)
        if hasattr(config, "use_cache"):
            config.use_cache = self.args.use_cache  # training pays for the key-value cache and never reads it
        self._use_given_optimizers()
        self.objective = self._build_objective(model)

    def _assemble(self, plan: RunPlan) -> None:
        """Let the callbacks fill the seams, then build optimizer, wrapped model and schedule through the seams."""
        run = self.run
        self._forget_schedule()
        self.bus.announce("on_setup")
        run.model = run.seams.prepare_model(run.model)
        self._make_optimizer(plan.max_steps)
        run.wrap(run.seams.wrap_model(run.model, run.optimizer))
        run.model_wrapped.train()  # a wrapper is new, so its own mode may differ from its module's
        self._make_schedule(plan.max_steps)
        run.seams.zero_grad(list(run.model.parameters()))

    def _placed(self, model: nn.Module) -> nn.Module:
        """Return a model on its device, unless a callback places it.

        Raises:
            ModelError: for a model on the meta device that no callback materialises.
        """
        if not self._places_model:
            return model
        if any(weight.is_meta for weight in model.parameters()):
            raise ModelError(
                f"{type(model).__name__} is on the meta device, so its weights have no values. Set `fsdp=True`, which "
                "materialises one shard per rank, or create the model on another device."
            )
        return model.to(self.args.device)
