"""Requests to a running training: the requests of `trainbus tell`, and the file that passes requests to the run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...events.errors import ArgumentError, nearest
from ...events.flags import Flag
from ...events.triggers import every

FILE = "tell"
"""The name of the file in the output folder that passes requests to the run. Each line is a JSON list of requests."""

FLAGS: dict[str, Flag] = {"log": "log", "evaluate": "evaluate", "save": "save", "stop": "training_stop"}
"""A request of one word -> the flag that the request raises."""

WORK = ("log", "evaluate", "save")
"""The kinds of work whose interval a request can set, as in `every save 200`."""

_SHORT = {"eval": "evaluate", "checkpoint": "save"}
_FORMS = "save, evaluate, log, stop, lr=1e-5, every evaluate 200"


@dataclass(frozen=True)
class Setting:
    """A request that changes a value of the run."""

    name: str
    """`lr`, or the work whose interval changes: `log`, `evaluate` or `save`."""
    value: str
    """The learning rate as text, or an interval in the form that the trigger `every` takes: `200`, `0.1`, `10min` or
    `1 epoch`."""

    def __str__(self) -> str:
        return f"lr={self.value}" if self.name == "lr" else f"every {self.name} {self.value}"


def parse(words: Sequence[str]) -> list[str]:
    """Convert the words of a command line to requests. Each request is a text, such as `save` or `every evaluate 200`.

    Raises:
        ArgumentError: if some words are not a request, or if there are no words. The error lists all problems.
    """
    rest, requests, problems = list(words), [], []
    while rest:
        word = rest.pop(0)
        word = _SHORT.get(word, word)
        if word in FLAGS:
            requests.append(word)
        elif word.startswith("lr="):
            problems += _problem_of_rate(word)
            requests.append(word)
        elif word == "every" and len(rest) >= 2:
            work, interval = _SHORT.get(rest[0], rest[0]), rest[1]
            del rest[:2]
            interval = re.sub(r"(?<=\d)(?=epoch)", " ", interval)
            problems += _problem_of_interval(work, interval)
            requests.append(str(Setting(work, interval)))
        elif word == "every":
            problems.append("`every` needs what and how often, such as `every evaluate 200`.")
            rest.clear()
        else:
            problems.append(f"{word!r} is not a request{nearest(word, (*FLAGS, 'lr=', 'every'))}")
    if problems or not requests:
        raise ArgumentError(" ".join([*problems, f"Requests are: {_FORMS}."]))
    return requests


def setting_of(request: str) -> Setting | None:
    """Return the setting that a request from `parse` changes; None if the request raises a flag."""
    if request.startswith("lr="):
        return Setting("lr", request.removeprefix("lr="))
    if request.startswith("every "):
        _, work, interval = request.split(" ", 2)
        return Setting(work, interval)
    return None


def send(folder: Path, requests: Sequence[str]) -> None:
    """Append requests to the file `tell` in the output folder of a run.

    Other processes may read or write the file at the same time.
    """
    with open(folder / FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps(list(requests)) + "\n")


def receive(folder: Path) -> list[str]:
    """Read the requests in the file `tell` of a run, and remove the file. Skip lines that are not requests.

    Without the file, the result is an empty list.
    """
    taken = folder / f".{FILE}-{os.getpid()}"
    try:
        os.replace(folder / FILE, taken)  # from now on, other processes write to a new file
    except OSError:
        return []
    requests: list[str] = []
    for line in taken.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, RecursionError):
            requests += parse([word for request in _texts(json.loads(line)) for word in _words(request)])
    taken.unlink(missing_ok=True)
    return requests


def _texts(value: Any) -> list[str]:
    """Return a list of texts unchanged. For any other value, raise a ValueError."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("The line is not a list of texts.")
    return value


def _words(request: str) -> list[str]:
    return request.split(" ", 2) if request.startswith("every ") else [request]


def _problem_of_rate(word: str) -> list[str]:
    try:
        rate = float(word.removeprefix("lr="))
    except ValueError:
        rate = -1.0
    return (
        [] if 0 < rate < float("inf") else [f"{word!r} is not a learning rate. Write a number above 0, as in lr=1e-5."]
    )


def _problem_of_interval(work: str, interval: str) -> list[str]:
    if work not in WORK:
        return [f"every {work!r}: unknown{nearest(work, WORK)} Known: {', '.join(WORK)}."]
    try:
        every(interval)
    except ArgumentError as error:
        return [str(error)]
    return []
