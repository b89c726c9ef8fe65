"""Check a training before its first step, optionally with a forward and backward of the largest batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...engine.api.console import say
from ...engine.api.costs.facts import block
from ...engine.api.dry_batch.report import DryBatchReport
from ...engine.arguments import TrainingArguments
from ...engine.run import Run
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.composition import provides
from ...events.stages import Stage
from ..base.metric_names import full_name, may_be_added

logger = logging.getLogger(__name__)


@dataclass
class DryBatch(Callback):
    """Checks a training before its first step, and logs each finding as a warning.

    By default, every trainer has a `DryBatch` with `forward=False`, which reads no sample and calls no function of
    yours. This callback checks that the optimizer has all trainable parameters, and that the evaluations measure all
    metrics that callbacks read. The check takes about one microsecond per parameter tensor.

    With `dry_batch=True`, or with `DryBatch()` in the list of callbacks, the callback also runs forward and backward of
    the largest batch. This batch has the longest samples, or the first samples if the lengths are not known. The
    callback prints shapes, loss, GPU memory, and the shares of masked labels, padding and truncated samples. Then the
    callback restores weights, buffers, modes, attributes, gradients and RNG states. The training is the same as without
    the callback, bit for bit.

    Raises:
        ArgumentError: if the largest batch does not fit in memory.
        DataError: if a label or an input id is out of range.
        NonFiniteError: if the loss of the batch is NaN or infinite.
    """

    stage = Stage.REPORT  # in a stage that decides, the ranks would exchange its failures in each step
    arguments = ("dry_batch",)

    forward: bool = True
    """True: read the largest batch, and run the model on this batch. False: read no sample, and call no function of
    yours."""
    silent: bool | None = None
    """True: print no report. Findings are logged as warnings in any case. None: print no report if `disable_tqdm` is
    True, or if the log level is above `warning`."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    report: DryBatchReport = field(default_factory=DryBatchReport, init=False, repr=False, compare=False)
    """The result of the most recent check."""

    def __post_init__(self) -> None:
        self.on_error = "raise" if self.forward else "warn"

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> DryBatch | None:
        return None if args.dry_batch is False else cls(forward=args.dry_batch is True)

    def look(self, run: Run) -> DryBatchReport:
        """Check the training that begins, and return the report."""
        return run.services.dry_batch(self.forward, list(_metrics_of(run)))

    def on_train_begin(self, run: Run) -> None:
        self.report = report = self.look(run)
        if not run.state.is_world_process_zero:
            return
        if self.forward and self._speaks(run):
            say(block("Dry batch", list(report.facts())))
        for text in report.findings:
            logger.warning("Dry batch: %s", text)
        logger.debug("The dry batch took %.1f ms.", 1000 * report.seconds)

    def _speaks(self, run: Run) -> bool:
        if self.silent is not None:
            return not self.silent
        return not run.args.disable_tqdm and run.args.get_process_log_level() <= logging.WARNING


_LIBRARY = f"{__name__.partition('.')[0]}."


def _metrics_of(run: Run) -> Iterator[str]:
    """Yield the full names of the metrics that the evaluations must measure.

    These are the metrics that callbacks of trainbus read, and `metric_for_best_model`. The function leaves out each
    metric for which `may_be_added` returns True. If no callback plans evaluations, the function yields nothing.
    """
    subscribers = run.bus.subscribers.values()
    if not provides(subscribers, Capability.PLANS_EVALUATIONS):
        return
    own = (each for each in subscribers if type(each).__module__.startswith(_LIBRARY))
    read = [getattr(each, "metric", None) for each in own]
    names = dict.fromkeys(full_name(name) for name in (*read, run.args.metric_for_best_model) if isinstance(name, str))
    yield from (name for name in names if name and not may_be_added(name, run))
