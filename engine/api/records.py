"""The records of a run that are valid for one step or one session.

`Run` in `engine/run.py` has their fields as attributes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from ..data.plan import RunPlan
from ..data.position import Position
from ..seams import Seams


@dataclass
class StepRecord:
    """One optimizer step. The stepper writes it."""

    batch: Any = None
    """The current batch; between two steps, the last batch of the finished step. A handler of `on_batch` may replace
    it."""
    batch_index: int = 0
    """The number of the current batch in its step, from 0."""
    loss: Any = None
    """The loss of the batch, a scalar tensor. In `on_loss` it has its autograd graph, and a handler may replace it.
    After that, it is detached."""
    outputs: Any = None
    """The outputs of the model for the batch. After `on_loss`, the run keeps them only if a handler names them."""
    grad_norm: Any = None
    """The norm of the gradients before clipping, a scalar tensor."""
    learning_rate: float | None = None
    """The learning rate of the step's update."""


@dataclass
class SessionRecord:
    """The values of one session, such as its training loader, its run plan and the error that ends it."""

    mode: str = ""
    """`train`, `evaluate` or `predict`; empty outside of a session."""
    seams: Seams = field(default_factory=Seams)
    """The replaceable parts of a step. Callbacks fill them during `on_setup`."""
    exception: BaseException | None = None
    """The error that ends the session."""
    train_batch_size: int = 0
    """Samples per training batch of this rank."""
    data_seed: int | None = None
    """The seed of the training data's order."""
    train_dataloader: Any = None
    """The loader of the training batches."""
    plan: RunPlan | None = None
    """The length of the run; None outside of training."""
    position: Position | None = None
    """The position in the training data; None outside of training."""
    randomness: dict[str, Any] = field(default_factory=dict)
    """The RNG states that a resumed run restores before its first batch; empty in a run from the start."""
    resume_requested: bool = False
    """Whether the caller asked to resume. It is also True if there was no checkpoint to resume from."""
    first_step: int = 0
    """The global step at which the training session began."""
    began: tuple[float, float] = field(default_factory=lambda: (time.time(), time.monotonic()))
    """When the training session began, on the wall clock and on the monotonic clock, in seconds."""
    summary: dict[str, Any] = field(default_factory=dict)
    """The summary of the training session, once it was made."""
