"""Predictions are complete and every sample counts once, for any first dimension of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from support.trainers import regression_trainer
from trainbus import Trainer

ROWS, TIME, BATCH = 43, 5, 8


def data() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, TIME, generator=generator)
    return [{"x": row, "labels": row.sum()} for row in x]


class Model(nn.Module):
    """Squared errors of a sum. The predictions have the shape that each test asks for."""

    def __init__(self, layout: str = "rows") -> None:
        super().__init__()
        self.layout = layout
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        x = x if x.shape[-1] == TIME else x.T
        loss = (self.scale * x.sum(-1) * 2 - labels).pow(2).mean() if labels is not None else self.scale.sum()
        logits = {
            "rows": x,
            "tokens": x.flatten(),
            "several": x[:, :3].flatten(),
            "time": x.T,
            "scalar": x.sum(),
        }[self.layout]
        return {"loss": loss, "logits": logits * 1}


def time_major(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {"x": torch.stack([row["x"] for row in rows]).T, "labels": torch.stack([row["labels"] for row in rows])}


X = np.stack([row["x"].numpy() for row in data()])
TRUE_LOSS = float(np.mean([row["labels"].item() ** 2 for row in data()]))
EXPECTED = {"rows": X, "tokens": X.ravel(), "several": X[:, :3].ravel()}


def built(folder: Path, layout: str, **options: Any) -> Any:
    return regression_trainer(folder, Model(layout), args={"per_device_eval_batch_size": BATCH}, **options)


@pytest.mark.parametrize("layout", EXPECTED)
@pytest.mark.parametrize("collate", [None, time_major])
def test_predictions_keep_all_that_the_model_returned(layout: str, collate: Any, tmp_path: Path):
    run = built(tmp_path, layout, data_collator=collate)
    output = run.predict(data())
    assert np.array_equal(output.predictions, EXPECTED[layout])
    assert len(output.label_ids) == ROWS


@pytest.mark.parametrize("layout", ["time", "scalar"])
def test_predictions_without_a_sample_axis_are_kept_batch_by_batch(layout: str, tmp_path: Path):
    output = built(tmp_path, layout).predict(data())
    batches = -(-ROWS // BATCH)
    assert len(output.predictions) == (TIME * batches if layout == "time" else batches)


@pytest.mark.parametrize("collate", [None, time_major])
def test_the_evaluation_loss_is_a_mean_over_samples_for_time_major_batches(collate: Any, tmp_path: Path):
    metrics = built(tmp_path, "rows", data_collator=collate).evaluate(data())
    assert metrics["eval_loss"] == pytest.approx(TRUE_LOSS, rel=1e-5)


def test_a_plain_loader_of_the_user_counts_samples_by_its_sampler(tmp_path: Path):
    run = built(tmp_path, "tokens")
    run.get_eval_dataloader = lambda *_: DataLoader(data(), BATCH, collate_fn=time_major)
    metrics = run.evaluate(data())
    assert metrics["eval_loss"] == pytest.approx(TRUE_LOSS, rel=1e-5)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        return iter(data())


def test_a_stream_counts_samples_by_its_labels(tmp_path: Path):
    run = built(tmp_path, "tokens", data_collator=time_major)
    output = run.evaluation_loop(run.get_test_dataloader(Stream()), "Prediction")
    assert output.num_samples == ROWS
    assert np.array_equal(output.predictions, X.ravel())
    assert output.metrics["eval_loss"] == pytest.approx(TRUE_LOSS, rel=1e-5)


def all_time_major(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return a batch in which no tensor has the sample first."""
    batch = time_major(rows)
    return {**batch, "labels": batch["labels"][None]}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_counts_samples_of_batches_without_a_leading_sample_axis(workers: int, tmp_path: Path):
    args = {"per_device_eval_batch_size": BATCH, "dataloader_num_workers": workers}
    run = regression_trainer(tmp_path, Model("rows"), args=args, data_collator=all_time_major)
    output = run.evaluation_loop(run.get_test_dataloader(Stream()), "Prediction")
    assert output.num_samples == ROWS * max(1, workers)  # each worker reads the whole stream
    assert output.metrics["eval_loss"] == pytest.approx(TRUE_LOSS, rel=1e-5)


