"""Find handlers that change weights or modes, announce their own event, draw random numbers, are slow or wait for the
GPU.
"""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.catalog import Kind
from ...events.channels import Subscription
from ...events.errors import ArgumentError, HandlerError
from ...events.imported import imported
from ...events.stages import Stage
from ...events.state import TrainerState
from . import device_reads
from .device_reads import DeviceReads

logger = logging.getLogger(__name__)

_READING = (Stage.MEASURE, Stage.DECIDE, Stage.REPORT)
"""The stages whose handlers must not change the model."""
_OBSERVING = (Stage.MEASURE, Stage.REPORT)
"""The stages whose handlers must not draw random numbers."""

_EVALUATING = frozenset(
    {"on_evaluate_begin", "on_prediction_step", "on_evaluate_dataset", "on_evaluate", "on_evaluate_end", "on_predict"}
)
"""The events of an evaluation."""


@dataclass
class WatchCallbacks(Callback):
    """Watches each handler. Raises an error, or logs a warning, that names a handler with a fault.

    Use `WatchCallbacks` while you write a callback: set `debug="callbacks"`, or add `WatchCallbacks()` to the
    callbacks. `WatchCallbacks` copies the weights in evaluations, so the run is slower. `WatchCallbacks` raises an
    error for a handler that

    - runs in the stage MEASURE, DECIDE or REPORT, and replaces the model or changes weights during an evaluation;
    - runs in the stage MEASURE, DECIDE or REPORT, and changes the grad mode, or the train or eval mode of a module;
    - runs in the stage MEASURE or REPORT, and draws from the global random generators of Python, NumPy or torch;
    - calls itself more than `depth` levels deep, because it announces its own event, directly or through other
      handlers.

    `WatchCallbacks` logs a warning for a handler that

    - takes longer than `slow_after` seconds. The warning shows the stack of the handler. A handler of a work event,
      such as `on_save_due`, may take any time.
    - reads values of tensors in the events of each step, for example with `.item()`. The warning shows the line of the
      code. On a GPU, the step waits for each read. Without a GPU, the callbacks of trainbus cause no such warning.

    An error of `WatchCallbacks` counts as an error of the handler. The field `on_error` of the handler's callback
    decides what happens.

    Raises:
        ArgumentError: if `slow_after` is not positive, or if `depth` is below 1.
        HandlerError: when a handler does something in the first list.
    """

    stage = Stage.PREPARE
    arguments = ("debug",)

    slow_after: float = 10.0
    """How many seconds a handler may take before a warning shows its stack."""
    depth: int = 20
    """How many levels deep a handler may call itself. A handler calls itself if it announces its own event."""
    _stack: list[tuple[str, float]] = field(default_factory=list, init=False, repr=False, compare=False)
    _warned: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    _ends: threading.Event | None = field(default=None, init=False, repr=False, compare=False)
    _reads: DeviceReads = field(default_factory=DeviceReads, init=False, repr=False, compare=False)
    _first_step: int = field(default=0, init=False, repr=False, compare=False)
    _thread: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.slow_after <= 0 or self.depth < 1:
            raise ArgumentError(f"{self!r}: set slow_after above 0, and depth to 1 or more.")

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> WatchCallbacks | None:
        return cls() if "callbacks" in args.observed else None

    def on_init_end(self, run: Run) -> None:
        run.bus.watch_calls(self._watched)

    def on_setup(self, run: Run) -> None:
        run.bus.watch_calls(self._watched)
        self._stack.clear()
        self._first_step = run.state.global_step
        self._ends, self._thread = threading.Event(), threading.get_ident()
        threading.Thread(target=self._look_for_slow, args=(self._ends,), name="watch-callbacks", daemon=True).start()

    def on_close(self, state: TrainerState) -> None:
        self._reads.report(state.global_step - self._first_step)
        if self._ends is not None:
            self._ends.set()

    def _watched(self, found: Subscription) -> Subscription:
        """Wrap a handler in a function that checks each call. Return handlers of `WatchCallbacks` unchanged."""
        if found.owner is self:
            return found
        call, counts_reads = found.call, device_reads.counts_reads(found)

        def watched(run: Any, extras: Mapping[str, Any]) -> Any:
            with self._entered(found), self._unchanged(found, run):
                if counts_reads:
                    return self._reads.call(found.label, lambda: call(run, extras))
                return call(run, extras)

        return replace(found, call=watched)

    @contextlib.contextmanager
    def _entered(self, found: Subscription) -> Iterator[None]:
        counts = found.event.kind is not Kind.WORK
        labels = [label for label, _ in self._stack]
        if labels.count(found.label) >= self.depth:
            first = len(labels) - 1 - labels[::-1].index(found.label)
            chain = " -> ".join([*labels[first:], found.label])
            raise HandlerError(
                f"{found.label} announces its own event without end: {chain}. Announce another event, or return early "
                "when the handler is inside of itself."
            )
        self._stack.append((found.label, time.monotonic() if counts else float("inf")))
        try:
            yield
        finally:
            self._stack.pop()
            if self._stack:  # the time of an inner handler is not the time of the outer one
                label, began = self._stack[-1]
                self._stack[-1] = label, max(began, time.monotonic()) if began != float("inf") else began

    @contextlib.contextmanager
    def _unchanged(self, found: Subscription, run: Any) -> Iterator[None]:
        stage, model = found.slot.stage, run.model
        reads, observes = stage in _READING, stage in _OBSERVING
        evaluates = reads and found.event.name in _EVALUATING
        weights = _weights(model) if evaluates else {}
        modes = (_modes(model), torch.is_grad_enabled()) if reads else None
        generators = _generators() if observes else {}
        yield
        where = f"{found.label}, in the stage {stage.name},"
        if evaluates:
            if run.model is not model:
                raise HandlerError(f"{where} replaced the model during an evaluation. {_ACT}")
            if changed := _changed(weights, _weights(model)):
                raise HandlerError(f"{where} changed the weight {changed!r} during an evaluation. {_ACT}")
        if modes is not None and run.model is model:
            if modes[1] != torch.is_grad_enabled():
                raise HandlerError(
                    f"{where} turned the computation of gradients {'off' if modes[1] else 'on'} and did not restore "
                    "it. Use `with torch.no_grad():` or `with torch.set_grad_enabled(...):`."
                )
            if switched := [name for name, mode in _modes(model).items() if modes[0].get(name, mode) != mode]:
                raise HandlerError(
                    f"{where} changed the train or eval mode of {switched[0] or 'the model'!r} and did not restore it. "
                    "Restore it, or leave `model.train()` and `model.eval()` to the engine."
                )
        if drew := [name for name, state in (_generators() if observes else {}).items() if state != generators[name]]:
            raise HandlerError(
                f"{where} drew from the global random generator of {drew[0]}, so the later steps differ from a run "
                "without it. Use a generator of your own, such as `torch.Generator().manual_seed(args.seed)`."
            )

    def _look_for_slow(self, ends: threading.Event) -> None:
        while not ends.wait(self.slow_after / 4):
            label, began = next(iter(self._stack[-1:]), ("", float("inf")))
            if time.monotonic() - began > self.slow_after and label not in self._warned:
                self._warned.add(label)
                frame = sys._current_frames().get(self._thread)
                stack = "".join(traceback.format_stack(frame)[-6:]) if frame is not None else ""
                logger.warning("%s has been running for more than %g s:\n%s", label, self.slow_after, stack)


_ACT = "A handler that changes the model belongs in the stage PREPARE or ACT."


def _weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _changed(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]) -> str:
    if before.keys() != after.keys():
        return min(before.keys() ^ after.keys())
    return next((name for name in before if not _equal(before[name], after[name])), "")


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and bool(torch.eq(one, other).logical_or(one.ne(one) & other.ne(other)).all())  # NaN equals NaN here


def _modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


def _generators() -> dict[str, Any]:
    numpy: Any = imported("numpy")
    states: dict[str, Any] = {"torch": torch.get_rng_state().numpy().tobytes(), "Python": random.getstate()}
    if numpy is not None:
        legacy = numpy.random.get_state(legacy=True)
        states["NumPy"] = (legacy[1].tobytes(), legacy[2])
    return states
