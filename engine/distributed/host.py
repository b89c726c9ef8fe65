"""The process of a rank: its host and process id, whether it is alive, and function calls with a time limit."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class ProcessAddress:
    """The host and the process id of a rank."""

    host: str
    """A text with the host name and the process namespace. Processes see each other only if their texts are equal."""
    pid: int
    """The process id in that namespace."""

    @classmethod
    def current(cls) -> ProcessAddress:
        """Return the address of this process."""
        try:
            namespace = os.readlink("/proc/self/ns/pid")  # two containers of one host do not see each other's processes
        except OSError:
            namespace = ""
        return cls(f"{socket.gethostname()} {namespace}", os.getpid())

    def is_alive(self) -> bool | None:
        """Return whether the process is alive; None if it runs on another host or in another container."""
        if self.host != ProcessAddress.current().host:
            return None
        try:
            os.kill(self.pid, 0)
            with open(f"/proc/{self.pid}/stat", encoding="utf-8", errors="replace") as file:
                return file.read().rpartition(")")[2].split()[0] not in "ZX"  # a zombie is dead and not yet reaped
        except ProcessLookupError:
            return False
        except (OSError, IndexError):
            return True


def run_with_timeout(seconds: float, work: Callable[[], T], default: T) -> T:
    """Call `work` on a thread and return its result; `default` if `work` raises or takes more than `seconds`.

    After the time limit, the thread continues in the background.
    """
    results: list[T] = []

    def attempt() -> None:
        try:
            results.append(work())
        except Exception:  # a store whose process is gone raises different errors
            return

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else default
