"""When checkpoints are written, and which are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...events.errors import ArgumentError
from ..checkpoint.write.model_files import bytes_in
from ._base import Group, SaveStrategy, arg, must, steps_or_share


@dataclass(kw_only=True)
class SavingArguments(Group):
    """When checkpoints are written, and how many are kept."""

    save_strategy: SaveStrategy | str = arg(SaveStrategy.STEPS, "When a checkpoint is written.", choices=SaveStrategy)
    save_steps: float = arg(500, "Steps between two checkpoints; below 1, a share of the run.")
    save_total_limit: int | None = arg(
        None, "How many checkpoints to keep, the best one among them; the oldest go first. None keeps all."
    )
    save_only_model: bool = arg(
        False, "Whether a checkpoint holds the model only: small, but a run cannot be resumed from it."
    )

    on_save_error: str = arg(
        "raise",
        "What follows when a checkpoint cannot be written: 'raise' ends the run, 'warn' trains on to the next one.",
        choices=("raise", "warn"),
    )
    async_save: bool = arg(
        True, "Whether checkpoints are copied to the host's memory and written by a thread, while training goes on."
    )
    max_shard_size: str | int = arg(
        "50GB", "How large a file of weights may get, in bytes or as '5GB'; larger models come in several files."
    )
    resume_partial: bool = arg(
        False,
        "Whether a run also goes on from a checkpoint without optimizer, schedule, loss scaler or random states, as "
        "`save_only_model` writes it: what is missing begins anew, which one warning says.",
    )
    restore_callback_states_from_checkpoint: bool = arg(
        True, "Whether a resumed run gives callbacks back the states they had, rather than starting them anew."
    )
    enable_jit_checkpoint: bool = arg(
        False, "Whether SIGTERM ends the run after its step with a checkpoint, as schedulers that preempt expect."
    )

    def problems(self) -> Iterator[str]:
        yield from must(self, steps_or_share, "give whole steps, or a share of the run in (0, 1).", "save_steps")
        yield from must(self, lambda n: n >= 1, "keep at least 1, or all with None.", "save_total_limit")
        try:
            bytes_in(self.max_shard_size)
        except ArgumentError as error:
            yield str(error)
        if self.save_strategy == SaveStrategy.STEPS and self.save_steps == 0:
            yield "`save_steps` is 0; give 1 or more, or turn checkpoints off with `save_strategy='no'`."
