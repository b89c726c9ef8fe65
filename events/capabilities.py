"""The capabilities of callbacks, and the conflicts between callbacks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Capability(Enum):
    """A property of a callback that other parts of the run must know. `trainer.describe()` prints these properties."""

    PLACES_MODEL = "places the model"
    """Moves the model to its device. The trainer then does not move the model."""
    SHARDS_MODEL = "shards the weights"
    """Splits the weights over the ranks, so that no rank holds a full copy."""
    REPLACES_WEIGHTS = "replaces the weights in evaluations and checkpoints"
    """Evaluates and saves other weights than the trained weights, such as their average."""
    HOLDS_WEIGHTS = "holds trained weights in its state"
    """Saves trained weights in its callback state, such as the weights of a loss module. When the run loads the best
    model, it also loads these weights."""
    CHOOSES_BEST_MODEL = "chooses the best model"
    """Decides which checkpoint has the best model. The property `best_metric` of the callback returns the metric."""
    WRITES_CHECKPOINTS = "writes checkpoints"
    """Writes checkpoints during a run, or requests them."""
    EVALUATES = "evaluates"
    """Runs the evaluations that are requested during the run. Other callbacks decide from the metrics of these
    evaluations."""
    INTERRUPTS = "interrupts the run"
    """Stops a session so that a later session can resume the run, for example after a signal. Such a stop does not end
    the run, so the trigger `at_end()` is not due."""
    PLANS_EVALUATIONS = "plans evaluations"
    """Requests evaluations during a run."""
    READS_PREDICTIONS = "reads predictions"
    """Reads the predictions of each evaluation batch. Evaluations then compute predictions, also without
    `compute_metrics`."""
    REPORTS = "reports the run"
    """Only sends or writes values, models or checkpoints, and does not change the training. `trainbus profile` and
    `trainbus rerun` leave the callback out."""
    PUBLISHES = "pushes to a hub"
    """Pushes the model to a hub. The field `publisher` of the callback is the repository."""
    DEEPSPEED = "trains with DeepSpeed"
    """DeepSpeed's engine makes the steps. `Trainer.is_deepspeed_enabled` reads this capability."""
    FSDP = "trains with PyTorch FSDP2"
    """FSDP2 shards the model. `Trainer.is_fsdp_enabled` reads this capability."""
    KEEPS_GROUPS = "keeps the parameter groups"
    """Builds the optimizer from the trainer's parameter groups, and does not change which parameters a group has. The
    trainer then always makes separate groups with and without weight decay, also if `weight_decay` is 0."""
    UPDATES_IN_BACKWARD = "updates the weights in backward"
    """Updates weights during backward, and frees each gradient right after the update. In `on_gradients`, no gradients
    exist."""


class BestMetric(NamedTuple):
    """The metric that selects the best model."""

    name: str = "eval_loss"
    """The full name, with the prefix `eval_`."""
    greater_is_better: bool = False
    """Whether a greater value is better."""


@dataclass(frozen=True)
class Conflict:
    """A statement that a callback does not work with certain other callbacks.

    Example:
        class ReadWeights(Callback):
            conflicts_with = (Conflict(Capability.SHARDS_MODEL, "ReadWeights needs full weights. Leave it out."),)
    """

    other: type | Capability
    """The class of the other callbacks, or a capability that they have."""
    reason: str
    """Why the two exclude each other, and the remedy. It completes the sentence `A does not work with B: ...`."""
