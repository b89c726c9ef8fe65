"""Loss windows: sums of training losses, which stay on their device until a log needs them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch


class LossWindow:
    """The sum of the training losses since the window was last read.

    The sum stays a tensor on its device. If code reads its value, the host must wait for the device.
    """

    def __init__(self, step: int, device: torch.device, gather: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Create an empty window at the end of a step.

        Args:
            step: number of optimizer steps that are done.
            device: the device of the sum.
            gather: a function that gathers the sums of all ranks: shape () -> (world_size,).
        """
        self.since = step
        """Optimizer steps that were done when the window was last read."""
        self.total = 0.0
        """Sum of all losses that `read` and `drain` took from the window, over the whole run, averaged over ranks."""
        self.nonfinite_step: int | None = None
        """The step at which a NaN or infinite loss was first found; None if none was found. `skip` leaves the value of
        this loss out of the sum."""
        self._gather = gather
        self._sum = torch.tensor(0.0, device=device)

    @property
    def pending(self) -> torch.Tensor:
        """The sum of the losses since the window was last read: a scalar tensor. The caller may change it in place."""
        return self._sum

    def add(self, loss: torch.Tensor) -> None:
        """Add the loss of one batch: a scalar that is already divided by the number of batches of the step."""
        self._sum += loss

    def skip(self, step: int) -> None:
        """Count the mean loss since the last read for a batch with a NaN or infinite loss, as transformers does.

        Args:
            step: number of optimizer steps that are done.
        """
        self._sum += self._sum / (1 + step - self.since)
        self._note_nonfinite(step + 1)

    def add_mean(self, steps: float, share: float) -> None:
        """Count the mean loss since the window was last read for a skipped batch, which has no loss.

        Args:
            steps: optimizer steps since the window was last read, such as 2.5 after two steps and half of the batches
                of a third step. If `steps` is 0, the method does nothing.
            share: the fraction of a step that the batch is, such as 1/4 with four batches per step.
        """
        if steps > 0:
            self._sum += self._sum * (share / steps)

    def read(self, step: int) -> float:
        """Return the mean loss per step since the window was last read, and set the sum to 0.

        Every rank must call this method.

        Args:
            step: number of optimizer steps that are done.

        Returns:
            The mean over steps and ranks; NaN if no step was made since the window was last read.
        """
        total = self.drain()
        if not math.isfinite(total):
            self._note_nonfinite(step)
        mean = total / (step - self.since) if step > self.since else math.nan
        self.since = step
        return mean

    def state_dict(self) -> dict[str, float]:
        """Return the state of the window for a checkpoint. It is exact: a Python float can store every float32."""
        state = {"since": self.since, "total": self.total, "sum": self._sum.item()}
        return state if self.nonfinite_step is None else {**state, "nonfinite_step": self.nonfinite_step}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore a state that `state_dict` returned."""
        self.since, self.total = int(state["since"]), state["total"]
        self._sum.fill_(state["sum"])
        self.nonfinite_step = int(state["nonfinite_step"]) if "nonfinite_step" in state else None

    def _note_nonfinite(self, step: int) -> None:
        if self.nonfinite_step is None:
            self.nonfinite_step = step

    def drain(self) -> float:
        """Average the sum over the ranks. Add the average to `total`, set the sum to 0, and return the average.

        Every rank must call this method.
        """
        moved = self._gather(self._sum).mean().item()
        self._sum.zero_()
        self.total += moved
        return moved


class Losses:
    """All windows of a run: `main` for the main `Log` callback, and one for each other callback that reads losses."""

    def __init__(self, step: int, device: torch.device, gather: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Create the window `main` of the run.

        Args:
            step: number of optimizer steps that are done.
            device: the device of the sums.
            gather: a function that gathers a sum of all ranks: shape () -> (world_size,).
        """
        self._device, self._gather = device, gather
        self.first = step
        """Optimizer steps that were done before the first counted loss."""
        self.main = LossWindow(step, device, gather)
        self.windows = [self.main]
        self._named: dict[str, LossWindow] = {}
        self._restored: dict[str, dict[str, float]] = {}

    def open(self, step: int, name: str = "") -> LossWindow:
        """Create one more window, which sums the losses after the current step, and return this window.

        Args:
            step: number of optimizer steps that are done.
            name: the name under which checkpoints store the window. If the checkpoint of a resumed run has a window
                with this name, the new window gets its state. Without a name, checkpoints do not store the window.
        """
        window = LossWindow(step, self._device, self._gather)
        self.windows.append(window)
        if name:
            self._named[name] = window
            if (state := self._restored.pop(name, None)) is not None:
                window.load_state_dict(state)
        return window

    def add(self, loss: torch.Tensor) -> None:
        """Add the loss of one batch to the sum of every window. `LossWindow.add` describes the loss."""
        for window in self.windows:
            window.add(loss)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the window `main` and of the named windows, for a checkpoint.

        The dict also has `first`: the number of optimizer steps before the first counted loss.
        """
        state: dict[str, Any] = {**self.main.state_dict(), "first": self.first}
        named = {**self._restored, **{name: window.state_dict() for name, window in self._named.items()}}
        return {**state, "windows": named} if named else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned. An empty state changes nothing.

        If a callback opens a named window later, the method `open` restores the state of this window.
        """
        if state:
            self.main.load_state_dict(state)
            self.first = int(state["first"])
            self._restored = dict(state.get("windows", {}))
            for name in self._restored.keys() & self._named.keys():
                self._named[name].load_state_dict(self._restored.pop(name))
