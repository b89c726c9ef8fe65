"""Cases about updates: schedules, optimizers, clipping, weight decay."""

from __future__ import annotations

from typing import Any

import torch
from engine_toys import Fresh
from parity_case import Case
from parity_models import Frozen, plain
from parity_toys import Given, accuracy

QUICK = {"model": plain()}


def scheduled(name: str, about: str, warmup: float = 0, metrics: Any = None, **more: Any) -> Case:
    """A case for a schedule, whose learning rate is in the log of each step; `more` are the schedule's own options."""
    args = {"lr_scheduler_type": name, **({"warmup_steps": warmup} if warmup else {})}
    if more:
        args["lr_scheduler_kwargs"] = more
    if metrics is None:
        return Case(args, QUICK, about=about)
    return Case(
        {**args, **metrics}, {**QUICK, "compute_metrics": accuracy}, about=about, differs="the best step unsaved"
    )


BY_STEPS = {"eval_strategy": "steps", "eval_steps": 2}

SCHEDULES = {
    "linear": scheduled("linear", "The learning rate falls to zero in a line."),
    "linear, warmed up": scheduled("linear", "It rises over a number of steps first.", 3),
    "linear, warmed up over a share": scheduled("linear", "The steps of warm-up are a share of the run.", 0.3),
    "cosine": scheduled("cosine", "The learning rate falls along half a wave.", 3),
    "cosine, several waves": scheduled("cosine", "The number of waves is an option.", 0.1, num_cycles=1.5),
    "cosine with restarts": scheduled("cosine_with_restarts", "One fall, unless there are cycles.", 2),
    "cosine with three restarts": scheduled("cosine_with_restarts", "It starts anew with each cycle.", num_cycles=3),
    "linear, warmed up as long as it lasts": scheduled("linear", "It never falls.", 12),
    "linear, warmed up longer than it lasts": scheduled("linear", "It ends on the way up.", 20),
    "cosine, warmed up as long as it lasts": scheduled("cosine", "Nothing is left to fall.", 12),
    "polynomial": scheduled("polynomial", "The default is a line.", 2),
    "polynomial with a power": scheduled("polynomial", "It ends at a rate of its own.", 0.2, power=2.0, lr_end=1e-5),
    "constant": scheduled("constant", "The learning rate stays."),
    "constant with warm-up": scheduled("constant_with_warmup", "It rises, then stays.", 4),
    "constant with warm-up over a share": scheduled("constant_with_warmup", "A share of the run is rounded up.", 0.45),
    "inverse square root": scheduled("inverse_sqrt", "It falls with the root of the steps since the warm-up.", 3),
    "inverse square root, other scale": scheduled("inverse_sqrt", "The scale of time is an option.", 2, timescale=7),
    "cosine to a minimum": scheduled("cosine_with_min_lr", "It ends at a rate of its own.", 2, min_lr=1e-4),
    "cosine to a share": scheduled("cosine_with_min_lr", "It ends at a share of the rate.", 0.2, min_lr_rate=0.1),
    "cosine and warm-up with a minimum": scheduled(
        "cosine_warmup_with_min_lr", "The warm-up, too, begins above zero.", 3, min_lr=1e-4, warmup_lr_rate=0.2
    ),
    "cosine and warm-up to a share": scheduled(
        "cosine_warmup_with_min_lr", "The end is a share of the rate.", 0.25, min_lr_rate=0.1
    ),
    "warm-up, stay, decay": scheduled("warmup_stable_decay", "Three phases.", 3, num_decay_steps=4),
    "warm-up, stay, decay in other shapes": scheduled(
        *("warmup_stable_decay", "Each phase has a shape of its own.", 0.25),
        **{"num_decay_steps": 4, "warmup_type": "cosine", "decay_type": "1-sqrt", "min_lr_ratio": 0.1},
    ),
    "warm-up, stay, decay that does not fit": scheduled(
        "warmup_stable_decay", "A decay longer than the run.", 2, num_decay_steps=30
    ),
    "a plateau": scheduled(
        "reduce_lr_on_plateau", "The rate follows the evaluation loss.", metrics=BY_STEPS, patience=0, factor=0.5
    ),
    "a plateau of a metric": scheduled(
        *("reduce_lr_on_plateau", "The rate follows a metric of one's own, by epochs."),
        metrics={"eval_strategy": "epoch", "metric_for_best_model": "accuracy", "num_train_epochs": 4},
        **{"patience": 0, "mode": "max"},
    ),
    "a schedule that follows a metric closely": scheduled(
        "greedy", "The rate rises and falls with the evaluation loss.", metrics=BY_STEPS, patience=0
    ),
    "the same, smoothed": scheduled(
        *("greedy", "The metric is averaged, and the rate is kept in bounds."),
        metrics=BY_STEPS,
        **{"patience": 0, "smooth": True, "window_size": 3, "factor": 0.7, "min_lr": 5e-4, "max_lr": 2e-3},
    ),
}
"""Every schedule there is."""


