"""Faults to inject into a run: an error, a signal, a kill, a full disk, a lost rank.

Each function except `full_disk` returns an injector. Call the injector with a trainer. The injector adds the fault,
and returns a function that removes the fault. `full_disk` is a context manager.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from .. import Stage, Trainer

Undo = Callable[[], Any]
Injector = Callable[[Trainer], Undo]


class InjectedFault(Exception):
    """The error that `raise_at` raises."""


def raise_at(step: int, event: str = "on_gradients", error: Callable[[], BaseException] = InjectedFault) -> Injector:
    """Return an injector that raises an error in a step.

    Call the injector with a trainer. The injector returns a function that removes the fault.

    Args:
        step: the first step that fails. The first step of a run is 1. Later steps raise the error too.
            `on_step_end`, and the events between two steps, belong to the next step here. For example,
            `raise_at(4, "on_step_end")` raises the error at the end of step 3.
        event: the event that raises the error, after all its handlers ran. With `forward`, the forward pass of the
            model raises the error.
        error: a class or a function that returns the error to raise.
    """

    def fail(trainer: Trainer) -> None:
        if trainer.state.global_step >= step - 1:
            raise error()

    def inject(trainer: Trainer) -> Undo:
        if event != "forward":
            undo_event: Undo = trainer.on(event, lambda: fail(trainer), stage=Stage.RELEASE, id="fault")
            return undo_event
        hooks: list[Any] = []

        def hook(model: Any) -> None:
            hooks.append(model.register_forward_pre_hook(lambda *_: fail(trainer)))

        handle = trainer.on("on_train_begin", hook, id="fault")

        def undo() -> None:
            handle()
            for each in hooks:
                each.remove()

        return undo

    return inject


def signal_at(step: int, number: int = signal.SIGTERM) -> Injector:
    """Return an injector that sends a signal to this process at the end of a step.

    Call the injector with a trainer. The injector returns a function that removes the fault.
    """

    def inject(trainer: Trainer) -> Undo:
        undo: Undo = trainer.on(
            "on_step_end", lambda: signal.raise_signal(number), once=step, stage=Stage.PREPARE, id="fault"
        )
        return undo

    return inject


def kill_at(step: int) -> Injector:
    """Return an injector that kills this process at the end of a step, to simulate a machine failure.

    Call the injector with a trainer. The injector returns a function that removes the fault.
    Use the injector in a function that you pass to `in_processes`. Elsewhere, it kills the process of the tests.
    """
    return _kill_at(step, None)


def lose_rank_at(step: int, rank: int = 1) -> Injector:
    """Return an injector that kills one rank at the end of a step.

    Call the injector with a trainer. The injector returns a function that removes the fault.
    Use the injector in a function that you pass to `in_processes`, with two processes.
    """
    return _kill_at(step, rank)


def _kill_at(step: int, rank: int | None) -> Injector:
    def inject(trainer: Trainer) -> Undo:
        def kill() -> None:
            if rank in (None, trainer.args.process_index):
                os.kill(os.getpid(), signal.SIGKILL)

        # Subscribed on all ranks, because all ranks must have the same handlers. Only one rank is killed.
        undo: Undo = trainer.on("on_step_end", kill, once=step, stage=Stage.RELEASE, id="fault")
        return undo

    return inject


@contextmanager
def full_disk(folder: Path | str) -> Iterator[None]:
    """Simulate a full disk below a folder, in a `with` block.

    An `OSError` with the error number ENOSPC is raised when the program opens a file below the folder for writing. The
    error is also raised when the program creates the folder or one of its subfolders. `torch.save` and the functions of
    `safetensors.torch` then raise the errors that they raise on a full disk.
    """
    full = Path(os.path.abspath(folder))
    opens, io_open, makes = builtins.open, io.open, os.mkdir
    native: Any = safetensors.torch  # its functions call its `serialize_file`
    saves, serializes = torch.save, native.serialize_file

    def refuses(path: Any) -> bool:
        named = isinstance(path, (str, os.PathLike))
        return named and Path(os.path.abspath(os.fspath(path))).is_relative_to(full)

    def refuse(path: Any) -> None:
        if refuses(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))

    def guarded_open(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if set(mode) & set("wax+"):
            refuse(path)
        return opens(path, mode, *args, **options)

    def guarded_mkdir(path: Any, *args: Any, **options: Any) -> None:
        refuse(path)
        makes(path, *args, **options)

    def guarded_save(obj: Any, f: Any, *args: Any, **options: Any) -> None:
        if refuses(f):
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")
        saves(obj, f, *args, **options)

    def guarded_serialize(tensors: Any, filename: Any, *args: Any, **options: Any) -> None:
        if refuses(filename):
            text = f"{os.strerror(errno.ENOSPC)} (os error {errno.ENOSPC})"
            raise safetensors.SafetensorError(f"Error while serializing: I/O error: {text}")
        serializes(tensors, filename, *args, **options)

    builtins.open = io.open = guarded_open  # type: ignore[assignment]
    os.mkdir, torch.save = guarded_mkdir, guarded_save
    native.serialize_file = guarded_serialize
    try:
        yield
    finally:
        builtins.open, io.open, os.mkdir = opens, io_open, makes
        torch.save, native.serialize_file = saves, serializes
