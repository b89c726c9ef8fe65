"""The rank, the world size, and the collectives. No other module of `engine` uses torch.distributed."""

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
from .cuda import uses_cuda
from .rendezvous import Store, all_succeeded, join_attempt

ATTEMPTS = 3
"""The number of times that the ranks try to connect. If all attempts fail, the ranks raise an error."""


@dataclass(frozen=True)
class Ranks:
    """The number of this process, the world size, and the collectives of the ranks. A launcher starts the ranks."""

    rank: int = 0
    """The number of this process, from 0."""
    world_size: int = 1
    """The number of ranks."""
    local_rank: int = 0
    """The number of this process on its machine, from 0."""

    @classmethod
    def from_environment(cls) -> Ranks:
        """Create `Ranks` from the environment variables `RANK`, `WORLD_SIZE` and `LOCAL_RANK`.

        A launcher sets these variables. Without a launcher, the result is a single process.
        """
        read = {name: int(os.environ.get(name, default)) for name, default in _VARIABLES.items()}
        return cls(read["RANK"], read["WORLD_SIZE"], read["LOCAL_RANK"])

    @property
    def single_process(self) -> bool:
        """Whether this is the only process."""
        return self.world_size == 1

    def join(self, device: torch.device, backend: str | None, timeout: int) -> None:
        """Join the process group, unless this is a single process or is already in a process group.

        If this process uses CUDA, `device` becomes its current device, as nccl and Triton kernels need it.

        After a restart, the launcher's store may still hold keys of the earlier processes. This method ignores these
        keys. Otherwise gloo would read the addresses of dead processes from the keys, and wait for these processes.

        Args:
            device: the device of the tensors.
            backend: a backend of torch.distributed. None selects nccl if `device` is a CUDA device, else gloo.
            timeout: the time limit of a collective, in seconds.

        Raises:
            RankFailure: if a rank does not join, or if the ranks cannot connect in `ATTEMPTS` attempts.
        """
        _make_current(device, several=not self.single_process)
        if not self.single_process:
            _leave_at_exit(self)
        if not self.single_process and not dist.is_initialized():
            # Import it before the group exists. Otherwise its functions keep the group as a default argument, and
            # still refer to it after `leave`.
            import torch.distributed.nn  # noqa: F401

            backend = backend or ("nccl" if device.type == "cuda" else "gloo")
            limit = timedelta(seconds=timeout)
            store, _, _ = next(rendezvous("env://", self.rank, self.world_size, timeout=limit))
            store.set_timeout(limit)
            self._join(store, backend, timeout)

    def _join(self, store: Any, backend: str, timeout: int) -> None:
        failure: Exception | None = None
        for _ in range(ATTEMPTS):
            name = join_attempt(store, self.rank, self.world_size, timeout)
            failure = None
            try:
                own = dist.distributed_c10d.PrefixStore(name, store)
                limit = timedelta(seconds=timeout)
                dist.init_process_group(backend, timeout=limit, world_size=self.world_size, rank=self.rank, store=own)
            except RuntimeError as error:
                failure = error
            if all_succeeded(store, name, self.rank, self.world_size, timeout, success=failure is None):
                return
            if dist.is_initialized():
                dist.destroy_process_group()
        raise RankFailure(
            f"The {self.world_size} ranks completed the rendezvous but could not connect, {ATTEMPTS} times in a row. "
            "Check that they can reach each other over the network. GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME select "
            "the interface."
        ) from failure

    @property
    def store(self) -> Store | None:
        """The store of the rendezvous, which works even after a collective failed.

        None in a single process, and if this process is not in a process group.
        """
        find = getattr(dist.distributed_c10d, "_get_default_store", None)
        if self.single_process or find is None or not dist.is_initialized():
            return None
        store: Store = find()
        return store

    def leave(self) -> None:
        """Leave the process group, and wait until its threads end. Call this method before Python exits.

        Before the call, release all objects that refer to the group. Otherwise the threads do not end, and may crash
        the process at exit.
        """
        if not self.single_process and dist.is_initialized():
            gc.collect()
            dist.destroy_process_group()

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over all ranks. The sum has the shape of the tensor."""
        if self.single_process:
            return tensor
        total = self._sendable(tensor.clone())
        dist.all_reduce(total)
        return total.to(tensor.device)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, concatenated along dimension 0 in order of rank.

        The tensors must have equal shapes. Scalars give a tensor of shape `(world_size,)`. In a single process, the
        method returns `tensor` unchanged.
        """
        if self.single_process:
            return tensor
        own = self._sendable(tensor.reshape(1) if tensor.dim() == 0 else tensor.contiguous())
        parts = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(parts, own)
        return torch.cat(parts).to(tensor.device)

    def gather_padded(self, tensor: torch.Tensor, padding: int = -100) -> torch.Tensor:
        """Return the tensors of all ranks, concatenated along dimension 0 in order of rank.

        The sizes of dimensions 0 and 1 may differ between ranks. If dimension 1 of a tensor is shorter than on another
        rank, the tensor is padded with `padding` at the end of dimension 1.
        """
        if tensor.dim() == 0:
            return self.gather(tensor)
        own_size = torch.tensor([*tensor.shape[:2]], device=tensor.device)
        sizes = self.gather(own_size).reshape(self.world_size, -1)
        largest = sizes.max(dim=0).values.tolist()
        padded = tensor.new_full((*largest, *tensor.shape[2:]), padding)
        padded[tuple(slice(size) for size in tensor.shape[:2])] = tensor
        gathered = self.gather(padded).reshape(self.world_size, *padded.shape)
        return torch.cat([gathered[rank, :rows] for rank, rows in enumerate(sizes[:, 0].tolist())])

    def gather_numbers(self, *numbers: int) -> list[list[int]]:
        """Return the integers of all ranks: one list per rank. All ranks must pass the same number of integers."""
        if self.single_process:
            return [[*numbers]]
        own = torch.tensor(numbers, device=self._device)
        return self.gather(own).reshape(self.world_size, -1).tolist()

    def sum_numbers(self, numbers: Sequence[int]) -> list[int]:
        """Return the sum over all ranks for each position in `numbers`.

        All ranks must pass the same number of integers. The sums must fit into int32.
        """
        return self.sum(torch.tensor(numbers, dtype=torch.int32, device=self._device)).tolist()

    @property
    def _device(self) -> torch.device:
        """The device from which the backend sends tensors."""
        if not self.single_process and dist.get_backend() == "nccl":
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def _sendable(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor, or a copy on the device of this rank, because nccl cannot send tensors of the CPU."""
        return tensor.to(self._device) if tensor.is_cpu and self._device.type != "cpu" else tensor

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in order of rank. The values are pickled."""
        if self.single_process:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def broadcast_object(self, value: Any) -> Any:
        """Return the value of rank 0. The value is pickled."""
        if self.single_process:
            return value
        values = [value if self.rank == 0 else None]
        dist.broadcast_object_list(values, 0)
        return values[0]

    def barrier(self) -> None:
        """Wait until all ranks call this method."""
        if not self.single_process:
            dist.barrier()

    @property
    def has_thread_group(self) -> bool:
        """Whether `thread_group` can create a group: gloo is installed, and this process is in a process group."""
        return dist.is_available() and dist.is_initialized() and dist.is_gloo_available()

    def thread_group(self, timeout: int) -> ThreadGroup:
        """Create a second process group, so that another thread can run collectives. All ranks must call this method.

        Args:
            timeout: the time limit of a collective, in seconds.
        """
        return ThreadGroup(self.rank, dist.new_group(timeout=timedelta(seconds=timeout), backend="gloo"))

    @contextmanager
    def main_first(self, local: bool = True) -> Iterator[None]:
        """Run a `with` block on the first rank before the other ranks, for example to fill a cache.

        Args:
            local: True for the first rank of each machine, False for the first rank of the process group.
        """
        first = (self.local_rank if local else self.rank) == 0
        if not self.single_process and not first:
            dist.barrier()
        try:
            yield
        finally:
            if not self.single_process and first:
                dist.barrier()


class ThreadGroup:
    """A second process group of all ranks. One thread per rank uses it while the training uses the first group.

    All ranks must run the collectives of a group in the same order. Two threads that share a group cannot guarantee
    this order.
    """

    single_process = False

    def __init__(self, rank: int, group: Any) -> None:
        """Use `group`, a process group of torch that contains all ranks. `rank` is the number of this process."""
        self.rank = rank
        self._group: Any = group
        self.lost = False
        """Whether a collective of this group failed. A further collective would wait for ranks that take no part."""

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in order of rank. The values are pickled."""
        values: list[Any] = [None] * self._group.size()
        try:
            dist.all_gather_object(values, value, group=self._group)
        except BaseException:
            self.lost = True
            raise
        return values

    def close(self) -> None:
        """Destroy the group. Call this method when no thread uses the group."""
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)


@cache
def _leave_at_exit(ranks: Ranks) -> None:
    """Leave the process group when Python exits, except after an error.

    Call this function before a run is built. Python calls exit functions in reverse order, so the exit functions of the
    run can still use the group.
    """
    atexit.register(_leave_unless_failed, ranks)


def _leave_unless_failed(ranks: Ranks) -> None:
    # After an error the other ranks may wait for this one, and leaving would wait for them.
    if not hasattr(sys, "last_type"):
        ranks.leave()


def _make_current(device: torch.device, *, several: bool) -> None:
    """Make a CUDA device the current device, if there are several ranks or if this process uses CUDA already."""
    if device.type == "cuda" and (several or uses_cuda()):
        torch.cuda.set_device(device)


def connection_lost(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes means that another rank did not answer."""
    while error is not None:
        text = str(error).lower()
        if isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and any(phrase in text for phrase in _LOST_PHRASES)
        ):
            return True
        error = error.__cause__
    return False


_LOST_PHRASES = (
    "gloo/",
    "pair closure",
    "connection closed",
    "connection reset",
    "socket closed",
    "broken pipe",
    "nccl error",
)
"""Phrases in the messages of gloo and nccl when the connection is lost. Gloo raises plain runtime errors."""

_VARIABLES = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
"""The environment variables of the launcher, and their values without a launcher."""
