"""FakeTracker: a tracker that stores the rows of a run in memory. A test can make the tracker fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..callbacks.base.row_tracker import Opening, Outcome
from ..callbacks.base.service_tracker import ServiceSession, ServiceTracker


class FakeSession(ServiceSession):
    """An open run of a `FakeTracker`."""

    def __init__(self, run_id: str, tracker: FakeTracker) -> None:
        """Open a run that adds its values to the lists of a tracker."""
        super().__init__(run_id)
        self.tracker = tracker

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add a row to the tracker. If `step` is in `FakeTracker.fails_at`, raise `ConnectionError` instead."""
        if step in self.tracker.fails_at:
            raise ConnectionError(f"the fake service does not answer at step {step}")
        self.tracker.rows.append({**values, "step": step})

    def tell(self, name: str, value: Any) -> None:
        """Store a value that describes the whole run in `FakeTracker.summary`."""
        self.tracker.summary[name] = value

    def close(self, outcome: Outcome) -> None:
        """Add the outcome of the run to `FakeTracker.outcomes`."""
        self.tracker.outcomes.append(outcome)


@dataclass
class FakeTracker(ServiceTracker):
    """A tracker that stores the logged values of a run in memory, in place of a service.

    Use the tracker in a test to see the values that your callback logs, in the form in which a tracker receives them.
    """

    service: ClassVar[str] = "Fake"

    fails_at: tuple[int, ...] = ()
    """The steps at which a log fails with a `ConnectionError`."""
    rows: list[dict[str, Any]] = field(default_factory=list, init=False, repr=False, compare=False)
    """The rows, each with its `step`."""
    summary: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The values that describe the whole run, such as `train_runtime`."""
    config: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The training arguments."""
    outcomes: list[Outcome] = field(default_factory=list, init=False, repr=False, compare=False)
    """How the runs of the tracker ended, one entry for each closed run."""

    def open_session(self, opening: Opening, name: str | None, config: Mapping[str, Any]) -> ServiceSession:
        """Return a session that adds its values to this tracker.

        Store `config`, which has the training arguments. `name` is not used.
        """
        self.config = dict(config)
        return FakeSession(opening.run_id, self)

    def column(self, name: str) -> dict[int, float]:
        """Return the values of a column, such as `train/loss`, by step."""
        return {row["step"]: row[name] for row in self.rows if name in row}
