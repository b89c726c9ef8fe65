"""`resume_from_checkpoint="auto"`: resume if there is any checkpoint, else start fresh."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.checkpoints import GONE, chosen, commit, flip, names_in, saving, stage
from support.outcomes import same_weights, weights
from trainbus.events.errors import CheckpointError


def test_an_empty_folder_starts_a_new_run(tmp_path: Path) -> None:
    assert chosen(tmp_path / "nowhere", "auto") is None
    tmp_path.joinpath("runs").mkdir()
    assert chosen(tmp_path, "auto") is None


def test_an_unfinished_first_save_is_no_checkpoint(tmp_path: Path) -> None:
    stage(tmp_path, 2, pid=GONE)
    assert chosen(tmp_path, "auto") is None


def test_it_loads_the_newest_good_checkpoint(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    commit(tmp_path, 2)
    flip(commit(tmp_path, 3) / "model.json")
    assert chosen(tmp_path, "auto") == tmp_path / "checkpoint-2"
    assert chosen(tmp_path, "auto") == chosen(tmp_path, True)


def test_where_all_are_damaged_it_is_an_error(tmp_path: Path) -> None:
    flip(commit(tmp_path, 3) / "model.json")
    with pytest.raises(CheckpointError, match=r"checkpoint-3: model\.json"):
        chosen(tmp_path, "auto")


def test_a_checkpoint_under_replacement_counts_as_present(tmp_path: Path) -> None:
    committed = commit(tmp_path, 2)
    os.rename(committed, tmp_path / f".tmp-checkpoint-2-run-{GONE}-replaced")
    assert chosen(tmp_path, "auto") == committed
    assert names_in(tmp_path) == ["checkpoint-2"]


def test_one_command_reaches_the_same_end_after_any_number_of_restarts(tmp_path: Path) -> None:
    unbroken = saving(tmp_path / "unbroken", 6)
    unbroken.train()
    for seed, step in ((0, 2), (5, 4)):  # the weights that a later session begins with are not those it goes on with
        run = saving(tmp_path / "broken", 6, seed=seed)
        run.on("on_step_end", lambda: 1 / 0, once=step)
        with pytest.raises(ZeroDivisionError):
            run.train(resume_from_checkpoint="auto")
    run = saving(tmp_path / "broken", 6, seed=9)
    run.train(resume_from_checkpoint="auto")
    assert run.state.global_step == 6
    assert same_weights(weights(run.model), weights(unbroken.model))
