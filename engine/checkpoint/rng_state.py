"""The states of all random number generators that a step may use."""

from __future__ import annotations

import _random
import ctypes
import platform
import random
from typing import Any

import numpy as np
import torch

from ..distributed.cuda import can_use_cuda, uses_cuda


def cuda_generators() -> tuple[torch.Generator, ...]:
    """Return the default generators of all CUDA devices. Empty if this process does not use CUDA yet, or cannot use it.

    A forked worker inherits the generators of a process that uses CUDA, but cannot read them: CUDA does not work after
    a fork.
    """
    return tuple(torch.cuda.default_generators) if uses_cuda() else ()


def random_states() -> dict[str, Any]:
    """Return the RNG states by name: python, numpy, torch on the CPU, and torch on all CUDA devices.

    The key `cuda` is missing if this process does not use CUDA. Reading the states of CUDA devices would start CUDA,
    even in the workers of a run on the CPU.
    """
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if generators := cuda_generators():
        states["cuda"] = [generator.get_state() for generator in generators]
    return states


def restore_random_states(states: dict[str, Any]) -> None:
    """Restore the RNG states that `random_states` returned.

    The function ignores the states of CUDA devices that this process does not see. In a forked worker, it ignores the
    states of all CUDA devices.
    """
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and can_use_cuda():
        for index, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, index)


def moved_to_device(states: dict[str, Any], before: int, now: int) -> dict[str, Any]:
    """Return RNG states in which the CUDA devices `before` and `now` have exchanged their states.

    Args:
        states: the RNG states that `random_states` returned.
        before: the index of the device that the process used when it read the states.
        now: the index of the device that the process uses now.
    """
    of_devices = [*states.get("cuda", ())]
    if before == now or before >= len(of_devices):
        return states
    of_devices += [of_devices[before]] * (now + 1 - len(of_devices))
    of_devices[before], of_devices[now] = of_devices[now], of_devices[before]
    return {**states, "cuda": of_devices}


def changed_states(states: dict[str, Any], since: dict[str, Any]) -> dict[str, Any]:
    """Return the RNG states in `states` that differ from the earlier states `since`.

    `{**since, **changed_states(states, since)}` equals `states`.
    """
    return {name: state for name, state in states.items() if not _same(state, since.get(name))}


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and np.array_equal(left, right)
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(_same(left[key], right[key]) for key in left)
        )
    if isinstance(left, (list, tuple)):
        return isinstance(right, (list, tuple)) and len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


_instance: Any = getattr(random, "_inst", random.Random())
"""The generator behind the functions of the module `random`."""


class QuickStates:
    """A reader of RNG states that is faster than `random_states`. A training reads the states before each batch.

    The functions `np.random.get_state` and `random.getstate` need 15 to 50 microseconds each. This class compares the
    memory of each generator with the memory at the last read. The class calls the slow function of a generator only if
    the memory changed, or if a part of the state is stored elsewhere.
    """

    def __init__(self) -> None:
        """Find the buffers with the states of the global random generators of numpy and Python."""
        self._generator = np.random.get_bit_generator()  # type: ignore[attr-defined] # keeps its memory alive
        words = 625 if isinstance(self._generator, np.random.MT19937) else 0  # the state, and the index in it
        self._memory = (ctypes.c_uint32 * words).from_address(self._generator.ctypes.state_address)
        self._numpy: Any = None
        self._unchanged: bytes | None = None
        """The memory of numpy's generator at the last read; None if the memory does not have the whole state."""
        self._python_memory = _python_memory()
        self._python: Any = None
        self._python_unchanged: bytes | None = None
        """The memory of Python's generator at the last read. None if the memory does not have the whole state, for
        example after a draw from the normal distribution that stored a second value."""

    def __reduce__(self) -> tuple[type[QuickStates], tuple[()]]:
        """Make pickle create a new object in a worker. The new object reads the generators of the worker."""
        return type(self), ()

    def read(self) -> tuple[Any, ...]:
        """Return the RNG states of Python, numpy and torch as a tuple.

        If CUDA is initialized, the tuple ends with a list: one state per CUDA device.
        """
        memory = bytes(self._memory)
        if memory != self._unchanged:
            self._numpy = np.random.get_state()
            # A draw from the normal distribution computes two values and keeps the second. The next draw returns this
            # second value without a change of the memory.
            self._unchanged = None if self._numpy[3] else memory or None
        memory = bytes(self._python_memory)
        if memory != self._python_unchanged or _instance.gauss_next is not None:
            self._python = random.getstate()
            self._python_unchanged = None if self._python[2] is not None else memory or None
        states = (self._python, self._numpy, torch.default_generator.get_state())
        if torch.cuda.default_generators and (generators := cuda_generators()):
            return (*states, [generator.get_state() for generator in generators])
        return states

    @staticmethod
    def named(states: tuple[Any, ...]) -> dict[str, Any]:
        """Convert a result of `read` to a dict with the keys `python`, `numpy`, `torch` and `cuda`.

        The key `cuda` is missing if CUDA was not initialized.
        """
        return dict(zip(("python", "numpy", "torch", "cuda"), states))


def _python_memory() -> ctypes.Array[ctypes.c_uint32]:
    """Return the memory of Python's generator: the index of the next number, and the state.

    CPython stores the index and the state at the end of the generator object. The function compares them with
    `random.getstate()`. If they differ, or if Python is not CPython, the function returns an empty array.
    """
    unknown = (ctypes.c_uint32 * 0)()
    start = object.__basicsize__
    if platform.python_implementation() != "CPython" or type(_instance) is not random.Random:
        return unknown
    if _random.Random.__basicsize__ < start + 4 * 625:
        return unknown
    memory = (ctypes.c_uint32 * 625).from_address(id(_instance) + start)
    state = random.getstate()[1]
    return memory if (*memory[1:], memory[0]) == state else unknown
