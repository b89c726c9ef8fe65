"""All cases of the parity suite by subject, and the text of the page that lists them."""

from __future__ import annotations

from parity_cadence import BEST, CHECKPOINTS, EVALUATIONS, LOGS
from parity_case import BASE, Case
from parity_evaluation import EVALUATING, ORDERS
from parity_losses import LOSSES, MODELS
from parity_optimizing import OPTIMIZERS, SCHEDULES
from parity_steps import DATA, LENGTH

SUBJECTS: dict[str, dict[str, Case]] = {
    "Learning rates": SCHEDULES,
    "Optimizers": OPTIMIZERS,
    "Length and order": LENGTH,
    "Data": DATA,
    "Losses, precision and memory": LOSSES,
    "Models and tasks": MODELS,
    "Logs": LOGS,
    "Evaluations": EVALUATIONS,
    "Checkpoints": CHECKPOINTS,
    "Best model": BEST,
    "Metrics and predictions": EVALUATING,
    "Sequences of calls": ORDERS,
}
"""Subject -> name -> case."""

CASES: dict[str, Case] = {name: case for cases in SUBJECTS.values() for name, case in cases.items()}
"""All cases by name."""


def base() -> str:
    """Return the arguments that all cases share, as text."""
    return ", ".join(f"`{name}={value!r}`" for name, value in BASE.items())
