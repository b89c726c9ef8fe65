"""Hyperparameter search, whatever library chooses the values: a fresh trainer and an objective for each trial."""

from __future__ import annotations

import copy
import gc
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import nn

from ...events.errors import ArgumentError, nearest
from ..arguments import ALIASES, TrainingArguments
from ..arguments._checks import fits, hints_of
from ..arguments.cli.values import Unreadable, adapt
from ..arguments.keywords import resolve_aliases
from ..distributed.ranks import Ranks

if TYPE_CHECKING:
    from ..trainer import Trainer

logger = logging.getLogger(__name__)

DIRECTIONS = ("minimize", "maximize")
SPEED = ("_runtime", "_per_second")
"""How the names of metrics end that measure the machine, not the model."""


class BestRun(NamedTuple):
    """What a hyperparameter search found."""

    run_id: str
    """The number or id of the trial; its files are in the folder `run-<run_id>`, unless `hp_name` named it."""
    objective: float | list[float]
    """What it reached; a list where there are several objectives."""
    hyperparameters: dict[str, Any]
    """The values that were chosen for it."""
    run_summary: Any | None = None
    """The library's own record of the search: optuna's study, ray's analysis, the id of wandb's sweep."""


class SearchBackend(Protocol):
    """A library that chooses the values of the trials."""

    def default_space(self, trial: Any) -> dict[str, Any]:
        """Return the space that is searched where none is given."""

    def search(self, search: Search) -> BestRun | list[BestRun]:
        """Run the trials; return the best."""


class Reporter(Protocol):
    """A callback that notes the objective of each evaluation."""

    objective: Any
    """The last one; None before the first."""


