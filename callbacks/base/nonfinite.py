"""The note about a training loss that was NaN or infinite, for the end of a run."""

from __future__ import annotations

import math

from ...engine.run import Run
from ..stopping.nan_guard import NaNGuard


def nonfinite_note(run: Run) -> str:
    """Return a sentence about a loss that was NaN or infinite and that nothing dealt with; empty if there was none.

    `NaNGuard` and the loss scaler of fp16 deal with it: they keep it away from the weights. Every rank must call this.
    """
    loss = run.summary()["train_loss"]
    step = run.losses.main.nonfinite_step
    guarded = any(isinstance(callback, NaNGuard) for callback in run.bus.subscribers.values())
    if guarded or run.seams.scaler is not None or (step is None and math.isfinite(loss)):
        return ""
    since = "" if step is None else f", first seen at step {step}"
    return f"The training loss was NaN or infinite{since}: the weights may be NaN. NaNGuard() prevents such updates."
