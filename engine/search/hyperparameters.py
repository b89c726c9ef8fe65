"""Hyperparameter search with any library: a new trainer and an objective for each trial."""

from __future__ import annotations

import gc
import inspect
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol

from torch import nn

from ...events.bus import EventBus
from ...events.callback import Callback
from ...events.errors import ArgumentError, nearest
from ..api.inputs import TrainerInputs
from ..arguments import ALIASES, TrainingArguments
from ..arguments._checks import fits, hints_of
from ..arguments.cli.values import Unreadable, adapt
from ..arguments.keywords import resolve_aliases
from ..distributed.ranks import Ranks
from ..evaluation.metric_names import SPEED as SPEED
from ..loss.loss_module import own_copy
from .objective import default_compute_objective as default_compute_objective

logger = logging.getLogger(__name__)

_BUILT: Counter[str] = Counter()
"""The number of trainers that this process built for each output folder. All ranks build them in the same order."""

DIRECTIONS = ("minimize", "maximize")


class BestRun(NamedTuple):
    """The result of a hyperparameter search."""

    run_id: str
    """The number or id of the trial. By default, the files of the trial are in the folder `run-<run_id>`. If `hp_name`
    is set, the folder has the name that `hp_name` returns."""
    objective: float | list[float]
    """The objective of the trial; a list for several objectives."""
    hyperparameters: dict[str, Any]
    """The hyperparameters of the trial."""
    run_summary: Any | None = None
    """The library's record of the search: optuna's study, ray's analysis, or the id of wandb's sweep."""


class SearchBackend(Protocol):
    """A library that chooses hyperparameters. The integrations of optuna, ray and wandb implement this protocol."""

    def default_space(self, trial: Any) -> dict[str, Any]:
        """Return the default search space, which a search without `hp_space` uses.

        For ray and wandb, `trial` is None, and the search space has the format of the library. For optuna, return the
        values that optuna suggests for `trial`, by argument name.
        """

    def search(self, search: Search) -> BestRun | list[BestRun]:
        """Run the trials and return the best trial; for several objectives, the Pareto-optimal trials."""


class Reporter(Protocol):
    """A callback that stores the objective of the last evaluation, such as `ReportToTrial`."""

    objective: Any
    """The objective of the last evaluation; None before the first."""


class TrialTrainer(Protocol):
    """The attributes and methods of a trainer that a search uses. `Trainer` implements this protocol."""

    bus: EventBus
    model_init: Callable[..., nn.Module] | None

    @classmethod
    def from_inputs(cls, inputs: TrainerInputs, attributes: Mapping[str, Any]) -> TrialTrainer:
        """Build a trainer without a call of its constructor. `attributes` are the attributes of the user's trainer."""

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Return a new model from `model_init`. A `model_init` with a parameter receives the trial."""

    def add_callback(self, callback: Any) -> Any:
        """Attach a callback. Return a handle that detaches it."""

    def on(self, event: str, function: Callable[..., Any], **filters: Any) -> Any:
        """Subscribe a function to an event. `filters` are the options of `EventBus.on`, such as `every=`."""

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None) -> Any:
        """Train, as `Trainer.train` does. A `model_init` with a parameter receives `trial`."""

    def evaluate(self) -> dict[str, float]:
        """Evaluate on the trainer's eval dataset, and return the metrics."""