@dataclass(repr=False)
class Search:
    """A search: what is varied, what is wanted, and the recipe of the trainer that each trial gets.

    It holds nothing of a run, so that it can be sent to another process.
    """

    base: Trainer
    """A copy of the user's trainer, without its run; each trial trains a fresh copy of it."""
    given: dict[str, Any]
    """What the constructor is called with."""
    folder: str
    """Where the trials' folders are."""
    removed: list[str]
    """Ids of callbacks that the user took away after the construction."""
    added: list[Any]
    """Callbacks that the user added after the construction."""
    functions: dict[str, tuple[str, Callable[..., Any], dict[str, Any]]]
    """Functions that the user subscribed, by id: event, function, filters."""
    ranks: Ranks
    """The processes that each trial runs on."""
    space: Callable[[Any], dict[str, Any]]
    """From a trial to the values of its hyperparameters; with None, for some libraries, to the space itself."""
    compute_objective: Callable[[dict[str, Any]], Any]
    """The objective from the metrics of an evaluation."""
    n_trials: int
    """How many trials there are."""
    direction: str | list[str]
    """`minimize` or `maximize`; a list of them for several objectives."""
    hp_name: Callable[[Any], str] | None
    """From a trial to its name."""
    options: dict[str, Any]
    """What else was said, for the library."""

    @classmethod
    def of(cls, trainer: Trainer, given: Mapping[str, Any], built_with: Mapping[str, Any], **options: Any) -> Search:
        """Take down how a trainer was built, and what its user did to it since.

        Args:
            trainer: the user's, which stays as it is.
            given: what its constructor was called with.
            built_with: the callbacks it had when it was constructed, by id.
            **options: what the search is to do.
        """
        now, functions = trainer.callbacks, trainer.subscribed_functions
        known = {id(callback) for callback in built_with.values()}
        base = copy.copy(trainer)
        for name in ("run", "bus", "objective", "_stepper", "_built_with"):
            vars(base).pop(name, None)
        current = {name: value for name, value in vars(trainer).items() if name in given}
        return cls(
            base=base,
            # The constructor is given the model that is there already: a trial makes its own when it trains.
            given={**given, **current, "model": trainer.model, "model_init": None},
            folder=trainer.args.output_dir,
            removed=[owner_id for owner_id in built_with if owner_id not in now],
            added=[each for owner_id, each in now.items() if owner_id not in functions and id(each) not in known],
            functions=functions,
            ranks=trainer.run.ranks,
            **options,
        )

    @property
    def several(self) -> bool:
        """Whether there are several objectives."""
        return isinstance(self.direction, list)

    def alone_and_single(self, library: str) -> str:
        """Return the direction, for a library that can only search for one objective, in one process.

        Raises:
            ArgumentError: if there is more of one of them.
        """
        if isinstance(self.direction, list):
            raise ArgumentError(f"{library} searches for one objective, not {len(self.direction)}: use optuna.")
        if not self.ranks.single_process:
            raise ArgumentError(f"{library} trains each trial in one process, not {self.ranks.world_size}: use optuna.")
        return self.direction

    def name_of(self, trial: Any, run_id: Any) -> str:
        """Return the name of a trial, which is that of its folder too."""
        return f"run-{run_id}" if self.hp_name is None else self.hp_name(trial)

    def objective_of(self, trial: Any, name: str, values: Mapping[str, Any], reporter: Reporter) -> Any:
        """Train a trial and return its objective: that of the last evaluation, or of one made now if there was none.

        Args:
            trial: what `model_init` is given, where it takes a parameter.
            name: of the trial.
            values: of its hyperparameters.
            reporter: a callback that notes the objectives.
        """
        trainer = self.trainer_for(name, values)
        trainer.add_callback(reporter)
        with _ended(trainer):
            trainer.train(trial=trial)
            if reporter.objective is None:
                return self.compute_objective(trainer.evaluate())
            return reporter.objective

    def trainer_for(self, name: str, values: Mapping[str, Any]) -> Trainer:
        """Return a fresh trainer for a trial, with its values, and a folder of its own.

        Raises:
            ArgumentError: for values that cannot be used, with the name of the trial.
        """
        # Not the constructor of the user's own class, which may take other things: what it did is in the copy.
        from ..trainer import Trainer

        base: TrainingArguments = self.base.args
        places = {"output_dir": os.path.join(self.folder, name), "run_name": name}
        if base.logging_dir is not None:
            places["logging_dir"] = os.path.join(base.logging_dir, name)
        taken = self._arguments_among(values)
        try:
            args = with_values(base, {**places, **taken})
        except ArgumentError as error:
            raise ArgumentError(f"The hyperparameters of {name} cannot be used: {error}") from error
        trainer = copy.copy(self.base)
        Trainer.__init__(trainer, **{**self.given, "args": args})
        trainer.model_init = self.base.model_init
        for owner_id in self.removed:
            trainer.bus.detach(owner_id)
        for callback in self.added:
            trainer.add_callback(callback)
        for owner_id, (event, function, filters) in self.functions.items():
            trainer.on(event, function, **{**filters, "id": owner_id})
        return trainer

    def _arguments_among(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that are arguments; others only stay out if `model_init` gets the trial, and reads them."""
        known = {field.name for field in fields(self.base.args)} | set(ALIASES)
        if not takes_trial(self.base.model_init):
            return dict(values)
        for name in values:
            if name not in known and (hint := nearest(name, known)) != ".":
                logger.warning("The hyperparameter %r is left to `model_init`%s", name, hint)
        return {name: value for name, value in values.items() if name in known}


@contextmanager
def _ended(trainer: Trainer) -> Iterator[None]:
    """End a trial's trainer, so that its trackers finish; the process group stays, for the next trial."""
    try:
        yield
    except BaseException:
        try:
            trainer.bus.announce("on_end")
        except Exception as error:
            logger.error("on_end failed after a trial that had failed already: %s", error, exc_info=error)
        raise
    else:
        trainer.bus.announce("on_end")
    finally:
        gc.collect()  # a trainer's parts refer to each other, and hold the memory of a device


def with_values(args: TrainingArguments, values: Mapping[str, Any]) -> TrainingArguments:
    """Return arguments as the user wrote them, with some values set, and every check and consequence made anew.

    A value is converted to the type of its argument, as `"16"` or `16.7` to `16`.

    Raises:
        ArgumentError: for an unknown name, with the nearest, or a value that does not fit.
    """
    known = {field.name for field in fields(args) if field.init}
    hints = hints_of(type(args))
    written = {name: getattr(args, name) for name in args.given if name in known}
    chosen = {name: _converted(name, value, hints[name]) for name, value in resolve_aliases(values, known).items()}
    return type(args)(**{**written, **chosen})


def _converted(name: str, value: Any, hint: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value  # numpy's numbers
    if isinstance(value, float) and value == value and not fits(value, hint) and fits(int(value), hint):
        return int(value)
    try:
        return adapt(value, hint)
    except Unreadable as error:
        raise ArgumentError(f"`{name}` is {value!r}{error}") from error


def default_compute_objective(metrics: dict[str, Any]) -> Any:
    """Return the evaluation loss where that is the only metric, or else the sum of the others.

    Args:
        metrics: as `Trainer.evaluate` returns them; the epoch and what measures speed do not count.
    """
    quality = {name: value for name, value in metrics.items() if name != "epoch" and not name.endswith(SPEED)}
    loss = quality.pop("eval_loss", None)
    return sum(quality.values()) if quality else loss


def checked_direction(direction: Any) -> str | list[str]:
    """Return a direction, or several as a list of plain strings.

    Raises:
        ArgumentError: for what is none, with the nearest.
    """
    for each in direction if isinstance(direction, (list, tuple)) else [direction]:
        if each not in DIRECTIONS:
            raise ArgumentError(f"direction={each!r} is unknown{nearest(each, DIRECTIONS)} Known: minimize, maximize.")
    return list(direction) if isinstance(direction, (list, tuple)) else str(direction)


def takes_trial(model_init: Callable[..., nn.Module] | None) -> bool:
    """Say whether `model_init` is to be called with the trial: if it has one parameter, with no default or None.

    Raises:
        ArgumentError: if it needs more than one.
    """
    assert model_init is not None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [each for each in inspect.signature(model_init).parameters.values() if each.kind in positional]
    needed = [each for each in parameters if each.default is each.empty]
    if len(needed) > 1:
        names = ", ".join(each.name for each in needed)
        raise ArgumentError(f"`model_init` needs {names}; it can be given the trial of a search, and nothing else.")
    return len(needed) == 1 or (len(parameters) == 1 and parameters[0].default is None)
