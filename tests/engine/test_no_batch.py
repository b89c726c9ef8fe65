"""An evaluation that gets no batch says why, and has the numbers of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from torch.utils.data import IterableDataset

import trainbus
from support.data import points
from support.models import Regression
from trainbus import EarlyStopping, KeepBest
from trainbus.events import ArgumentError
from trainbus.events.errors import DataError


class ShortStream(IterableDataset):
    """A dataset of unknown length with fewer rows than a batch."""

    def __iter__(self) -> Any:
        return iter(points(3))


CASES: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "an incomplete batch": (
        points(3),
        {"dataloader_drop_last": True},
        ("(list) has 3 rows", "`per_device_eval_batch_size` is 4", "Set it to False", "to 3 or less"),
    ),
}


def built(folder: Path, rows: Any, *callbacks: Any, library: Any = trainbus, **options: Any) -> Any:
    sizes = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "max_steps": 2, "eval_steps": 1}
    quiet = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "save_strategy": "no"}
    args = library.TrainingArguments(str(folder), eval_strategy="steps", **sizes, **quiet, **options)
    return library.Trainer(Regression(), args, train_dataset=points(8), eval_dataset=rows, callbacks=list(callbacks))


@pytest.mark.parametrize("name", CASES)
def test_evaluation_without_a_batch_names_rows_batch_size_and_remedy(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows, options, expected = CASES[name]
    built(tmp_path, rows, **options).train()
    assert "Evaluation 'eval' got no batch, so it measures no loss and no metric." in caplog.text
    for text in expected:
        assert text in caplog.text
    assert "no labels" not in caplog.text


def test_a_stream_without_a_full_batch_is_an_error_that_names_the_remedy(tmp_path: Path) -> None:
    error = r"'eval' got no batch.* \(ShortStream\) has an unknown number of rows, .* is 4\. .* Set it to False"
    with pytest.raises(DataError, match=error):
        built(tmp_path, ShortStream(), dataloader_drop_last=True).train()


def test_the_warning_names_the_dataset_without_a_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    built(tmp_path, {"full": points(8), "short": points(2)}, dataloader_drop_last=True).train()
    assert "Evaluation 'eval_short' got no batch" in caplog.text
    assert "'eval_full'" not in caplog.text


def test_an_evaluation_without_a_batch_has_the_metrics_of_transformers(tmp_path: Path) -> None:
    rows, options, _ = CASES["an incomplete batch"]
    theirs, ours = (
        built(tmp_path / library.__name__, rows, library=library, **options).evaluate()
        for library in (transformers, trainbus)
    )
    assert set(ours) == set(theirs) - {"eval_model_preparation_time"}
    assert "eval_loss" not in ours


@pytest.mark.parametrize("reader", [lambda: KeepBest("eval_loss"), lambda: EarlyStopping("eval_loss")])
def test_readers_of_a_metric_name_the_missing_batch(reader: Any, tmp_path: Path) -> None:
    rows, options, _ = CASES["an incomplete batch"]
    with pytest.raises(ArgumentError, match="got no batch or no loss, so it measured nothing"):
        built(tmp_path, rows, reader(), **options).train()
