"""What DeepSpeed needs around it: a process group, the launcher's variables, compiled code; and leaving it all."""

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

HELD: list[weakref.finalize[Any, Any]] = []
"""What lets go of the engines of this process: who lets go of the last one leaves the process group too."""

LENT: set[str] = set()
"""What `join_alone` gave: `group`, `LOCAL_RANK`."""

COMPILED = ("adam", "adagrad", "lamb", "lion")
"""The optimizers for which DeepSpeed compiles, by their names in its configuration."""

OUTDATED = r"`torch\.distributed\.(all_gather_into_tensor|reduce_scatter_tensor)` is deprecated"
"""How torch warns of names that DeepSpeed uses in each step."""


def hold(holder: Any, engine: Any, added: list[tuple[Any, str]]) -> weakref.finalize[Any, Any]:
    """Return what lets go of an engine, which happens by itself when its holder is gone, and at the program's end.

    Args:
        holder: who uses the engine.
        engine: the engine.
        added: what it put on modules and parameters, as attributes.
    """
    HELD.append(weakref.finalize(holder, _release, engine, added))
    HELD[-1].atexit = False  # `_end` does it, in good order
    atexit.unregister(_end)
    atexit.register(_end)
    return HELD[-1]


def _release(engine: Any, added: list[tuple[Any, str]]) -> None:
    if dist.is_initialized():  # another trainer's end may have left it
        engine.destroy()
    engine.module_forward_pre_hook.remove()
    engine.module_forward_post_hook.remove()
    for owner, name in added:
        vars(owner).pop(name, None)


def _end() -> None:
    # After an error the other processes may be waiting for this one, and leaving would wait for them.
    if not hasattr(sys, "last_type"):
        for let_go in HELD:
            let_go()
        leave()


def warn_of_compiling(config: dict[str, Any]) -> None:
    """Say that DeepSpeed compiles its own optimizer, if it has not done so, and which lock it would wait on."""
    section = config.get("optimizer", {})
    kind = section.get("type", "").lower().removesuffix("w")
    if kind not in COMPILED or section.get("params", {}).get("torch_adam"):
        return
    given = os.environ.get("TORCH_EXTENSIONS_DIR")
    root = Path(given or get_default_build_root())
    found = [path for path in root.glob("*/*" if given else "*/*/*") if kind in path.parent.name]
    for lock in (path for path in found if path.name == "lock"):
        logger.warning(
            "DeepSpeed waits as long as there is the file %s: delete it if no other program is compiling.", lock
        )
    if not any(path.suffix == ".so" for path in found):
        logger.warning(
            'DeepSpeed compiles its %s now, which takes minutes, once, into %s; "torch_adam": true does without.',
            *(section["type"], root),
        )


def hush() -> None:
    """Leave out torch's warning of names that DeepSpeed uses many times in each step, until `leave`."""
    warnings.filterwarnings("ignore", OUTDATED, FutureWarning)


def spare_compiling() -> None:
    """Have DeepSpeed not compile how it adds tensors up in inference on CPUs, before it is asked to train.

    That would take a minute, need a compiler, and wait for ever where a process was killed that compiled.
    """
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def join_alone(run: Run) -> None:
    """Give DeepSpeed, in a single process, what it looks for: a process group, and the launcher's variable."""
    if run.ranks.single_process and not dist.is_initialized():
        backend = run.args.ddp_backend or get_accelerator().communication_backend_name()
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        LENT.add("group")
    if "LOCAL_RANK" not in os.environ:
        os.environ["LOCAL_RANK"] = str(run.ranks.local_rank)
        LENT.add("LOCAL_RANK")


def leave() -> None:
    """Leave the process group, with what DeepSpeed keeps of it, unless another engine is alive.

    A group of one process that the program made is the program's to leave.
    """
    HELD[:] = [let_go for let_go in HELD if let_go.alive]
    if HELD:
        return
    warnings.filters[:] = [each for each in warnings.filters if getattr(each[1], "pattern", None) != OUTDATED]  # type: ignore[index]
    gc.collect()
    if dist.is_initialized() and ("group" in LENT or dist.get_world_size() > 1):
        deepspeed.comm.destroy_process_group()
    if "LOCAL_RANK" in LENT:
        os.environ.pop("LOCAL_RANK", None)
    LENT.clear()
