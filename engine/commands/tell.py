"""The command `trainbus tell`: ask a running training to save, evaluate, log, stop or change a setting."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from ...events.errors import ArgumentError
from .requests import FILE, parse, send
from .status import ended, read_status


def add_to(commands: Any) -> None:
    """Add the command `tell` to the subcommands of `trainbus`."""
    parser = commands.add_parser(
        "tell",
        description="Send requests to a running training. The training acts on them at the end of its current step, on "
        "all ranks, and its ledger records them. The requests are: save, evaluate, log and stop; `lr=1e-5`, which sets "
        "the highest learning rate of the schedule; and `every evaluate 200`, which sets an interval. An interval of "
        "evaluate, log or save is a number of steps, a time (10min), epochs (1epoch) or a fraction of the run (0.1).",
    )
    parser.add_argument("folder", type=Path, help="the output folder of the run")
    parser.add_argument("requests", nargs="+", help="save, evaluate, log, stop, lr=1e-5, every evaluate 200")
    parser.add_argument(
        "--wait", type=float, default=10.0, metavar="S", help="wait up to this many seconds for the run (default: 10)"
    )
    parser.set_defaults(do=_tell)


def _tell(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    requests = parse(options.requests)
    status = read_status(folder)
    if how := ended(status):
        raise ArgumentError(f"No training runs in {folder}: it is {how}. Nothing was sent.")
    send(folder, requests)
    end = time.monotonic() + options.wait
    while time.monotonic() < end and (folder / FILE).exists():
        time.sleep(0.05)
    asked = ", ".join(requests)
    if (folder / FILE).exists():
        print(f"sent: {asked}. The run has not read it yet. It does so at the end of its step or evaluation.")
        return 0
    print(f"sent: {asked}. The run acts at the end of its step.")
    return 0
