"""A loss that was NaN and that nothing dealt with is in the closing line and in the status file."""

from __future__ import annotations

import json

import pytest

from support.callbacks import Poison
from support.trainers import net_trainer
from trainbus import Checkpoint, NaNGuard, Progress, StatusFile, every

NOTE = "The training loss was NaN or infinite"


@pytest.mark.parametrize(
    ("options", "since"),
    [
        ({"logging_steps": 1}, ", first seen at step 3:"),
        ({"logging_steps": 4}, ", first seen at step 4:"),
        ({"logging_strategy": "no"}, ":"),
        ({"logging_steps": 1, "logging_nan_inf_filter": True}, ", first seen at step 3:"),
    ],
)
def test_the_closing_line_and_the_status_say_so(options, since, tmp_path, capsys):
    net_trainer(tmp_path, Poison(3), Progress(bar=False), StatusFile(), **options).train()
    assert f"all 6 steps are done. {NOTE}{since} the weights may be NaN." in capsys.readouterr().out
    assert NOTE in json.loads((tmp_path / "run_status.json").read_text())["reason"]


def test_a_resumed_run_remembers_it(tmp_path, capsys):
    options = {"logging_steps": 1, "logging_nan_inf_filter": True}
    net_trainer(tmp_path, Poison(2), Checkpoint(every(1)), max_steps=3, **options).train()
    capsys.readouterr()
    resumed = net_trainer(tmp_path, Checkpoint(every(1)), Progress(bar=False), **options)
    resumed.train(resume_from_checkpoint=True)
    assert f"{NOTE}, first seen at step 2:" in capsys.readouterr().out


@pytest.mark.parametrize("callbacks", [[], [Poison(3), NaNGuard("skip")]], ids=["finite", "guarded"])
def test_finite_or_guarded_runs_print_no_note(callbacks, tmp_path, capsys):
    net_trainer(tmp_path, *callbacks, Progress(bar=False)).train()
    assert NOTE not in capsys.readouterr().out
