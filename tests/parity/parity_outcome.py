"""What is compared of two runs: everything that somebody who trains can get hold of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from engine_toys import both, history, sentences, timeless, weights
from parity_case import BASE, EVAL_ROWS, TRAIN_ROWS, Case


@dataclass(frozen=True)
class Outcome:
    """What one of the two trainers made of a case."""

    steps: dict[str, Any]
    """Steps and epochs, planned and done, and the training's result."""
    weights: dict[str, torch.Tensor]
    """Of the model, after training."""
    history: list[dict[str, Any]]
    """The log, without what says how fast the machine is."""
    best: tuple[Any, ...]
    """Value, step and folder of the best model."""
    checkpoints: list[str]
    """The folders that are there after training, by steps."""
    evaluated: dict[str, Any]
    """What `evaluate()` returned after that."""
    predicted: tuple[Any, Any, dict[str, Any]]
    """Predictions, labels and metrics of `predict()`."""


def run_both(case: Case, folder: Path) -> tuple[Outcome, Outcome]:
    """Run a case in transformers' trainer and in ours; return the two outcomes, theirs first."""
    options = {"train_dataset": sentences(TRAIN_ROWS), "eval_dataset": sentences(EVAL_ROWS, 1), **case.options}
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        (_, theirs), (_, ours) = both(
            folder, {**BASE, **case.args}, do=lambda trainer: outcome_of(case, trainer), **options
        )
    finally:
        torch.use_deterministic_algorithms(deterministic)  # which `full_determinism` turns on for good
    return theirs, ours


def outcome_of(case: Case, trainer: Any) -> Outcome:
    """Train as the case says, evaluate and predict, and write down what came of it."""
    output = case.train(trainer)
    state = trainer.state
    result = timeless(output.metrics)
    # Their printer takes this out of the result where it prints; the number itself is in the log.
    result.pop("total_flos", None)
    chosen = state.best_model_checkpoint
    trained = {
        "steps": {
            **{"done": state.global_step, "planned": state.max_steps, "epochs": state.num_train_epochs},
            **{"epoch": state.epoch, "loss": output.training_loss, "result": result},
        },
        "weights": weights(trainer.model),
        "history": history(trainer),
        "best": (state.best_metric, state.best_global_step, chosen and Path(chosen).name),
        "checkpoints": sorted((path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*")), key=by_step),
    }
    evaluated = timeless(trainer.evaluate())
    sets = trainer.eval_dataset
    rows = case.test if case.test is not None else next(iter(sets.values())) if type(sets) is dict else sets
    predicted = trainer.predict(rows)
    return Outcome(
        **trained,
        evaluated=evaluated,
        predicted=(predicted.predictions, predicted.label_ids, timeless(predicted.metrics)),
    )


def by_step(folder: str) -> int:
    """The step of a checkpoint's folder."""
    return int(folder.rpartition("-")[2])


def spelt(value: Any) -> Any:
    """Nested values with every number spelt out to its last digit, by which NaN is equal to itself, and 0 to 0.0."""
    if isinstance(value, dict):
        return {name: spelt(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [spelt(inner) for inner in value]
    return repr(float(value) if type(value) is int else value)
