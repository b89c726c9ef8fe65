"""The dry batch: check the optimizer, and on request run the largest batch, before the first step."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from . import checks
from .report import DryBatchReport


def dry_batch(trainer: Any, forward: bool, metrics: Iterable[str]) -> DryBatchReport:
    """Check a training before its first step, without an effect on it.

    Args:
        trainer: the Trainer, whose model, optimizer and loader exist.
        forward: read the largest batch and run the model on it. False: read no sample and call no code of the program.
        metrics: the full names of the metrics that callbacks read.

    Raises:
        ArgumentError: if the batch does not fit in memory.
        DataError: for a label or an input id out of range.
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
