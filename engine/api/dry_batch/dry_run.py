"""The dry batch: check the optimizer and the metrics before the first step.

With `dry_batch=True`, the dry batch also runs the model on the largest batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from . import checks
from .report import DryBatchReport


def dry_batch(trainer: Any, forward: bool, metrics: Iterable[str]) -> DryBatchReport:
    """Check a training before its first step. The checks have no effect on the training.

    Args:
        trainer: the Trainer. Its model, optimizer and loader must exist.
        forward: also read the largest batch and run the model on it. If False, the function reads no sample and calls
            no code of the program.
        metrics: the full names of the metrics that callbacks read, such as `eval_loss`. The report has a finding for
            each metric that no evaluation measures.

    Raises:
        ArgumentError: if the batch does not fit in memory.
        DataError: if a label or an input id is out of range.
        NonFiniteError: if the loss is NaN or infinite.
    """
    began, report = time.perf_counter(), DryBatchReport()
    found = checks.optimizer_findings(trainer)
    if found is not None:
        report.findings += found
        report.checks.append("trainable parameters are in the optimizer")
    for metric in metrics:
        problem = checks.metric_finding(trainer, metric)
        report.findings += [] if problem is None else [problem]
        report.checks.append(f"an evaluation can measure {metric}")
    if forward:
        from .largest_batch import look_at_batch  # only a dry batch with a forward needs it

        look_at_batch(trainer, report)
    report.seconds = time.perf_counter() - began
    return report
