"""The errors of this library, and the helper that suggests the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class TrainbusError(Exception):
    """Base of all errors of this library. `except TrainbusError` catches all of them."""


class ArgumentError(TrainbusError, ValueError):
    """An argument has an invalid value. The message names the argument, the reason and the remedy."""


class UnknownArgument(ArgumentError, TypeError):
    """A class or function takes no argument of this name. `except TypeError` catches this error too."""


class SubscriptionError(TrainbusError, TypeError):
    """A callback, a handler or a custom event is invalid. For example, a name is unknown, an annotation is wrong, an id
    is taken, or the handlers cannot be ordered."""


class UnknownCallback(SubscriptionError, KeyError):
    """No callback with this id is attached. `except KeyError` catches this error too."""

    __str__ = Exception.__str__  # a KeyError would show the message in quotes


class HandlerError(TrainbusError, RuntimeError):
    """A handler makes a forbidden change or call. For example, a handler in REPORT changes weights.

    The training argument `debug="callbacks"` turns on the check for such changes. If a handler calls itself without
    end, the error is always raised. An example is a handler of `on_evaluate` that calls `evaluate`.
    """


class DataError(TrainbusError, ValueError):
    """A dataset or a batch cannot be used for training."""


class ModelError(TrainbusError, ValueError):
    """The model does not accept the batch, or does not return a loss."""


class NonFiniteError(TrainbusError, ArithmeticError):
    """A loss, gradient or metric is NaN or infinite, and a setting of the run makes such a value an error."""


class CheckpointError(TrainbusError, OSError, ValueError):
    """A checkpoint cannot be written or read.

    The class is also a `ValueError`, because transformers raises a `ValueError` if no checkpoint exists.
    """


class EvaluationStopped(TrainbusError):
    """A handler of `on_prediction_step` raises this error to end an evaluation.

    The callback `Evaluate` catches the error, and the run continues without the metrics of this evaluation. If other
    code called the evaluation, this code receives the error.
    """


class RankFailure(TrainbusError, ConnectionError):
    """Another rank failed, exited or hangs. The message names the other rank, and the operation in which this rank
    waited."""


class RankDivergence(TrainbusError):
    """The ranks are about to do different work.

    Without this error, the ranks would wait for each other forever, or their weights would diverge.
    """


class ImportOrderError(TrainbusError, ImportError):
    """A module was imported too early. The message names the module, and the import that must precede it."""


class MissingExtra(TrainbusError, ImportError):
    """A feature needs a package that is not installed. The message names the extra to install."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error text about an unknown name.

    The end is `; did you mean 'x'?` if a known name is similar, and a period otherwise.
    """
    close = closest(name, known)
    return f"; did you mean {close!r}?" if close else "."


SYNONYMS = {
    "batch_size": "per_device_train_batch_size",
    "bs": "per_device_train_batch_size",
    "epochs": "num_train_epochs",
    "num_epochs": "num_train_epochs",
    "max_epochs": "num_train_epochs",
    "n_epochs": "num_train_epochs",
    "lr": "learning_rate",
    "patience": "early_stopping_patience",
    "scheduler": "lr_scheduler_type",
    "lr_scheduler": "lr_scheduler_type",
    "optimizer": "optim",
    "steps": "max_steps",
    "warmup": "warmup_steps",
    "clip": "max_grad_norm",
    "grad_clip": "max_grad_norm",
    "gradient_clip_val": "max_grad_norm",
    "accumulate_grad_batches": "gradient_accumulation_steps",
    "precision": "bf16",
    "wd": "weight_decay",
    "grad_accum": "gradient_accumulation_steps",
    "grad_accum_steps": "gradient_accumulation_steps",
    "accumulation_steps": "gradient_accumulation_steps",
    "loss": "criterion",
    "loss_fn": "criterion",
    "loss_function": "criterion",
    "dataset": "train_dataset",
    "train_data": "train_dataset",
    "validation_dataset": "eval_dataset",
    "val_dataset": "eval_dataset",
    "valid_dataset": "eval_dataset",
    "test_dataset": "eval_dataset",
    "metrics": "compute_metrics",
    "workers": "dataloader_num_workers",
    "num_workers": "dataloader_num_workers",
    "stop": "training_stop",
    "eval": "evaluate",
    "checkpoint": "save",
    "skip": "skip_update",
}
"""Name in other libraries -> the argument or flag of trainbus with the same meaning. Only error messages use this
table: the table never sets an argument."""


def closest(name: str, known: Iterable[str]) -> str:
    """Return the name in `known` that a user who wrote `name` probably means; an empty text if there is none.

    If `SYNONYMS` maps `name` to a known name, the function returns this known name. Otherwise it returns the known name
    with the most similar spelling.
    """
    known = [*known]
    meant = SYNONYMS.get(str(name))
    if meant is not None and meant in known:
        return meant
    close = difflib.get_close_matches(str(name), [str(candidate) for candidate in known], n=1, cutoff=0.6)
    return close[0] if close else ""


def note(error: BaseException, text: str) -> None:
    """Add a note to an exception. Python shows the note under the message.

    The function does not add the same note twice. It does nothing in Python 3.10, which has no notes.
    """
    if hasattr(error, "add_note") and text not in getattr(error, "__notes__", ()):
        error.add_note(text)


@contextmanager
def noting(text: str) -> Iterator[None]:
    """Add a note to an exception that leaves the `with` block."""
    try:
        yield
    except Exception as error:
        note(error, text)
        raise