def of_ones_own(schedule: bool, about: str) -> Case:
    """A case whose optimizer is given to the trainer."""
    given = Given(schedule)
    return Case({}, {"optimizers": Fresh(given.optimizers), "model": given.model}, about=about)


OPTIMIZERS = {
    "AdamW": Case({"optim": "adamw_torch"}, about="The plain one."),
    "AdamW, fused": Case({"optim": "adamw_torch_fused"}, about="The default."),
    "AdamW with other moments": Case(
        {"optim": "adamw_torch", "adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-5, "weight_decay": 0.05},
        about="Its settings are arguments of their own.",
    ),
    "SGD": Case({"optim": "sgd", "learning_rate": 0.1}, about="It takes none of Adam's settings."),
    "SGD with momentum": Case(
        {"optim": "sgd", "learning_rate": 0.05, "optim_args": "momentum=0.9,nesterov=true,weight_decay=0.5"},
        about="Its own settings come as text; the decay of the groups of parameters wins.",
    ),
    "SGD, dampened": Case(
        {"optim": "sgd", "learning_rate": 0.05, "optim_args": "momentum=0.8, dampening=0.1", "weight_decay": 0.1},
        about="Blanks in the text do not count.",
    ),
    "Adafactor": Case({"optim": "adafactor"}, about="Our class against theirs."),
    "Adafactor with decay": Case(
        {"optim": "adafactor", "weight_decay": 0.1, "warmup_steps": 2, "learning_rate": 1e-2},
        about="The learning rate and the decay are the run's, not relative ones.",
    ),
    "Adagrad": Case({"optim": "adagrad", "learning_rate": 0.01}, about="Its defaults."),
    "Adagrad with options": Case(
        {"optim": "adagrad", "learning_rate": 0.01, "optim_args": "lr_decay=0.1,eps=1e-6", "weight_decay": 0.1},
        about="The options reach it.",
    ),
    "RMSprop": Case({"optim": "rmsprop"}, about="Its defaults."),
    "RMSprop with options": Case(
        {"optim": "rmsprop", "optim_args": "momentum=0.5,alpha=0.9,eps=1e-6,centered=true"},
        about="The options reach it, a yes or no among them.",
    ),
    "an optimizer class of one's own": Case(
        {"weight_decay": 0.1},
        {"optimizer_cls_and_kwargs": (torch.optim.NAdam, {"lr": 1e-3})},
        about="It gets the groups of parameters; the schedule is the arguments'.",
    ),
    "an optimizer of one's own": of_ones_own(False, "It is used as it is; the schedule is the arguments'."),
    "an optimizer and a schedule of one's own": of_ones_own(True, "Neither is made from the arguments."),
    "weight decay": Case(
        {"weight_decay": 0.5, "learning_rate": 1e-2}, about="Biases and normalisation layers do not decay."
    ),
    "weight decay of a plain model": Case(
        {"weight_decay": 0.5, "learning_rate": 1e-2}, QUICK, about="The rule goes by classes and names alone."
    ),
    "frozen weights": Case(
        {"weight_decay": 0.1}, {"model": Frozen}, about="What is not trained has no part in the norm, nor in the decay."
    ),
    "no clipping": Case({"max_grad_norm": 0.0}, about="Zero turns it off; the norm that is logged says so."),
    "clipped hard": Case(
        {"max_grad_norm": 0.1, "optim": "sgd", "learning_rate": 0.5}, about="The norm that is logged is that before."
    ),
    "clipped, of accumulated batches": Case(
        {"max_grad_norm": 0.05, "gradient_accumulation_steps": 3, "optim": "sgd", "learning_rate": 0.5},
        about="It is the sum of a step's gradients that is clipped.",
    ),
    "a learning rate of zero": Case({"learning_rate": 0.0}, about="Nothing moves, and everything is logged."),
}
"""Optimizers, what they are given, and what is done to gradients before."""
