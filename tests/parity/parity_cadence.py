"""Cases about the intervals of logs, evaluations and checkpoints, and about the best model."""

from __future__ import annotations

from typing import Any

from parity_case import EVAL_ROWS, TRAIN_ROWS, Case
from parity_losses import BART, GPT2

from support.data import sentences
from support.parity_data import accuracy, distance, poisoned
from support.parity_models import Poisoned, plain

QUICK = {"model": plain()}
MEASURED = {**QUICK, "compute_metrics": accuracy}
POISONED = {"model": Poisoned, "train_dataset": poisoned(TRAIN_ROWS), "eval_dataset": poisoned(EVAL_ROWS, 1)}


def steps(what: str, every: float, **more: Any) -> dict[str, Any]:
    """Return the arguments for logs, evaluations or checkpoints every `every` steps."""
    name = {"log": "logging", "evaluate": "eval", "save": "save"}[what]
    return {f"{name}_strategy": "steps", f"{name}_steps": every, **more}


LOGS = {
    "logs every two steps": Case(
        steps("log", 2), QUICK, about="The logged loss is the mean over the steps since the previous log."
    ),
    "logs with a remainder": Case(
        steps("log", 5), QUICK, about="trainbus also logs the last two steps.", differs="last window"
    ),
    "logs with a remainder, and evaluations": Case(
        {**steps("log", 5), "eval_strategy": "epoch", "gradient_accumulation_steps": 2, "num_train_epochs": 4},
        MEASURED,
        about="trainbus also logs the last two steps. This log comes before the log of the last evaluation.",
        differs="last window",
    ),
    "logging_steps longer than the run": Case(
        steps("log", 500),
        QUICK,
        about="The run is shorter than one interval. trainbus logs the run once, at its end.",
        differs="last window",
    ),
    "logging_steps as a ratio": Case(steps("log", 0.25), QUICK, about="The interval is a quarter of twelve steps."),
    "logging_steps as a ratio, rounded up": Case(
        steps("log", 0.3), QUICK, about="The interval is rounded up to four steps."
    ),
    "logs per epoch": Case({"logging_strategy": "epoch"}, QUICK, about="Each of the two epochs is logged."),
    "logs per epoch, last epoch incomplete": Case(
        {"logging_strategy": "epoch", "max_steps": 8},
        QUICK,
        about="The run ends inside an epoch, and logs the steps of this epoch.",
    ),
    "no logs": Case({"logging_strategy": "no"}, QUICK, about="Only the summary at the end is logged."),
    "first step logged": Case(
        {**steps("log", 4), "logging_first_step": True},
        QUICK,
        about="The loss in the second log is the mean over three steps.",
    ),
    "first step logged, logs per epoch": Case(
        {"logging_strategy": "epoch", "logging_first_step": True},
        QUICK,
        about="`logging_first_step` works with every logging strategy.",
    ),
    "NaN loss filtered": Case(
        {"logging_nan_inf_filter": True, "logging_steps": 3},
        POISONED,
        about="The average of the previous losses replaces the NaN loss.",
    ),
    "NaN loss not filtered": Case(
        {"logging_nan_inf_filter": False, "logging_steps": 3},
        POISONED,
        about="The logged mean over the steps with the NaN loss is NaN.",
    ),
    "NaN loss by default": Case(
        {"logging_steps": 3}, POISONED, about="trainbus logs a NaN loss, unless the filter is on.", differs="NaN loss"
    ),
}
"""Cases about logging the training loss."""

