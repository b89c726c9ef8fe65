"""Cases about when: logs, evaluations, checkpoints, and the best model among them."""

from __future__ import annotations

from typing import Any

from engine_toys import sentences
from parity_case import EVAL_ROWS, TRAIN_ROWS, Case
from parity_losses import BART, GPT2
from parity_models import Poisoned, plain
from parity_toys import accuracy, distance, poisoned

QUICK = {"model": plain()}
MEASURED = {**QUICK, "compute_metrics": accuracy}
POISONED = {"model": Poisoned, "train_dataset": poisoned(TRAIN_ROWS), "eval_dataset": poisoned(EVAL_ROWS, 1)}


def steps(what: str, every: float, **more: Any) -> dict[str, Any]:
    """Arguments that have logs, evaluations or checkpoints every so many steps."""
    name = {"log": "logging", "evaluate": "eval", "save": "save"}[what]
    return {f"{name}_strategy": "steps", f"{name}_steps": every, **more}


LOGS = {
    "logs every other step": Case(steps("log", 2), QUICK, about="The loss is a mean over the steps since the last."),
    "logs that leave a rest": Case(
        steps("log", 5), QUICK, about="The last two steps are logged here.", differs="last window"
    ),
    "logs that leave a rest, and evaluations": Case(
        {**steps("log", 5), "eval_strategy": "epoch", "gradient_accumulation_steps": 2, "num_train_epochs": 4},
        MEASURED,
        about="The rest is logged before the last evaluation.",
        differs="last window",
    ),
    "logs rarer than steps": Case(
        steps("log", 500), QUICK, about="The default: a short run is one window.", differs="last window"
    ),
    "logs at shares of the run": Case(steps("log", 0.25), QUICK, about="A quarter of twelve steps."),
    "logs at shares, rounded up": Case(steps("log", 0.3), QUICK, about="Four steps."),
    "logs at epochs": Case({"logging_strategy": "epoch"}, QUICK, about="Two logs."),
    "logs at epochs, the last one broken off": Case(
        {"logging_strategy": "epoch", "max_steps": 8}, QUICK, about="The end of the run ends an epoch."
    ),
    "no logs": Case({"logging_strategy": "no"}, QUICK, about="Only the summary."),
    "the first step logged": Case(
        {**steps("log", 4), "logging_first_step": True}, QUICK, about="The next window has three steps."
    ),
    "the first step logged, beside epochs": Case(
        {"logging_strategy": "epoch", "logging_first_step": True}, QUICK, about="Whatever the strategy."
    ),
    "a loss that is not a number, left out": Case(
        {"logging_nan_inf_filter": True, "logging_steps": 3}, POISONED, about="The average stands in its place."
    ),
    "a loss that is not a number, shown": Case(
        {"logging_nan_inf_filter": False, "logging_steps": 3}, POISONED, about="The window that has it is not a number."
    ),
    "a loss that is not a number": Case(
        {"logging_steps": 3}, POISONED, about="It is shown unless the filter is asked for.", differs="not a number"
    ),
}
"""When the training loss is logged, and what it is."""

EVALUATIONS = {
    "evaluated every few steps": Case(steps("evaluate", 3), MEASURED, about="The log has the metrics in their place."),
    "evaluated as often as logged": Case(
        {**steps("log", 4), "eval_strategy": "steps"}, MEASURED, about="Left out, `eval_steps` follows `logging_steps`."
    ),
    "evaluated at the end though it is no multiple": Case(
        steps("evaluate", 5), MEASURED, about="The end of the run is evaluated."
    ),
    "evaluated at shares of the run": Case(steps("evaluate", 0.25), MEASURED, about="A quarter of twelve steps."),
    "evaluated each epoch": Case({"eval_strategy": "epoch"}, MEASURED, about="Two evaluations."),
    "evaluated each epoch, the last one broken off": Case(
        {"eval_strategy": "epoch", "num_train_epochs": 1.4}, MEASURED, about="Also where the run ends in an epoch."
    ),
    "evaluated from a step on": Case(steps("evaluate", 2, eval_delay=5), MEASURED, about="First at step six."),
    "evaluated from a step that is due": Case(steps("evaluate", 2, eval_delay=6), MEASURED, about="First at step six."),
    "evaluated from an epoch on": Case(
        {"eval_strategy": "epoch", "eval_delay": 1.5, "num_train_epochs": 3}, MEASURED, about="First after the second."
    ),
    "evaluated later than the run lasts": Case(
        steps("evaluate", 2, eval_delay=50), MEASURED, about="Never, not even at the end."
    ),
    "evaluated on start": Case(
        {**steps("evaluate", 6), "eval_on_start": True}, {"compute_metrics": accuracy}, about="It draws nothing."
    ),
    "evaluated on start alone": Case({"eval_on_start": True}, MEASURED, about="Beside the strategy `no`."),
    "evaluated from the last step on": Case(
        steps("evaluate", 5, eval_delay=12), MEASURED, about="The end counts, though it is no multiple."
    ),
    "evaluated, and not logged": Case(
        steps("evaluate", 4, logging_strategy="no"), MEASURED, about="Evaluations are in the log all the same."
    ),
    "all at shares that do not divide": Case(
        {**steps("log", 0.5), **steps("evaluate", 0.3), **steps("save", 0.4), "max_steps": 7},
        MEASURED,
        about="Shares are rounded up, each for itself.",
        differs="last window",
    ),
    "several datasets": Case(
        {"eval_strategy": "epoch"},
        {**MEASURED, "eval_dataset": {"easy": sentences(9, 1), "hard": sentences(5, 2)}},
        about="An entry for each in the log, named.",
    ),
}
"""When the model is evaluated."""

