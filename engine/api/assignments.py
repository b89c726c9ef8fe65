"""Assignments to attributes that transformers' Trainer reads, and this Trainer does not."""

from __future__ import annotations

import logging
from typing import Any

from .removed_names import MISSING

logger = logging.getLogger(__name__)

LOSSES = ("criterion", "compute_loss_func")
"""Attributes that need work when a program sets them during a run."""

REFUSED: dict[str, str] = {
    "accelerator": (
        "accelerate is not used. Set `accelerator_config` and the other arguments, and attach callbacks such as `DDP`."
    ),
    "current_gradient_accumulation_steps": (
        "it is the number of batches of the current step. Set `args.gradient_accumulation_steps` before `train`. To "
        "scale the loss yourself, set `trainer.loss_is_scaled_for_ga = True`, and override `compute_loss`."
    ),
    "is_deepspeed_enabled": "it follows from the callbacks. Set `deepspeed` in the arguments.",
    "is_fsdp_enabled": "it follows from the callbacks. Set `fsdp` in the arguments, or attach the callback `FSDP`.",
    "is_in_train": "it says whether `train` runs. To change the mode of the model, call `trainer.model.eval()`.",
    "push_in_progress": ("it says whether a push runs. Call `trainer.push_to_hub(blocking=True)` to wait for a push."),
}
"""Property of the Trainer that a program can set in transformers, but not here -> the reason and the remedy."""


def changes_nothing(trainer: Any, name: str, value: Any) -> bool:
    """Return True if an assignment sets an attribute in `REFUSED` to the value that the attribute already has.

    For an attribute that is not in `REFUSED`, return False.

    Raises:
        AttributeError: if the value of an attribute in `REFUSED` would change.
    """
    if name not in REFUSED:
        return False
    present = getattr(trainer, name)
    if value is present or (isinstance(value, int) and value == present):
        return True
    raise AttributeError(f"`trainer.{name}` cannot be set to {value!r}: {REFUSED[name]}")


def tell_unread(trainer: Any, name: str, value: Any) -> None:
    """Log a warning if a program sets an attribute that transformers reads, and this Trainer does not.

    False, None, 0 and other empty values are the initial values in transformers, so they give no warning.
    """
    if name in MISSING and name not in vars(trainer) and not _is_empty(value):
        logger.warning(
            "`trainer.%s` is set, but the Trainer does not read it, in contrast to transformers: %s",
            *(name, MISSING[name]),
        )


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float, dict, list)) and not value)