EVALUATIONS = {
    "evaluation every three steps": Case(
        steps("evaluate", 3),
        MEASURED,
        about="The log has the entries of training and evaluation in the order of transformers.",
    ),
    "evaluation at logging_steps": Case(
        {**steps("log", 4), "eval_strategy": "steps"},
        MEASURED,
        about="If `eval_steps` is not set, it is equal to `logging_steps`.",
    ),
    "evaluation at the end": Case(
        steps("evaluate", 5),
        MEASURED,
        about="The run evaluates after the last step, although this step is not a multiple of 5.",
    ),
    "eval_steps as a ratio": Case(
        steps("evaluate", 0.25), MEASURED, about="The interval is a quarter of twelve steps."
    ),
    "evaluation per epoch": Case({"eval_strategy": "epoch"}, MEASURED, about="The run evaluates twice."),
    "evaluation per epoch, last epoch incomplete": Case(
        {"eval_strategy": "epoch", "num_train_epochs": 1.4},
        MEASURED,
        about="The run ends inside an epoch and is evaluated.",
    ),
    "eval_delay in steps": Case(
        steps("evaluate", 2, eval_delay=5), MEASURED, about="The first evaluation is at step six."
    ),
    "eval_delay on an evaluation step": Case(
        steps("evaluate", 2, eval_delay=6), MEASURED, about="The first evaluation is at step six."
    ),
    "eval_delay in epochs": Case(
        {"eval_strategy": "epoch", "eval_delay": 1.5, "num_train_epochs": 3},
        MEASURED,
        about="The first evaluation is after the second epoch.",
    ),
    "eval_delay longer than the run": Case(
        steps("evaluate", 2, eval_delay=50), MEASURED, about="No evaluation runs, not even at the end."
    ),
    "evaluation on start": Case(
        {**steps("evaluate", 6), "eval_on_start": True},
        {"compute_metrics": accuracy},
        about="The evaluation before the first step draws no random numbers.",
    ),
    "evaluation only on start": Case(
        {"eval_on_start": True},
        MEASURED,
        about='The evaluation before the first step runs, also with `eval_strategy="no"`.',
    ),
    "eval_delay at the last step": Case(
        steps("evaluate", 5, eval_delay=12),
        MEASURED,
        about="The run evaluates after the last step, although this step is not a multiple of 5.",
    ),
    "evaluation without logs": Case(
        steps("evaluate", 4, logging_strategy="no"),
        MEASURED,
        about="Training values are not logged. Metrics of evaluations are logged.",
    ),
    "all intervals as ratios": Case(
        {**steps("log", 0.5), **steps("evaluate", 0.3), **steps("save", 0.4), "max_steps": 7},
        MEASURED,
        about="Each interval is a fraction of the run, and is rounded up separately.",
        differs="last window",
    ),
    "several evaluation datasets": Case(
        {"eval_strategy": "epoch"},
        {**MEASURED, "eval_dataset": {"easy": sentences(9, 1), "hard": sentences(5, 2)}},
        about="The log has one entry per dataset, with the name of the dataset.",
    ),
}
"""Cases about the moments of evaluations."""

CHECKPOINTS = {
    "checkpoint every five steps": Case(steps("save", 5), QUICK, about="The run also writes a checkpoint at the end."),
    "save_steps as a ratio": Case(
        steps("save", 0.5), QUICK, about="Checkpoints are written in the middle and at the end."
    ),
    "checkpoint per epoch": Case({"save_strategy": "epoch"}, QUICK, about="The run writes two checkpoints."),
    "two checkpoints kept": Case(
        steps("save", 2, save_total_limit=2), QUICK, about="The two newest checkpoints are kept."
    ),
    "save_only_model": Case(
        steps("save", 6, save_only_model=True), QUICK, about="Saving only the model does not change the run."
    ),
    "checkpoint of a transformers model": Case(
        steps("save", 6), about="Saving draws no random numbers, so the next steps are the same."
    ),
}
"""Cases about the moments of checkpoints."""


def best(metric: str | None, compute: Any = accuracy, differs: str = "", about: str = "", **args: Any) -> Case:
    """Return a case that loads the best model at the end. A large learning rate makes the last model a worse one."""
    named = {} if metric is None else {"metric_for_best_model": metric}
    common = {"load_best_model_at_end": True, "learning_rate": 0.1, "num_train_epochs": 4}
    return Case({**common, **named, **args}, {**QUICK, "compute_metrics": compute}, about=about, differs=differs)


