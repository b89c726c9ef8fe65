"""Histograms of gradients and weights at log steps.

A handler of `on_gradients` collects the histograms, because hooks in the model would break compiled graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import wandb

from ...callbacks.flow.log import Log
from ...engine.run import Run
from ...events.bus import Handle
from ...events.stages import Stage

BINS = 64


@dataclass
class Histograms:
    """Collects histograms of gradients and parameters in each step that ends with a log.

    The tracker adds the histograms to the row of this log.
    """

    _columns: dict[str, Any] = field(default_factory=dict)
    _handle: Handle | None = None

    def attach(self, run: Run, watch: str, writes: Callable[[Run], bool]) -> None:
        """Subscribe to `on_gradients`. Call this method on every rank, if the user wants histograms.

        Args:
            run: the run.
            watch: `gradients`, `parameters` or `all`.
            writes: a function that takes the run, and returns whether this rank writes the wandb run. Other ranks
                collect nothing.
        """
        if self._handle is not None:
            self._handle()

        def collect(run: Run) -> None:
            if writes(run) and logs_next_step(run):
                self._columns = columns_of(run.model, watch)

        self._handle = run.bus.on("on_gradients", collect, stage=Stage.REPORT, on_error="warn", id="wandb-histograms")

    def take(self) -> dict[str, Any]:
        """Return the collected histograms, and remove them from this object."""
        columns, self._columns = self._columns, {}
        return columns


def logs_next_step(run: Run) -> bool:
    """Return whether a `Log` callback will log at the end of the step in progress."""
    now = run.moment("step")
    then = now._replace(step=now.step + 1, last=now.step + 1 >= now.max_steps)
    logs = [callback for callback in run.bus.subscribers.values() if isinstance(callback, Log)]
    return any(log.trigger.due(then, log.last_due) for log in logs)


def columns_of(model: Any, watch: str) -> dict[str, Any]:
    """Compute a histogram of each gradient and each parameter: `gradients/<name>` or `parameters/<name>` -> histogram.

    `watch` selects `gradients`, `parameters` or `all`. For a sharded weight, the histogram has only the values of this
    rank's shard.
    """
    columns: dict[str, Any] = {}
    for name, weight in model.named_parameters():
        plain = name.replace("_orig_mod.", "")
        if watch in ("gradients", "all") and weight.grad is not None:
            columns[f"gradients/{plain}"] = histogram_of(weight.grad)
        if watch in ("parameters", "all"):
            columns[f"parameters/{plain}"] = histogram_of(weight)
    return {name: value for name, value in columns.items() if value is not None}


def histogram_of(values: torch.Tensor) -> Any:
    """Compute the histogram of the finite values of a tensor, in 64 bins; None if no value is finite."""
    local = values.to_local() if hasattr(values, "to_local") else values
    with torch.no_grad():
        flat = (local.coalesce().values() if local.is_sparse else local).detach().flatten().float()
        flat = flat[torch.isfinite(flat)]
        if not flat.numel():
            return None
        low, high = float(flat.min()), float(flat.max())
        if low == high:
            low, high = low - 0.5, high + 0.5
        counts = torch.histc(flat, bins=BINS, min=low, max=high)
        edges = torch.linspace(low, high, BINS + 1)
    return wandb.Histogram(np_histogram=(counts.cpu().numpy().astype(int), edges.numpy()))
