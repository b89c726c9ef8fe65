"""The Trainer's methods for hyperparameter search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from torch import nn

from ...events.argument_types import is_whole
from ...events.errors import ArgumentError, ModelError
from ..search.best_run import assignable
from ..search.functions import CheckedObjective, CheckedSpace, check_function
from ..search.hyperparameters import (
    BestRun,
    Search,
    SearchBackend,
    TrialTrainer,
    checked_direction,
    takes_trial,
)
from ..search.objective import MinimizedObjective, default_compute_objective
from .callbacks import CallbackMethods
from .inputs import TrainerInputs

_PARTS_OF_A_RUN = frozenset(
    {
        "run",
        "bus",
        "_callback_handler",
        "objective",
        "_stepper",
        "_built_with",
        "_composed_from",
        "_inputs",
        "_own_batch_size",
    }
)
"""Attributes of a trainer that a search does not copy to the trainer of a trial, which builds its own values."""


class SearchMethods(CallbackMethods):
    """Searches for hyperparameters."""

    model_init: Callable[..., nn.Module] | None
    search_backend: Callable[[str | None], SearchBackend]
    _inputs: TrainerInputs
    _built_with: dict[str, Any]
    """The callbacks that were attached at construction, by id. A search needs them to find callbacks that were attached
    or detached later."""

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, Any]], Any] | None = None,
        n_trials: int = 20,
        direction: str | list[str] = "minimize",
        backend: str | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> BestRun | list[BestRun]:
        """Train with several sets of hyperparameters and return the best trial.

        Each trial builds a new trainer from the inputs of this trainer, with a model that `model_init` makes. Each
        trial writes to its own folder in `output_dir`: `run-<number>`, or the name that `hp_name` returns. This trainer
        does not change.

        Args:
            hp_space: a function that receives a trial and returns a dict from argument to value. For ray and wandb, the
                function receives None and returns the search space in the format of the library. By default, the
                learning rate, the epochs, the seed and the batch size vary.
            compute_objective: a function that receives the metrics of an evaluation and returns the objective, or a
                list of objectives. By default, the objective is the sum of the metrics of `compute_metrics`. Without
                such metrics, it is the evaluation loss.
            n_trials: the number of trials.
            direction: `minimize` or `maximize`; a list of these for several objectives.
            backend: `optuna`, `ray` or `wandb`; by default the first one that is installed.
            hp_name: a function that receives a trial and returns the name of the trial. The folder of the trial and the
                argument `run_name` get this name.
            **kwargs: options of the library. optuna: those of `optuna.create_study` and `Study.optimize`. ray: those of
                `ray.tune.run`. wandb: `sweep_id`, `project`, `entity`, `name` and `metric`.

        Returns:
            The best trial; with several objectives, the list of Pareto-optimal trials.

        Raises:
            ArgumentError: if the trainer has no `model_init`, if `n_trials` is below 1, or if a backend, direction or
                hyperparameter is unknown. For an unknown name, the error suggests the nearest known name. Also if a
                function does not return what the search needs, or if `compute_objective` reads a metric that does not
                exist.
            MissingExtra: if the backend is not installed. The error names the extra to install.
        """
        chosen = self.search_backend(backend)
        if self.model_init is None:
            raise ArgumentError(
                "A search trains a new model in each trial. Pass `model_init`, a function that makes a model, to the "
                "Trainer in place of `model`."
            )
        if not is_whole(n_trials) or n_trials < 1:
            raise ArgumentError(f"n_trials={n_trials!r} is not a number of trials. Set it to 1 or more.")
        example = "`lambda trial: {'learning_rate': trial.suggest_float('learning_rate', 1e-6, 1e-4)}`"
        check_function("hp_space", hp_space, "the trial", example)
        check_function("compute_objective", compute_objective, "the metrics", "`lambda metrics: metrics['eval_loss']`")
        check_function("hp_name", hp_name, "the trial", "`lambda trial: f'trial-{trial.number}'`")
        direction = checked_direction(direction)
        objective: Any = MinimizedObjective() if direction == "minimize" else default_compute_objective
        now, functions = self.callbacks, self.subscribed_functions
        known = {id(callback) for callback in self._built_with.values()}
        search = Search(
            trainer_class=cast("type[TrialTrainer]", type(self)),
            # The constructor receives the present model. A trial makes its own model when it trains.
            inputs=replace(self._inputs.updated(self), model=self.run.model, model_init=None),
            attributes={name: value for name, value in vars(self).items() if name not in _PARTS_OF_A_RUN},
            model_init=self.model_init,
            folder=str(self.args.output_path),
            removed=[owner_id for owner_id in self._built_with if owner_id not in now],
            added=[each for owner_id, each in now.items() if owner_id not in functions and id(each) not in known],
            functions=functions,
            ranks=self.run.ranks,
            space=CheckedSpace(chosen.default_space if hp_space is None else hp_space),
            compute_objective=CheckedObjective(
                objective if compute_objective is None else compute_objective, direction
            ),
            n_trials=n_trials,
            direction=direction,
            hp_name=hp_name,
            options=kwargs,
        )
        return assignable(chosen.search(search), self.args)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Return a new model from `model_init`.

        Args:
            trial: the trial of a search; None outside of a search. A `model_init` with a parameter receives the trial.

        Raises:
            ModelError: if `model_init` returns None.
        """
        assert self.model_init is not None
        model: nn.Module | None = self.model_init(trial) if takes_trial(self.model_init) else self.model_init()
        if model is None:
            raise ModelError("`model_init` returned None. Return the model.")
        return model
