"""Datasets of the library `datasets`: splits, files, streams, images, transforms, and columns that are dropped."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from support.data import points
from support.outcomes import same_weights, weights
from support.trainers import regression_trainer
from trainbus.engine.data.build import dropped_columns
from trainbus.events import ArgumentError, DataError

datasets = pytest.importorskip("datasets")
PIL_Image = pytest.importorskip("PIL.Image")


class Plane(nn.Module):
    """A linear model of two columns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, width: torch.Tensor, height: torch.Tensor, labels: torch.Tensor) -> Any:
        values = torch.stack([width, height], dim=1).float() @ self.weight
        return {"loss": ((values - labels) ** 2).mean(), "logits": values}


class Pixels(nn.Module):
    """Classifies images of 2 x 2 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 2)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.linear(pixel_values.float().flatten(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Images(Pixels):
    """Takes the column `image`."""

    def forward(self, image: torch.Tensor, labels: torch.Tensor) -> Any:
        return super().forward(image, labels)


TABLE = {
    "width": [float(row) for row in range(8)],
    "height": [row % 3 for row in range(8)],
    "label": [row / 4 for row in range(8)],
    "name": [f"row {row}" for row in range(8)],
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The folder with one table in three formats."""
    folder = tmp_path_factory.mktemp("tables")
    rows = datasets.Dataset.from_dict(TABLE)
    rows.to_csv(str(folder / "rows.csv"))
    rows.to_json(str(folder / "rows.json"))
    rows.to_parquet(str(folder / "rows.parquet"))
    return folder


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_load_dataset_reads_rows_that_train_to_the_weights_of_the_table(tables, kind, streaming, tmp_path):
    options = {"split": "train", "streaming": streaming, "cache_dir": str(tmp_path / "cache")}
    loaded = datasets.load_dataset(kind, data_files=str(tables / f"rows.{kind}"), **options)
    ends = []
    for rows in (loaded, datasets.Dataset.from_dict(TABLE)):
        args = {"max_steps": 4, "train_sampling_strategy": "sequential", "learning_rate": 0.01}
        trainer = regression_trainer(tmp_path, Plane(), train_dataset=rows, args=args)
        trainer.train()
        ends.append(weights(trainer.model))
    assert same_weights(*ends)
    assert ends[0]["weight"].abs().sum() > 0


def test_a_file_loaded_without_a_split_is_refused_with_the_split(tables, tmp_path):
    loaded = datasets.load_dataset("csv", data_files=str(tables / "rows.csv"), cache_dir=str(tmp_path / "cache"))
    text = r"`train_dataset` is a DatasetDict with the splits 'train'. Pass one of them, such as `data\['train'\]`"
    with pytest.raises(ArgumentError, match=text):
        regression_trainer(tmp_path, Plane(), train_dataset=loaded)
    trainer = regression_trainer(tmp_path, Plane(), train_dataset=loaded["train"])
    with pytest.raises(DataError, match="is a DatasetDict with the splits 'train'"):
        trainer.predict(loaded)


def test_splits_are_evaluated_by_name(tmp_path):
    rows = datasets.Dataset.from_dict(TABLE)
    splits = datasets.DatasetDict(validation=rows, test=rows.select(range(4)))
    trainer = regression_trainer(tmp_path, Plane(), train_dataset=rows, eval_dataset=splits)
    measured = trainer.evaluate()
    assert {"eval_validation_loss", "eval_test_loss"} <= measured.keys()
    assert trainer.evaluate("test")["eval_test_loss"] == measured["eval_test_loss"]
    stream = datasets.IterableDatasetDict(train=rows.to_iterable_dataset(), test=rows.to_iterable_dataset())
    with pytest.raises(ArgumentError, match="is a IterableDatasetDict with the splits 'train', 'test'"):
        regression_trainer(tmp_path, Plane(), train_dataset=stream)


# Columns.


def dropped_messages(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if " drops the columns " in record.getMessage()]


