"""Attributes that a subclass sets before it calls the constructor of the Trainer.

Most of these attributes keep their value, as in transformers. If the Trainer itself uses an attribute of the same name,
the value is lost. The Trainer then logs a warning, except for the names in `REPLACED`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ...events.bus import EventBus
from ..run import Run

logger = logging.getLogger(__name__)

_LIBRARY = f"{__name__.partition('.')[0]}."

PENDING = "_set_early"
"""The attribute that stores the properties that a subclass set before the constructor: name -> value."""

REPLACED = frozenset(
    {
        # Inputs of the constructor.
        *("args", "compute_loss_func", "compute_metrics", "data_collator", "eval_dataset", "model", "model_init"),
        *("optimizer_cls_and_kwargs", "preprocess_logits_for_metrics", "processing_class", "train_dataset"),
        # Values that the Trainer computes.
        *("_globalstep_last_logged", "_total_loss_scalar", "_tr_loss", "_train_batch_size", "accelerator"),
        *("callback_handler", "can_return_loss", "control", "current_gradient_accumulation_steps"),
        *("is_deepspeed_enabled", "is_fsdp_enabled", "is_in_train", "label_names", "label_smoother", "lr_scheduler"),
        *("model_accepts_loss_kwargs", "model_wrapped", "optimizer", "push_in_progress", "state"),
    }
)
"""The attributes whose early value transformers' Trainer replaces too, at construction or in a training."""

PARTS: dict[str, tuple[type, str]] = {"run": (Run, "the record of the run"), "bus": (EventBus, "the event bus")}
"""Attribute that only the Trainer may set -> its class, and its meaning."""


def is_own_property(cls: type, name: str) -> bool:
    """Return whether `name` is a property of the Trainer that no subclass overrides."""
    found = getattr(cls, name, None)
    return isinstance(found, property) and str(getattr(found.fget, "__module__", "")).startswith(_LIBRARY)


def refuse_other_part(trainer: object, name: str, value: Any) -> None:
    """Raise an AttributeError if a program sets `run` or `bus` of a trainer to an object of its own."""
    expected, meaning = PARTS[name]
    if not isinstance(value, expected):
        kind = type(trainer).__name__
        raise AttributeError(
            f"{kind}.{name} cannot be set to a value of the type {type(value).__name__}, because `trainer.{name}` is "
            f"{meaning}. Give the attribute another name, such as `own_{name}`."
        )


def early_attributes(trainer: object) -> dict[str, Any]:
    """Return the attributes that a subclass has set before the constructor of the Trainer: name -> value."""
    found = dict(vars(trainer))
    pending = found.pop(PENDING, {})
    return {**found, **pending}


def keep_early(trainer: Any, early: Mapping[str, Any]) -> None:
    """Log a warning for each attribute that a subclass set too early, so that the Trainer overwrote its value.

    The names in `REPLACED` cause no warning. If the Trainer has no `criterion`, the function restores the `criterion`
    of the subclass.

    Args:
        trainer: the trainer, after its constructor.
        early: the result of `early_attributes` before the constructor.
    """
    kind = type(trainer).__name__
    for name, value in early.items():
        if name in REPLACED or getattr(trainer, name, None) is value:
            continue
        if name == "criterion" and trainer.criterion is None:
            trainer.criterion = value
            continue
        logger.warning(
            "%s sets `self.%s` before it calls the constructor of the Trainer, and this value is lost, because `%s` is "
            "an attribute of the Trainer itself. Give the attribute another name, such as `own_%s`.",
            *(kind, name, name, name.lstrip("_")),
        )
