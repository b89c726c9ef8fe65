"""The summary of a training: how long, how fast, and the mean loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..evaluation.outputs import speed_metrics

if TYPE_CHECKING:
    from ..run import Run


def train_summary(run: Run, first_step: int, began: float) -> dict[str, Any]:
    """Return runtime and throughput of this session, and operations and the mean training loss of the whole run.

    Args:
        run: a run whose loop is done, or about to be.
        first_step: the steps that were done before this session.
        began: when it began, on the clock of `time.time`.
    """
    assert run.plan is not None
    run.losses.main.drain()
    steps = run.state.global_step - first_step
    rows = run.plan.num_train_samples * steps / max(run.state.max_steps, 1)
    summary: dict[str, Any] = speed_metrics("train", began, rows, steps)
    summary["total_flos"] = run.state.total_flos
    summary["train_loss"] = run.losses.main.total / max(run.state.global_step - run.losses.first, 0.001)
    return summary
