"""The processes of a run: who this one is, and how they talk. The only file that names torch.distributed."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..events.bus import EventBus
from ..events.control import FLAGS, TrainerControl


@dataclass(frozen=True)
class Ranks:
    """This process among those that a launcher such as torchrun started."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @classmethod
    def from_environment(cls) -> Ranks:
        """Read what the launcher wrote into `RANK`, `WORLD_SIZE` and `LOCAL_RANK`; alone where there is none."""
        read = {name: int(os.environ.get(name, default)) for name, default in _VARIABLES.items()}
        return cls(read["RANK"], read["WORLD_SIZE"], read["LOCAL_RANK"])

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return self.world_size == 1

    def join(self, device: torch.device, backend: str | None, timeout: int) -> None:
        """Join the process group, unless the user's program or an earlier trainer did.

        Args:
            device: where tensors live; decides the backend where none is named (nccl for cuda, gloo else).
            backend: torch.distributed backend, or None.
            timeout: seconds that a collective may take before it is an error.
        """
        if not self.alone and not dist.is_initialized():
            # Imported later, its functions would hold the group as the default of an argument, beyond `leave`.
            import torch.distributed.nn  # noqa: F401

            backend = backend or ("nccl" if device.type == "cuda" else "gloo")
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout))

    def leave(self) -> None:
        """Leave the process group, after everything that refers to it is let go.

        A group that outlives the interpreter may abort the process: a thread of gloo that still holds a tensor of the
        last collective asks for the lock of an interpreter that is gone. Once nothing refers to the group, it waits
        for its threads here.
        """
        if not self.alone and dist.is_initialized():
            gc.collect()
            dist.destroy_process_group()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over all processes."""
        if self.alone:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all processes, of equal shape, joined along their first dimension in order of rank."""
        if self.alone:
            return tensor
        tensor = tensor.reshape(1) if tensor.dim() == 0 else tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor)
        return torch.cat(parts)

    def gather_padded(self, tensor: torch.Tensor, padding: int = -100) -> torch.Tensor:
        """Return tensors of all processes joined along their first dimension, that and the second being of any size.

        What is shorter along the second dimension is padded at its end.
        """
        if tensor.dim() == 0:
            return self.gather(tensor)
        sizes = torch.tensor([*tensor.shape[:2]], device=tensor.device)
        everyone = self.gather(sizes).reshape(self.world_size, -1)
        largest = everyone.max(dim=0).values.tolist()
        whole = tensor.new_full((*largest, *tensor.shape[2:]), padding)
        whole[tuple(slice(size) for size in tensor.shape[:2])] = tensor
        gathered = self.gather(whole).reshape(self.world_size, *whole.shape)
        return torch.cat([gathered[rank, :rows] for rank, rows in enumerate(everyone[:, 0].tolist())])

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the plain values of all processes, in order of rank."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if not self.alone:
            dist.barrier()

    @contextmanager
    def main_first(self, local: bool = True) -> Iterator[None]:
        """Have the first process of each machine, or of all, do something before the others, as to fill a cache."""
        first = (self.local_rank if local else self.rank) == 0
        if not self.alone and not first:
            dist.barrier()
        try:
            yield
        finally:
            if not self.alone and first:
                dist.barrier()

    def agree(self, control: TrainerControl) -> None:
        """Raise on every process what any process asks for, and veto what any vetoes, in one reduction.

        The author on the other processes is the rank that asked; its own ledger has the reason.
        """
        if self.alone:
            return
        mine = torch.tensor([control.raised(flag) for flag in FLAGS] + [control.vetoed(flag) for flag in FLAGS])
        votes = mine.to(torch.int32) * (self.world_size - self.rank)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX)
        for index, flag in enumerate(FLAGS):
            if votes[index] and not control.raised(flag):
                control.request(flag, f"asked for on rank {self.world_size - int(votes[index])}")
            if votes[index + len(FLAGS)] and not control.vetoed(flag):
                control.veto(flag, f"vetoed on rank {self.world_size - int(votes[index + len(FLAGS)])}")


def any_local(bus: EventBus) -> bool:
    """Say whether any callback decides from something that only one process knows."""
    return any(getattr(callback, "local", False) is True for callback in bus.subscribers.values())


def agree_alone(control: TrainerControl) -> None:
    """Agree with nobody: every process decides from what all of them know."""


_VARIABLES = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
