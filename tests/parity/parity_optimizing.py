"""Cases about schedules, optimizers, clipping and weight decay."""

from __future__ import annotations

from typing import Any

import torch
from parity_case import Case

from support.parity_data import Given, accuracy
from support.parity_models import Frozen, plain
from support.trainers import Fresh

QUICK = {"model": plain()}


def scheduled(name: str, about: str, warmup: float = 0, metrics: Any = None, **more: Any) -> Case:
    """Return a case for a schedule. Each log has its learning rate. `more` are the options of the schedule."""
    args = {"lr_scheduler_type": name, **({"warmup_steps": warmup} if warmup else {})}
    if more:
        args["lr_scheduler_kwargs"] = more
    if metrics is None:
        return Case(args, QUICK, about=about)
    return Case(
        {**args, **metrics},
        {**QUICK, "compute_metrics": accuracy},
        about=about,
        differs="best step without a checkpoint",
    )


BY_STEPS = {"eval_strategy": "steps", "eval_steps": 2}

SCHEDULES = {
    "linear": scheduled("linear", "The learning rate decreases linearly to zero."),
    "linear with warm-up": scheduled("linear", "In the first three steps, the learning rate increases.", 3),
    "linear with warm-up ratio": scheduled("linear", "The warm-up is a fraction of the run.", 0.3),
    "cosine": scheduled("cosine", "The learning rate follows half a cosine wave.", 3),
    "cosine with several waves": scheduled("cosine", "The number of waves is an option.", 0.1, num_cycles=1.5),
    "cosine with one cycle": scheduled(
        "cosine_with_restarts", "The default has one cycle, so the learning rate never restarts.", 2
    ),
    "cosine with three restarts": scheduled("cosine_with_restarts", "Each cycle restarts at the peak.", num_cycles=3),
    "linear, warm-up of the whole run": scheduled("linear", "The learning rate never decreases.", 12),
    "linear, warm-up longer than the run": scheduled("linear", "The run ends during the warm-up.", 20),
    "cosine, warm-up of the whole run": scheduled("cosine", "No step is left for the decay.", 12),
    "polynomial": scheduled("polynomial", "The default power is 1, which gives a linear decay.", 2),
    "polynomial with power": scheduled(
        "polynomial", "The power and the final learning rate are options.", 0.2, power=2.0, lr_end=1e-5
    ),
    "constant": scheduled("constant", "The learning rate does not change."),
    "constant with warm-up": scheduled("constant_with_warmup", "The learning rate increases, then stays constant.", 4),
    "constant with warm-up ratio": scheduled(
        "constant_with_warmup", "The number of warm-up steps is a fraction of the run, rounded up.", 0.45
    ),
    "inverse square root": scheduled(
        "inverse_sqrt", "After the warm-up, the learning rate is proportional to 1 / sqrt(step).", 3
    ),
    "inverse square root with timescale": scheduled("inverse_sqrt", "The time scale is an option.", 2, timescale=7),
    "cosine with min_lr": scheduled("cosine_with_min_lr", "The final learning rate is an option.", 2, min_lr=1e-4),
    "cosine with min_lr_rate": scheduled(
        "cosine_with_min_lr", "The final learning rate is a fraction of the peak.", 0.2, min_lr_rate=0.1
    ),
    "cosine with min_lr and warmup_lr_rate": scheduled(
        "cosine_warmup_with_min_lr", "The learning rate starts and ends above zero.", 3, min_lr=1e-4, warmup_lr_rate=0.2
    ),
    "cosine warm-up with min_lr_rate": scheduled(
        "cosine_warmup_with_min_lr", "The final learning rate is a fraction of the peak.", 0.25, min_lr_rate=0.1
    ),
    "warm-up, stable, decay": scheduled("warmup_stable_decay", "The schedule has three phases.", 3, num_decay_steps=4),
    "warm-up, stable, decay with other shapes": scheduled(
        *("warmup_stable_decay", "The shape of each phase is an option.", 0.25),
        **{"num_decay_steps": 4, "warmup_type": "cosine", "decay_type": "1-sqrt", "min_lr_ratio": 0.1},
    ),
    "warm-up, stable, decay longer than the run": scheduled(
        "warmup_stable_decay", "The decay is longer than the run.", 2, num_decay_steps=30
    ),
    "reduce on plateau": scheduled(
        "reduce_lr_on_plateau",
        "The learning rate follows the evaluation loss.",
        metrics=BY_STEPS,
        patience=0,
        factor=0.5,
    ),
    "reduce on plateau of a metric": scheduled(
        *("reduce_lr_on_plateau", "The learning rate follows a custom metric, evaluated per epoch."),
        metrics={"eval_strategy": "epoch", "metric_for_best_model": "accuracy", "num_train_epochs": 4},
        **{"patience": 0, "mode": "max"},
    ),
    "greedy": scheduled(
        "greedy",
        "The evaluation loss decides whether the learning rate increases or decreases.",
        metrics=BY_STEPS,
        patience=0,
    ),
    "greedy, smoothed": scheduled(
        *("greedy", "The metric is smoothed, and the learning rate is bounded."),
        metrics=BY_STEPS,
        **{"patience": 0, "smooth": True, "window_size": 3, "factor": 0.7, "min_lr": 5e-4, "max_lr": 2e-3},
    ),
}
"""Cases about schedules: all of them."""


