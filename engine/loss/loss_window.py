"""Loss windows: sums of the training losses since the last log. The sums stay on their device until a log reads them.

A loss window spans the steps between two calls of `read`. It is not the window that has the batches of one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch


class LossWindow:
    """The sum of the training losses since the last call of `read`, or since the loss window was created.

    The sum stays a tensor on its device. If code converts the sum to a number, the host must wait for the device.
    """

    def __init__(self, step: int, device: torch.device, gather: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Create an empty loss window at the end of a step.

        Args:
            step: number of optimizer steps that are done.
            device: the device of the sum.
            gather: a function that gathers the sum from each rank: shape () -> (world_size,).
        """
        self.since = step
        """Optimizer steps that were done at the last call of `read`, or when the window was created."""
        self.total = 0.0
        """Sum of all losses that `read` and `drain` took from the window, over the whole run, averaged over ranks."""
        self.nonfinite_step: int | None = None
        """The step at which a NaN or infinite loss was first found; None if none was found. `skip` leaves the value of
        this loss out of the sum."""
        self._gather = gather
        self._sum = torch.tensor(0.0, device=device)
        self._missing = 0.0
        """The steps of this window, in fractions, that have no loss, because their batches were skipped first."""

    @property
    def pending(self) -> torch.Tensor:
        """The sum of the losses since the last call of `read`: a scalar tensor. The caller may change it in place."""
        return self._sum

    def add(self, loss: torch.Tensor) -> None:
        """Add the loss of one batch: a scalar that is already divided by the number of batches of the step."""
        self._sum += loss

    def skip(self, step: int) -> None:
        """Add the mean loss per step in place of the NaN or infinite loss of a batch, as transformers does.

        The mean is the sum `pending`, divided by the number of steps since the last call of `read`. The current step
        counts too. If a step has four batches, each call adds the mean of the whole step, not a quarter of the mean.
        transformers has the same inaccuracy.

        Args:
            step: number of optimizer steps that are done.
        """
        self._sum += self._sum / (1 + step - self.since)
        self._note_nonfinite(step + 1)

    def add_mean(self, steps: float, share: float) -> None:
        """Add the mean loss in place of the loss of a skipped batch. The mean of the loss window then stays the same.

        If the first batches after a call of `read` are skipped, there is no mean yet. The next call of `read` or
        `drain` computes the mean of the later losses, and adds this mean for each skipped batch.

        Args:
            steps: optimizer steps since the last call of `read`, such as 2.5 after two steps and half of the batches
                of a third step.
            share: 1 divided by the number of batches per step, such as 1/4 with four batches.
        """
        counted = steps - self._missing
        if counted > 1e-6:
            self._sum += self._sum * (share / counted)
        else:
            self._missing += share

    def read(self, step: int) -> float:
        """Return the mean loss per step since the last call of `read`, and set `pending` to 0.

        Every rank must call this method.

        Args:
            step: number of optimizer steps that are done.

        Returns:
            The mean over steps and ranks; NaN if no step was made since the last call of `read`.
        """
        total = self.drain(step)
        if not math.isfinite(total):
            self._note_nonfinite(step)
        mean = total / (step - self.since) if step > self.since else math.nan
        self.since = step
        return mean

    def state_dict(self) -> dict[str, float]:
        """Return the state of the loss window for a checkpoint. The entry `sum` is the value of `pending`."""
        state = {"since": self.since, "total": self.total, "sum": self._sum.item()}
        if self._missing:
            state["missing"] = self._missing
        return state if self.nonfinite_step is None else {**state, "nonfinite_step": self.nonfinite_step}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore a state that `state_dict` returned."""
        self.since, self.total = int(state["since"]), state["total"]
        self._sum.fill_(state["sum"])
        self._missing = state.get("missing", 0.0)
        self.nonfinite_step = int(state["nonfinite_step"]) if "nonfinite_step" in state else None

    def _note_nonfinite(self, step: int) -> None:
        if self.nonfinite_step is None:
            self.nonfinite_step = step

    def drain(self, step: int) -> float:
        """Return the average of the attribute `pending` over the ranks.

        Add this average to the attribute `total`, and set `pending` to 0.

        Every rank must call this method.

        Args:
            step: number of optimizer steps that are done.
        """
        moved = self._gather(self._sum).mean().item()
        steps, missing = step - self.since, self._missing
        if missing and steps > missing:
            moved *= steps / (steps - missing)
        self._sum.zero_()
        self._missing = 0.0
        self.total += moved
        return moved


class Losses:
    """The loss windows of a run: `main` for the callback `Log` with `prefix=""`, and one per call of `open`."""

    def __init__(self, step: int, device: torch.device, gather: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Create the loss window `main`. The method `open` creates more loss windows.

        Args:
            step: number of optimizer steps that are done.
            device: the device of the sums.
            gather: a function that gathers one sum from each rank: shape () -> (world_size,).
        """
        self._device, self._gather = device, gather
        self.first = step
        """Optimizer steps that were done before the first counted loss."""
        self.main = LossWindow(step, device, gather)
        self.windows = [self.main]
        self._named: dict[str, LossWindow] = {}
        self._restored: dict[str, dict[str, float]] = {}

    def open(self, step: int, name: str = "") -> LossWindow:
        """Return a new loss window. It collects the losses of all steps after the current step.

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
        """Add the loss of one batch to every loss window.

        The loss is a scalar that is already divided by the number of batches of the step.
        """
        for window in self.windows:
            window.add(loss)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the loss window `main` and of the loss windows with a name, for a checkpoint.

        The dict also has `first`: the number of optimizer steps before the first counted loss.
        """
        state: dict[str, Any] = {**self.main.state_dict(), "first": self.first}
        named = {**self._restored, **{name: window.state_dict() for name, window in self._named.items()}}
        return {**state, "windows": named} if named else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned. An empty state changes nothing.

        If a callback later calls `open` with the name of a stored loss window, `open` restores its state.
        """
        if state:
            self.main.load_state_dict(state)
            self.first = int(state["first"])
            self._restored = dict(state.get("windows", {}))
            for name in self._restored.keys() & self._named.keys():
                self._named[name].load_state_dict(self._restored.pop(name))
