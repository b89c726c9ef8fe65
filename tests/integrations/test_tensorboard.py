"""What TensorBoard's own reader finds in the event files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Log, Trainer, TrainingArguments, every

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from trainbus import TensorBoard
from trainbus.callbacks.base.row_tracker import Outcome
from trainbus.callbacks.base.tracker_rows import AXIS
from trainbus.integrations import tensorboard
from trainbus.integrations.tensorboard import TensorBoardSession


def no_space(*_):
    raise OSError(28, "No space left on device")


def train(folder, tracker):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(16, 4), torch.zeros(16, dtype=torch.long))
    args = TrainingArguments(str(folder), max_steps=4, use_cpu=True, disable_tqdm=True, save_strategy="no")
    trainer = Trainer(
        nn.Linear(4, 2),
        args,
        train_dataset=data,
        criterion=nn.CrossEntropyLoss(),
        callbacks=[Log(every(2)), tracker],
    )

    def more(run, state):
        if state.global_step == 2:
            image, weights = torch.rand(3, 5, 6), torch.randn(100)
            run.log({"sample": image, "weights": weights, "note": "a text", "nested": {"x": 1.5}})
            run.log({"empty": torch.zeros(0), "imaginary": 1j, "flag": np.bool_(True), "one": torch.ones(1, 1), "z": 2})

    trainer.on("on_step_end", more)
    trainer.train()
    trainer.end()
    return trainer


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensorboard")
    train(folder, TensorBoard(hparams={"width": 2}, metrics=("eval/f1",)))
    return EventAccumulator(str(folder / "runs")).Reload()


def text_of(events, tag):
    [event] = events.Tensors(f"{tag}/text_summary")
    return event.tensor_proto.string_val[0].decode()


def test_numbers_are_scalars_on_the_axis_of_steps(found):
    assert [event.step for event in found.Scalars("train/loss")] == [2, 4]
    assert [event.value for event in found.Scalars("train/global_step")] == [2.0, 4.0]
    assert found.Scalars("train/nested/x")[0].value == 1.5
    assert found.Scalars("train/train_loss")[0].step == 4


def test_text_images_and_histograms_have_their_pages(found):
    assert text_of(found, "train/note") == "a text"
    [image] = found.Images("train/sample")
    assert (image.step, image.height, image.width) == (2, 5, 6)
    [histogram] = found.Histograms("train/weights")
    assert histogram.histogram_value.num == 100
    assert '"max_steps": 4' in text_of(found, "arguments")
    assert "all 4 steps are done" in text_of(found, "train/stopped")


def test_a_value_that_cannot_be_shown_leaves_the_rest_of_its_row(found):
    shown = {name: [event.value for event in found.Scalars(f"train/{name}")] for name in ("flag", "one", "z")}
    assert shown == {"flag": [1.0], "one": [1.0], "z": [2.0]}
    assert not {"train/empty", "train/imaginary"} & {*found.Tags()["scalars"], *found.Tags()["histograms"]}


def test_hyperparameters_and_the_layout_of_charts_are_written(found):
    metadata = found.SummaryMetadata("_hparams_/session_start_info").plugin_data
    assert metadata.plugin_name == "hparams"
    assert b"width" in metadata.content
    assert b"eval/f1" in found.SummaryMetadata("_hparams_/experiment").plugin_data.content
    [layout] = found.Tensors("custom_scalars__config__")
    assert b"eval/loss" in layout.tensor_proto.string_val[0]


def test_a_second_run_in_the_folder_has_a_folder_of_its_own(tmp_path):
    for _ in range(2):
        train(tmp_path, TensorBoard(str(tmp_path / "logs")))
    for folder in (tmp_path / "logs", tmp_path / "logs" / "run-2"):
        files = list(folder.glob("events.out.tfevents.*"))
        assert len(files) == 1
    second = EventAccumulator(str(tmp_path / "logs" / "run-2")).Reload()
    assert [event.step for event in second.Scalars("train/loss")] == [2, 4]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_rows_are_written_again_after_a_full_disk(tmp_path, monkeypatch):
    session = TensorBoardSession(SummaryWriter(str(tmp_path)), "r")
    session.write({"loss": 1.0, AXIS: 1}, 1)
    with monkeypatch.context() as full:
        full.setattr("tensorboard.summary.writer.record_writer.RecordWriter.write", no_space)
        full.setattr(tensorboard, "_check_space", no_space)
        for _ in range(3):
            with pytest.raises(OSError):
                session.write({"loss": 2.0, AXIS: 2}, 2)
    assert len(list(tmp_path.iterdir())) == 1
    session.write({"loss": 2.0, AXIS: 2}, 2)
    session.finish(Outcome())
    found = EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [(1, 1.0), (2, 2.0)]
