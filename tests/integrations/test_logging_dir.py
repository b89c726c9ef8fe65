"""A `logging_dir` alone writes TensorBoard's event files."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainbus import Trainer, TrainingArguments

pytest.importorskip("tensorboard")


@pytest.mark.parametrize(("given", "trackers"), [({}, ["tensorboard"]), ({"report_to": "none"}, [])])
def test_logging_dir_selects_tensorboard_unless_report_to_is_given(given: dict, trackers: list, tmp_path: Path) -> None:
    assert TrainingArguments(logging_dir=str(tmp_path), **given).trackers == trackers
    assert TrainingArguments().report_to == []
    assert Trainer is not None
