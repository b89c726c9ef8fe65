"""Build tables and charts of an evaluation: the table of predictions, the confusion matrix, and ROC and PR curves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import wandb

from ...callbacks.base.predictions import Collected, Predictions
from ...callbacks.base.tracker import in_sections
from ...engine.evaluation.outputs import EvalPrediction
from ...engine.run import Run
from ...events.bus import Handle
from ...events.stages import Stage


@dataclass
class EvaluationTables:
    """Collects the predictions of an evaluation, and adds their table and charts to the row of the step."""

    _collected: Collected | None = None
    _handles: tuple[Handle, ...] = ()

    def attach(self, run: Run, wanted: Predictions, add: Any, writes: Callable[[Run], bool]) -> None:
        """Subscribe to the events of evaluations. Call this method on every rank, if the user wants tables.

        Args:
            run: the run.
            wanted: the settings of the tables.
            add: a function that adds columns to the row of the step. The handlers call `add(run, columns)` after the
                evaluation of each dataset.
            writes: a function that takes the run, and returns whether this rank writes the wandb run. Other ranks
                collect nothing.
        """
        for handle in self._handles:
            handle()

        def begin(run: Run) -> None:
            self._collected = Collected(wanted) if writes(run) else None

        def collect(run: Run, batch: Any, prediction: EvalPrediction | None) -> None:
            collected, self._collected = self._collected, None  # a failure leaves nothing half collected
            if collected is not None and prediction is not None:
                collected.add(run, batch, prediction)
                self._collected = collected

        def report(run: Run) -> None:
            collected, self._collected = self._collected, Collected(wanted) if writes(run) else None
            if collected is not None and (columns := columns_of(run, collected)):
                add(run, columns)

        options: dict[str, Any] = {"stage": Stage.REPORT, "on_error": "quarantine"}
        self._handles = tuple(
            run.bus.on(event, handler, id=f"wandb-tables-{event}", **options)
            for event, handler in (
                ("on_evaluate_begin", begin),
                ("on_prediction_step", collect),
                ("on_evaluate", report),
            )
        )


def columns_of(run: Run, collected: Collected) -> dict[str, Any]:
    """Build the tables and charts for the predictions on a dataset, as columns of a row: name -> value."""
    prefix = f"{run.metric_prefix}_{run.dataset_name}_" if run.dataset_name else f"{run.metric_prefix}_"
    columns: dict[str, Any] = {}
    if collected.rows:
        names = list(dict.fromkeys(name for row in collected.rows for name in row))
        data = [[_media(name, row.get(name)) for name in names] for row in collected.rows]
        columns["predictions"] = wandb.Table(columns=names, data=data)
    if collected.counts is not None:
        columns |= _charts(collected, run)
    return {in_sections(f"{prefix}{name}"): value for name, value in columns.items()}


def _media(name: str, value: Any) -> Any:
    if name != "image" or value is None:
        return value
    low, high = value.min(), value.max()  # collators standardize images, so the range is not known
    pixels = (255 * (value - low) / (high - low).clamp(min=1e-8)).round().byte()
    return wandb.Image(pixels.permute(1, 2, 0).squeeze(-1).numpy())


def _charts(collected: Collected, run: Run) -> dict[str, Any]:
    counts = collected.counts
    assert counts is not None
    names = collected.names(run, counts.classes)
    cells = [
        [names[actual], names[predicted], int(count)]
        for actual, row in enumerate(counts.confusion.tolist())
        for predicted, count in enumerate(row)
    ]
    matrix = wandb.plot_table(
        "wandb/confusion_matrix/v1",
        wandb.Table(columns=["Actual", "Predicted", "nPredictions"], data=cells),
        {"Actual": "Actual", "Predicted": "Predicted", "nPredictions": "nPredictions"},
        {"title": "Confusion matrix"},
    )
    curves = {name: found for number, name in enumerate(names) if (found := counts.curves(number)) is not None}
    if not curves:
        return {"confusion_matrix": matrix}
    roc = [[name, *point] for name, each in curves.items() for point in zip(each.false_positive_rate, each.recall)]
    precision = [[name, *point] for name, each in curves.items() for point in zip(each.recall, each.precision)]
    return {
        "confusion_matrix": matrix,
        "roc": _curve("ROC", "fpr", "tpr", roc),
        "pr": _curve("Precision and recall", "recall", "precision", precision),
    }


def _curve(title: str, x: str, y: str, points: list[list[Any]]) -> Any:
    return wandb.plot_table(
        "wandb/area-under-curve/v0",
        wandb.Table(columns=["class", x, y], data=points),
        {"x": x, "y": y, "class": "class"},
        {"title": title},
    )
