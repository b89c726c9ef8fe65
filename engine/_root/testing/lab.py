"""Lab: the class that builds the runs of one callback under test. Several checks share these runs."""

from __future__ import annotations

import contextlib
import io
import os
import random
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import Callback, Progress, Stage, Trainer
from ..events import Subscription
from .resources import settings
from .runs import TinyRun, beside, train
from .subject import Subject
from .tiny import Net, equal, same_weights, tiny_trainer, weights

OBSERVING = (Stage.MEASURE, Stage.REPORT)
"""The stages in which handlers only observe the run."""


class Lab:
    """Builds and trains tiny trainers with the callback under test, and stores the runs that several checks read."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        """Store the callback under test and the working folder. Record the settings of the process, to find changes.

        Args:
            subject: the callback under test.
            folder: a folder for all runs.
        """
        self.subject = subject
        self.folder = folder
        self.watch: Watch | None = None
        """Records what the handlers do in the watched run; None before this run."""
        self.settings = settings()
        """The settings of the process before the first run."""
        self.class_values: dict[str, str] = {}
        """The values of class attributes before the first run: attribute -> text of the value."""
        self._origin = os.getcwd()
        self._runs = 0
        self._built: list[Trainer] = []

    def new(self) -> Any:
        """Build the callback under test again, and return the new callback."""
        callback = self.subject.build(self.folder)
        self.class_values = {**values_of_classes(callback), **self.class_values}
        return callback

    def trainer(self, *callbacks: Any, folder: Path | None = None, **options: Any) -> Trainer:
        """Build a trainer with these callbacks. Each `train()` of this trainer initializes the weights again."""
        self._runs += 1
        folder = self.folder / f"run-{self._runs}" if folder is None else folder
        options = {"model_init": Net, **self.subject.arguments, **options}
        trainer = tiny_trainer(folder, *callbacks, **options)
        for default in trainer.callbacks.values():
            if isinstance(default, Progress) and default not in callbacks:
                around_handlers(trainer, default, _muted)
        self._built.append(trainer)
        return trainer

    def around(self, callback: Any, save_every: int = 2) -> list[Any]:
        """Return callbacks that log, evaluate and save, for a run with `callback`.

        `save_every` is the number of steps between two checkpoints.
        """
        own = beside((callback,), save_every)
        evaluates = "eval_strategy" in self.subject.arguments
        return [other for other in own if not (evaluates and type(other).__name__ == "Evaluate")]

    def among(self, callback: Any, save_every: int = 2, **options: Any) -> Trainer:
        """Build a trainer with `callback`, and with callbacks that log, evaluate and save.

        `save_every` is the number of steps between two checkpoints.
        """
        return self.trainer(*self.around(callback, save_every), callback, **options)

    @cached_property
    def bare(self) -> TinyRun:
        """A run with callbacks that log, evaluate and save, and without the callback under test."""
        return train(self.trainer(*self.around(self.new())))

    @cached_property
    def usual(self) -> TinyRun:
        """A run with callbacks that log, evaluate and save, and with a new instance of the callback under test."""
        return train(self.among(self.new()))

    def forget(self, trainer: Trainer) -> None:
        """Drop the reference to a trainer that has already ended."""
        self._built.remove(trainer)

    def close(self) -> None:
        """Call `Trainer.end` of all trainers that this object built, and drop the stored runs.

        Also restore the working folder that the process had before the first run.
        """
        for trainer in self._built:
            with contextlib.suppress(Exception):
                trainer.end()
        self._built.clear()
        vars(self).pop("usual", None)
        vars(self).pop("bare", None)
        os.chdir(self._origin)


def difference(one: TinyRun, other: TinyRun) -> str:
    """Compare two runs, and return a text with their first difference. The text is empty if the runs are equal."""
    if events := one.trace.difference(other.trace):
        return f"the events differ:\n{events}"
    if one.logs != other.logs and not equal(one.logs, other.logs):
        pairs = [pair for pair in zip(one.logs, other.logs) if not equal(*pair)]
        return f"the logs differ: {pairs[0][0]} and {pairs[0][1]}" if pairs else "one run logs more often"
    return other_weights(one.weights, other.weights)


def other_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> str:
    """Compare weights by name. Return a text about the first weight that differs; "" if all weights are equal."""
    if same_weights(one, other):
        return ""
    if one.keys() != other.keys():
        return f"the names of the weights differ: {sorted(one.keys() ^ other.keys())}"
    name = next(name for name in one if not torch.equal(one[name], other[name]))
    if one[name].shape != other[name].shape:
        return f"the weight {name} has the shapes {tuple(one[name].shape)} and {tuple(other[name].shape)}"
    return f"the weight {name} differs by {(one[name].float() - other[name].float()).abs().max().item():.3g}"


# Handlers of the callback under test.


def subscriptions(trainer: Trainer, callback: Any) -> list[Subscription]:
    """Return the handlers of a callback."""
    return [found for event in trainer.bus for found in trainer.bus.order_of(event) if found.owner is callback]


def around_handlers(trainer: Trainer, callback: Any, wrap: Callable[[Subscription, Callable[[], Any]], Any]) -> None:
    """Make a trainer call `wrap(subscription, call)` in place of each handler of a callback.

    `wrap` runs the handler with `call()`, and returns the result of the handler.
    """
    for found in subscriptions(trainer, callback):
        found.call = _wrapped(found, found.call, wrap)


def _muted(found: Subscription, call: Callable[[], Any]) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        return call()


def observes(found: Subscription, subject: Subject) -> bool:
    """Return whether a handler must only observe the run, and must not change the run.

    Args:
        found: the handler.
        subject: the callback under test. If `subject.reporter` is True or False, the result is `subject.reporter`. If
            `subject.reporter` is None, the result is True for handlers in MEASURE and REPORT, and False for others.
    """
    return found.slot.stage in OBSERVING if subject.reporter is None else subject.reporter


def values_of_classes(callback: Any) -> dict[str, str]:
    """Return the class attributes of a callback: `Class.attribute` -> the `repr` of its value.

    The checks compare these texts before and after a run. Attributes with values other than numbers,
    bools, texts, lists, dicts and sets are left out.
    """
    classes = [cls for cls in type(callback).__mro__ if cls not in (object, *Callback.__mro__)]
    return {
        f"{cls.__name__}.{name}": repr(value)
        for cls in classes
        for name, value in vars(cls).items()
        if not name.startswith("__") and isinstance(value, (bool, int, float, str, list, dict, set))
    }


def _wrapped(found: Subscription, call: Callable[[Any, Any], Any], wrap: Callable[..., Any]) -> Callable[..., Any]:
    return lambda run, extras: wrap(found, lambda: call(run, extras))


class Watch:
    """Records what handlers of the callback under test print and change, and which random generators they use."""

    def __init__(self, trainer: Trainer, subject: Subject) -> None:
        """Prepare to record what handlers print and change, and which random generators they use.

        Args:
            trainer: the trainer.
            subject: the callback under test. `subject.reporter` decides which handlers must only observe the run: True
                for all, False for none, None for the handlers in MEASURE and REPORT.
        """
        self.trainer, self.subject = trainer, subject
        self.printed: list[str] = []
        """A text for each call of a handler that printed: the handler and its output."""
        self.drew: list[str] = []
        """A text for each observing handler that drew random numbers: the handler and the generator."""
        self.changed: list[str] = []
        """A text for each change of weights, gradients or modes by an observing handler: the handler and the change."""
        self.args: list[str] = []
        """A text for each handler that changed training arguments: the handler and the arguments."""

    def __call__(self, found: Subscription, call: Callable[[], Any]) -> Any:
        """Call a handler and return its result. Record the text that it prints and the training arguments it changes.

        For a handler that must only observe the run, also record how the handler changes the model, and which random
        generators the handler uses.
        """
        args = _values(self.trainer.args)
        model = self.trainer.model
        before = None
        if observes(found, self.subject):
            before = (_generators(), weights(model), _modes(model), _gradients(model))
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            try:
                return call()
            finally:
                where = found.label
                if output.getvalue():
                    self.printed.append(f"{where} printed {output.getvalue().strip()[:80]!r}")
                self.args += [
                    f"{where} changed args.{name} from {args.get(name)!r} to {value!r}"
                    for name, value in _values(self.trainer.args).items()
                    if name not in args or repr(args[name]) != repr(value)
                ]
                if before is not None and model is self.trainer.model:
                    self._compare(where, *before)

    def _compare(
        self, where: str, generators: dict[str, Any], old: dict[str, torch.Tensor], modes: Any, gradients: Any
    ) -> None:
        drew = [name for name, state in _generators().items() if state != generators[name]]
        self.drew += [f"{where} drew from {name}" for name in drew]
        if changed := other_weights(old, weights(self.trainer.model)):
            self.changed.append(f"{where}: {changed}")
        if changed := other_weights(gradients, _gradients(self.trainer.model)):
            self.changed.append(f"{where}: {changed.replace('the weight', 'the gradient of')}")
        if modes != _modes(self.trainer.model):
            self.changed.append(f"{where} changed the train or eval mode of a module, or which weights are trained")


def _values(args: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(args).items() if not name.startswith("_")}


def _generators() -> dict[str, Any]:
    legacy: Any = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "random": random.getstate(),
        "numpy": (legacy[1].tobytes(), legacy[2]),
    }


def _gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.grad.detach().clone() for name, each in model.named_parameters() if each.grad is not None}


def _modes(model: torch.nn.Module) -> tuple[list[bool], list[bool]]:
    return [module.training for module in model.modules()], [each.requires_grad for each in model.parameters()]


@contextlib.contextmanager
def handled(trainer: Trainer, event: str, handler: Callable[..., Any], stage: Stage = Stage.RELEASE) -> Iterator[None]:
    """Subscribe a function to an event. The end of the `with` block removes the function."""
    handle = trainer.on(event, handler, stage=stage)
    try:
        yield
    finally:
        handle()
