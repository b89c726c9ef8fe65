"""The Trainer's methods that write the model and the state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...events.errors import RankFailure
from ..checkpoint.format import files
from ..checkpoint.write.model_files import Weights, can_be_written_later, copies_of, write_model
from .base import TrainerBase
from .overrides import is_overridden


class SavingMethods(TrainerBase):
    """Writes the model and the state of the run."""

    data_collator: Any

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model, its config and its tokenizer. They load without trainbus.

        A model with `save_pretrained` writes itself. The weights of any other model go to `model.safetensors`.
        Call it on every rank: ranks may hold parts of the weights.

        Args:
            output_dir: the folder; by default `args.output_dir`.

        Raises:
            RankFailure: if not every rank calls it while the weights are sharded.
        """
        weights = self._gathered_weights()
        if self.args.should_save:
            gathered = {} if weights is None else {"state_dict": weights}
            self._save(str(self.args.output_dir if output_dir is None else output_dir), **gathered)

    def _gathered_weights(self) -> Weights | None:
        try:
            return self.run.seams.model_state(self.run.model)
        except RuntimeError as error:
            if self.run.mode or self.run.ranks.single_process:  # during a run, all ranks save at the same step
                raise
            raise RankFailure(
                "`save_model` gathers the weights from all ranks, and another rank did not call it or is gone. Call it "
                "on every rank, without an `if is_world_process_zero()` around it. Only one rank writes."
            ) from error

    def _save(self, output_dir: str | None = None, state_dict: Weights | None = None) -> None:
        """Write what `save_model` writes, on the rank that writes. Override it to write more, or otherwise.

        Args:
            output_dir: the folder; by default `args.output_dir`.
            state_dict: the weights; by default the model's.
        """
        self._write_model(Path(self.args.output_dir if output_dir is None else output_dir), state_dict)

    def freeze_model(self, copy: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[str], None] | None:
        """Return a function that writes the present model to a folder later, on any thread; None if impossible.

        It is impossible if `save_model` or `_save` is overridden, or if `save_pretrained` takes no `state_dict`,
        because those write the live model. It is also impossible if a callback gathers the weights.

        Args:
            copy: returns a copy of a weight, given its name and the weight.
        """
        overridden = is_overridden(self, "save_model") or is_overridden(self, "_save")
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
            processor = getattr(self.data_collator, "tokenizer", None)
        if hasattr(processor, "save_pretrained"):
            processor.save_pretrained(folder)

    def save_state(self) -> None:
        """Write the state of the run, including the log history, to the output folder."""
        if self.is_world_process_zero():
            Path(self.args.output_dir).mkdir(parents=True, exist_ok=True)
            self.run.state.save_to_json(Path(self.args.output_dir) / files.STATE)

    def end(self) -> None:
        """Finish for good: close the trackers and leave the process group. The trainer cannot run afterwards."""
        self.bus.announce("on_end")
        self.run.leave()
