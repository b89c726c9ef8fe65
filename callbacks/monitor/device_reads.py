"""Find handlers that read values of tensors in each step: on a GPU, each read waits for the device."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...events.channels import Subscription
from ...events.recording.recorder import INSIDE

logger = logging.getLogger(__name__)

_EVENTS = INSIDE | {"on_step_begin", "on_step_end"}
"""The events of each step. Reads by handlers of other events, such as `on_log`, are not counted."""

_READS = frozenset(
    {
        *("item", "tolist", "numpy", "cpu", "nonzero", "unique", "masked_select", "equal", "allclose"),
        *("argwhere", "bincount", "histc", "is_nonzero", "unique_consecutive", "_unique2"),
        *("__bool__", "__int__", "__float__", "__index__", "__contains__", "__array__", "__repr__", "__format__"),
    }
)
"""The functions of torch that copy values to the host."""


def counts_reads(handler: Subscription) -> bool:
    """Return whether `DeviceReads` counts how often a handler reads values of tensors.

    `DeviceReads` counts only the reads of handlers for the events of each step. On a machine without an accelerator,
    it does not count the reads of trainbus's own callbacks, because some of them read tensors that are always on the
    CPU.
    """
    own = type(handler.owner).__module__.startswith("trainbus.")
    return handler.event.name in _EVENTS and (not own or torch.accelerator.is_available())


class _Reads(TorchFunctionMode):
    """A context manager that lists the calls in its `with` block that copy values of a tensor to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if _reads(getattr(func, "__name__", ""), args, options):
            self.found.append(f"{func.__name__}() in {_place()}")
        return func(*args, **options)


class DeviceReads:
    """Counts how often each handler reads values of tensors.

    Logs a warning at the first read of each handler. `report` logs the numbers of reads.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Label of a handler -> how often the handler read values of tensors."""
        self._entered = False

    def call(self, label: str, handler: Callable[[], Any]) -> Any:
        """Call a handler, count how often the handler reads values of tensors, and return its result.

        Args:
            label: the key of the handler in the attribute `counts`. If the handler causes other handlers to run, the
                reads of those handlers count under this key too.
            handler: the handler.
        """
        if self._entered:
            return handler()
        self._entered, reads = True, _Reads()
        try:
            with reads:
                return handler()
        finally:
            self._entered = False
            if reads.found:
                if label not in self.counts:
                    _warn(label, reads.found[0])
                self.counts[label] += len(reads.found)

    def report(self, steps: int) -> None:
        """Log how often each handler read values of tensors in the last `steps` steps. Then set all counts to 0."""
        counts, self.counts = self.counts, Counter()
        for label, count in counts.most_common():
            logger.warning("%s read values of tensors %d times in %d steps.", label, count, steps)


def _warn(label: str, read: str) -> None:
    logger.warning(
        "%s reads a value of a tensor in a step: %s. On a GPU, the step waits there until the device has done all "
        "work before it. Keep the tensor, for example with `.detach()`, and read it in `on_log`.",
        label,
        read,
    )


def _reads(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Return whether a call of the torch function `name` reads values of a tensor on an accelerator.

    If the machine has no accelerator, return whether the call reads values of a tensor on the CPU.
    """
    if not any(_on_device(value) for value in args):
        return False
    if name == "copy_":
        return not _on_device(args[0]) and not (options.get("non_blocking") or args[2:3] == (True,))
    if name == "repeat_interleave":
        return options.get("output_size") is None
    if name == "to":
        target = options.get("device", args[1] if len(args) > 1 else None)
        to_host = isinstance(target, (str, torch.device)) and torch.device(target).type == "cpu"
        return to_host and not options.get("non_blocking", False)
    if name == "__getitem__":
        return isinstance(args[1], torch.Tensor) and args[1].dtype == torch.bool
    if name == "where":
        return len(args) + len(options) == 1
    return name in _READS


def _on_device(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return not value.is_cpu or not torch.accelerator.is_available()


def _place() -> str:
    """Return the file and the line of the first caller outside of torch, as `<file>:<line>`."""
    frame = sys._getframe(2)
    while frame.f_back is not None and "/torch/" in frame.f_code.co_filename.replace("\\", "/"):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
