"""The processes of a run: who this one is, and how they talk. The only file that names torch.distributed."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from ...events.errors import RankFailure
from .rendezvous import Store, meet, together_there

ATTEMPTS = 3
"""How often processes that met try to join, before it is an error."""


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
    def single_process(self) -> bool:
        """Whether this is the only process."""
        return self.world_size == 1

    def join(self, device: torch.device, backend: str | None, timeout: int) -> None:
        """Join the process group, unless the user's program or an earlier trainer did.

        What an earlier attempt of this run left in the launcher's store is not read: gloo would find the addresses of
        processes that are dead in it, and wait for them.

        Args:
            device: where tensors live; decides the backend where none is named (nccl for cuda, gloo else).
            backend: torch.distributed backend, or None.
            timeout: seconds that a collective may take before it is an error.

        Raises:
            RankFailure: if a process does not come, or they cannot connect, again and again.
        """
        if not self.single_process:
            _leave_at_exit(self)
        if not self.single_process and not dist.is_initialized():
            # Imported later, its functions would hold the group as the default of an argument, beyond `leave`.
            import torch.distributed.nn

            if device.type == "cuda":
                torch.cuda.set_device(device)  # what nccl sends objects through
            backend = backend or ("nccl" if device.type == "cuda" else "gloo")
            limit = timedelta(seconds=timeout)
            store, _, _ = next(rendezvous("env://", self.rank, self.world_size, timeout=limit))
            store.set_timeout(limit)
            self._join(store, backend, timeout)

    def _join(self, store: Any, backend: str, timeout: int) -> None:
        failure: Exception | None = None
        for _ in range(ATTEMPTS):
            name = meet(store, self.rank, self.world_size, timeout)
            failure = None
            try:
                own = dist.distributed_c10d.PrefixStore(name, store)
                limit = timedelta(seconds=timeout)
                dist.init_process_group(backend, timeout=limit, world_size=self.world_size, rank=self.rank, store=own)
            except RuntimeError as error:
                failure = error
            if together_there(store, name, self.rank, self.world_size, timeout, well=failure is None):
                return
            if dist.is_initialized():
                dist.destroy_process_group()
        raise RankFailure(
            f"The {self.world_size} processes found each other and could not connect, {ATTEMPTS} times in a row: can "
            "they reach each other over the network (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME name the interface)?"
        ) from failure

    @property
    def store(self) -> Store | None:
        """Where processes can leave each other word, even when a collective failed; None where there is no such."""
        find = getattr(dist.distributed_c10d, "_get_default_store", None)
        if self.single_process or find is None or not dist.is_initialized():
            return None
        store: Store = find()
        return store

    def leave(self) -> None:
        """Leave the process group, after everything that refers to it is let go.

        A group that outlives the interpreter may abort the process: a thread of gloo that still holds a tensor of the
        last collective asks for the lock of an interpreter that is gone. Once nothing refers to the group, it waits
        for its threads here.
        """
        if not self.single_process and dist.is_initialized():
            gc.collect()
            dist.destroy_process_group()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over all processes."""
        if self.single_process:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all processes, of equal shape, joined along their first dimension in order of rank."""
        if self.single_process:
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

    def gather_numbers(self, *numbers: int) -> list[list[int]]:
        """Return the whole numbers of all processes, equally many from each, in order of rank."""
        if self.single_process:
            return [[*numbers]]
        mine = torch.tensor(numbers, device=self._device)
        return self.gather(mine).reshape(self.world_size, -1).tolist()

    def sum_numbers(self, numbers: Sequence[int]) -> list[int]:
        """Return the sums of whole numbers over all processes, equally many from each."""
        return self.sum(torch.tensor(numbers, dtype=torch.int32, device=self._device)).tolist()

    @property
    def _device(self) -> torch.device:
        """Where a tensor must be for the backend to send it."""
        if not self.single_process and dist.get_backend() == "nccl":
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the plain values of all processes, in order of rank."""
        if self.single_process:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def of_first(self, value: Any) -> Any:
        """Return the plain value of the first process."""
        if self.single_process:
            return value
        values = [value if self.rank == 0 else None]
        dist.broadcast_object_list(values, 0)
        return values[0]

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if not self.single_process:
            dist.barrier()

    @contextmanager
    def main_first(self, local: bool = True) -> Iterator[None]:
        """Have the first process of each machine, or of all, do something before the others, as to fill a cache."""
        first = (self.local_rank if local else self.rank) == 0
        if not self.single_process and not first:
            dist.barrier()
        try:
            yield
        finally:
            if not self.single_process and first:
                dist.barrier()


@cache
def _leave_at_exit(ranks: Ranks) -> None:
    """Leave the process group when the program ends; said once, before any run is built, so that it comes after all."""
    atexit.register(_leave_unless_failed, ranks)


def _leave_unless_failed(ranks: Ranks) -> None:
    # After an error the other processes may be waiting for this one, and leaving would wait for them.
    if not hasattr(sys, "last_type"):
        ranks.leave()


def lost_touch(error: BaseException | None) -> bool:
    """Say whether an error is that of a process which waited for another in vain."""
    while error is not None:
        said = str(error).lower()
        if isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and any(sign in said for sign in _LOST)
        ):
            return True
        error = error.__cause__
    return False


_LOST = ("gloo/", "pair closure", "connection closed", "connection reset", "socket closed", "broken pipe", "nccl error")
"""What the messages of gloo and nccl say then; those of gloo are plain runtime errors."""

_VARIABLES = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
