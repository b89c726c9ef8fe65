"""Write the report of a training at its end."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch

from ...engine.api.report.collect import collect
from ...engine.api.report.page import render
from ...engine.commands.output_files import write_file
from ...engine.run import Run
from ...events.callback import Callback
from ...events.errors import RankFailure
from ...events.recording.recorder import handler_plan
from ...events.stages import Stage


@dataclass
class Report(Callback):
    """Writes `report.html` to the output folder when a training ends, with or without an error.

    The page shows the curves of the logged values, and the evaluations, checkpoints, flags, times, arguments and
    callbacks. The page is one file that loads nothing from the network. `trainbus report FOLDER` writes the same page
    for a run in progress, for a killed run, and for several runs side by side. The callback adds no time to the steps.
    Rank 0 writes the page. After an error, the failing rank also writes the page, to the same file.
    """

    stage = Stage.PREPARE  # handlers of `on_close` run in reverse order, and all other files are closed before this
    on_error = "warn"

    path: str | None = None
    """The HTML file. Default: `report.html` in the output folder."""
    title: str | None = None
    """The title of the page. Default: the name of the run."""

    def on_close(self, run: Run) -> None:
        fails = run.exception is not None and not isinstance(run.exception, RankFailure)
        if run.mode != "train" or not (run.state.is_world_process_zero or fails):
            return
        folder = run.args.output_path
        folder.mkdir(parents=True, exist_ok=True)
        path = run.args.resolved(self.path) if self.path else folder / "report.html"
        write_file(path, render([collect(folder, live_values(run))], self.title))


def live_values(run: Run) -> dict[str, Any]:
    """Return the present values of a run for the report: id, state, arguments, callbacks and machine."""
    ledger = [asdict(entry) for entry in run.control.ledger]
    return {
        "run_id": run.run_id,
        "state": {**run.state.to_dict(), "seconds": run.seconds(), "ledger": ledger},
        "arguments": run.args.to_dict(),
        "callbacks": handler_plan(run.bus),
        "environment": {
            "host": platform.node(),
            "device": str(run.args.device),
            "world_size": run.ranks.world_size,
            "trainbus": version("trainbus"),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "model": type(run.model).__name__,
            "command": " ".join(sys.argv),
        },
    }
