"""Showing how far a run is: bars on a terminal, plain lines elsewhere, nothing on other processes."""

from __future__ import annotations

import functools
import re
import sys

import pytest
import torch
import tqdm as tqdm_package

from support.callbacks import Boom, stop_at
from support.data import net_samples
from support.trainers import net_trainer
from trainbus import Checkpoint, Evaluate, Log, Progress, Stage, TrainerState, every
from trainbus.callbacks.monitor.progress import in_one_line


@pytest.fixture(autouse=True)
def _bars_whatever_the_environment_says(monkeypatch):
    monkeypatch.setattr("tqdm.auto.tqdm", functools.partial(tqdm_package.tqdm, disable=False, mininterval=0))


def test_prints_lines_where_there_is_no_terminal(tmp_path, capsys):
    net_trainer(tmp_path, Progress(), Log(every(3))).train()
    out, err = capsys.readouterr()
    assert re.search(r"^step 3/6  epoch 0\.75  loss [\d.]+  grad_norm [\d.]+  learning_rate 0\.03333$", out, re.M)
    assert re.search(r"^step 6/6  epoch 1\.5  train_runtime ", out, re.M)
    assert err == ""


def test_draws_bars_if_requested(tmp_path, capsys):
    net_trainer(tmp_path, Progress(bar=True), Log(every(3)), Evaluate(every(3))).train()
    out, err = capsys.readouterr()
    assert "6/6" in err
    assert err.count("1/1") >= 2, "a bar for each evaluation, of one batch"
    assert re.search(r"^step 3/6 .* loss ", out, re.M), "what is logged is written above the bar"


def test_draws_bars_on_a_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert Progress().draws
    assert not Progress(bar=False).draws
    net_trainer(tmp_path, Progress()).train()
    assert "6/6" in capsys.readouterr().err


def test_draws_a_bar_over_a_prediction(tmp_path, capsys):
    built = net_trainer(tmp_path, Progress(bar=True))
    built.predict(net_samples(24))
    assert "3/3" in capsys.readouterr().err


def test_a_prediction_during_a_run_has_its_own_bar(tmp_path, capsys):
    built = net_trainer(tmp_path, Progress(bar=True), Evaluate(every(4)))
    built.on("on_step_end", lambda: built.predict(net_samples(24)), once=2)
    built.train()
    err = capsys.readouterr().err
    assert "3/3" in err
    assert "1/1" in err
    assert "4/3" not in err


def test_says_why_the_run_stopped(tmp_path, capsys):
    built = net_trainer(tmp_path, Progress())
    built.on("on_step_end", stop_at(3))
    built.train()
    assert "Training stopped at step 3 by interrupt: interrupted by the test.\n" in capsys.readouterr().out
    built = net_trainer(tmp_path, Progress())
    built.train()
    assert "Training stopped at step 6 by StopAtMaxSteps: all 6 steps are done.\n" in capsys.readouterr().out


@pytest.mark.parametrize("bar", [True, False])
def test_is_quiet_on_other_processes(tmp_path, capsys, bar):
    built = net_trainer(tmp_path, Progress(bar=bar), Log(every(1)), Evaluate(every(2)))

    def be_another(state):
        state.is_world_process_zero = False

    built.on("on_train_begin", be_another, stage=Stage.PREPARE)
    built.train()
    assert capsys.readouterr() == ("", "")


def test_a_resumed_run_begins_where_it_was(tmp_path, capsys):
    broken = net_trainer(tmp_path, Checkpoint(every(4)))
    broken.on("on_step_end", stop_at(4))
    broken.train()
    capsys.readouterr()
    net_trainer(tmp_path, Progress(bar=True), Checkpoint(every(4))).train(resume_from_checkpoint=True)
    err = capsys.readouterr().err
    assert "4/6" in err
    assert "6/6" in err
    assert "3/6" not in err


def test_no_bar_stays_open_after_a_failure(tmp_path):
    callback = Progress(bar=True)
    built = net_trainer(tmp_path, callback, Evaluate(every(2)))

    def fail():
        raise Boom

    built.on("on_prediction_step", fail, stage=Stage.RELEASE)
    with pytest.raises(Boom):
        built.train()
    assert callback._bars == {}
    assert not list(getattr(tqdm_package.tqdm, "_instances", ()))


@pytest.mark.parametrize(("disable", "expected"), [(True, False), (False, True), (None, None)])
def test_arguments_build_the_callback(tmp_path, disable, expected):
    args = net_trainer(tmp_path, Progress(), disable_tqdm=None).args
    args.disable_tqdm = disable
    assert Progress.from_arguments(args) == Progress(bar=expected)


def test_values_of_any_kind_stay_in_one_line():
    state = TrainerState(global_step=7, max_steps=20, epoch=1.0)
    logs = {"loss": torch.tensor(0.25), "image": torch.zeros(3, 2), "text": "a\nb", "long": "x" * 300}
    line = in_one_line(logs, state)
    assert line == f"step 7/20  epoch 1  loss 0.25  image Tensor[3, 2]  text a b  long {'x' * 100}..."


def test_a_log_is_printed_in_one_line():
    state = TrainerState(global_step=7, max_steps=20, epoch=1.23456)
    logs = {"loss": 0.123456789, "epoch": 1.23456, "total_flos": 1e12, "note": "fine", "count": 12345678}
    assert in_one_line(logs, state) == "step 7/20  epoch 1.235  loss 0.1235  note fine  count 12345678"
