"""The records of a run: the values of one step, and the values of one session.

`Run` in `engine/run.py` has the fields of both records as attributes.
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
    """The values of one optimizer step. The `Stepper` writes them."""

    batch: Any = None
    """The current batch; between two steps, the last batch of the finished step. A handler of `on_batch` may replace
    it."""
    batch_index: int = 0
    """The number of the current batch in its step, from 0."""
    loss: Any = None
    """The loss of the batch, a scalar tensor. In `on_loss`, this tensor has its autograd graph, and a handler may
    replace it. After the backward pass, the loss is detached."""
    outputs: Any = None
    """The outputs of the model for the batch. After the backward pass, the run keeps the outputs only if a
    handler has the parameter `outputs`."""
    grad_norm: Any = None
    """The norm of the gradients before clipping, a scalar tensor; None before the first step."""
    learning_rate: float | None = None
    """The learning rate of the update; None before the first step."""


@dataclass
class SessionRecord:
    """The values of the current session, and of the last training.

    Each session sets `mode`, `seams` and `exception`. Only a training sets the other values, such as `plan`.
    """

    mode: str = ""
    """`train`, `evaluate` or `predict`; empty outside of a session."""
    seams: Seams = field(default_factory=Seams)
    """The seams of the session. Callbacks replace them during `on_setup`."""
    exception: BaseException | None = None
    """The error that ends the session. None as long as no error has occurred, and after the session."""
    train_batch_size: int = 0
    """Samples per training batch of this rank; 0 before the first training."""
    data_seed: int | None = None
    """The seed of the order of the training data; None before the first training."""
    train_dataloader: Any = None
    """The loader of the training batches; None before the first training."""
    plan: RunPlan | None = None
    """The length of the run; None before the first training."""
    position: Position | None = None
    """The position in the training data; None before the first training."""
    randomness: dict[str, Any] = field(default_factory=dict)
    """The RNG states that a resumed run restores before its first batch; empty if the run does not resume."""
    overridden: dict[str, Any] = field(default_factory=dict)
    """The arguments that have no effect in a resumed run: name -> the value of the checkpoint, which the run uses."""
    resume_requested: bool = False
    """Whether the caller asked to resume. It is also True if there was no checkpoint to resume from."""
    first_step: int = 0
    """The number of steps of the run that were done when the training session began."""
    began: tuple[float, float] = field(default_factory=lambda: (time.time(), time.monotonic()))
    """When the training session began, on the wall clock and on the monotonic clock, in seconds."""
    summary: dict[str, Any] = field(default_factory=dict)
    """The result of `run.summary()`; empty before its first call in a training session."""
