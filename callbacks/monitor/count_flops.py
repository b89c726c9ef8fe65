"""Count the floating-point operations of the training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.bus import Handle
from ...events.callback import Callback
from ...events.stages import Stage


@dataclass
class CountFlops(Callback):
    """Adds the number of floating-point operations of each batch to `state.total_flos`.

    Every trainer has this callback. The method `Trainer.floating_point_ops` returns the number of operations of a
    batch. To count the operations of a model of your own, override this method in a subclass of `Trainer`. If the
    method returns 0, the callback stops counting for the rest of the session, so later steps have no extra cost.
    """

    stage = Stage.MEASURE

    _counting: Handle | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> CountFlops:
        return cls()

    def on_train_begin(self, run: Run) -> None:
        def count(batch: Any) -> None:
            operations = run.services.floating_point_ops(batch)
            run.state.total_flos += float(operations)
            if not operations:  # the model cannot count them
                self.on_close()

        # A subscribed function, because it can unsubscribe itself.
        self._counting = run.bus.on("on_batch", count, stage=Stage.MEASURE, id="CountFlops.count")

    def on_close(self) -> None:
        counting, self._counting = self._counting, None
        if counting is not None:
            counting()
