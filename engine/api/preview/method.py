"""`Trainer.preview`: show what a run will do, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....events.errors import ArgumentError
from ....events.keywords import checked_keywords
from ..base import TrainerBase

if TYPE_CHECKING:
    from .curves import Given
    from .result import Preview


class PreviewMethods(TrainerBase):
    """The method `preview` of the Trainer."""

    @checked_keywords
    def preview(
        self,
        *,
        metrics: Given | None = None,
        resume_from_checkpoint: Any = None,
        measure: bool = False,
        step_seconds: float | None = None,
        processes: int | None = None,
        checkpoint_bytes: int | None = None,
        stream_rows: int | None = None,
    ) -> Preview:
        """Return what `train()` will do: each log, evaluation, save, deletion and the stop, with author and reason.

        The state machine and the callbacks that decide are the real ones. Model, data, disk and clock are virtual. A
        preview writes nothing, draws no random number and leaves the trainer unchanged.

        Args:
            metrics: the metrics that evaluations measure. Each key is a name, each value is a list with one value for
                each evaluation, or a function of the step. Other metrics are assumed to improve at each evaluation.
            resume_from_checkpoint: as in `train`.
            measure: measure the time of a step and of an evaluation, with one batch of each. This runs the model.
            step_seconds: the time of a step, for triggers such as `every("10min")`. Default: the time that
                `measure=True` measures; without `measure`, time does not pass.
            processes: the number of processes. Default: the number of processes of this run.
            checkpoint_bytes: the size of a checkpoint. Default: the size of the newest one in the output folder, or an
                estimate from the model.
            stream_rows: the number of samples of one epoch, for a training stream without a length. Default: unknown.
                The preview then shows a single epoch, which lasts until the last step.

        Raises:
            ArgumentError: during training, if `stream_rows` is set for data with a length, and for settings that
                `train` refuses too.
        """
        from .make import Rehearsal, undisturbed  # most programs make no preview, and the import takes time
        from .measure import measured

        if self.run.mode:
            raise ArgumentError(f"A preview is made before or after {self.run.mode}(), not in it.")
        self._follow_arguments()
        with undisturbed(self, processes):
            times = measured(self) if measure else {}
            seconds = times.get("step", 0.0) if step_seconds is None else step_seconds
            resume = resume_from_checkpoint
            return Rehearsal(self, metrics or {}, resume, times, seconds, checkpoint_bytes, stream_rows).preview()
