"""Tracker: the base class of trackers with a client that must run in the training thread.

Other trackers are subclasses of `ServiceTracker` or `RowTracker`. These classes call the service in a separate thread,
and do not write a step twice after a resume.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.stages import Stage, order
from ...events.state import TrainerState


@dataclass
class Tracker(Callback):
    """Reports logged values to one run of a tracker, on rank 0, from the training thread.

    The tracker's run opens when training begins, or at an earlier log. A resumed training, and an evaluation after the
    training, report to the same run. The id of the tracker's run is in the callback state. A subclass implements
    `open`, `report` and `leave`.
    """

    stage = Stage.REPORT
    capabilities = frozenset({Capability.REPORTS})

    on_error: str = field(default="warn", kw_only=True)
    """The action when the tracker fails. Default: log a warning and continue the training."""
    run_id: str | None = field(default=None, init=False)
    """The id of the tracker's run. None until the callback opens a run."""
    _reports: bool = field(default=False, init=False, repr=False, compare=False)

    def open(self, run: Run) -> str:
        """Open the tracker's run, and return the id of the tracker's run.

        If the attribute `run_id` is None, open a new one. Otherwise, open the one with this id. `run` is the training.
        """
        raise NotImplementedError

    def describe(self, run: Run) -> None:
        """Write the settings to the tracker's run. `Tracker` calls this method if `open` returned a new id.

        By default, do nothing. Override this method if `open` does not write the settings.
        """

    def report(self, logs: Mapping[str, Any], step: int) -> None:
        """Write logged values to the tracker's run."""
        raise NotImplementedError

    def leave(self, failed: bool) -> None:
        """Close the tracker's run, so that a later session can resume it.

        The method `finish` calls this method if the tracker's run is open.

        Args:
            failed: True if an error ended the session. Then mark the tracker's run as failed.
        """
        raise NotImplementedError

    def on_init_end(self) -> None:
        self.run_id = None  # a new trainer, such as a trial of a search, reports to a new run

    @order(Stage.PREPARE)
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
        """Close the tracker's run if it is open. `failed`: whether an error ended the session."""
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


def numbered(run_id: str, tracker: Callback, run: Run) -> str:
    """Return a different id for each tracker of a class: `run_id` for the first one, `<run_id>-2` for the second."""
    number = number_of(tracker, run)
    return run_id if number == 1 else f"{run_id}-{number}"


def number_of(tracker: Callback, run: Run) -> int:
    """Return the number of a tracker among the attached trackers of its class. The first tracker has the number 1."""
    same = [each for each in run.bus.subscribers.values() if type(each) is type(tracker)]
    return next((number for number, each in enumerate(same, 1) if each is tracker), 1)


def in_sections(key: str) -> str:
    """Return the name of a metric with its section: `eval_loss` becomes `eval/loss`, `loss` becomes `train/loss`."""
    return key.replace("_", "/", 1) if key.startswith(("eval_", "test_")) else f"train/{key}"