def test_dropped_columns_are_logged_once_for_each_use(tmp_path, caplog):
    rows = datasets.Dataset.from_dict(TABLE)
    trainer = regression_trainer(
        tmp_path, Plane(), train_dataset=rows, eval_dataset=rows, args={"max_steps": 2, "log_level": "info"}
    )
    with caplog.at_level(logging.INFO, logger="trainbus"):
        trainer.train()
        trainer.evaluate()
        trainer.evaluate()
        found = dropped_messages(caplog)
    assert [text.partition(":")[0] for text in found] == [
        "Training drops the columns 'name'",
        "Evaluation drops the columns 'name'",
    ]
    assert "Set `remove_unused_columns=False`" in found[0]


def test_dropped_columns_are_known_without_reading_a_sample():
    rows = datasets.Dataset.from_dict(TABLE)
    accepted = ["width", "label"]
    for given in (rows, rows.to_iterable_dataset(), [dict.fromkeys(TABLE)]):
        assert dropped_columns(given, accepted) == ["height", "name"]
    for given in (rows.with_transform(dict), [], [torch.zeros(2)], points, rows.to_iterable_dataset().map(dict)):
        assert dropped_columns(given, accepted) == []


# Images and transforms.


@pytest.fixture(scope="module")
def images():
    """A dataset with a column of images, and columns that no model takes."""
    draw = np.random.default_rng(0)
    made = [PIL_Image.fromarray(draw.integers(0, 255, (2, 2, 3), dtype=np.uint8)) for _ in range(8)]
    rows = datasets.Dataset.from_dict({"image": made, "label": [0, 1] * 4, "idx": range(8)})
    return rows.cast_column("image", datasets.Image())


def to_pixels(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Replace images by tensors, as an image processor does."""
    pixels = [torch.from_numpy(np.array(image)).permute(2, 0, 1).float() for image in batch.pop("image")]
    return {**batch, "pixel_values": pixels}


@pytest.mark.parametrize("streaming", [False, True], ids=["map", "stream"])
def test_images_are_refused_with_the_remedy(images, streaming, tmp_path):
    rows = images.to_iterable_dataset() if streaming else images
    trainer = regression_trainer(tmp_path, Images(), train_dataset=rows, args={"max_steps": 1})
    text = r"The column 'image' holds values of type \w+, which do not stack.*with_transform.*with_format\('torch'\)"
    with pytest.raises(DataError, match=text):
        trainer.train()


def test_a_transform_receives_the_columns_that_the_model_does_not_take(images, tmp_path):
    ends = []
    stacked = [to_pixels({"image": [row["image"]], "labels": row["label"]}) for row in images]
    in_memory = [{"pixel_values": row["pixel_values"][0], "labels": row["labels"]} for row in stacked]
    for model, rows in (
        (Images, images.with_format("torch")),
        (Pixels, images.with_transform(to_pixels)),
        (Pixels, in_memory),
    ):
        torch.manual_seed(0)
        trainer = regression_trainer(tmp_path, model(), train_dataset=rows, args={"learning_rate": 1e-4})
        trainer.train()
        ends.append(weights(trainer.model))
    assert same_weights(ends[0], ends[2])
    assert same_weights(ends[1], ends[2])


def test_a_stream_that_maps_images_to_tensors_trains(images, tmp_path):
    rows = images.to_iterable_dataset().map(to_pixels, batched=True, remove_columns=["image"])
    trainer = regression_trainer(tmp_path, Pixels(), train_dataset=rows, args={"max_steps": 2})
    assert trainer.train().global_step == 2


def test_a_column_of_sounds_that_the_model_does_not_take_is_not_decoded(tmp_path):
    sound = {"bytes": b"no sound", "path": None}
    rows = datasets.Dataset.from_dict({**TABLE, "audio": [sound] * 8}).cast_column("audio", datasets.Audio())
    assert regression_trainer(tmp_path, Plane(), train_dataset=rows, args={"max_steps": 2}).train().global_step == 2
