"""Searching for hyperparameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from ...events.errors import ArgumentError, ModelError
from ..search.hyperparameters import (
    BestRun,
    Search,
    SearchBackend,
    checked_direction,
    default_compute_objective,
    takes_trial,
)
from .base import Surface

if TYPE_CHECKING:
    from ..trainer import Trainer


class Searching(Surface):
    """The part of the Trainer that tries out hyperparameters."""

    model_init: Callable[..., nn.Module] | None
    search_backend: Callable[[str | None], SearchBackend]
    _given: dict[str, Any]
    _built_with: dict[str, Any]

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
        """Train with other hyperparameters again and again, and return the best trial.

        Each trial trains a fresh copy of this trainer, which itself stays as it is, with a model that `model_init`
        makes, and writes into a folder of its own, `<output_dir>/run-<number>`.

        Args:
            hp_space: from a trial to `{argument: value}`; for ray and wandb, from None to their description of the
                space. By default the learning rate, the epochs, the seed and the batch size.
            compute_objective: from the metrics of an evaluation to the objective, or to a list of several; by default
                the loss, or the sum of the metrics that `compute_metrics` adds to it.
            n_trials: how many trials there are.
            direction: `minimize` or `maximize` the objective; a list of them for several objectives.
            backend: `optuna`, `ray` or `wandb`; by default the first that is installed.
            hp_name: from a trial to its name, which is that of its folder and of its run in trackers.
            **kwargs: for optuna, what `optuna.create_study` and `Study.optimize` take; for ray, what `ray.tune.run`
                takes; for wandb, `sweep_id`, `project`, `entity`, `name` and `metric`.

        Returns:
            The best trial; with several objectives, all that no other beats in each of them.

        Raises:
            ArgumentError: without a `model_init`, for an unknown backend or direction, or for a hyperparameter that is
                no argument, each with the nearest name.
            MissingExtra: if the backend is not installed, naming the extra that installs it.
        """
        chosen = self.search_backend(backend)
        if self.model_init is None:
            raise ArgumentError(
                "A search trains a new model in each trial: give the Trainer a `model_init`, which makes one, in place "
                "of the `model`."
            )
        if n_trials < 1:
            raise ArgumentError(f"n_trials={n_trials}: a search has at least 1 trial.")
        search = Search.of(
            cast("Trainer", self),
            self._given,
            self._built_with,
            space=chosen.default_space if hp_space is None else hp_space,
            compute_objective=default_compute_objective if compute_objective is None else compute_objective,
            n_trials=n_trials,
            direction=checked_direction(direction),
            hp_name=hp_name,
            options=kwargs,
        )
        return chosen.search(search)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """Return a new model from `model_init`, which is given the trial, or None, if it takes a parameter.

        Raises:
            ModelError: if it returns none.
        """
        assert self.model_init is not None
        model: nn.Module | None = self.model_init(trial) if takes_trial(self.model_init) else self.model_init()
        if model is None:
            raise ModelError("`model_init` returned None: it has to return the model.")
        return model
