"""What a resume does with the states of callbacks: restored, migrated, orphaned, new."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, ClassVar

import pytest

from support.trainers import net_trainer
from trainbus import EMA, Callback, Checkpoint, every
from trainbus.events import CheckpointError


class Counter(Callback):
    """Counts steps."""

    def __init__(self, id: str = "counter") -> None:
        self.id, self.count = id, 0

    def on_step_end(self) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Counter2(Counter):
    """The same with another form of its state, and the name of the first."""

    state_version: ClassVar[int] = 3
    seen: Any = None

    def state_dict(self) -> dict[str, Any]:
        return {"steps": {"done": self.count}}

    def migrate(self, state: dict[str, Any], from_version: int) -> dict[str, Any]:
        assert from_version == 1
        return {"steps": {"done": state["count"]}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.count = state, state["steps"]["done"]


Counter2.__name__ = "Counter"


class Failing(Counter2):
    """One whose migration fails, or returns no state."""

    result: ClassVar[Any] = None

    def migrate(self, state: dict[str, Any], from_version: int) -> dict[str, Any]:
        return self.result if self.result is not None else state["gone"]


Failing.__name__ = "Counter"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of step 3 with the states of two counters."""
    folder = tmp_path_factory.mktemp("run")
    net_trainer(folder, Checkpoint(every(3)), Counter(), Counter("other")).train()
    return folder / "checkpoint-3"


def resumed(saved: Path, folder: Path, *callbacks: Callback) -> Any:
    trainer = net_trainer(folder, *callbacks)
    trainer.train(resume_from_checkpoint=str(saved))
    return trainer


def test_the_report_lists_restored_migrated_orphaned_and_new_states(saved: Path, tmp_path: Path, caplog: Any) -> None:
    ema, mine = EMA(0.5), Counter2()
    with caplog.at_level(logging.INFO, logger="trainbus"):
        trainer = resumed(saved, tmp_path, mine, ema)
    report = trainer.resume_report
    assert report.to_dict() == {
        "restored": ["Evaluate", "Checkpoint"],
        "migrated": {"counter": [1, 3]},
        "orphaned": ["other"],
        "new": ["EMA"],
    }
    assert mine.seen == {"steps": {"done": 3}}
    assert mine.count == 6
    [line] = [each.getMessage() for each in caplog.records if "Callback states" in each.getMessage()]
    told = "restored: Evaluate, Checkpoint; migrated: counter (version 1 to 3); orphaned: other; new: EMA"
    assert line == f"Callback states, {told}"
    assert not [each for each in caplog.records if "has version" in each.getMessage()], "migrate needs no warning"


def test_the_report_lists_restored_states(saved: Path, tmp_path: Path, caplog: Any) -> None:
    trainer = resumed(saved, tmp_path, Counter(), Counter("other"))
    assert trainer.resume_report.restored == ["Evaluate", "Checkpoint", "counter", "other"]
    assert str(trainer.resume_report) == "restored: Evaluate, Checkpoint, counter, other"
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="trainbus"):
        trainer.train()
    assert "starts at the resumed step" not in caplog.text, "a fresh run has no checkpoint"
    assert str(trainer.resume_report) == "none", "a fresh run resumes nothing"


@pytest.mark.parametrize(("result", "says"), [(None, "KeyError: 'gone'"), ([1], "returned a list")])
def test_a_migration_that_fails_is_an_error(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: Any, says: str
) -> None:
    monkeypatch.setattr(Failing, "result", result)
    with pytest.raises(CheckpointError, match=f"counter.migrate .*{says}"):
        resumed(saved, tmp_path, Failing())
