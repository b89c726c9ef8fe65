"""Resources that a run leaves in the process and on the model: open files, threads, hooks, settings."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections import Counter
from typing import Any

import torch
from torch import nn

EXCEPT_HOOK = "sys.excepthook"
"""The start of the description of the hook for uncaught exceptions. The description ends with the package that defines
the hook."""


def resources(model: nn.Module | None = None) -> Counter[str]:
    """Return the resources of this process and of a model, as description -> count.

    Resources are open files, threads, log handlers and settings of the process, and hooks and replaced `forward`
    methods of the model. If `model` is None, the result has only resources of the process.
    """
    found: Counter[str] = Counter()
    for descriptor in _descriptors():
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue  # closed since it was listed
        kind = target.partition(":")[0] if ":[" in target else ""
        found[f"an open {kind}" if kind else f"the open file {target}"] += 1
    for thread in threading.enumerate():
        found[f"the running thread {_without_number(thread.name)}"] += 1
    for logged in logging.getLogger().handlers:
        found[f"the log handler {type(logged).__name__}"] += 1
    if model is not None:
        found += _hooks(model)
    return found + settings()


def settings() -> Counter[str]:
    """Describe the settings of this process that a callback may change. Each description has the count 1.

    A description contains the value of the setting, such as `gradients on`. A changed value gives another description.
    To find a change, call this function before the first run and after it, and compare the results.
    """
    found: Counter[str] = Counter()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        found[f"the handler of {number.name}: {_name(signal.getsignal(number))}"] += 1
    found[f"the working folder {os.getcwd()}"] += 1
    found[f"{EXCEPT_HOOK} {_name(sys.excepthook)} of {package_of(sys.excepthook)}"] += 1
    found[f"the default dtype {torch.get_default_dtype()}"] += 1
    found[f"gradients {'on' if torch.is_grad_enabled() else 'off'}"] += 1
    found[f"anomaly detection {'on' if torch.is_anomaly_enabled() else 'off'}"] += 1
    found[f"deterministic algorithms {'on' if torch.are_deterministic_algorithms_enabled() else 'off'}"] += 1
    found[f"{torch.get_num_threads()} threads of torch"] += 1
    found[f"the precision of matrix products {torch.get_float32_matmul_precision()!r}"] += 1
    found[f"the benchmark mode of cuDNN {'on' if torch.backends.cudnn.benchmark else 'off'}"] += 1
    return found


def growth(before: Counter[str], model: nn.Module | None = None) -> list[str]:
    """Return a description of each resource that was added since an earlier call of `resources()`.

    The list is empty if nothing was added.

    Args:
        before: the result of the earlier call.
        model: the argument `model` of the earlier call. The hooks and replaced methods of this model are resources too.
    """
    more = resources(model) - before
    if more:
        gc.collect()  # what nothing refers to any more does not count
        more = resources(model) - before
    return sorted(f"{name} ({count} more)" if count > 1 else name for name, count in more.items())


def package_of(value: Any) -> str:
    """Return the top-level package that defines a function or class."""
    return str(getattr(value, "__module__", "")).partition(".")[0]


def _descriptors() -> list[str]:
    try:
        return os.listdir("/proc/self/fd")
    except OSError:
        return []  # a system without /proc


def _hooks(model: nn.Module) -> Counter[str]:
    found: Counter[str] = Counter()
    for name, module in model.named_modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            if count := len(getattr(module, kind, ())):
                found[f"{kind.strip('_').replace('_', ' ')} on {name or 'the model'}"] += count
        if "forward" in vars(module):
            found[f"a replaced forward of {name or 'the model'}"] += 1
    return found


def _without_number(name: str) -> str:
    return name.rstrip("0123456789").rstrip("-_ (") or name


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", value))
