"""Training losses, summed where they are computed and read only when somebody logs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch


class LossWindow:
    """The sum of the losses since it was last read.

    The sum stays a tensor on its device: reading a number out of it would make the processor wait for the device.
    """

    def __init__(self, step: int, device: torch.device, gather: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Begin at the end of step `step`; `gather` joins the sums of all processes when they are read."""
        self.since = step
        self.total = 0.0
        self._gather = gather
        self._sum = torch.tensor(0.0, device=device)

    def add(self, loss: torch.Tensor) -> None:
        """Add the loss of one batch, already divided by the batches of its step."""
        self._sum += loss

    def skip(self, step: int) -> None:
        """Count a batch with the average of those before it, as transformers does with one that is not finite."""
        self._sum += self._sum / (1 + step - self.since)

    def read(self, step: int) -> float:
        """Return the mean loss per step since the last reading and begin anew; NaN if no step was made."""
        total = self.drain()
        mean = total / (step - self.since) if step > self.since else math.nan
        self.since = step
        return mean

    def state_dict(self) -> dict[str, float]:
        """Return where the window is, for a checkpoint; exactly, for a sum of float32 is a float."""
        return {"since": self.since, "total": self.total, "sum": self._sum.item()}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on where another window was."""
        self.since, self.total = int(state["since"]), state["total"]
        self._sum.fill_(state["sum"])

    def drain(self) -> float:
        """Move the sum into `total`, which holds all that was ever added, and return what was moved."""
        moved = self._gather(self._sum).mean().item()
        self._sum.zero_()
        self.total += moved
        return moved


class Losses:
    """All windows that are open on the losses of a run: the run's own, and one for each further logger."""

    def __init__(self, step: int, device: torch.device, gather: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Open the run's own window, `main`, at the end of step `step`."""
        self._device, self._gather = device, gather
        self.first = step
        self.main = LossWindow(step, device, gather)
        self.windows = [self.main]

    def open(self, step: int) -> LossWindow:
        """Open one more window."""
        window = LossWindow(step, self._device, self._gather)
        self.windows.append(window)
        return window

    def add(self, loss: torch.Tensor) -> None:
        """Add the loss of one batch to every window."""
        for window in self.windows:
            window.add(loss)

    def state_dict(self) -> dict[str, float]:
        """Return where the run's own window is, and since which step its losses are counted."""
        return {**self.main.state_dict(), "first": self.first}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on where an earlier session was; with nothing known of it, count from here."""
        if state:
            self.main.load_state_dict(state)
            self.first = int(state["first"])
