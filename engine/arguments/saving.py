"""Checkpoints: when to save them, how many to keep, and their contents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...events.errors import ArgumentError
from ..checkpoint.write.model_files import bytes_in
from ._base import Group, SaveStrategy, arg, must, steps_or_share


@dataclass(kw_only=True, init=False, repr=False, eq=False)
class SavingArguments(Group):
    """Checkpoints: when to save them, how many to keep, and their contents."""

    save_strategy: SaveStrategy | str = arg(
        SaveStrategy.STEPS,
        "When to save a checkpoint: 'no' (never), 'steps' (every `save_steps`), 'epoch' (after each epoch) or "
        "'best'. 'best' saves after each evaluation with a new best metric, and needs an `eval_strategy`.",
        choices=SaveStrategy,
    )
    save_steps: float = arg(
        500,
        "Number of steps between two checkpoints, for `save_strategy='steps'`. A value below 1 is a fraction of the "
        "run.",
    )
    save_total_limit: int | None = arg(
        None,
        "Largest number of checkpoints to keep. None: keep all checkpoints. The run deletes the oldest checkpoints "
        "first. The newest checkpoint always stays. If the run tracks the best model, its checkpoint also stays.",
    )
    save_only_model: bool = arg(
        False,
        "Save only the model in a checkpoint. Such checkpoints are small, but a run can resume from them only if "
        "`resume_partial` is True.",
    )

    on_save_error: str = arg(
        "raise",
        "What to do if a checkpoint cannot be saved. 'raise' ends the run. 'warn' logs a warning and continues the "
        "run.",
        choices=("raise", "warn"),
        none=True,
    )
    async_save: bool = arg(
        True,
        "Write checkpoints on a background thread of each process, while training continues. The thread writes from a "
        "copy in host memory. If a callback handles `on_save`, training waits for the write.",
        none=True,
    )
    link_unchanged: bool = arg(
        False,
        "If a file did not change since the previous checkpoint, store a hard link to the file of the previous "
        "checkpoint. With links, frozen weights need space only once. With a smaller `max_shard_size`, more files "
        "stay unchanged. Several checkpoints can then share one file. Damage to a shared file damages all these "
        "checkpoints.",
        none=True,
    )
    max_shard_size: str | int = arg(
        "50GB",
        "Largest size of a weight file, in bytes or as text such as '5GB'. A larger model has several weight files.",
        none=True,
    )
    do_export: bool = arg(
        False,
        "Export the model for inference at the end of training, as `export/model.pt2` in `output_dir`. To export "
        "without a training, call `trainer.export_model()`.",
    )
    resume_partial: bool = arg(
        False,
        "Also resume from a checkpoint that lacks optimizer, schedule, loss scaler or RNG states. The run starts "
        "with fresh states instead of the missing states. One warning lists the missing states. Checkpoints lack "
        "states if they were saved with `save_only_model=True`.",
        none=True,
    )
    restore_callback_states_from_checkpoint: bool = arg(
        True, "Restore the callback states when a run resumes. False: the callbacks start with fresh states."
    )
    enable_jit_checkpoint: bool = arg(
        False,
        "If a signal such as SIGTERM stops the run, save a checkpoint even if `save_strategy` is 'no'. Set True if "
        "the cluster preempts jobs.",
    )

    def problems(self) -> Iterator[str]:
        yield from must(
            self,
            steps_or_share,
            "set it to a whole number of steps, or to a fraction of the run in (0, 1).",
            "save_steps",
        )
        yield from must(self, lambda n: n >= 1, "set it to 1 or more, or to None to keep all.", "save_total_limit")
        try:
            bytes_in(self.max_shard_size)
        except ArgumentError as error:
            yield str(error)
        if self.save_strategy == SaveStrategy.STEPS and self.save_steps == 0:
            yield "`save_steps` is 0; set it to 1 or more, or turn checkpoints off with `save_strategy='no'`."
