"""Trainer: the class that builds a run from arguments, model, data, callbacks and integrations."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..callbacks.base.late_arguments import LateArguments
from ..callbacks.compose import changed_arguments, compose, recompose
from ..callbacks.hf import pop_class
from ..callbacks.optimizer.metric_schedule import MetricSchedule
from ..callbacks.optimizer.schedule_free import ScheduleFree
from ..events.capabilities import Capability
from ..events.composition import provides
from ..events.control import TrainerControl
from ..events.state import TrainerState
from ..integrations import found_callbacks, load, search_backend
from .api.accelerate_library import initialize_accelerate
from .api.callback_handler import CallbackHandler
from .api.costs.method import CostMethods
from .api.dataloaders import DATASETS
from .api.early_attributes import early_attributes, keep_early
from .api.hf_compat import HFCompatMethods, make_output_folder
from .api.inputs import TrainerInputs
from .api.introspection import IntrospectionMethods
from .api.logging_setup import print_messages
from .api.overrides import adapt_overrides, is_overridden
from .api.positional import accepts_criterion_second
from .api.preview.method import PreviewMethods
from .api.publishing import PublishingMethods
from .api.seeding import set_seed
from .api.services import TrainerServices
from .api.tracebacks import short_tracebacks
from .api.training import TrainingMethods
from .arguments import TrainingArguments
from .arguments.plugins.build import build
from .arguments.plugins.names import refuse_texts
from .arguments.plugins.selection import join
from .arguments.plugins.text import as_texts
from .data.collators.default import Collator
from .distributed.failures import register_process
from .distributed.ranks import Ranks
from .evaluation.outputs import EvalPrediction
from .loss.loss_module import LossModule
from .run import Run
from .search.hyperparameters import argument_overrides, with_values

logger = logging.getLogger(__name__)


class Trainer(TrainingMethods, PublishingMethods, PreviewMethods, CostMethods, IntrospectionMethods, HFCompatMethods):
    """Trains, evaluates and predicts, and announces every event of the run to its callbacks.

    The methods of the class are in `engine/api/`, one file per subject.

    Args:
        model: a torch module that returns its loss. With `criterion` or `compute_loss_func`, the module returns logits.
        args: the training arguments; by default `TrainingArguments("tmp_trainer")`.
        data_collator: converts a list of samples to a batch. If `processing_class` has a method `pad`, the default
            collator pads with this method. Otherwise the default collator stacks tensors.
        train_dataset: a map-style or iterable dataset whose samples are dicts or tuples. It may also be a
            `pandas.DataFrame`, or the path of a `.csv`, `.tsv`, `.json`, `.jsonl` or `.parquet` file. Each row of the
            table or file is a sample.
        eval_dataset: a dataset for evaluation, in the same forms as `train_dataset`, or a dict of named datasets.
        processing_class: the tokenizer or processor of the model. It is saved with the model.
        model_init: a function that returns a new model, to pass in place of `model`. Each `train()` calls the function.
            A function with a parameter receives the trial of a hyperparameter search, or None outside of a search.
        compute_loss_func: `(outputs, labels, num_items_in_batch=...) -> loss`. The function must divide the loss by
            `num_items_in_batch`, the number of labels of the whole step that are not -100. If
            `num_items_in_batch` is None, the function must return a mean over the batch.
        compute_metrics: `(EvalPrediction) -> {name: number}`. An evaluation calls the function once, with all
            predictions. With `batch_eval_metrics`, an evaluation calls the function after each batch. A metric of the
            library `evaluate` also works: it receives the argmax of the logits, and the labels that are not -100.
        callbacks: callbacks, or callback classes. The stage of a handler decides when the handler runs. The order of
            the list matters only within a stage.
        optimizers: an optimizer and a schedule, in place of the ones that `args` selects. Either may be None.
        optimizer_cls_and_kwargs: an optimizer class and its options, in place of the name in `args`.
        preprocess_logits_for_metrics: `(logits, labels) -> the predictions to keep`, for each evaluation batch.
        criterion: `(logits, labels) -> loss`, a mean over the batch, for models that return logits only. The criterion
            receives no `num_items_in_batch`. A `criterion` or `compute_loss_func` that is a module is trained too: its
            parameters are updated, clipped, saved and resumed. An optimizer in `optimizers` may also have parameters
            that belong neither to the model nor to such a module. These parameters are updated, saved and
            resumed, but not clipped.
        tokenizer: the former name of `processing_class`.

    Raises:
        ArgumentError: for inputs that contradict each other or the data. The error lists all problems.
        SubscriptionError: for callbacks that cannot be attached.
    """

    _integration = staticmethod(load)
    search_backend = staticmethod(search_backend)
    _pop_class = staticmethod(pop_class)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        adapt_overrides(cls)

    @short_tracebacks
    @accepts_criterion_second
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
        inputs = TrainerInputs(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            model_init=model_init,
            compute_loss_func=compute_loss_func,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            criterion=criterion,
            tokenizer=tokenizer,
        )
        early = early_attributes(self)
        self._build(inputs)
        keep_early(self, early)

    @classmethod
    def from_inputs(cls, inputs: TrainerInputs, attributes: Mapping[str, Any]) -> Trainer:
        """Build a trainer from inputs, without a call of the constructor of a subclass.

        Args:
            inputs: the inputs.
            attributes: the attributes that the constructor of the subclass set on another instance.
        """
        trainer = object.__new__(cls)
        vars(trainer).update(attributes)
        trainer._build(inputs)
        return trainer

    def _build(self, inputs: TrainerInputs, overridden: bool = False) -> None:
        self._functions, self._twins = {}, {}
        self.args = args = inputs.training_arguments
        loaders = [name for name, method in DATASETS.items() if not is_overridden(self, method)]
        self._inputs = inputs = inputs.loaded(self._integration, loaders)
        inputs.check_types()
        set_seed(args.seed, args.full_determinism)
        if args.own_log_level != "passive":
            print_messages(args.get_process_log_level())
        # Compose the callbacks before the process group exists, because packages that callbacks import must not see it.
        # The reason is in `Ranks.join`.
        optimizer, schedule = inputs.optimizers
        found = [
            ScheduleFree.for_optimizers(args, optimizer, *(inputs.optimizer_cls_and_kwargs or ())[:1]),
            MetricSchedule.for_schedule(args, schedule),
        ]
        composed, self.plugins = self._composed(args, inputs.callbacks or [], found)
        ranks = self._join(args)
        overrides = {} if overridden else argument_overrides(args, composed, ranks)
        if overrides:
            self._build(replace(inputs, args=with_values(args, overrides)), overridden=True)
            return
        inputs.check_model()
        self.model_init = inputs.model_init
        self.criterion, self.compute_loss_func = inputs.criterion, inputs.compute_loss_func
        model = inputs.model if inputs.model is not None else self.call_model_init()
        self.train_dataset, self.eval_dataset = inputs.train_dataset, inputs.eval_dataset
        self.data_collator = inputs.collator
        self.compute_metrics = inputs.compute_metrics
        self.preprocess_logits_for_metrics = inputs.preprocess_logits_for_metrics
        self.optimizer_cls_and_kwargs = inputs.optimizer_cls_and_kwargs
        self._given_optimizers = inputs.optimizers
        inputs.check(args, loaders)

        state = TrainerState(
            is_local_process_zero=ranks.local_rank == 0,
            is_world_process_zero=ranks.rank == 0,
            train_batch_size=args.train_batch_size,
        )
        control = TrainerControl(ranks.rank)
        services = TrainerServices(self)
        self._places_model = not provides(composed, Capability.PLACES_MODEL)
        self.run = Run(args, state, control, self._placed(model), ranks, services, inputs.processor, self.plugins)
        self.bus = self.run.bus
        self._use_early_tokenizer()
        self._callback_handler = CallbackHandler(self)
        self._use_model(self.run.model)
        loss_module = LossModule.around(inputs.criterion or inputs.compute_loss_func)
        for callback in composed:
            self.bus.declare_events_of(callback)
        for callback in (*([] if loss_module is None else [loss_module]), *composed):
            self._warn_of_twin(callback, self.bus.attach(callback).owner_id)
        self.bus.resolve()
        initialize_accelerate(self.run)
        self._at("create_accelerator_and_postprocess", lambda: None)
        self._at("_validate_args", lambda: None)
        make_output_folder(args, self.bus)
        self.bus.announce("on_init_end")
        self._built_with = self.bus.subscribers
        self._composed_from = copy.copy(args)

    @staticmethod
    def _composed(args: TrainingArguments, listed: Iterable[Any], found: Iterable[Any]) -> tuple[list[Any], list[str]]:
        """Return all callbacks of a trainer, and one line for each plugin that is attached or left out.

        Args:
            args: the training arguments.
            listed: the callbacks or callback classes that the user passes.
            found: further callbacks that the trainer adds, such as `ScheduleFree` for the user's own optimizer.
        """
        listed = listed if isinstance(listed, str) else list(listed)
        refuse_texts(listed)
        written = build(as_texts(args.callbacks), args)
        joined = join(args, [*listed, *written])
        named = [*written, *joined.named]
        return compose(args, listed, [*found_callbacks(args), *joined.auto, *found], named), joined.lines

    @classmethod
    def compose(cls, args: TrainingArguments, callbacks: Iterable[Any] = ()) -> list[Any]:
        """Return the callbacks that a trainer with these arguments and callbacks attaches. No trainer is built."""
        return cls._composed(args, callbacks, [ScheduleFree.for_optimizers(args, None)])[0]

    def _follow_arguments(self) -> None:
        """Apply arguments that the program changed after the trainer was built."""
        args = self.args
        if not changed_arguments(args, self._composed_from):
            return
        args._normalize_and_check()
        if changed := changed_arguments(args, self._composed_from):
            recompose(self.bus, self._composed_from, args, changed)
            self._composed_from = copy.copy(args)

    def _make_schedule(self, num_training_steps: int) -> None:
        """Build the schedule, and attach a `MetricSchedule` if the schedule needs one and the trainer has none."""
        super()._make_schedule(num_training_steps)
        schedule = self.run.lr_scheduler
        if schedule is not self._given_optimizers[1]:
            stepping = MetricSchedule.for_schedule(self.args, schedule, self.bus.subscribers.values())
            if stepping is not None:
                self.bus.attach(stepping)

    def _argument_check(self) -> Callable[[], None]:
        return LateArguments(self.run, self._composed_from).check

    @staticmethod
    def _join(args: TrainingArguments) -> Ranks:
        """Join the process group that the launcher describes."""
        ranks = Ranks.from_environment()
        ranks.join(args.device, args.ddp_backend, args.ddp_timeout)
        register_process(ranks)
        return ranks
