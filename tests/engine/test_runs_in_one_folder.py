"""Two runs in one output folder: a resume continues the run that began last, or says which other run it continues."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import chosen, commit, flip, saving
from trainbus import get_last_checkpoint
from trainbus.engine.commands.main import main
from trainbus.events.errors import CheckpointError


def begun(folder: Path, run_id: str) -> None:
    """Write the status file of a run that began last."""
    (folder / "run_status.json").write_text(json.dumps({"status": "running", "run_id": run_id}))


def status_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run_status.json").read_text())
    return found


def two_runs(folder: Path) -> None:
    """Write checkpoint-2 of the run `last`, and later checkpoint-9 of the run `other`."""
    commit(folder, 2, "last", time=1000.0)
    commit(folder, 9, "other", time=2000.0)


@pytest.mark.parametrize("wanted", [True, "auto"])
def test_the_run_that_began_last_comes_first(
    wanted: bool | str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two_runs(tmp_path)
    assert chosen(tmp_path, wanted) == tmp_path / "checkpoint-9"
    begun(tmp_path, "last")
    assert chosen(tmp_path, wanted) == tmp_path / "checkpoint-2"
    assert get_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
    assert not caplog.records


@pytest.mark.parametrize("wanted", [True, "auto"])
@pytest.mark.parametrize("damaged", [True, False])
def test_without_a_good_checkpoint_of_it_a_warning_names_both_runs(
    wanted: bool | str, damaged: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two_runs(tmp_path)
    begun(tmp_path, "last" if damaged else "killed")
    if damaged:
        flip(tmp_path / "checkpoint-2" / "model.json")
    assert chosen(tmp_path, wanted) == tmp_path / "checkpoint-9"
    said = caplog.records[-1].getMessage()
    assert f"is {'last' if damaged else 'killed'}, and it has no good checkpoint" in said
    assert "checkpoint-9 of another run, other. To start fresh" in said


@pytest.mark.parametrize("content", ["", "[]", '{"run_id": 3}', '{"status": "done"}', "\xff"])
def test_a_status_file_without_a_run_is_ignored(content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    two_runs(tmp_path)
    (tmp_path / "run_status.json").write_bytes(content.encode("latin-1"))
    assert chosen(tmp_path, "auto") == tmp_path / "checkpoint-9"
    assert not caplog.records


def test_a_killed_run_without_a_save_does_not_resume_another_run_unnoticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    saving(tmp_path, 4).train()
    first = status_in(tmp_path)
    assert first["resume_from"] == str(tmp_path / "checkpoint-4")
    killed: dict[str, Any] = {}
    again = saving(tmp_path, 4)
    again.on("on_step_end", lambda: killed.update(status_in(tmp_path)), once=1)
    again.train()
    assert (killed["status"], killed["resume_from"]) == ("running", None)
    assert killed["run_id"] not in ("", first["run_id"])

    fresh = tmp_path / "second"
    first_run = saving(fresh, 4)
    first_run.train()
    (fresh / "run_status.json").write_text(json.dumps({**killed, "pid": 2**22 + 1}))
    assert main(["status", str(fresh)]) == 0
    shown = capsys.readouterr().out
    assert "It has no checkpoint, so start it again" in shown
    assert "resume from" not in shown.lower().replace("`resume_from_checkpoint`", "")
    with caplog.at_level(logging.WARNING):
        saving(fresh, 4).train(resume_from_checkpoint="auto")
    assert f"is {killed['run_id']}, and it has no good checkpoint" in caplog.text
    assert first_run.run.run_id in caplog.text


def test_the_status_of_a_resumed_run_names_the_loaded_checkpoint_until_its_first_save(tmp_path: Path) -> None:
    saving(tmp_path / "a", 2).train()
    seen: list[Any] = []
    resumed = saving(tmp_path / "b", 4)
    resumed.on("on_step_end", lambda: seen.append(status_in(tmp_path / "b")["resume_from"]))
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    assert seen[0] == str(tmp_path / "a" / "checkpoint-2")
    assert status_in(tmp_path / "b")["resume_from"] == str(tmp_path / "b" / "checkpoint-4")


def test_a_run_that_fails_before_it_begins_keeps_the_checkpoint_to_resume_from(tmp_path: Path) -> None:
    saving(tmp_path, 4).train()
    first = status_in(tmp_path)
    broken = saving(tmp_path, 6)
    broken.on("on_setup", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        broken.train(resume_from_checkpoint="auto")
    status = status_in(tmp_path)
    assert status["status"] == "failed"
    assert (status["resume_from"], status["run_id"]) == (first["resume_from"], first["run_id"])


def test_a_folder_without_checkpoints_starts_fresh(tmp_path: Path) -> None:
    begun(tmp_path, "killed")
    assert chosen(tmp_path, "auto") is None
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        chosen(tmp_path, True)
