"""Additional writers of a shared run: on each machine without rank 0, one process writes the system metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...callbacks.base.row_tracker import Outcome
from ...callbacks.base.tracker_worker import TrackerWorker
from ...engine.run import Run
from ...events.errors import ArgumentError
from .client import WandbSession, open_run
from .opening import Request
from .options import OFFLINE


def check_shared(mode: str | None, options: Mapping[str, Any]) -> None:
    """Check that wandb's shared mode, in which several processes write one run, supports the options.

    Raises:
        ArgumentError: if `mode` is an offline mode, or if `fork_from` or `resume_from` is set.
    """
    if mode in OFFLINE:
        raise ArgumentError(
            f"shared=True needs the service, and mode={mode!r} does not use it. Leave out one of them. Offline, rank 0 "
            "alone writes the run."
        )
    for name in ("fork_from", "resume_from"):
        if options.get(name):
            raise ArgumentError(f"shared=True does not work with {name}: the client drops rows. Leave out one of them.")


def is_further_node(run: Run) -> bool:
    """Return whether this process is the first process of its machine, and rank 0 is on another machine."""
    return run.ranks.rank != 0 and run.ranks.local_rank == 0


def label_of(rank: int) -> str:
    """Return the label of the system metrics that a rank writes for its machine, such as `rank-8` for rank 8."""
    return f"rank-{rank}"


@dataclass
class NodeWriter:
    """Adds the system metrics of this machine to the wandb run of rank 0, and no other values."""

    request: Request
    """The values for opening the run, from `node_request`."""
    timeout: float = 60.0
    """The longest time to wait until the run is open, in seconds. The wait until the run is finished has the same
    limit."""
    _session: WandbSession | None = None
    _worker: TrackerWorker | None = None

    def open(self) -> None:
        """Join the wandb run of rank 0, on a thread. If this fails, log a warning."""
        self._worker = TrackerWorker("wandb", self._join)
        self._worker.wait_until_tried(self.timeout)

    def close(self, outcome: Outcome) -> None:
        """Leave the wandb run. Only rank 0 sets the final state of the wandb run, such as `failed`."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close(self.timeout, lambda: self._leave(outcome))

    def _join(self) -> None:
        self._session = open_run(self.request)

    def _leave(self, outcome: Outcome) -> None:
        if self._session is not None:
            self._session.finish(outcome)


def node_request(request: Request, run_id: str, rank: int) -> Request:
    """Return a request that joins the run `run_id` as an additional writer, which writes only system metrics."""
    return replace(
        request,
        options={**request.options, "id": run_id, "mode": "shared"},
        settings={**request.settings, "x_label": label_of(rank), "x_primary": False, "x_update_finish_state": False},
        identity=replace(request.identity, run_id=run_id, segments=()),
        config={},
        changes={},
        stop=None,
        save_code=False,
        primary=False,
    )
