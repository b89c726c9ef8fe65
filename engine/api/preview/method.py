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
        """Return the logs, evaluations, saves, deletions and stops of a future `train()`, with author and reason.

        The preview runs the training loop and the callbacks that request logs, evaluations, saves and stops. Model,
        data, disk and clock are virtual. A preview writes nothing, and changes neither the trainer nor the RNG states.

        Args:
            metrics: the metrics that evaluations measure. Each key is a name. Each value is a list with one value for
                each evaluation, or a function that returns the value at a step. If a callback reads a metric without
                values here, the preview assumes that the metric improves at each evaluation.
            resume_from_checkpoint: as in `train`.
            measure: run the model on one training batch, to measure the time of a step and of an evaluation.
            step_seconds: the seconds of a step, for triggers such as `every("10min")`. Default: the time that
                `measure=True` measures. Without `measure`, the virtual clock does not advance.
            processes: the world size. Default: the world size of this run.
            checkpoint_bytes: the size of a checkpoint in bytes. Default: the size of the newest checkpoint in the
                output folder. Without a checkpoint, the size is estimated from the model.
            stream_rows: the number of samples of one epoch, for a training stream without a length. By default, the
                preview of such a stream shows a single epoch, which lasts until the last step.

        Raises:
            ArgumentError: if a session is in progress. Also if `stream_rows` is set for data with a length. Settings
                that `train` refuses raise the same errors as in `train`.
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