@dataclass(repr=False)
class Search:
    """A hyperparameter search: the space, the objective, and the inputs from which each trial builds its trainer.

    A `Search` contains no `Run`, no optimizer and no event bus, so a library can send it to another process.
    """

    trainer_class: type[TrialTrainer]
    """The class of the user's trainer."""
    inputs: TrainerInputs
    """The inputs of each trial's trainer, with the user's model and without `model_init`."""
    attributes: dict[str, Any]
    """The attributes of the user's trainer, without the objects that each trainer builds itself, such as its run."""
    model_init: Callable[..., nn.Module] | None
    """The user's function that makes the model of each trial."""
    folder: str
    """The parent of the trials' output folders."""
    removed: list[str]
    """Ids of callbacks that the user removed after construction."""
    added: list[Any]
    """Callbacks that the user added after construction."""
    functions: dict[str, tuple[str, Callable[..., Any], dict[str, Any]]]
    """Functions that the user subscribed: id -> event, function and filters."""
    ranks: Ranks
    """The process group that each trial uses."""
    space: Callable[[Any], dict[str, Any]]
    """A function that receives a trial and returns the hyperparameters of the trial. For libraries that pass None, such
    as ray, the function returns the search space."""
    compute_objective: Callable[[dict[str, Any]], Any]
    """A function that receives the metrics of an evaluation and returns the objective."""
    n_trials: int
    """The number of trials."""
    direction: str | list[str]
    """`minimize` or `maximize`, or a list of these for several objectives."""
    hp_name: Callable[[Any], str] | None
    """A function that receives a trial and returns the name of the trial. None: the name is `run-<run_id>`."""
    options: dict[str, Any]
    """Options for the library: the additional keyword arguments of `Trainer.hyperparameter_search`."""

    @property
    def args(self) -> TrainingArguments:
        """The training arguments of the user's trainer."""
        return self.inputs.training_arguments

    def new_model(self, trial: Any = None) -> nn.Module:
        """Build a model with the user's `model_init`. A `model_init` with a parameter receives the trial."""
        trainer = object.__new__(self.trainer_class)
        vars(trainer).update(self.attributes)
        return trainer.call_model_init(trial)

    @property
    def several(self) -> bool:
        """Whether `direction` is a list, so that a trial has a list of objectives."""
        return isinstance(self.direction, list)

    def single_direction(self, library: str) -> str:
        """Check that a search has one objective and one process per trial. Return the direction of the objective.

        Args:
            library: the name of the library that requires this, for the error.

        Raises:
            ArgumentError: for several objectives or several ranks.
        """
        if isinstance(self.direction, list):
            raise ArgumentError(f"{library} searches for one objective, not {len(self.direction)}. Use optuna.")
        if not self.ranks.single_process:
            raise ArgumentError(f"{library} trains each trial in one process, not {self.ranks.world_size}. Use optuna.")
        return self.direction

    def name_of(self, trial: Any, run_id: Any) -> str:
        """Return the name of a trial and of its output folder: the result of `hp_name`, by default `run-<run_id>`."""
        if self.hp_name is None:
            return f"run-{run_id}"
        name = self.hp_name(trial)
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"`hp_name` returned {name!r}. Return the name of the trial as a text.")
        return name

    def objective_of(self, trial: Any, name: str, values: Mapping[str, Any], reporter: Reporter) -> Any:
        """Train a model with the hyperparameters of a trial, and return the objective of the last evaluation.

        If the training makes no evaluation, this method evaluates after the training.

        Args:
            trial: the trial of the library, for a `model_init` that has a parameter.
            name: the name of the trial.
            values: the hyperparameters of the trial.
            reporter: a callback that stores the objective of the last evaluation.
        """
        trainer = self.trainer_for(name, values)
        trainer.add_callback(reporter)
        with _ended(trainer):
            trainer.train(trial=trial)
            if reporter.objective is None:
                return self.compute_objective(trainer.evaluate())
            return reporter.objective

    def trainer_for(self, name: str, values: Mapping[str, Any]) -> TrialTrainer:
        """Build the trainer of a trial.

        Args:
            name: the name of the trial, also the name of its output folder.
            values: the hyperparameters of the trial.

        Raises:
            ArgumentError: if a value is not valid for its training argument. Also if a name in `values` is not a
                training argument, and `model_init` does not receive the trial. The error names the trial.
        """
        base = self.args
        places = {"output_dir": os.path.join(self.folder, name), "run_name": name}
        if base.logging_dir is not None:
            places["logging_dir"] = os.path.join(base.logging_dir, name)
        taken = self._arguments_among(values)
        try:
            args = with_values(base, {**places, **taken})
        except ArgumentError as error:
            raise ArgumentError(f"The hyperparameters of {name} cannot be used: {error}") from error
        inputs = replace(
            self.inputs,
            args=args,
            criterion=own_copy(self.inputs.criterion),
            compute_loss_func=own_copy(self.inputs.compute_loss_func),
        )
        trainer = self.trainer_class.from_inputs(inputs, self.attributes)
        trainer.model_init = self.model_init
        for owner_id in self.removed:
            trainer.bus.detach(owner_id)
        for callback in self.added:
            trainer.add_callback(callback)
        for owner_id, (event, function, filters) in self.functions.items():
            trainer.on(event, function, **{**filters, "id": owner_id})
        return trainer

    def _arguments_among(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that are for training arguments.

        If `model_init` receives the trial, the other values are for `model_init`. Otherwise all values are for
        training arguments.
        """
        known = {field.name for field in fields(self.args)} | set(ALIASES)
        if not takes_trial(self.model_init):
            return dict(values)
        for name in values:
            if name not in known and (hint := nearest(name, known)) != ".":
                logger.warning("The hyperparameter %r is left to `model_init`%s", name, hint)
        return {name: value for name, value in values.items() if name in known}


@contextmanager
def _ended(trainer: TrialTrainer) -> Iterator[None]:
    """After a `with` block, announce `on_end` to the callbacks of a trial. The process group stays for later trials."""
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
        gc.collect()  # the parts of a trainer refer to each other and hold device memory


def with_values(args: TrainingArguments, values: Mapping[str, Any]) -> TrainingArguments:
    """Build a copy of the user's arguments with some values replaced.

    All checks run again, and derived values are computed again.

    A value is converted to the type of its argument: `"16"` and `16.7` become `16` for an integer. A relative
    path starts at the same folder as in the user's arguments, even if the working folder has changed.

    Raises:
        ArgumentError: for an unknown name, or for a value of the wrong type. The error suggests the nearest name.
    """
    known = {field.name for field in fields(args) if field.init}
    hints = hints_of(type(args))
    written = {name: getattr(args, name) for name in args.given if name in known}
    chosen = {name: converted(name, value, hints[name]) for name, value in resolve_aliases(values, known).items()}
    made = type(args)(**{**written, **chosen})
    made.resolve_like(args)
    return made


def argument_overrides(args: TrainingArguments, callbacks: Iterable[Any], ranks: Ranks) -> dict[str, Any]:
    """Ask callbacks for values that replace the user's arguments. Log the values, and return argument -> value.

    Only rank 0 calls `Callback.argument_overrides`, because the other ranks may not know the values, for example those
    of a wandb sweep. The other ranks read the values of rank 0. A rank returns an empty dict if none of its callbacks
    overrides `Callback.argument_overrides`, even if rank 0 has values.

    Args:
        args: the user's arguments.
        callbacks: the callbacks of the trainer. If several callbacks set the same name, the last one wins.
        ranks: the process group.

    Raises:
        ArgumentError: on the other ranks, if a callback raises an error on rank 0. Rank 0 raises the error itself.
        TypeError: on rank 0 of several ranks, if JSON cannot hold a value.
    """
    setting = [
        callback
        for callback in callbacks
        if isinstance(callback, Callback) and type(callback).argument_overrides is not Callback.argument_overrides
    ]
    _BUILT[args.output_dir] += 1  # also without such a callback, which another rank may have
    key = f"trainbus-overrides-{_BUILT[args.output_dir]}-{args.output_dir}"
    if not setting and ranks.rank != 0:
        return {}
    found: dict[str, Any] = {}
    refusal = ""
    if ranks.rank == 0:
        try:
            for callback in setting:
                found |= callback.argument_overrides(args)
            if ranks.store is not None:
                json.dumps(found)  # the other ranks read this text
        except Exception as error:
            refusal = str(error) if isinstance(error, ArgumentError) else f"{type(error).__name__}: {error}"
            _of_rank_0(ranks, key, ({}, refusal))  # otherwise the other ranks would wait
            raise
    found, refusal = _of_rank_0(ranks, key, (found, refusal))
    if refusal:
        raise ArgumentError(refusal)
    for name, value in found.items():
        logger.warning("%s=%r overrides %r.", name, value, getattr(args, name, None))
    return found


def _of_rank_0(ranks: Ranks, key: str, value: tuple[dict[str, Any], str]) -> tuple[dict[str, Any], str]:
    """Return the value of rank 0 on every rank that calls the function.

    The function uses the store of the process group instead of a collective. If only rank 0 has a callback that sets
    arguments, the other ranks do not call the function. In a collective, rank 0 would wait for these ranks forever.

    Args:
        ranks: the process group.
        key: the key in the store, equal on all ranks.
        value: a dict (name of an argument -> its new value), and the text of an error. Without an error, the text is
            empty.
    """
    store = ranks.store
    if store is None:
        return value
    if ranks.rank == 0:
        store.set(key, json.dumps(value))
        return value
    found, refusal = json.loads(store.get(key))
    return found, refusal


def converted(name: str, value: Any, hint: Any) -> Any:
    """Return the value of an argument, converted to the type `hint` of the argument."""
    value = value.item() if hasattr(value, "item") else value  # numpy's numbers
    if isinstance(value, float) and value == value and not fits(value, hint) and fits(int(value), hint):
        return int(value)
    try:
        return adapt(value, hint)
    except Unreadable as error:
        raise ArgumentError(f"`{name}` is {value!r}{error}") from error


def checked_direction(direction: Any) -> str | list[str]:
    """Check a direction, or each direction of a list. Return the direction or the list as plain strings.

    Raises:
        ArgumentError: for a direction other than `minimize` and `maximize`. The error shows the nearest name.
    """
    if isinstance(direction, (list, tuple)) and not direction:
        raise ArgumentError("`direction` is an empty list. Name a direction for each objective: minimize or maximize.")
    for each in direction if isinstance(direction, (list, tuple)) else [direction]:
        if each not in DIRECTIONS:
            raise ArgumentError(f"direction={each!r} is unknown{nearest(each, DIRECTIONS)} Known: minimize, maximize.")
    return list(direction) if isinstance(direction, (list, tuple)) else str(direction)


def takes_trial(model_init: Callable[..., nn.Module] | None) -> bool:
    """Return whether `model_init`, which must not be None, receives the trial.

    `model_init` receives the trial in two cases: it has exactly one required parameter, or it has a single parameter
    with the default None.

    Raises:
        ArgumentError: if `model_init` requires more than one parameter.
    """
    assert model_init is not None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [each for each in inspect.signature(model_init).parameters.values() if each.kind in positional]
    needed = [each for each in parameters if each.default is each.empty]
    if len(needed) > 1:
        names = ", ".join(each.name for each in needed)
        raise ArgumentError(
            f"`model_init` requires the parameters {names}, but it receives only the trial of a search. Give the "
            "others default values."
        )
    return len(needed) == 1 or (len(parameters) == 1 and parameters[0].default is None)
