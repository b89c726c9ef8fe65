"""TrainerInputs: the inputs of a Trainer, and their checks. A hyperparameter search builds trials from the inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from ...events.errors import ArgumentError
from ..arguments import TrainingArguments
from ..data.build import length_of
from ..data.collators.default import Collator, default_data_collator
from ..data.collators.padding import DataCollatorWithPadding
from ..data.sources import as_dataset, problems_of
from ..evaluation.metric_modules import as_metric_function
from ..evaluation.outputs import EvalPrediction
from ..loss.label_smoothing import smoothing_refusal
from ..optim.closures import closure_refusal
from .trial_run import trial_arguments


@dataclass(frozen=True, repr=False, eq=False)
class TrainerInputs:
    """The arguments of `Trainer(...)`. The docstring of `Trainer` describes each of them."""

    model: nn.Module | None = None
    args: Any = None
    data_collator: Collator | None = None
    train_dataset: Any = None
    eval_dataset: Any = None
    processing_class: Any = None
    model_init: Callable[..., nn.Module] | None = None
    compute_loss_func: Callable[..., torch.Tensor] | None = None
    compute_metrics: Callable[[EvalPrediction], dict[str, Any]] | None = None
    callbacks: list[Any] | None = None
    optimizers: tuple[Any, Any] = (None, None)
    optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, Any]] | None = None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None
    criterion: Callable[[Any, Any], torch.Tensor] | None = None
    tokenizer: Any = None

    @property
    def training_arguments(self) -> TrainingArguments:
        """The training arguments: `args`, or `TrainingArguments("tmp_trainer")` if `args` is None.

        With `fast_dev_run`, the property returns the arguments of a short run.

        Raises:
            ArgumentError: if `args` is neither None nor a `TrainingArguments`.
        """
        args = TrainingArguments(output_dir="tmp_trainer") if self.args is None else checked_arguments(self.args)
        return trial_arguments(args, self.eval_dataset is not None)

    @property
    def processor(self) -> Any:
        """The tokenizer or processor: `processing_class`, or `tokenizer` if `processing_class` is None."""
        return self.processing_class if self.processing_class is not None else self.tokenizer

    @property
    def collator(self) -> Collator:
        """The collator of the batches: `data_collator`, if it is set.

        Otherwise, the collator is `DataCollatorWithPadding(processor)`, with the property `processor`. If `processor`
        has no method `pad`, the collator is `default_data_collator`.
        """
        if self.data_collator:
            return self.data_collator
        return DataCollatorWithPadding(self.processor) if hasattr(self.processor, "pad") else default_data_collator

    def loaded(self, load: Callable[[str], Any], loaders: Collection[str]) -> TrainerInputs:
        """Return these inputs with tables and files of rows converted to datasets.

        A metric of the library `evaluate` is converted to a function.

        Args:
            load: a function that receives the name of an integration and returns the class of this integration.
            loaders: the datasets to convert: `train_dataset`, `eval_dataset` or both. The caller leaves out a dataset
                if a subclass overrides the method that makes its loader.
        """
        sets = {name: as_dataset(getattr(self, name), load) for name in loaders}
        return replace(self, compute_metrics=as_metric_function(self.compute_metrics), **sets)

    def check_types(self) -> None:
        """Refuse inputs of a wrong type, such as a class in place of an instance.

        Raises:
            ArgumentError: if there are problems. The error lists every problem with its remedy.
        """
        _refuse([*self._function_problems(), *self._pair_problems()])

    def _function_problems(self) -> Iterator[str]:
        for name in _FUNCTIONS:
            function: Any = getattr(self, name)
            kind = type(function).__name__
            if isinstance(function, type) and name != "model_init":
                yield f"`{name}` is the class {function.__name__}. Pass an instance: `{name}={function.__name__}()`."
            elif name == "model_init" and isinstance(function, nn.Module):
                yield f"`model_init` is a {kind}, not a function that returns one. Pass it as `model`."
            elif function is not None and not callable(function):
                yield f"`{name}` is a {kind}, which is not callable. Pass a function: {_FUNCTIONS[name]}."
            elif inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
                kind = "generator function" if inspect.isgeneratorfunction(function) else "coroutine function"
                yield f"`{name}` is a {kind}, so a call returns no result. Return it: {_FUNCTIONS[name]}."
        callbacks: Any = self.callbacks
        if callbacks is not None and not isinstance(callbacks, Iterable):
            yield f"`callbacks` is a {type(callbacks).__name__}. Pass a list: `callbacks=[...]`."

    def _pair_problems(self) -> Iterator[str]:
        for name in ("optimizers", "optimizer_cls_and_kwargs"):
            pair: Any = getattr(self, name)
            if pair is not None and not (isinstance(pair, (tuple, list)) and len(pair) == 2):
                example = "(optimizer, None)" if name == "optimizers" else "(torch.optim.SGD, {'lr': 0.1})"
                yield f"`{name}` is a {type(pair).__name__}, not a pair. Pass `{name}={example}`."
            elif pair is None:
                continue
            elif name == "optimizers" and isinstance(pair[0], type):
                yield (
                    f"`optimizers` has the class {pair[0].__name__}. Pass an optimizer, or the class with its options "
                    f"as `optimizer_cls_and_kwargs=({pair[0].__name__}, {{...}})`."
                )
            elif refusal := closure_refusal(pair[0]):
                yield refusal

    def check_model(self) -> None:
        """Refuse a model that is not a module. Require exactly one of `model` and `model_init`.

        Raises:
            ArgumentError: if the inputs break one of these rules. The error names the remedy.
        """
        model: object = self.model
        if not isinstance(model, (nn.Module, type(None))):
            kind = type(model).__name__
            raise ArgumentError(
                f"`model` is a {kind}. Pass a torch.nn.Module, such as `from_pretrained(name)` returns."
            )
        if (self.model is None) == (self.model_init is None):
            raise ArgumentError("The Trainer needs exactly one of `model` and `model_init`. Pass one of them.")

    def check(self, args: TrainingArguments, loaders: Collection[str] = ()) -> None:
        """Refuse inputs that conflict with each other or with the arguments.

        Args:
            args: the training arguments.
            loaders: the datasets to check: `train_dataset`, `eval_dataset` or both. All other inputs are checked in
                any case.

        Raises:
            ArgumentError: if there are problems. The error lists every problem with its remedy.
        """
        checks = (self._data_problems(args, loaders), self._optimizer_problems(args), self._metric_problems(args))
        _refuse([problem for check in checks for problem in check])

    def _data_problems(self, args: TrainingArguments, loaders: Collection[str]) -> Iterator[str]:
        yield from problems_of({name: getattr(self, name) for name in loaders}, self.collator)
        for name in loaders if self.criterion is not None and self.collator is default_data_collator else ():
            if isinstance(getattr(self, name), torch.Tensor):
                yield f"`{name}` is a tensor without labels for `criterion`. Pass `TensorDataset(inputs, labels)`."
        if args.eval_strategy != "no":
            if self.eval_dataset is None or (isinstance(self.eval_dataset, Mapping) and not self.eval_dataset):
                yield f"`eval_strategy={str(args.eval_strategy)!r}` needs an `eval_dataset`. Pass one, or set 'no'."
            sets = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
            for name, dataset in sets.items():
                if length_of(dataset) == 0:
                    yield f"`eval_dataset`{f' {name!r}' if name else ''} has no samples. Leave it out."
        if self.train_dataset is not None and length_of(self.train_dataset) is None and args.max_steps <= 0:
            yield "`train_dataset` has no length, so the number of steps is unknown. Set `max_steps`."

    def _optimizer_problems(self, args: TrainingArguments) -> Iterator[str]:
        optimizers = any(part is not None for part in self.optimizers)
        if optimizers and self.model_init is not None:
            yield "`optimizers` belong to one model, but `model_init` makes new ones. Use `optimizer_cls_and_kwargs`."
        if self.optimizers[0] is not None and self.optimizer_cls_and_kwargs is not None:
            yield "`optimizers` and `optimizer_cls_and_kwargs` both set the optimizer. Pass one of them."
        if self.optimizers[0] is not None and args.learning_rates:
            yield "`optimizers` has its own parameter groups, so `learning_rates` has no effect. Leave one of them out."
        if optimizers and args.auto_find_batch_size:
            yield "`auto_find_batch_size` builds several optimizers. Pass `optimizer_cls_and_kwargs`, not `optimizers`."

    def _metric_problems(self, args: TrainingArguments) -> Iterator[str]:
        if args.batch_eval_metrics and not _takes(self.compute_metrics, "compute_result"):
            yield (
                "`batch_eval_metrics` calls `compute_metrics(prediction, compute_result=...)`, with True for the last "
                "batch. Add the parameter `compute_result` to the function."
            )
        wanted = args.metric_for_best_model or ""
        smaller: list[str] = getattr(self.compute_metrics, "smaller_is_better", [])
        if args.greater_is_better and any(f"_{wanted}".endswith(f"_{name}") for name in smaller):
            yield (
                f"`metric_for_best_model={wanted!r}` is better when it is smaller, but `greater_is_better` is True, "
                "which is the default for this name. Set `greater_is_better=False`."
            )
        if self.criterion is not None and self.compute_loss_func is not None:
            yield "`criterion` and `compute_loss_func` both compute the loss. Pass one of them."
        given = "criterion" if self.criterion is not None else "compute_loss_func"
        if args.label_smoothing_factor and getattr(self, given) is not None:
            yield smoothing_refusal(args.label_smoothing_factor, given)

    def updated(self, trainer: Any) -> TrainerInputs:
        """Return a copy of these inputs with the values that the trainer has now.

        A program may have set attributes of the trainer, such as `data_collator`, after construction.
        """
        now = vars(trainer)
        return replace(self, **{field.name: now[field.name] for field in fields(self) if field.name in now})


_FUNCTIONS: dict[str, str] = {
    "data_collator": "samples -> batch",
    "model_init": "trial -> model",
    "compute_loss_func": "(outputs, labels, num_items_in_batch) -> loss",
    "compute_metrics": "EvalPrediction -> {'name': number}, or Metrics('accuracy') for metrics by name",
    "preprocess_logits_for_metrics": "(logits, labels) -> logits",
    "criterion": "(logits, labels) -> loss",
}
"""Name of an input that is a function -> its parameters and its result, for errors."""


def _refuse(problems: list[str]) -> None:
    if problems:
        raise ArgumentError("The Trainer cannot be built:\n- " + "\n- ".join(problems))


def checked_arguments(given: Any) -> TrainingArguments:
    """Return `given`.

    Raises:
        ArgumentError: if `given` is not a `TrainingArguments`.
    """
    if isinstance(given, TrainingArguments):
        return given
    raise ArgumentError(_wrong_arguments(given))


def _wrong_arguments(given: Any) -> str:
    """Build the message of the error for a value of `args` that is not a TrainingArguments."""
    kind = type(given)
    theirs = next((base for base in kind.__mro__ if base.__module__.partition(".")[0] == "transformers"), None)
    if theirs is not None:
        name = theirs.__name__
        return (
            f"`args` is a transformers.{name}. Use trainbus.{name}, which takes the same arguments: write "
            f"`from trainbus import {name}` in place of `from transformers import {name}`."
        )
    remedy = "Pass a loss by name, as `criterion=...`" if callable(given) else "Build it with TrainingArguments(...)"
    return f"`args` is a {kind.__name__}, not TrainingArguments. {remedy}."


def _takes(function: Any, name: str) -> bool:
    if function is None:
        return True
    parameters = inspect.signature(function).parameters
    return name in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
