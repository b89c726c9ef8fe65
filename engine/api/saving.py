"""The Trainer's methods that write the model and the state."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...events.control import OUTSIDE
from ...events.errors import ArgumentError, ModelError, RankFailure
from ...events.keywords import checked_keywords
from ..checkpoint.format import files
from ..checkpoint.protocols import STATE_WRITERS
from ..checkpoint.write.export import export_model
from ..checkpoint.write.model_files import Weights, can_be_written_later, clone_values, copies_of, write_model
from ..checkpoint.write.whole_files import disk_errors_explained, whole_file, whole_model
from ..data.batches import to_device
from ..distributed.memory_errors import lacks_memory
from .moments import MomentMethods


class SavingMethods(MomentMethods):
    """Writes the model and the state of the run."""

    data_collator: Any
    objective: Any
    _saved_and_announced: int | None = None
    """The step at which the program itself called `_save_checkpoint`. This call announces `on_save`. None without such
    a call, and after `_take_announced_save` read the value."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model, its config and its tokenizer. A program without trainbus can load these files.

        A model with `save_pretrained` writes itself. The weights of any other model go to `model.safetensors`. Call
        this method on every rank, because each rank may have a shard of the weights.

        Args:
            output_dir: the folder; by default `args.output_dir`.
            _internal_call: True if the engine calls this method, for a checkpoint or a push. Overrides can read it.

        Raises:
            ArgumentError: if `output_dir` is not a path.
            CheckpointError: if the files cannot be written. The files of an earlier save stay.
            RankFailure: if the weights are sharded, and a rank does not call this method.
        """
        _check_folder("save_model", output_dir)
        weights = self._gathered_weights()
        if self.args.should_save:
            gathered = {} if weights is None else {"state_dict": weights}
            folder = self.args.output_path if output_dir is None else Path(output_dir)
            with nullcontext() if _internal_call else disk_errors_explained("The model", folder):
                self._save(str(self.args.output_path if output_dir is None else output_dir), **gathered)

    def _gathered_weights(self) -> Weights | None:
        try:
            return self.run.seams.model_state(self.run.model)
        except RuntimeError as error:
            if self.run.mode or self.run.ranks.single_process:  # during a run, all ranks save at the same step
                raise
            if lacks_memory(error):
                raise
            raise RankFailure(
                "`save_model` gathers the weights from all ranks, but another rank did not call it or has ended. Call "
                "it on every rank, without an `if is_world_process_zero()` around it. Only one rank writes files."
            ) from error

    def _save(self, output_dir: str | None = None, state_dict: Weights | None = None) -> None:
        """Write the files of `save_model`. Override this method to write other files.

        Only ranks that write files call this method: rank 0, or one rank per machine with `save_on_each_node`.

        Args:
            output_dir: the folder; by default `args.output_dir`.
            state_dict: the weights; by default the weights of the model.
        """
        with whole_model(self.args.output_path if output_dir is None else Path(output_dir)) as folder:
            self._write_model(folder, state_dict)

    def freeze_model(self, copy: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[str], None] | None:
        """Copy the weights now, and return a function that writes the copy to a folder later, on any thread.

        The method returns None if the model must be written now. There are three cases:

        - The program itself calls `_save_checkpoint`.
        - A subclass overrides `save_model`, `_save`, `_save_checkpoint`, or a method that these methods call. An
          override writes the live model.
        - The `save_pretrained` of the model has no parameter `state_dict`, so it writes the live model.

        Call this method on every rank, because each rank may have a shard of the weights. On a rank that writes no
        files, the returned function does nothing.

        Args:
            copy: a function that receives the name of a weight and the weight, and returns a copy of the weight.
        """
        overridden = self.overrides("save_model", "_save", "_save_checkpoint", *STATE_WRITERS)
        called = "_save_checkpoint" in self._called  # the program may read the files after its call
        if overridden or called or not can_be_written_later(self.run.model):
            return None
        gathered = self._gathered_weights()
        if not self.args.should_save:
            return lambda folder: None
        if gathered is None:
            weights = copies_of(self.run.model.state_dict(), copy)
        else:
            weights = dict(gathered)
            del gathered  # the values are freed one by one
            clone_values(weights)
        return lambda folder: self._write_model(Path(folder), weights)

    # Checkpoints.

    def _save_checkpoint(self, model: nn.Module, trial: Any = None) -> None:
        """Write a checkpoint of the current step. The parameters are not used.

        If the program itself calls this method, the files are on disk when it returns. All ranks must call it.

        Raises:
            ArgumentError: if the program itself calls this method before there is an optimizer, or without the callback
                `Checkpoint`.
        """
        if self._is_work("_save_checkpoint"):
            self._work("_save_checkpoint")
            return
        if self.run.optimizer is None and not self.args.save_only_model:
            raise ArgumentError(
                "There is no optimizer, so no checkpoint can be written. Call `_save_checkpoint` during or after a "
                "training. `trainer.save_model(folder)` writes the model at any time."
            )
        before = self.run.checkpoint
        with self._calling("_save_checkpoint"):
            self.bus.announce("on_save_due", requested_by=frozenset({OUTSIDE}))
        if self.run.checkpoint is before:
            raise ArgumentError(
                "No checkpoint was written, because the callback `Checkpoint` is not attached. Attach it, or call "
                "`trainer.save_model(folder)`."
            )
        # The callback that saves has announced `on_save`. Programs for transformers announce it after this call.
        self._saved_and_announced = self.run.state.global_step

    def _take_announced_save(self) -> bool:
        """Return whether the program itself called `_save_checkpoint` at this step.

        `_save_checkpoint` has already announced `on_save`. So if the result is True, the object
        `trainer.callback_handler` does not announce `on_save` again. Only the first call of this method after a call of
        `_save_checkpoint` returns True.
        """
        announced, self._saved_and_announced = self._saved_and_announced, None
        return announced == self.run.state.global_step

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Do nothing, because the engine saves the optimizer and the schedule.

        Override this method to add files to each checkpoint. With `save_only_model`, the engine does not call the
        override.

        Raises:
            ArgumentError: if the program calls this method for a folder without a complete checkpoint.
        """
        self._require_checkpoint("_save_optimizer_and_scheduler", output_dir)

    def _save_scaler(self, output_dir: str) -> None:
        """Do nothing, because the engine saves the loss scaler.

        Override this method to add files to each checkpoint. With `save_only_model`, the engine does not call the
        override.

        Raises:
            ArgumentError: if the program calls this method for a folder without a complete checkpoint.
        """
        self._require_checkpoint("_save_scaler", output_dir)

    def _save_rng_state(self, output_dir: str) -> None:
        """Do nothing, because the engine saves the RNG states.

        Override this method to add files to each checkpoint. With `save_only_model`, the engine does not call the
        override.

        Raises:
            ArgumentError: if the program calls this method for a folder without a complete checkpoint.
        """
        self._require_checkpoint("_save_rng_state", output_dir)

    def _require_checkpoint(self, method: str, folder: str) -> None:
        """Raise an ArgumentError if a folder has no manifest and the engine is not writing a checkpoint into it."""
        if not self._is_work(method, folder) and not (Path(folder) / files.MANIFEST).exists():
            raise ArgumentError(
                f"`{method}` writes nothing to {str(folder)!r}, because the states of a run are written only in a "
                "complete checkpoint. Call `trainer._save_checkpoint(model)`. In an override of `_save_checkpoint`, "
                "call `super()._save_checkpoint(model, trial)` first, and then add files to the checkpoint."
            )

    @checked_keywords
    def export_model(self, output_dir: str | None = None, inputs: Any = None) -> Path | None:
        """Write the model as an exported program for inference, `model.pt2`.

        `torch.export.load(path).module()` loads the model.

        Args:
            output_dir: the folder; by default `export` in `args.output_dir`.
            inputs: an example of the model's inputs. Default: the current batch without its labels. Outside of a
                training, the default is the first batch of the eval dataset. Without an eval dataset, or with several,
                it is the first batch of the training dataset.

        Returns:
            The path of the file; None on a rank that does not write.

        Raises:
            ArgumentError: if `output_dir` is not a path.
            ModelError: if the model cannot be traced, or if its weights are sharded.
            DataError: if there are neither `inputs`, nor a current batch, nor a dataset.
        """
        _check_folder("export_model", output_dir)
        run = self.run
        owner = run.seams.filled_by("model_state")
        if owner:
            raise ModelError(
                f"The model cannot be exported while {owner} shards its weights. Save it, and export it in a program "
                "with a single process."
            )
        if not self.args.should_save:
            return None
        if inputs is None:
            batch = run.batch
            if batch is None:
                trainer: Any = self
                evaluates = trainer.eval_dataset is not None and not isinstance(trainer.eval_dataset, dict)
                loader = trainer.get_eval_dataloader() if evaluates else trainer.get_train_dataloader()
                batch = to_device(next(iter(loader)), self.args.device)
            inputs = self.objective.without_labels(batch)
        folder = self.args.output_path / "export" if output_dir is None else Path(output_dir)
        return export_model(run.model, inputs, folder)

    def _write_model(self, folder: Path, weights: Weights | None) -> None:
        write_model(self.run.model, weights, folder, self.args.max_shard_size)
        processor: Any = self.run.processing_class
        if processor is None:
            processor = getattr(self.data_collator, "tokenizer", None)
        if hasattr(processor, "save_pretrained"):
            processor.save_pretrained(str(folder))  # some libraries join the path with `+`

    def save_state(self) -> None:
        """Write the trainer state, which includes the log history, to the output folder. Only rank 0 writes."""
        if self.is_world_process_zero():
            with whole_file(self.args.output_path / files.STATE, "The trainer state") as path:
                self.run.state.save_to_json(path)

    def end(self) -> None:
        """Close the trackers and leave the process group. Do not use the trainer after this call."""
        self.bus.announce("on_end")
        self.run.leave()


def _check_folder(method: str, folder: object) -> None:
    """Raise an ArgumentError if the folder that a program passes to a method is neither None nor a path."""
    if folder is not None and not isinstance(folder, (str, os.PathLike)):
        raise ArgumentError(
            f"{method}(output_dir=...) received an object of the type {type(folder).__name__}, which is not a path. "
            f'Pass the folder as a text, such as {method}("outputs/model"), or nothing for the default folder.'
        )
