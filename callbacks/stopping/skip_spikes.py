"""Skip updates with a loss that is much larger than usual, and write the skipped batches to a file."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, field
from typing import Any

import torch

from ...engine.run import Run
from ...events.callback import Callback
from ...events.control import TrainerControl
from ...events.errors import ArgumentError
from ..flow.skip_batches import SKIP_LIST

logger = logging.getLogger(__name__)


def is_spike(loss: float, usual: float, factor: float) -> bool:
    """Return whether a loss is not finite, or is above a limit.

    The limit is usual + (factor - 1) * |usual|. For a positive usual loss, the limit is `factor` times the usual loss.
    """
    return not math.isfinite(loss) or loss - usual > (factor - 1) * abs(usual)


@dataclass
class SkipSpikes(Callback):
    """Skips the update of a step if the loss of the step is NaN, infinite, or much larger than the usual loss.

    The usual loss is an exponential moving average of the losses of earlier steps. The callback lists the batches of a
    skipped step in `<output_dir>/skipped_batches.json`, with `epoch`, `batch`, `step`, `loss` and `usual`. In another
    run, `SkipBatches` can read this file and skip the listed batches. The callback reads the loss in each step, so the
    host waits for the device in each step. On several ranks, the callback uses the mean loss over the ranks.

    Raises:
        ArgumentError: if `factor` is not above 1, if `window` is below 1, or if `warmup` is negative.
    """

    factor: float = 3.0
    """The callback skips the update of a step if the loss is more than `factor` times the usual loss."""
    window: int = 20
    """The length of the moving average, in steps. With a longer window, the usual loss changes more slowly."""
    warmup: int = 20
    """The number of steps at the start of the run for which the callback never skips the update."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    usual: float = field(default=math.nan, init=False)
    """The moving average of the losses so far. NaN before the first step."""
    skipped: list[dict[str, Any]] = field(default_factory=list, init=False)
    """The batches of the skipped steps: the content of the file `skipped_batches.json`."""
    _loss: list[torch.Tensor] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.factor > 1:
            raise ArgumentError(f"SkipSpikes(factor={self.factor}): set a factor above 1.")
        if self.window < 1 or self.warmup < 0:
            raise ArgumentError("SkipSpikes: set a window of 1 step or more, and a warmup of 0 steps or more.")

    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self.usual, self.skipped = math.nan, []

    def on_step_begin(self) -> None:
        self._loss = []

    def on_loss(self, loss: torch.Tensor) -> None:
        # A copy, because the next batch of a compiled model may write its loss into the same memory.
        self._loss.append(loss.detach().clone())

    def on_pre_optimizer_step(self, run: Run, control: TrainerControl) -> None:
        if not self._loss:
            return  # every batch was skipped before its forward
        # The mean over the ranks, so that all of them decide alike.
        loss, step = float(run.ranks.gather(torch.stack(self._loss).sum()).mean()), run.state.global_step + 1
        if step > self.warmup and not math.isnan(self.usual) and is_spike(loss, self.usual, self.factor):
            control.request("skip_update", f"the loss of step {step} is {loss:.4g}, usually {self.usual:.4g}")
            self._list(run, step, loss)
        elif math.isfinite(loss):
            self.usual = loss if math.isnan(self.usual) else self.usual + (loss - self.usual) / self.window

    def _list(self, run: Run, step: int, loss: float) -> None:
        assert run.position is not None
        first, epoch = run.position.batches, run.position.epoch
        shown = loss if math.isfinite(loss) else str(loss)
        for batch in range(first, first + len(self._loss)):
            self.skipped.append({"epoch": epoch, "batch": batch, "step": step, "loss": shown, "usual": self.usual})
        if run.state.is_world_process_zero:
            path = run.args.output_path / SKIP_LIST
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.skipped, indent=2) + "\n", encoding="utf-8")
        logger.warning("The update of step %d is skipped: its loss is %s, usually %.4g.", step, shown, self.usual)

    def state_dict(self) -> dict[str, Any]:
        return {"usual": self.usual, "skipped": json.dumps(self.skipped)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.usual, self.skipped = state["usual"], json.loads(state["skipped"])
