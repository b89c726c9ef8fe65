"""The results of a run that the parity suite compares: everything that a user can read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from parity_case import BASE, EVAL_ROWS, TRAIN_ROWS, Case

from support.data import sentences
from support.outcomes import history, timeless, weights
from support.trainers import both


@dataclass(frozen=True)
class Outcome:
    """The results of one trainer for a case."""

    steps: dict[str, Any]
    """Planned and completed steps and epochs, and the result of training."""
    weights: dict[str, torch.Tensor]
    """The weights of the model after training."""
    history: list[dict[str, Any]]
    """The log, without the values that depend on the speed of the machine."""
    best: tuple[Any, ...]
    """Value, step and folder of the best model."""
    checkpoints: list[str]
    """The checkpoint folders after training, sorted by step."""
    evaluated: dict[str, Any]
    """The result of `evaluate()` after training."""
    predicted: Any
    """Predictions, labels and metrics of `predict()`."""


def run_both(case: Case, folder: Path) -> tuple[Outcome, Outcome]:
    """Run a case with both trainers. Return the two outcomes, transformers' first."""
    options = {"train_dataset": sentences(TRAIN_ROWS), "eval_dataset": sentences(EVAL_ROWS, 1), **case.options}
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        (_, theirs), (_, ours) = both(
            folder, {**BASE, **case.args}, do=lambda trainer: outcome_of(case, trainer), **options
        )
    finally:
        torch.use_deterministic_algorithms(deterministic)  # `full_determinism` turns them on permanently
    return theirs, ours


def outcome_of(case: Case, trainer: Any) -> Outcome:
    """Train, evaluate and predict as a case says, and return the results."""
    trained = trained_by(trainer, case.train(trainer))
    evaluated = timeless(trainer.evaluate())
    sets = trainer.eval_dataset
    rows = case.test if case.test is not None else next(iter(sets.values())) if type(sets) is dict else sets
    predicted = trainer.predict(rows)
    return Outcome(
        **trained,
        evaluated=evaluated,
        predicted=(predicted.predictions, predicted.label_ids, timeless(predicted.metrics)),
    )


def trained_by(trainer: Any, output: Any) -> dict[str, Any]:
    """Return the results of a training, as fields of an `Outcome`.

    Args:
        trainer: the trainer that trained.
        output: the result of `train()`.
    """
    state = trainer.state
    result = timeless(output.metrics)
    # The printer callback of transformers removes this from the result. The log has the number.
    result.pop("total_flos", None)
    chosen = state.best_model_checkpoint
    return {
        "steps": {
            **{"done": state.global_step, "planned": state.max_steps, "epochs": state.num_train_epochs},
            **{"epoch": state.epoch, "loss": output.training_loss, "result": result},
        },
        "weights": weights(trainer.model),
        "history": history(trainer),
        "best": (state.best_metric, state.best_global_step, chosen and Path(chosen).name),
        "checkpoints": sorted((path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*")), key=by_step),
    }


def by_step(folder: str) -> int:
    """Return the step of a checkpoint folder."""
    return int(folder.rpartition("-")[2])


def as_text(value: Any) -> Any:
    """Return nested values with numbers as text of full precision, so that NaN equals itself and 0 equals 0.0."""
    if isinstance(value, dict):
        return {name: as_text(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_text(inner) for inner in value]
    return repr(float(value) if type(value) is int else value)
