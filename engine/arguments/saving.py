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
        "'best'. 'best' saves after each evaluation with the best metric so far, and needs an `eval_strategy`.",
        choices=SaveStrategy,
    )
    save_steps: float = arg(
        500, "Steps between two checkpoints, for `save_strategy='steps'`. Below 1: a fraction of the run."
    )
    save_total_limit: int | None = arg(
        None,
        "Number of checkpoints to keep. The oldest are deleted first; the best is always kept. None: keep all.",
    )
    save_only_model: bool = arg(
        False,
        "Save only the model in a checkpoint. Checkpoints are then small, but a run resumes from them only with "
        "`resume_partial`.",
    )

    on_save_error: str = arg(
        "raise",
        "What to do if a checkpoint cannot be saved: 'raise' ends the run, 'warn' logs a warning and continues.",
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
        "Store a file that did not change since the last checkpoint as a hard link to the file there. With links, "
        "frozen weights need space only once. With a smaller `max_shard_size`, more files stay unchanged. Damage to a "
        "shared file damages each checkpoint that has it.",
        none=True,
    )
    max_shard_size: str | int = arg(
        "50GB",
        "Largest size of a weight file, in bytes or as text such as '5GB'. Larger models use several files.",
        none=True,
    )
    do_export: bool = arg(
        False,
        "Export the model for inference at the end of training, as `export/model.pt2` in `output_dir`. A script that "
        "does not train calls `trainer.export_model()`.",
    )
    resume_partial: bool = arg(
        False,
        "Also resume from a checkpoint that lacks optimizer, schedule, loss scaler or RNG states. Missing states "
        "start fresh. One warning lists the missing states. Checkpoints lack states if they were saved with "
        "`save_only_model=True`.",
        none=True,
    )
    restore_callback_states_from_checkpoint: bool = arg(
        True, "Restore the callback states when a run resumes. False: callbacks start with fresh state."
    )
    enable_jit_checkpoint: bool = arg(
        False,
        "On SIGTERM, finish the step, save a checkpoint and end the run. For cluster schedulers that preempt jobs.",
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