BOTH_BY_STEPS = {**steps("evaluate", 3), **steps("save", 3)}
BOTH_BY_EPOCHS = {"eval_strategy": "epoch", "save_strategy": "epoch"}

BEST = {
    "best model by loss": best(None, **BOTH_BY_STEPS, about="A smaller loss is better."),
    "best model by loss, per epoch": best(
        None, **BOTH_BY_EPOCHS, about="A smaller loss is better, with an evaluation per epoch."
    ),
    "best model by a metric": best("accuracy", **BOTH_BY_STEPS, about="A larger metric is better."),
    "best model by a full metric name": best(
        "eval_accuracy", **BOTH_BY_EPOCHS, about="The name may have the prefix `eval_`."
    ),
    "best model by a smaller metric": best(
        "distance",
        distance,
        **BOTH_BY_EPOCHS,
        greater_is_better=False,
        about="`greater_is_better=False` makes a smaller metric better.",
    ),
    "best model by a larger loss": best(
        "loss", **BOTH_BY_EPOCHS, greater_is_better=True, about="`greater_is_better` overrides the default direction."
    ),
    "best model with rare checkpoints": best(
        None,
        **{**steps("evaluate", 2), **steps("save", 4)},
        differs="checkpoint of a new best",
        about="In addition to the checkpoints of `save_steps`, trainbus saves each new best model.",
    ),
    "best model with ratios": best(
        None,
        **{**steps("evaluate", 0.125), **steps("save", 0.25)},
        differs="checkpoint of a new best",
        about="The intervals are fractions of the run. trainbus also saves each new best model.",
    ),
    "best transformers model": Case(
        {**BOTH_BY_EPOCHS, "load_best_model_at_end": True, "learning_rate": 0.3, "num_train_epochs": 4},
        about="The methods of the transformers model save and load the best model.",
    ),
    "best model with tied weights": Case(
        {**BOTH_BY_EPOCHS, "load_best_model_at_end": True, "learning_rate": 0.3},
        GPT2,
        about="Tied weights are saved once, and tied again when they are loaded.",
    ),
    "best model with tied submodules": Case(
        {**BOTH_BY_EPOCHS, "load_best_model_at_end": True, "learning_rate": 0.3},
        BART,
        about="The model declares only some of its tied weights.",
    ),
    'save_strategy="best"': best(
        "accuracy",
        eval_strategy="epoch",
        save_strategy="best",
        about="Each evaluation with a new best metric writes a checkpoint.",
    ),
    'save_strategy="best" by steps': best(
        None,
        **{**steps("evaluate", 3), "save_strategy": "best"},
        about="Each evaluation with a new lowest loss writes a checkpoint.",
    ),
    'save_strategy="best" without loading': best(
        "accuracy",
        **{**steps("evaluate", 3), "save_strategy": "best", "load_best_model_at_end": False},
        about="The state has the step and the value of the best metric.",
    ),
    "best model of several datasets": Case(
        {**BOTH_BY_EPOCHS, "load_best_model_at_end": True, "metric_for_best_model": "hard_loss", "learning_rate": 0.1},
        {**MEASURED, "eval_dataset": {"easy": sentences(9, 1), "hard": sentences(5, 2)}},
        about="The name of the metric contains the name of the dataset.",
    ),
    "best model with save_total_limit=2": best(
        None, **BOTH_BY_STEPS, save_total_limit=2, about="The best and the newest checkpoint are kept."
    ),
    "best model with save_total_limit=1": best(
        None,
        **BOTH_BY_STEPS,
        save_total_limit=1,
        about="trainbus also keeps the newest checkpoint.",
        differs="newest checkpoint kept",
    ),
    "best model tracked but not loaded": best(
        "accuracy",
        **BOTH_BY_STEPS,
        load_best_model_at_end=False,
        about="After the run, the model has the weights of the last step.",
    ),
}
"""Cases about the best model."""
