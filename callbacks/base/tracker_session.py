"""TrackerSession: an open run of a tracker, and the values with which it opens."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .outcome import Outcome

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Opening:
    """The values that a tracker needs to open its run, such as the id."""

    run_id: str
    """The id of the tracker's run. Empty: the service chooses the id."""
    resumes: int = 0
    """How often the tracker's run was resumed, including this time. 0 for a new run."""
    step: int = 0
    """The step from which a resumed run continues. 0 for a new run."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """The values of `saved_state` in the checkpoint; empty for a new run."""
    exact: bool = True
    """True: do not send rows again that the service has. False: send all rows, because arguments have changed."""


class TrackerSession:
    """An open run of a tracker. The worker thread calls its methods, one at a time."""

    run_id: str = ""
    """The id under which the service knows the run."""
    last_step: int = -1
    """The last step with a row when the tracker's run opened; -1 if there was no row. `has` reads this value."""
    rows_of_last_step: float = math.inf
    """The number of rows of `last_step` when the tracker's run opened; infinite if unknown."""
    logged_at: float = 0.0
    """The time at which the current row was logged, in seconds since 1970. Rows may wait for the service."""
    _repeated = 0
    _service = "The tracker"
    """The name of the service, for messages. The tracker sets it."""
    _left_out: frozenset[str] = frozenset()

    @property
    def ended(self) -> bool:
        """Whether the user's program has finished the tracker's run. The method `reopen` opens the run again."""
        return False

    def reopen(self) -> None:
        """Open the tracker's run again, if the user's program has finished it."""

    def has(self, step: int) -> bool:
        """Return whether the service already had a row when the tracker's run opened.

        Call this method once for each row, in order, with the step of the row. A step can have several rows. The
        service has all rows of steps before `last_step`, and the first `rows_of_last_step` rows of `last_step`.
        """
        self._repeated += step == self.last_step
        return step < self.last_step or (step == self.last_step and self._repeated <= self.rows_of_last_step)

    def write(self, row: dict[str, Any], step: int) -> None:
        """Send a row to the service: column -> value, at a step.

        Call `leave_out` for each value that the service does not take, and send the other values.
        """
        raise NotImplementedError

    def leave_out(self, name: str, value: Any, reason: str = "") -> None:
        """Warn that a row is written without a value. Later values of the same name give no warning.

        Args:
            name: the column of the value.
            value: the value.
            reason: why the service does not take the value.
        """
        if name not in self._left_out:
            self._left_out |= {name}
            why = f": {reason}" if reason else ""
            logger.warning(
                "%s does not record %r, a value of the type %s%s. Rows are written without it.",
                *(self._service, name, type(value).__name__, why),
            )

    def summarize(self, values: Mapping[str, Any]) -> None:
        """Send values that describe the whole training, such as its runtime, to the service."""

    def finish(self, outcome: Outcome) -> None:
        """Close the tracker's run, so that a later session can resume it. `outcome` says how the training ended."""
        raise NotImplementedError
