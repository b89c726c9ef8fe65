"""What a Trainer is given, looked at before anything is built from it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ...events.errors import ArgumentError
from ..arguments import TrainingArguments
from ..data.build import length_of
from ..data.collators.default import Collator, default_data_collator
from ..data.collators.padding import DataCollatorWithPadding

if TYPE_CHECKING:
    from ..trainer import Trainer


def check_given(trainer: Trainer) -> None:
    """Refuse what cannot work, all of it at once.

    Raises:
        ArgumentError: naming each problem.
    """
    problems = []
    if trainer.args.eval_strategy != "no" and trainer.eval_dataset is None:
        problems.append(f"`eval_strategy={str(trainer.args.eval_strategy)!r}` needs an `eval_dataset`, or 'no'.")
    if trainer.args.eval_strategy != "no":
        sets = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {"": trainer.eval_dataset}
        empty = [name for name, dataset in sets.items() if length_of(dataset) == 0]
        problems += [f"`eval_dataset`{f' {name!r}' if name else ''} has no rows: leave it out." for name in empty]
    if trainer.model_init is not None and any(part is not None for part in trainer._given_optimizers):
        problems.append(
            "`optimizers` belong to one model and `model_init` makes new ones: use `optimizer_cls_and_kwargs`."
        )
    if trainer.optimizer_cls_and_kwargs is not None and trainer._given_optimizers[0] is not None:
        problems.append(
            "`optimizers` and `optimizer_cls_and_kwargs` both say which optimizer to use: pass one of them."
        )
    if trainer.args.auto_find_batch_size and any(part is not None for part in trainer._given_optimizers):
        problems.append(
            "`auto_find_batch_size` makes several optimizers, `optimizers` is one: use `optimizer_cls_and_kwargs`."
        )
    if trainer.args.batch_eval_metrics and not _takes(trainer.compute_metrics, "compute_result"):
        problems.append(
            "`batch_eval_metrics` calls `compute_metrics(prediction, compute_result=...)`, with True for the last "
            "batch: give the function that parameter."
        )
    if trainer.criterion is not None and trainer.compute_loss_func is not None:
        problems.append("`criterion` and `compute_loss_func` both compute the loss: pass one of them.")
    if trainer.train_dataset is not None and length_of(trainer.train_dataset) is None and trainer.args.max_steps <= 0:
        problems.append("`train_dataset` has no length, so the number of steps cannot be known: set `max_steps`.")
    if problems:
        raise ArgumentError("The Trainer cannot be built:\n- " + "\n- ".join(problems))


def training_arguments(given: Any) -> TrainingArguments:
    """Return the arguments that a Trainer is given; those of nobody, if it is given none.

    Raises:
        ArgumentError: if they are something else, saying what to write instead.
    """
    if given is None:
        return TrainingArguments(output_dir="tmp_trainer")
    if isinstance(given, TrainingArguments):
        return given
    kind = type(given)
    theirs = next((base for base in kind.__mro__ if base.__module__.partition(".")[0] == "transformers"), None)
    if theirs is not None:
        name = theirs.__name__
        raise ArgumentError(
            f"`args` is a transformers.{name}, and trainbus.{name} is needed, which takes the same arguments: write "
            f"`from trainbus import {name}` in place of `from transformers import {name}`."
        )
    remedy = "a loss is given by name, as `criterion=...`" if callable(given) else "make them with that class"
    raise ArgumentError(f"`args` is a {kind.__name__}, and not TrainingArguments: {remedy}.")


def collator_for(processing_class: Any) -> Collator:
    """Return the collator that pads with a tokenizer, or one that stacks where there is none that pads."""
    return DataCollatorWithPadding(processing_class) if hasattr(processing_class, "pad") else default_data_collator


def _takes(function: Any, name: str) -> bool:
    if function is None:
        return True
    parameters = inspect.signature(function).parameters
    return name in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