def custom_optimizer(schedule: bool, about: str) -> Case:
    """Return a case that passes an optimizer to the trainer."""
    given = Given(schedule)
    return Case({}, {"optimizers": Fresh(given.optimizers), "model": given.model}, about=about)


OPTIMIZERS = {
    "AdamW": Case({"optim": "adamw_torch"}, about="The optimizer updates one tensor at a time."),
    "AdamW, fused": Case({"optim": "adamw_torch_fused"}, about="The fused implementation is the default optimizer."),
    "AdamW with other betas": Case(
        {"optim": "adamw_torch", "adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-5, "weight_decay": 0.05},
        about="Betas, epsilon and weight decay are arguments.",
    ),
    "SGD": Case({"optim": "sgd", "learning_rate": 0.1}, about="SGD ignores the arguments of Adam."),
    "SGD with momentum": Case(
        {"optim": "sgd", "learning_rate": 0.05, "optim_args": "momentum=0.9,nesterov=true,weight_decay=0.5"},
        about="`optim_args` sets the options of SGD, but not `weight_decay`. The parameter groups set `weight_decay`.",
    ),
    "SGD with dampening": Case(
        {"optim": "sgd", "learning_rate": 0.05, "optim_args": "momentum=0.8, dampening=0.1", "weight_decay": 0.1},
        about="Spaces in `optim_args` are ignored.",
    ),
    "Adafactor": Case(
        {"optim": "adafactor"},
        about="The Adafactor class of trainbus gives the same results as the class of transformers.",
    ),
    "Adafactor with weight decay": Case(
        {"optim": "adafactor", "weight_decay": 0.1, "warmup_steps": 2, "learning_rate": 1e-2},
        about="`relative_step` and `scale_parameter` are off, so Adafactor uses the learning rate of the arguments.",
    ),
    "Adagrad": Case(
        {"optim": "adagrad", "learning_rate": 0.01},
        about="All options except the learning rate have the defaults of torch.",
    ),
    "Adagrad with options": Case(
        {"optim": "adagrad", "learning_rate": 0.01, "optim_args": "lr_decay=0.1,eps=1e-6", "weight_decay": 0.1},
        about="`optim_args` sets the options of Adagrad.",
    ),
    "RMSprop": Case({"optim": "rmsprop"}, about="All options except the learning rate have the defaults of torch."),
    "RMSprop with options": Case(
        {"optim": "rmsprop", "optim_args": "momentum=0.5,alpha=0.9,eps=1e-6,centered=true"},
        about="`optim_args` sets the options of RMSprop, including a boolean.",
    ),
    "custom optimizer class": Case(
        {"weight_decay": 0.1},
        {"optimizer_cls_and_kwargs": (torch.optim.NAdam, {"lr": 1e-3})},
        about="The class receives the parameter groups. The schedule comes from the arguments.",
    ),
    "custom optimizer": custom_optimizer(
        False, "The optimizer is used unchanged. The schedule comes from the arguments."
    ),
    "custom optimizer and schedule": custom_optimizer(
        True, "The arguments set neither the optimizer nor the schedule."
    ),
    "weight decay": Case(
        {"weight_decay": 0.5, "learning_rate": 1e-2}, about="Biases and normalization layers do not decay."
    ),
    "weight decay of a plain model": Case(
        {"weight_decay": 0.5, "learning_rate": 1e-2},
        QUICK,
        about="The classes of the layers and the names of the parameters decide which parameters decay.",
    ),
    "frozen weights": Case(
        {"weight_decay": 0.1},
        {"model": Frozen},
        about="Frozen weights are in neither the gradient norm nor the weight decay.",
    ),
    "no clipping": Case(
        {"max_grad_norm": 0.0}, about="The value 0 turns clipping off. The gradient norm is still logged."
    ),
    "strong clipping": Case(
        {"max_grad_norm": 0.1, "optim": "sgd", "learning_rate": 0.5},
        about="The logged gradient norm is the norm before clipping.",
    ),
    "clipping with accumulation": Case(
        {"max_grad_norm": 0.05, "gradient_accumulation_steps": 3, "optim": "sgd", "learning_rate": 0.5},
        about="The accumulated gradient of a step is clipped.",
    ),
    "learning rate zero": Case({"learning_rate": 0.0}, about="The weights do not change. The log has all entries."),
}
"""Cases about optimizers, their options, and clipping."""