CHECKPOINTS = {
    "saved every few steps": Case(steps("save", 5), QUICK, about="And at the end."),
    "saved at shares of the run": Case(steps("save", 0.5), QUICK, about="The middle and the end."),
    "saved each epoch": Case({"save_strategy": "epoch"}, QUICK, about="Two checkpoints."),
    "two checkpoints kept": Case(steps("save", 2, save_total_limit=2), QUICK, about="The newest ones."),
    "the model alone saved": Case(steps("save", 6, save_only_model=True), QUICK, about="The run is no other."),
    "saved by a model of transformers": Case(
        steps("save", 6), about="What is written is no draw: the next steps are the same."
    ),
}
"""When checkpoints are written."""


def best(metric: str | None, compute: Any = accuracy, differs: str = "", about: str = "", **args: Any) -> Case:
    """A case whose run ends with the best model that it saw; it learns too fast, so that the last one is not it."""
    named = {} if metric is None else {"metric_for_best_model": metric}
    common = {"load_best_model_at_end": True, "learning_rate": 0.1, "num_train_epochs": 4}
    return Case({**common, **named, **args}, {**QUICK, "compute_metrics": compute}, about=about, differs=differs)


BOTH_BY_STEPS = {**steps("evaluate", 3), **steps("save", 3)}
BOTH_BY_EPOCHS = {"eval_strategy": "epoch", "save_strategy": "epoch"}

BEST = {
    "the best at the end": best(None, **BOTH_BY_STEPS, about="By the loss, which is better when it is smaller."),
    "the best at the end, by epochs": best(None, **BOTH_BY_EPOCHS, about="The same at another cadence."),
    "the best by a metric": best("accuracy", **BOTH_BY_STEPS, about="Which is better when it is greater."),
    "the best by a metric's full name": best("eval_accuracy", **BOTH_BY_EPOCHS, about="`eval_` may be said."),
    "the best by a metric of the other direction": best(
        "distance", distance, **BOTH_BY_EPOCHS, greater_is_better=False, about="Smaller is better, as was said."
    ),
    "the worst loss": best("loss", **BOTH_BY_EPOCHS, greater_is_better=True, about="The direction is what was said."),
    "the best, saved rarely": best(
        None,
        **{**steps("evaluate", 2), **steps("save", 4)},
        differs="the best saved",
        about="There is a checkpoint of each new best.",
    ),
    "the best at shares of the run": best(
        None,
        **{**steps("evaluate", 0.125), **steps("save", 0.25)},
        differs="the best saved",
        about="The cadences are shares.",
    ),
    "the best of a model of transformers": Case(
        {**BOTH_BY_EPOCHS, "load_best_model_at_end": True, "learning_rate": 0.3, "num_train_epochs": 4},
        about="It is written and read by its own methods.",
    ),
    "the best of a model with tied weights": Case(
        {**BOTH_BY_EPOCHS, "load_best_model_at_end": True, "learning_rate": 0.3},
        GPT2,
        about="They are written once, and tied again when they are read.",
    ),
    "the best of a model whose parts tie weights": Case(
        {**BOTH_BY_EPOCHS, "load_best_model_at_end": True, "learning_rate": 0.3},
        BART,
        about="The model itself names only some of those that it leaves out.",
    ),
    "the best saved alone": best(
        "accuracy", eval_strategy="epoch", save_strategy="best", about="A checkpoint for each new best."
    ),
    "the best saved alone, every few steps": best(
        None, **{**steps("evaluate", 3), "save_strategy": "best"}, about="By the loss."
    ),
    "the best saved, the last kept": best(
        "accuracy",
        **{**steps("evaluate", 3), "save_strategy": "best", "load_best_model_at_end": False},
        about="Its step and value are in the state.",
    ),
    "the best of several datasets": Case(
        {**BOTH_BY_EPOCHS, "load_best_model_at_end": True, "metric_for_best_model": "hard_loss", "learning_rate": 0.1},
        {**MEASURED, "eval_dataset": {"easy": sentences(9, 1), "hard": sentences(5, 2)}},
        about="The metric names the dataset.",
    ),
    "the best and few others kept": best(
        None, **BOTH_BY_STEPS, save_total_limit=2, about="The best is one of the two, and the newest the other."
    ),
    "the best and no other kept": best(
        None, **BOTH_BY_STEPS, save_total_limit=1, about="The newest stays too, here.", differs="newest kept"
    ),
    "the best known, with no wish to load it": best(
        "accuracy", **BOTH_BY_STEPS, load_best_model_at_end=False, about="The run ends with the last model."
    ),
}
"""Which model is the best, and what is done with it."""
