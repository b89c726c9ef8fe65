"""The Trainer's methods for logs and metrics."""

from __future__ import annotations

import datetime
import json
import logging
from pathlib import Path
from typing import Any

from ...events.activity import LOG
from ..checkpoint.write.whole_files import whole_file
from ..evaluation.outputs import recordable
from .base import TrainerBase
from .console import say

logger = logging.getLogger(__name__)


class LoggingMethods(TrainerBase):
    """Logs values, and prints and writes metrics."""

    _told_left_out: frozenset[Any] = frozenset()
    """The names of logged values that `state.log_history` left out with a warning."""
    _told_misspelt: frozenset[str] = frozenset()
    """The attributes of the state for which `_tell_misspelt` logged a warning."""

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Add values to `state.log_history` and announce `on_log`.

        Handlers of `on_log` may add values to `logs`, in a stage before REPORT. The history stores these values too.
        Override this method to log in another way.

        Args:
            logs: name -> value. The method adds `epoch` to this dict.
            start_time: not used.
        """
        run = self.run
        self._note_metrics(logs)
        self._tell_misspelt()
        logs["epoch"] = run.state.epoch
        entry = {**self._recordable(logs), "step": run.state.global_step}
        run.state.log_history.append(entry)
        run.logs = logs
        with run.activity(LOG):
            self.bus.announce("on_log")
        if logs.keys() - entry.keys():
            added = {key: value for key, value in logs.items() if key not in entry}
            entry.update(self._recordable(added))

    def _tell_misspelt(self) -> None:
        """Warn once about each attribute of the state that has almost the name of a field, such as `globl_step`."""
        for name, meant in self.run.state.misspelt().items():
            if name not in self._told_misspelt:
                self._told_misspelt |= {name}
                logger.warning(
                    "`state.%s` is not a field of TrainerState, so it has no effect, and checkpoints do not have it; "
                    "did you mean `state.%s`?",
                    *(name, meant),
                )

    def _recordable(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Return logged values as plain Python values, without values that checkpoints cannot store, such as images."""
        values, left_out = recordable(logs)
        if new := left_out.keys() - self._told_left_out:
            self._told_left_out |= frozenset(new)
            named = ", ".join(f"{name!r} is {left_out[name]}" for name in sorted(new, key=str))
            logger.warning(
                "Trackers receive these logged values, but `state.log_history` and checkpoints cannot hold them: %s.",
                named,
            )
        return values

    def log_metrics(self, split: str, metrics: dict[str, Any]) -> None:
        """Print metrics as an aligned table, on rank 0.

        Args:
            split: the split of the metrics: `train`, `eval` or `test`.
            metrics: as `train`, `evaluate` or `predict` return them.
        """
        if self.is_world_process_zero():
            words = {key: str(value) for key, value in sorted(self.metrics_format(metrics).items())}
            keys, values = (max(map(len, column), default=0) for column in (words, words.values()))
            say(f"***** {split} metrics *****")
            for key, value in words.items():
                say(f"  {key:<{keys}} = {value:>{values}}")

    @staticmethod
    def metrics_format(metrics: dict[str, Any]) -> dict[str, Any]:
        """Return metrics for display: runtimes as h:mm:ss, `total_flos` in GF, memory in MB, floats with 4 decimals."""
        return {key: _readable(key, value) for key, value in metrics.items()}

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
        """Write metrics as `<split>_results.json` to the output folder, on rank 0.

        Args:
            split: the split of the metrics: `train`, `eval` or `test`.
            metrics: as `train`, `evaluate` or `predict` return them.
            combined: also merge the metrics into `all_results.json`.
        """
        if not self.is_world_process_zero():
            return
        folder = self.args.output_path
        _write_json(folder / f"{split}_results.json", metrics)
        if combined:
            path = folder / "all_results.json"
            earlier = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            _write_json(path, {**earlier, **metrics})


def _write_json(path: Path, values: dict[str, Any]) -> None:
    with whole_file(path, "The metrics") as unfinished:
        unfinished.write_text(json.dumps(values, indent=4, sort_keys=True) + "\n", encoding="utf-8")


def _readable(key: str, value: Any) -> Any:
    if "_mem_" in key:
        return f"{int(value) >> 20}MB"
    if key.endswith("_runtime"):
        whole = datetime.timedelta(seconds=int(value))
        return f"{whole}.{round(value % 1 * 100):02d}"
    if key == "total_flos":
        return f"{int(value) >> 30}GF"
    return round(value, 4) if isinstance(value, float) else value
