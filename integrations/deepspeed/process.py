"""Create and clean up what DeepSpeed's engine needs: process group, launcher variables and compiled code."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
import warnings
import weakref
from pathlib import Path
from typing import Any

import deepspeed
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.utils.cpp_extension import get_default_build_root

from ...engine.run import Run

logger = logging.getLogger(__name__)

FINALIZERS: list[weakref.finalize[Any, Any]] = []
"""The finalizers of the engines of this process. The process group stays until the last engine is released."""

CREATED: set[str] = set()
"""The names of what `init_single_process` created in this process: `group` for a process group, and `LOCAL_RANK`."""

COMPILED_OPTIMIZERS = ("adam", "adagrad", "lamb", "lion")
"""The optimizers that DeepSpeed compiles at first use, by their names in the configuration without a `w` at the end."""

DEPRECATED_NAMES = r"`torch\.distributed\.(all_gather_into_tensor|reduce_scatter_tensor)` is deprecated"
"""A pattern for torch's deprecation warning about functions that DeepSpeed calls in each step."""


def finalize_engine(owner: Any, engine: Any, added: list[tuple[Any, str]]) -> weakref.finalize[Any, Any]:
    """Register a finalizer, which releases the engine when `owner` is garbage-collected or the program ends.

    Args:
        owner: the object that uses the engine.
        engine: the engine.
        added: the attributes that the engine set on modules and parameters, as pairs of object and name. The finalizer
            removes these attributes.

    Returns:
        The finalizer. Call the finalizer to release the engine earlier.
    """
    FINALIZERS.append(weakref.finalize(owner, _release_engine, engine, added))
    FINALIZERS[-1].atexit = False  # `_release_at_exit` keeps the order: engines first, then the process group
    atexit.unregister(_release_at_exit)
    atexit.register(_release_at_exit)
    return FINALIZERS[-1]


def _release_engine(engine: Any, added: list[tuple[Any, str]]) -> None:
    if dist.is_initialized():  # the end of another trainer may have destroyed the group
        engine.destroy()
    engine.module_forward_pre_hook.remove()
    engine.module_forward_post_hook.remove()
    for owner, name in added:
        vars(owner).pop(name, None)


def _release_at_exit() -> None:
    # After an error the other ranks may wait for this one, and destroying the group would wait for them.
    if not hasattr(sys, "last_type"):
        for finalizer in FINALIZERS:
            finalizer()
        leave_process_group()


def warn_before_compilation(config: dict[str, Any]) -> None:
    """Warn if DeepSpeed will compile its optimizer, and name each lock file that would block the compilation."""
    section = config.get("optimizer", {})
    kind = section.get("type", "").lower().removesuffix("w")
    if kind not in COMPILED_OPTIMIZERS or section.get("params", {}).get("torch_adam"):
        return
    configured = os.environ.get("TORCH_EXTENSIONS_DIR")
    root = Path(configured or get_default_build_root())
    built = [path for path in root.glob("*/*" if configured else "*/*/*") if kind in path.parent.name]
    for lock in (path for path in built if path.name == "lock"):
        logger.warning(
            "DeepSpeed waits without a time limit while the file %s exists. Delete it if no other program compiles.",
            lock,
        )
    if not any(path.suffix == ".so" for path in built):
        logger.warning(
            'DeepSpeed compiles its %s now, once, into %s. This takes minutes. Set "torch_adam": true to avoid it.',
            section["type"],
            root,
        )


def ignore_deprecated_names() -> None:
    """Ignore torch's deprecation warnings that DeepSpeed causes, until a call of `leave_process_group`."""
    warnings.filterwarnings("ignore", DEPRECATED_NAMES, FutureWarning)


def disable_shm_extension() -> None:
    """Prevent DeepSpeed from compiling its CPU all-reduce for inference, which training does not use.

    The compilation takes a minute and needs a compiler. If a killed process left a lock file, the compilation waits
    without a time limit.
    """
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def init_single_process(run: Run) -> None:
    """Create a process group of one rank in a single process, and set `LOCAL_RANK`, because DeepSpeed requires both.

    A process group or a variable that already exists stays as it is.
    """
    if run.ranks.single_process and not dist.is_initialized():
        backend = run.args.ddp_backend or get_accelerator().communication_backend_name()
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        CREATED.add("group")
    if "LOCAL_RANK" not in os.environ:
        os.environ["LOCAL_RANK"] = str(run.ranks.local_rank)
        CREATED.add("LOCAL_RANK")


def leave_process_group() -> None:
    """Destroy the process group, and undo `init_single_process` and `ignore_deprecated_names`.

    If a DeepSpeed engine of this process is still alive, do nothing. Otherwise, destroy a process group of several
    ranks. Destroy a process group of one rank only if `init_single_process` created it.
    """
    FINALIZERS[:] = [finalizer for finalizer in FINALIZERS if finalizer.alive]
    if FINALIZERS:
        return
    warnings.filters[:] = [each for each in warnings.filters if getattr(each[1], "pattern", None) != DEPRECATED_NAMES]  # type: ignore[index]
    gc.collect()
    if dist.is_initialized() and ("group" in CREATED or dist.get_world_size() > 1):
        deepspeed.comm.destroy_process_group()
    if "LOCAL_RANK" in CREATED:
        os.environ.pop("LOCAL_RANK", None)
    CREATED.clear()
