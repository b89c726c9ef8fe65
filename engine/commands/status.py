"""The command `trainbus status`: the state of a run, from the status file in its output folder."""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from ...events.errors import ArgumentError
from ..api.costs.goodput import described, read_goodput
from ..api.costs.verdict import duration
from ..checkpoint.format.files import RUN_STATUS
from .json_output import print_json, versioned

NAME = RUN_STATUS
"""The default name of the status file in the output folder."""

_NUMBER = (int, float)
_NEEDED: dict[str, type | tuple[type, ...]] = {
    "status": str,
    "step": int,
    "epoch": _NUMBER,
    "time": _NUMBER,
    "host": str,
    "pid": int,
}
"""Field of the status file -> its type. Every run writes these fields."""

_WITHOUT_CHECKPOINT = "It has no checkpoint, so start it again without `resume_from_checkpoint`."

PARTS = 5
"""The largest number of parts of the training time that the command prints. The longest parts are printed."""


def add_to(commands: Any) -> None:
    """Add the command `status` to the subcommands of `trainbus`."""
    parser = commands.add_parser(
        "status",
        description="Show the state of a run, its progress, the time that is left, its last metrics and its last "
        "decisions. The exit status is 0, also for a failed run.",
    )
    parser.add_argument("folder", type=Path, help="the output folder of the run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(do=_show)


def read_status(folder: Path) -> dict[str, Any]:
    """Read the status file in the output folder of a run, and return its content.

    Raises:
        ArgumentError: if the folder has no status file, or if the file cannot be read or lacks a required field.
    """
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        where = "" if folder.is_dir() else " The folder does not exist."
        raise ArgumentError(
            f"There is no {NAME} in {folder}.{where} Name the `output_dir` of a training that has begun. If a training "
            "ended at its start, read its error: on a full disk or without permission, it cannot write this file."
        ) from None
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{folder / NAME} cannot be read: {error}.") from error
    if not isinstance(found, dict) or not all(isinstance(found.get(name), kind) for name, kind in _NEEDED.items()):
        raise ArgumentError(
            f"{folder / NAME} is not the status of a run: it needs {', '.join(_NEEDED)}. Another program wrote or "
            "changed it."
        )
    return found


def ended(status: dict[str, Any]) -> str:
    """Return how a run has ended, such as `done`; an empty text if the run has not ended.

    If the entry `status` is `running`, but the process of the run is missing on this machine, the result is `killed`.
    If the process was on another machine, the run counts as running.

    Args:
        status: the result of `read_status`.
    """
    if status["status"] != "running":
        return str(status["status"])
    return "killed" if alive(status) is False else ""


def alive(status: dict[str, Any]) -> bool | None:
    """Return whether the process that wrote a status file exists; None if it was on another machine.

    Args:
        status: the result of `read_status`.
    """
    return _lives(status.get("pid")) if status.get("host") == socket.gethostname() else None


def _lives(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, TypeError, ValueError):
        return False
    except OSError:  # a process of another user
        return True
    return True


def _show(options: argparse.Namespace) -> int:
    status = read_status(options.folder)
    status["alive"] = alive(status)
    status["status"] = ended(status) or "running"
    goodput = read_goodput(options.folder, status.get("began") or 0.0)
    status["goodput"] = None if goodput is None else goodput.to_dict()
    if options.json:
        print_json(versioned(status))
        return 0
    rows = list(_rows(status))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name.ljust(width)}  {value}")
    return 0


def _rows(status: dict[str, Any]) -> Any:
    running = status["status"] == "running"
    reason = f": {status['reason']}" if status.get("reason") else ""
    yield "status", f"{status['status']}{reason}"
    if status["status"] == "killed":
        remedy = "Resume the run from its last checkpoint." if status.get("resume_from") else _WITHOUT_CHECKPOINT
        yield "", f"Process {status['pid']} ended without a final status. {remedy}"
    steps, planned = status["step"], status.get("max_steps")
    share = f" of {planned} ({steps / planned:.0%})" if planned else ""
    yield "step", f"{steps}{share}, epoch {status['epoch']:.4g}"
    speed = status.get("steps_per_second")
    session = "this session" if status.get("steps_in_session", 1) else "the last session that trained a step"
    if speed:
        yield "speed", f"{speed:.4g} steps per second in {session}"
    if running and speed and planned:
        age = time.time() - status["time"]
        expected = status.get("seconds_left")
        # An earlier release wrote no remaining time. Before the first step of a session, it is unknown.
        expected = (planned - steps) / speed if expected is None else expected
        left = max(0.0, expected - age)
        yield "time left", f"about {timedelta(seconds=round(left))}"
    costs = status.get("costs") or {}
    if verdict := costs.get("verdict"):
        yield "verdict", verdict
    longest = sorted(costs.get("parts") or (), key=lambda part: -part["seconds"])[:PARTS]
    if longest and longest[0]["seconds"]:
        shown = ", ".join(f"{each['part']} {each['share']:.0%}" for each in longest if each["seconds"])
        yield "time", f"{duration(costs['seconds'])} in {session}: {shown}"
    if status.get("goodput"):
        yield "goodput", described(status["goodput"])
    if best := status.get("best"):
        yield "best", f"{best['metric'] or 'metric'} {best['value']:.6g} at step {best['step']}"
    for name, value in (status.get("metrics") or {}).items():
        yield name, f"{value:.4g}" if isinstance(value, float) else value
    if status.get("resume_from"):
        yield "resume from", status["resume_from"]
    for index, line in enumerate(status.get("decisions") or ()):
        yield "" if index else "decisions", line
    age = timedelta(seconds=round(max(0.0, time.time() - status["time"])))
    exists = {True: "which runs", False: "which has ended", None: "on another machine"}[status["alive"]]
    yield "updated", f"{age} ago on {status['host']} by process {status['pid']}, {exists}"
    if status["status"] != "running" and not status["alive"]:
        yield "", "A later program that fails before `train()` does not change this status."
