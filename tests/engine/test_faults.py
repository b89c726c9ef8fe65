"""What is said of processes that failed, hang or are gone, and how that is found out."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from engine_toys import points, trainer

from trainbus.engine.distributed import failures as faults
from trainbus.engine.distributed.consensus import agree_single_process, agreement
from trainbus.engine.distributed.consistency import first_difference, named
from trainbus.engine.distributed.failures import (
    PLACES,
    Peer,
    Report,
    explanation,
    in_a_line,
    watch_over,
    where,
    within,
)
from trainbus.events.control import TrainerControl

MINE = Report(0, "backward of step 5", "RuntimeError: closed", lost=True)


@pytest.mark.parametrize(
    ("heard", "silent", "waited", "said"),
    [
        (
            [Report(1, "forward of step 5", "ValueError: no rows.", lost=False)],
            {},
            None,
            "Rank 1 failed in forward of step 5: ValueError: no rows. Meanwhile rank 0 was waiting in backward of step",
        ),
        (
            [Report(1, "forward of step 5", "ValueError: a", lost=False), Report(2, "a save", "E: b", lost=True)],
            {3: True},
            None,
            "Rank 1 failed in forward of step 5: ValueError: a. Meanwhile rank 0 was waiting in backward of step 5.",
        ),
        ([Report(1, "x", "E: a", lost=True)], {2: False, 3: True}, None, "Rank 2 is gone without a word (killed"),
        ([], {1: False, 2: False}, None, "Ranks 1 and 2 are gone without a word (killed"),
        (
            [],
            {1: True},
            20,
            "Rank 1 left no word and lives: it may hang, while rank 0 was waiting in backward of step 5,",
        ),
        ([], {1: True, 2: True}, 20, "Ranks 1 and 2 left no word and live: they may hang, while"),
        ([], {1: None}, None, "Rank 1 left no word: it was killed or hangs, while"),
        ([], {1: None, 2: True}, None, "Ranks 1 and 2 left no word: they were killed or hang, while"),
        (
            [Report(1, "a save after step 4", "RuntimeError: closed", lost=True)],
            {},
            None,
            "The processes lost each other: rank 1 had given up in a save after step 4, and rank 0 was waiting in",
        ),
    ],
)
def test_what_became_of_the_others_is_said(heard, silent, waited, said):
    text = explanation(MINE, {report.rank: report for report in heard}, silent, waited)
    assert text.startswith(said)
    assert ("20 seconds that `ddp_timeout` allows" in text) == (waited == 20)


def test_a_process_is_alive_until_it_ends_even_if_nobody_asked_for_its_end():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    peer = Peer(Peer.here().machine, process.pid)
    assert peer.alive() is True
    process.stdin.close()
    deadline = time.monotonic() + 60
    while peer.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert peer.alive() is False  # it is not waited for yet, and so its number is still taken
    process.wait()
    assert peer.alive() is False
    assert Peer.here().alive() is True
    assert Peer("another machine", os.getpid()).alive() is None


def test_what_takes_too_long_or_fails_is_given_up():
    began = time.monotonic()
    assert within(30, lambda: "done", "otherwise") == "done"
    assert within(0.05, lambda: time.sleep(1), "otherwise") == "otherwise"
    assert within(30, lambda: 1 / 0, "otherwise") == "otherwise"
    assert time.monotonic() - began < 25


def test_every_place_is_a_function_that_there_is():
    for module, function in PLACES:
        source = Path(importlib.import_module(f"trainbus.engine.{module}").__file__).read_text()
        assert f"def {function}(" in source, f"{module} has no {function}"


def test_the_place_of_an_error_is_the_innermost_that_has_a_name(tmp_path):
    args = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1}
    run = trainer(tmp_path, args=args, eval_dataset=points(8))
    said = {}
    events = ("on_loss", "on_prediction_step", "on_step_end", "on_train_begin")
    for event in events:
        handle = run.on(event, lambda: 1 / 0, id="Boom")
        with pytest.raises(ZeroDivisionError) as raised:
            run.train()
        said[event] = where(raised.value, run.state.global_step)
        handle()
    assert said == {
        "on_loss": "Boom.on_loss after step 0",
        "on_prediction_step": "Boom.on_prediction_step after step 1",
        "on_step_end": "Boom.on_step_end after step 1",
        "on_train_begin": "Boom.on_train_begin after step 0",
    }
    run.model.forward = lambda **batch: 1 / 0
    with pytest.raises(ZeroDivisionError) as raised:
        run.train()
    assert where(raised.value, 0) == "forward of step 1"
    with pytest.raises(ZeroDivisionError) as raised:
        run.evaluate()
    assert where(raised.value, 7) == "an evaluation after step 7"
    assert where(ValueError("never raised"), 2) == "its program after step 2"


class Spoilt(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise ValueError("no row")


def test_an_error_of_a_worker_is_told_in_a_line():
    with pytest.raises(ValueError, match="Original Traceback") as raised:
        list(torch.utils.data.DataLoader(Spoilt(), num_workers=1))
    assert in_a_line(raised.value) == "ValueError: no row"
    assert in_a_line(ValueError("two\nlines")) == "ValueError: two\nlines"
    assert in_a_line(ValueError()) == "ValueError"


def test_the_place_of_an_error_that_explains_another_is_that_of_the_other(tmp_path):
    run = trainer(tmp_path)
    run.model.forward = lambda **batch: 1 / 0
    with pytest.raises(ZeroDivisionError) as raised:
        run.train()
    explained = ValueError("explained")
    explained.__cause__ = raised.value
    assert where(explained, 3) == "forward of step 4"


def test_a_single_process_watches_nobody_and_agrees_with_nobody(tmp_path, monkeypatch):
    run = trainer(tmp_path, args={"debug": "rank_divergence"}).run
    monkeypatch.setattr(type(run.ranks), "gather_objects", lambda *_: pytest.fail("there is nobody to talk to"))
    watch, error = watch_over(run), RuntimeError("gloo/transport: Connection closed by peer")
    assert type(watch) is faults.Watch
    watch.begin()
    assert watch.explain(error) is error
    assert agreement(run) is agree_single_process
    control = TrainerControl()
    control.request("save")
    agree_single_process(control)
    assert control.reasons("save") == {"you": ""}


@pytest.mark.parametrize(
    ("plans", "said"),
    [
        ([{"on_log": ["A", "B"]}, {"on_log": ["A"]}], "rank 0 has B in on_log, rank 1 has not"),
        ([{"on_log": ["A"]}, {"on_log": ["A"], "on_end": ["B"]}], "rank 1 has B in on_end, rank 0 has not"),
        ([{"on_log": ["A"]}, {"on_log": []}, {"on_log": ["A"]}], "ranks 0 and 2 have A in on_log, rank 1 has not"),
        ([{"on_log": []}, {"on_log": ["A"]}, {"on_log": []}], "rank 1 has A in on_log, ranks 0 and 2 have not"),
        (
            [{"on_log": ["A", "B", "C"]}, {"on_log": ["A", "C", "B"]}],
            "in on_log, rank 0 calls B where rank 1 calls C",
        ),
    ],
)
def test_the_first_difference_between_what_processes_hear_is_named(plans, said):
    assert first_difference(plans) == said


def test_ranks_are_named():
    assert [named([1]), named([0, 2]), named([0, 1, 5])] == ["rank 1", "ranks 0 and 2", "ranks 0, 1 and 5"]
