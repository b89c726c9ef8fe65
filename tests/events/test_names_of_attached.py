"""Wrong names in calls on a trainer, its control and its ledger: an error that names the nearest name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.data import points
from support.models import Regression
from support.trainers import regression_trainer
from trainbus import EarlyStopping
from trainbus.events.control import TrainerControl
from trainbus.events.errors import ArgumentError, UnknownArgument, UnknownCallback


@pytest.fixture
def trainer(tmp_path: Path) -> Any:
    return regression_trainer(tmp_path, Regression(), train_dataset=points(8), callbacks=[EarlyStopping("loss")])


def test_an_unknown_id_names_the_nearest_and_all(trainer: Any) -> None:
    with pytest.raises(UnknownCallback) as error:
        trainer.callbacks["EarlyStoping"]
    assert str(error.value).startswith(
        "No callback with the id 'EarlyStoping' is attached; did you mean 'EarlyStopping'?"
    )
    assert "Attached are: " in str(error.value)
    with pytest.raises(KeyError):
        trainer.callbacks["EarlyStoping"]
    assert trainer.callbacks.get("EarlyStoping") is None
    assert "EarlyStoping" not in trainer.callbacks
    assert isinstance(trainer.callbacks["EarlyStopping"], EarlyStopping)


@pytest.mark.parametrize("method", ["request", "veto", "withdraw"])
def test_an_unknown_keyword_of_the_control(method: str) -> None:
    with pytest.raises(UnknownArgument, match=rf"{method}\(\) takes no 'reson'; did you mean 'reason'\?"):
        getattr(TrainerControl(), method)("save", reson="why")


@pytest.mark.parametrize("method", ["add_callback", "remove_callback", "pop_callback"])
def test_an_unknown_keyword_of_the_callback_methods(method: str, trainer: Any) -> None:
    call: Callable[..., Any] = getattr(trainer, method)
    with pytest.raises(UnknownArgument, match=rf"{method}\(\) takes no 'stage'"):
        call(EarlyStopping, stage=1)


def test_an_unknown_flag_of_the_ledger() -> None:
    ledger = TrainerControl().ledger
    with pytest.raises(ArgumentError, match="no flag 'sav'; did you mean 'save'"):
        ledger.of("sav")
    assert ledger.of("save") == ledger.of("callback") == []