def test_a_stream_of_whole_batches_counts_their_rows(tmp_path: Path):
    class Batches(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            rows = data()
            return (torch.utils.data.default_collate(rows[i : i + BATCH]) for i in range(0, ROWS, BATCH))

    args = {"per_device_eval_batch_size": 1}
    run = regression_trainer(tmp_path, Model("rows"), args=args, data_collator=lambda samples: samples[0])
    output = run.evaluation_loop(run.get_test_dataloader(Batches()), "Prediction")
    assert output.num_samples == ROWS
    assert output.metrics["eval_loss"] == pytest.approx(TRUE_LOSS, rel=1e-5)


def test_metrics_by_batch_receive_all_entries(tmp_path: Path):
    seen = []

    def metrics(prediction: Any, compute_result: bool) -> dict[str, float]:
        seen.append(len(prediction.predictions))
        return {"entries": sum(seen)}

    run = regression_trainer(
        tmp_path,
        Model("tokens"),
        compute_metrics=metrics,
        args={"per_device_eval_batch_size": BATCH, "batch_eval_metrics": True},
    )
    assert run.evaluate(data())["eval_entries"] == ROWS * TIME


def test_training_counts_samples_of_time_major_batches(tmp_path: Path):
    run = regression_trainer(
        tmp_path,
        Model(),
        train_dataset=data(),
        data_collator=time_major,
        args={"per_device_train_batch_size": BATCH, "num_train_epochs": 2},
    )
    run.train()
    assert run.state.samples_seen == 2 * ROWS


def as_they_are(batches: list[Any]) -> list[Any]:
    return batches


def every_second(batches: list[Any]) -> list[Any]:
    return batches[::2]


def copied(batches: list[Any]) -> list[Any]:
    return [{**batch, "x": batch["x"] + 0} for batch in batches]


def cut(batches: list[Any]) -> list[Any]:
    return [{"x": batch["x"][:, :2], "labels": batch["labels"][:2]} for batch in batches]


@pytest.mark.parametrize(("change", "seen"), [(as_they_are, ROWS), (every_second, 24), (copied, ROWS), (cut, 12)])
def test_training_counts_samples_of_an_override_of_get_batch_samples(change: Any, seen: int, tmp_path: Path):
    class Changed(Trainer):
        def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
            batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
            return change(batches), items

    args = {"per_device_train_batch_size": BATCH, "num_train_epochs": 1, "gradient_accumulation_steps": 2}
    collate = time_major if change is cut else all_time_major  # the labels of the first show how many samples are left
    run = regression_trainer(tmp_path, Model(), args=args, train_dataset=data(), data_collator=collate, kind=Changed)
    run.train()
    assert run.state.samples_seen == seen


@pytest.mark.parametrize("resumes", [False, True])
def test_training_counts_samples_of_a_plain_loader_of_the_user(resumes: bool, tmp_path: Path):
    class Own(Trainer):
        def get_train_dataloader(self) -> Any:
            return DataLoader(data(), BATCH, collate_fn=all_time_major)

    def trained(folder: str, **options: Any) -> Any:
        args = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3, "per_device_train_batch_size": BATCH}
        run = regression_trainer(tmp_path / folder, Model(), args=args, kind=Own)
        run.train(**options)
        return run.state.samples_seen

    assert trained("run") == 2 * ROWS
    if resumes:
        assert trained("resumed", resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3")) == 2 * ROWS


def test_grouped_predictions_with_several_entries_return_to_the_order_of_the_dataset():
    from trainbus.engine.evaluation.gathering import first_rows

    order = [2, 0, 1, 0]  # the last row fills up a batch
    array = np.array([20, 21, 0, 1, 10, 11, 0, 1])
    assert first_rows(array, 3, order, of=4).tolist() == [0, 1, 10, 11, 20, 21]


def test_entries_that_belong_to_no_row_are_kept_and_reported(caplog: pytest.LogCaptureFixture):
    from trainbus.engine.evaluation.gathering import first_rows

    array = np.arange(7)
    assert first_rows(array, 3, None, of=4) is array
    assert "Which entries belong to which sample is unknown" in caplog.text
