"""Logging, and writing models, metrics and state."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...events.errors import RankFailure
from ..checkpoint.format import files
from ..checkpoint.write.model_files import Weights, can_be_written_later, copies_of, write_model
from .base import Surface


class Recording(Surface):
    """The part of the Trainer that logs and writes."""

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Log values: into `state.log_history`, and to all that hear `on_log`.

        What a handler adds to `logs` before the reporters see it is kept in the history too. Override it to log
        elsewhere or otherwise.
        """
        run = self.run
        logs["epoch"] = run.state.epoch
        entry = {**logs, "step": run.state.global_step}
        run.state.log_history.append(entry)
        run.logs = logs
        self.bus.announce("on_log")
        entry.update({key: value for key, value in logs.items() if key not in entry})

    def log_metrics(self, split: str, metrics: dict[str, Any]) -> None:
        """Print metrics, aligned, on the first process.

        Args:
            split: what they are of, as `train`, `eval` or `test`.
            metrics: as `train`, `evaluate` or `predict` return them.
        """
        if self.is_world_process_zero():
            words = {key: str(value) for key, value in sorted(self.metrics_format(metrics).items())}
            keys, values = (max(map(len, column), default=0) for column in (words, words.values()))
            print(f"***** {split} metrics *****")
            for key, value in words.items():
                print(f"  {key:<{keys}} = {value:>{values}}")

    @staticmethod
    def metrics_format(metrics: dict[str, Any]) -> dict[str, Any]:
        """Return metrics as people read them: times as h:mm:ss, operations in GF, memory in MB, floats in 4 digits."""
        return {key: _readable(key, value) for key, value in metrics.items()}

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
        """Write metrics as `<split>_results.json` into the output folder, on the first process.

        Args:
            split: what they are of.
            metrics: as `train`, `evaluate` or `predict` return them.
            combined: also merge them into `all_results.json`.
        """
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / f"{split}_results.json", metrics)
        if combined:
            path = folder / "all_results.json"
            earlier = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            _write_json(path, {**earlier, **metrics})

    def save_state(self) -> None:
        """Write the state of the run, its history above all, into the output folder."""
        if self.is_world_process_zero():
            Path(self.args.output_dir).mkdir(parents=True, exist_ok=True)
            self.run.state.save_to_json(Path(self.args.output_dir) / files.STATE)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model, with its config and tokenizer, so that it can be loaded without this library.

        A model with `save_pretrained` writes itself; of any other, the weights are written as `model.safetensors`.

        Args:
            output_dir: where to; by default the output folder.

        Raises:
            RankFailure: if not every process calls it, where each has a part of the weights.
        """
        weights = self._gathered_weights()
        if self.args.should_save:
            given = {} if weights is None else {"state_dict": weights}
            self._save(str(self.args.output_dir if output_dir is None else output_dir), **given)

    def _gathered_weights(self) -> Weights | None:
        try:
            return self.run.seams.model_state(self.run.model)
        except RuntimeError as error:
            if self.run.mode or self.run.ranks.single_process:  # in a run, all processes save at the same step
                raise
            raise RankFailure(
                "`save_model` gathers the weights from all processes, and another one is elsewhere or gone: call it on "
                "all of them, without an `if is_world_process_zero()` around it. One of them writes."
            ) from error

    def _save(self, output_dir: str | None = None, state_dict: Weights | None = None) -> None:
        """Write what `save_model` writes, on the process that writes. Override it to write more, or otherwise.

        Args:
            output_dir: where to; by default the output folder.
            state_dict: the weights; by default those that the model has.
        """
        self._write_model(Path(self.args.output_dir if output_dir is None else output_dir), state_dict)

    def freeze_model(self, copy: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[str], None] | None:
        """Return what writes the model as it is now into a folder, later and on any thread; None if nothing can.

        Nothing can where `save_model` or `_save` is overridden, or a `save_pretrained` takes no `state_dict`: what they
        write is the model itself. Nor where a callback gathers the weights.

        Args:
            copy: copies a weight, given its name.
        """
        library = __name__.partition(".")[0]
        writers = (type(self).save_model, type(self)._save)
        overridden = any(writer.__module__.partition(".")[0] != library for writer in writers)
        if overridden or self.run.seams.filled_by("model_state") or not can_be_written_later(self.run.model):
            return None
        if not self.args.should_save:
            return lambda folder: None
        weights = copies_of(self.run.model.state_dict(), copy)
        return lambda folder: self._write_model(Path(folder), weights)

    def _write_model(self, folder: Path, weights: Weights | None) -> None:
        write_model(self.run.model, weights, folder, self.args.max_shard_size)
        processor: Any = self.run.processing_class
        if processor is None:
            processor = getattr(getattr(self, "data_collator", None), "tokenizer", None)
        if hasattr(processor, "save_pretrained"):
            processor.save_pretrained(folder)

    def is_local_process_zero(self) -> bool:
        """Say whether this is the first process of its machine."""
        return self.run.ranks.local_rank == 0

    def is_world_process_zero(self) -> bool:
        """Say whether this is the first process of all."""
        return self.run.ranks.rank == 0

    def end(self) -> None:
        """Finish for good: trackers close, and the process group is left. Nothing can be run after it."""
        self.bus.announce("on_end")
        self.run.leave()


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=4, sort_keys=True) + "\n", encoding="utf-8")


def _readable(key: str, value: Any) -> Any:
    if "_mem_" in key:
        return f"{int(value) >> 20}MB"
    if key.endswith("_runtime"):
        whole = datetime.timedelta(seconds=int(value))
        return f"{whole}.{round(value % 1 * 100):02d}"
    if key == "total_flos":
        return f"{int(value) >> 30}GF"
    return round(value, 4) if isinstance(value, float) else value
