"""The traceback of an error of this library shows the lines of the user and the line that raised it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support.data import points
from support.models import Regression
from support.trainers import regression_trainer
from trainbus import Trainer
from trainbus.events import ArgumentError, Callback, DataError, ModelError


class Unknown(Regression):
    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> Any:
        return super().forward(pixels, labels)


class Stops(Callback):
    def on_step_begin(self) -> None:
        raise DataError("of a callback")


ERRORS: dict[str, tuple[Callable[[Path], Any], type[Exception]]] = {
    "construction": (lambda folder: regression_trainer(folder, criterion="mse"), ArgumentError),
    "training": (lambda folder: regression_trainer(folder, Unknown()).train(), ModelError),
    "evaluation": (lambda folder: regression_trainer(folder, Unknown()).evaluate(points(4)), ModelError),
    "prediction": (lambda folder: regression_trainer(folder, Unknown()).predict(points(4)), ModelError),
    "callback": (lambda folder: regression_trainer(folder, callbacks=[Stops()]).train(), DataError),
}


def frames(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize(("fails", "kind"), ERRORS.values(), ids=ERRORS)
def test_the_traceback_has_the_lines_of_the_user_and_one_that_raised(fails, kind, tmp_path, monkeypatch):
    monkeypatch.delenv("TRAINBUS_FULL_TRACEBACKS", raising=False)
    with pytest.raises(kind) as caught:
        fails(tmp_path)
    tests = str(Path(__file__).parent.parent)
    inside = [name for name in frames(caught.value) if not name.startswith(tests)]
    assert [Path(name).name for name in inside if "tracebacks" in name] == ["tracebacks.py"]
    assert len(inside) <= 2
    if caught.value.__cause__ is not None:
        assert len(frames(caught.value.__cause__)) <= 2


def test_the_environment_variable_keeps_the_traceback(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINBUS_FULL_TRACEBACKS", "1")
    with pytest.raises(ModelError) as caught:
        regression_trainer(tmp_path, Unknown()).train()
    assert len(frames(caught.value)) > 8


def test_the_whole_traceback_is_logged_at_level_debug(tmp_path, caplog, monkeypatch):
    monkeypatch.delenv("TRAINBUS_FULL_TRACEBACKS", raising=False)
    with caplog.at_level(logging.DEBUG, "trainbus"), pytest.raises(ModelError):
        regression_trainer(tmp_path, Unknown()).train()
    assert "objective.py" in caplog.text


def test_errors_of_the_user_keep_their_traceback(tmp_path):
    class Fails(Regression):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        regression_trainer(tmp_path, Fails()).train()
    assert len(frames(caught.value)) > 8


def test_a_subclass_keeps_the_frames_of_its_own_methods(tmp_path, monkeypatch):
    monkeypatch.delenv("TRAINBUS_FULL_TRACEBACKS", raising=False)

    class Own(Trainer):
        def training_step(self, *given: Any, **more: Any) -> Any:
            return super().training_step(*given, **more)

    run = regression_trainer(tmp_path, Unknown())
    run.__class__ = Own
    with pytest.raises(ModelError) as caught:
        run.train()
    assert "training_step" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
