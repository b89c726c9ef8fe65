"""Compare a run with its preview, and warn at the first difference."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...engine.api.preview.result import Preview
from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.recording.recorder import DecisionRecorder
from ...events.recording.recorder import Record as Entry
from ...events.recording.rows import Row, Rows, described
from ...events.stages import Stage, order

logger = logging.getLogger(__name__)

_COMPARED = ("log", "evaluate", "save", "stop")


@dataclass
class FollowPlan(DecisionRecorder):
    """Compares the run with a preview file, and warns at the first difference in a log, evaluation, save or stop.

    The callback compares the step of each log, evaluation, save and stop, and the callbacks that requested it. It also
    compares the learning rate of each log, without a tolerance. It does not compare deletions of checkpoints. After the
    first difference, it compares nothing more. In a resumed run, it compares only the steps after the checkpoint.

    Set `plan="plan.json"` in the arguments to use the callback. The command `trainbus preview PROGRAM --out plan.json`
    writes the file. In a program, call `Path("plan.json").write_text(trainer.preview().to_json())`.

    Raises:
        ArgumentError: if the file cannot be read, or is not a preview.
    """

    arguments = ("plan",)

    path: str = "plan.json"
    """The path of the preview file. A relative path starts at the working directory."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    _planned: deque[Row] = field(default_factory=deque, init=False, repr=False, compare=False)
    _rows: Rows = field(default_factory=Rows, init=False, repr=False, compare=False)
    _since: int = field(default=0, init=False, repr=False, compare=False)
    _log: Row | None = field(default=None, init=False, repr=False, compare=False)
    """The planned row of the log in progress. `on_log` compares the learning rate in this row. None: `on_log` compares
    nothing."""

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> FollowPlan | None:
        return None if args.plan is None else cls(args.plan)

    @order(Stage.PREPARE)
    def on_setup(self, run: Run) -> None:
        if run.mode != "train":
            return
        self.close()
        plan = Preview.load(run.args.resolved(Path(self.path).expanduser()))
        self._since = run.state.global_step
        resumed = self._since > 0
        self._planned = deque(
            row for row in plan.rows if row["what"] in _COMPARED and (not resumed or row["step"] > self._since)
        )
        self._rows, self._log = Rows(), None
        if run.state.is_world_process_zero:
            self.open(run)

    def on_close(self) -> None:
        self.close()

    def put(self, record: Entry) -> None:
        if record.get("e") in ("on_delete", "on_best_loaded"):
            return
        for row in self._rows.take(record):
            if not self._since or row["step"] > self._since:
                self._compare(row)

    def _compare(self, row: Row) -> None:
        planned = self._planned.popleft() if self._planned else None
        if planned is None or any(planned[name] != row[name] for name in ("step", "what", "by")):
            expected = "nothing more" if planned is None else described(planned)
            why = f" ({row['reason']})" if row["reason"] else ""
            self._warn(f"planned {expected}, but {described(row)} comes now{why}")
        elif "learning_rate" in planned:
            self._log = planned

    def on_log(self, logs: dict[str, Any]) -> None:
        super().on_log(logs)
        planned, self._log = self._log, None
        if planned is not None and logs.get("learning_rate") != planned["learning_rate"]:
            found = logs.get("learning_rate", "none")
            self._warn(
                f"planned a learning rate of {planned['learning_rate']} at step {planned['step']}, but the run logs "
                f"{found}"
            )

    def _warn(self, difference: str) -> None:
        logger.warning("The run differs from the preview %s: it %s.", self.path, difference)
        self.close()
