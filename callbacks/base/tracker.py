"""What callbacks that report to a tracker have in common: one run of it, opened when there is something to report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...engine.run import Run
from ...events.callback import Callback
from ...events.stages import Stage
from ...events.state import TrainerState


@dataclass
class Tracker(Callback):
    """Reports what is logged to one run of a tracker, on the first process.

    The run stays the same when training is resumed, and when evaluations follow it. A subclass says how a run is
    opened, written to and left.
    """

    stage = Stage.REPORT

    on_error: str = field(default="warn", kw_only=True)
    """What its failures do: a tracker that is down does not stop the training."""
    run_id: str | None = field(default=None, init=False)
    """What the tracker knows the run by."""
    _reports: bool = field(default=False, init=False, repr=False, compare=False)

    def open(self, run: Run) -> str:
        """Open the run known as `run_id`, or a new one where that is None, and return what it is known by."""
        raise NotImplementedError

    def describe(self, run: Run) -> None:
        """Write the settings of the run, where opening it did not; called for a new one."""

    def report(self, logs: Mapping[str, Any], step: int) -> None:
        """Write logged values to the open run."""
        raise NotImplementedError

    def leave(self, failed: bool) -> None:
        """Leave the open run, which may be taken up again."""
        raise NotImplementedError

    def on_init_end(self) -> None:
        self.run_id = None  # a new trainer, as each trial of a search has, reports to a run of its own

    def on_train_begin(self, run: Run) -> None:
        self._open(run)

    def on_log(self, run: Run, state: TrainerState, logs: dict[str, Any]) -> None:
        self._open(run)
        if self._reports:
            self.report(logs, state.global_step)

    def on_exception(self) -> None:
        self.finish(failed=True)

    def on_end(self) -> None:
        self.finish()

    def finish(self, failed: bool = False) -> None:
        """Leave the run, if one is open."""
        reports, self._reports = self._reports, False
        if reports:
            self.leave(failed)

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.run_id = state["run_id"]

    def _open(self, run: Run) -> None:
        if not self._reports and run.state.is_world_process_zero:
            known = self.run_id
            self.run_id, self._reports = self.open(run), True
            if self.run_id != known:
                self.describe(run)


def in_sections(key: str) -> str:
    """Return `eval_loss` as `eval/loss`, and training values under `train/`, as trackers group them."""
    return key.replace("_", "/", 1) if key.startswith(("eval_", "test_")) else f"train/{key}"
