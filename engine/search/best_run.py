"""Convert the hyperparameters of the best trial to the types of the training arguments."""

from __future__ import annotations

from typing import Any

from ..arguments import TrainingArguments
from ..arguments._checks import hints_of
from .hyperparameters import BestRun, converted


def assignable(best: BestRun | list[BestRun], args: TrainingArguments) -> BestRun | list[BestRun]:
    """Return the best trials, with each value converted to the type of its argument: the seed 12.7 becomes 12.

    A trial converts each value of the search in the same way. An assignment `args.seed = 12.7` would be refused.

    Args:
        best: the result of a search.
        args: the training arguments of the user's trainer.
    """
    hints = hints_of(type(args))

    def value_of(name: str, value: Any) -> Any:
        return converted(name, value, hints[name]) if name in hints else value

    def one(run: BestRun) -> BestRun:
        return run._replace(
            hyperparameters={name: value_of(name, value) for name, value in run.hyperparameters.items()}
        )

    return [one(run) for run in best] if isinstance(best, list) else one(best)
