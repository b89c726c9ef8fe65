"""Builders of trainers, and runs of transformers and trainbus side by side."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

import trainbus
from support.data import points
from support.models import Regression, bert
from trainbus.testing.tiny import tiny_trainer as net_trainer

__all__ = ["Fresh", "both", "hushed", "net_trainer", "regression_trainer"]


def regression_trainer(folder: Path | str, model: nn.Module | None = None, **options: Any) -> Any:
    """Build a trainer that neither logs nor saves, by default of a `Regression`.

    Args:
        folder: the output folder.
        model: the model. Default: a `Regression`, unless `model_init` is given.
        **options: arguments of `Trainer`. `args` is a dict of arguments of `TrainingArguments`. `kind` is a subclass of
            `Trainer` to build.
    """
    kind = options.pop("kind", trainbus.Trainer)
    args = {
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 0.05,
        "save_strategy": "no",
        "logging_strategy": "no",
        **options.pop("args", {}),
    }
    options.setdefault("train_dataset", points(20))
    model = model if model is not None or "model_init" in options else Regression()
    return kind(model, trainbus.TrainingArguments(str(folder), **args), **options)


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Hide output and warnings of another library."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


class Fresh:
    """A function that `both` calls once per trainer, so that the trainers share no value."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __call__(self) -> Any:
        return self.make()


def both(
    folder: Path,
    args: dict[str, Any],
    do: Callable[[Any], Any] = lambda trainer: trainer.train(),
    model: Callable[[], Any] = bert,
    callbacks: Callable[[Any], list[Any]] = lambda library: [],
    **options: Any,
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Do the same with the Trainer of transformers and with trainbus.

    Args:
        folder: the output folder.
        args: arguments of `TrainingArguments` that both libraries have.
        do: a function that uses a trainer. Default: it trains.
        model: a function that builds the model.
        callbacks: a function from a library, `transformers` or `trainbus`, to the list of callbacks.
        **options: further arguments of both trainers. A `Fresh` value is built once per trainer.

    Returns:
        (trainer, result) of transformers, and (trainer, result) of trainbus.
    """
    import transformers

    done = []
    for library in (transformers, trainbus):
        with hushed():
            said = library.TrainingArguments(
                str(folder / library.__name__), use_cpu=True, disable_tqdm=True, report_to="none", **args
            )
            made = {name: value() if isinstance(value, Fresh) else value for name, value in options.items()}
            if "model_init" not in made:
                made["model"] = model()
            run = library.Trainer(args=said, callbacks=callbacks(library), **made)
            done.append((run, do(run)))
    return done[0], done[1]
