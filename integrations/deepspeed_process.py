"""What DeepSpeed needs around it: a device that it knows, a process group, the launcher's variables."""

from __future__ import annotations

import gc
import os
from typing import Any

import deepspeed
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from torch.distributed import HashStore  # type: ignore[attr-defined]

from ..engine.run import Run
from ..events.errors import ArgumentError
from .deepspeed_config import precision_of, stage_of

ALIVE: set[int] = set()
"""The engines of this process, by their ids: who lets go of the last one leaves the process group too."""

LENT: set[str] = set()
"""What `join_alone` gave: `group`, `LOCAL_RANK`."""


def check(config: dict[str, Any], run: Run) -> None:
    """Refuse a completed configuration that cannot work here.

    Raises:
        ArgumentError: naming the remedy.
    """
    precision, stage = precision_of(config), stage_of(config)
    if get_accelerator().device_name() != run.args.device.type:
        raise ArgumentError(
            f"DeepSpeed computes on {get_accelerator().device_name()}, and the run is on {run.args.device.type}: set "
            f"DS_ACCELERATOR={run.args.device.type} in the environment of the program."
        )
    if precision == "fp16" and not get_accelerator().is_fp16_supported():
        raise ArgumentError(
            f"DeepSpeed cannot compute in fp16 on this device, {get_accelerator().device_name()}: use bf16, by `bf16` "
            "in the arguments or in DeepSpeed's configuration, or no half precision."
        )
    if stage == 3 and run.args.auto_find_batch_size:
        raise ArgumentError(
            "`auto_find_batch_size` begins anew from the first weights, which ZeRO stage 3 has split: find the size "
            "with stage 2, or give `per_device_train_batch_size`."
        )
    if config.get("optimizer", {}).get("type", "").lower() == "muon":
        raise ArgumentError(
            "DeepSpeed's Muon forms groups of parameters that no checkpoint here can tell: give another `optimizer` in "
            "its configuration, or none for that of `optim`."
        )
    if precision and stage == 0:
        raise ArgumentError(
            f"DeepSpeed's configuration asks for {precision} without ZeRO, whose float32 copies of the weights cannot "
            'be saved: give {"zero_optimization": {"stage": 1}}.'
        )


def spare_compiling() -> None:
    """Have DeepSpeed not compile how it adds tensors up in inference on CPUs, before it is asked to train.

    That would take a minute, need a compiler, and wait for ever where a process was killed that compiled.
    """
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def join_alone(run: Run) -> None:
    """Give DeepSpeed, in a single process, what it looks for: a process group, and the launcher's variable."""
    if run.ranks.alone and not dist.is_initialized():
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
    gc.collect()
    if ALIVE:
        return
    if dist.is_initialized() and ("group" in LENT or dist.get_world_size() > 1):
        deepspeed.comm.destroy_process_group()
    if "LOCAL_RANK" in LENT:
        os.environ.pop("LOCAL_RANK", None)
    LENT.clear()
