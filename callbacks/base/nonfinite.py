"""The warning at the end of a training with a loss that was NaN or infinite."""

from __future__ import annotations

import math

from ...engine.run import Run
from ..stopping.nan_guard import NaNGuard


def nonfinite_note(run: Run) -> str:
    """Return a warning if a NaN or infinite training loss may have changed the weights; an empty text otherwise.

    `Progress` and `StatusFile` show the warning. With `NaNGuard` or the loss scaler of fp16, such a loss does not
    change the weights. Every rank must call this function.
    """
    loss = run.summary()["train_loss"]
    step = run.losses.main.nonfinite_step
    guarded = any(isinstance(callback, NaNGuard) for callback in run.bus.subscribers.values())
    if guarded or run.seams.scaler is not None or (step is None and math.isfinite(loss)):
        return ""
    since = "" if step is None else f", first seen at step {step}"
    return f"The training loss was NaN or infinite{since}: the weights may be NaN. NaNGuard() prevents such updates."
