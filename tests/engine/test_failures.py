"""Failure reports: how a rank detects failed, hanging and lost ranks, and its messages."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from support.data import points
from support.models import Regression
from support.trainers import regression_trainer
from trainbus import StopAtTime, Trainer, TrainingArguments
from trainbus.engine.distributed.agreement import agreement
from trainbus.engine.distributed.consensus import Consensus, agree_single_process
from trainbus.engine.distributed.consistency import first_handler_difference, format_ranks
from trainbus.engine.distributed.failure_report import FailureReport, describe_failure, error_line, failure_location
from trainbus.engine.distributed.failures import FailureMonitor, failure_monitor
from trainbus.engine.distributed.host import ProcessAddress, run_with_timeout
from trainbus.events.activity import FORWARD, SAVE, Activity
from trainbus.events.control import TrainerControl

OWN = FailureReport(0, "backward of step 5", "RuntimeError: closed", lost=True)


@pytest.mark.parametrize(
    ("reports", "silent", "waited", "text"),
    [
        (
            [FailureReport(1, "forward of step 5", "ValueError: no rows.", lost=False)],
            {},
            None,
            "Rank 1 failed in forward of step 5: ValueError: no rows. Meanwhile rank 0 was waiting in backward of step",
        ),
        (
            [
                FailureReport(1, "forward of step 5", "ValueError: a", lost=False),
                FailureReport(2, "a save", "E: b", lost=True),
            ],
            {3: True},
            None,
            "Rank 1 failed in forward of step 5: ValueError: a. Meanwhile rank 0 was waiting in backward of step 5.",
        ),
        (
            [FailureReport(1, "x", "E: a", lost=True)],
            {2: False, 3: True},
            None,
            "Rank 2 ended without an error report. It was killed (perhaps because memory ran out), exited early, or "
            "crashed (perhaps because the ranks ran different collectives, "
            "for example if a stream gave them different numbers of batches). Meanwhile rank 0 was waiting in backward",
        ),
        ([], {1: False, 2: False}, None, "Ranks 1 and 2 ended without an error report. They were killed (perhaps"),
        (
            [],
            {1: True},
            20,
            "Rank 1 is alive and sent no error report: it may hang. Meanwhile rank 0 was waiting in backward of",
        ),
        ([], {1: True, 2: True}, 20, "Ranks 1 and 2 are alive and sent no error report: they may hang. Meanwhile"),
        ([], {1: None}, None, "Rank 1 sent no error report: it was killed or hangs. Meanwhile"),
        ([], {1: None, 2: True}, None, "Ranks 1 and 2 sent no error report: they were killed or hang. Meanwhile"),
        (
            [FailureReport(1, "a save after step 4", "RuntimeError: closed", lost=True)],
            {},
            None,
            "The ranks lost their connection: rank 1 gave up in a save after step 4. Meanwhile rank 0 was waiting in",
        ),
    ],
)
def test_failure_of_other_ranks_is_described(reports, silent, waited, text):
    described = describe_failure(OWN, {report.rank: report for report in reports}, silent, waited)
    assert described.startswith(text)
    assert ("20 seconds that `ddp_timeout` allows" in described) == (waited == 20)


def test_unreaped_process_is_not_alive():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    address = ProcessAddress(ProcessAddress.current().host, process.pid)
    assert address.is_alive() is True
    process.stdin.close()
    deadline = time.monotonic() + 60
    while address.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert address.is_alive() is False  # it is not reaped yet, so its process id still exists
    process.wait()
    assert address.is_alive() is False
    assert ProcessAddress.current().is_alive() is True
    assert ProcessAddress("another machine", os.getpid()).is_alive() is None


def test_run_with_timeout_returns_default_on_timeout_and_on_error():
    began = time.monotonic()
    assert run_with_timeout(30, lambda: "done", "default") == "done"
    assert run_with_timeout(0.05, lambda: time.sleep(1), "default") == "default"
    assert run_with_timeout(30, lambda: 1 / 0, "default") == "default"
    assert time.monotonic() - began < 25


class Spoilt(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise ValueError("no row")


def test_error_line_shortens_the_traceback_of_a_worker():
    with pytest.raises(ValueError, match="Original Traceback") as raised:
        list(torch.utils.data.DataLoader(Spoilt(), num_workers=1))
    assert error_line(raised.value) == "ValueError: no row"
    assert error_line(ValueError("two\nlines")) == "ValueError: two\nlines"
    assert error_line(ValueError()) == "ValueError"


def test_single_process_has_no_monitor_and_no_agreement(tmp_path, monkeypatch):
    run = regression_trainer(tmp_path, args={"debug": "rank_divergence"}).run
    monkeypatch.setattr(type(run.ranks), "gather_objects", lambda *_: pytest.fail("there is no other rank"))
    monitor, error = failure_monitor(run), RuntimeError("gloo/transport: Connection closed by peer")
    assert type(monitor) is FailureMonitor
    monitor.begin()
    assert monitor.explain(error) is error
    assert agreement(run) == (agree_single_process, agree_single_process)
    control = TrainerControl()
    control.request("save")
    agree_single_process(control)
    assert control.reasons("save") == {"you": ""}


@pytest.mark.parametrize(
    ("orders", "text"),
    [
        ([{"on_log": ["A", "B"]}, {"on_log": ["A"]}], "B handles on_log on rank 0 and not on rank 1"),
        ([{"on_log": ["A"]}, {"on_log": ["A"], "on_end": ["B"]}], "B handles on_end on rank 1 and not on rank 0"),
        ([{"on_log": ["A"]}, {"on_log": []}, {"on_log": ["A"]}], "A handles on_log on ranks 0 and 2 and not on rank 1"),
        ([{"on_log": []}, {"on_log": ["A"]}, {"on_log": []}], "A handles on_log on rank 1 and not on ranks 0 and 2"),
        (
            [{"on_log": ["A", "B", "C"]}, {"on_log": ["A", "C", "B"]}],
            "in on_log, rank 0 calls B where rank 1 calls C",
        ),
    ],
)
def test_first_difference_between_handlers_is_named(orders, text):
    assert first_handler_difference(orders) == text


def test_ranks_are_formatted():
    assert [format_ranks([1]), format_ranks([0, 2]), format_ranks([0, 1, 5])] == [
        "rank 1",
        "ranks 0 and 2",
        "ranks 0, 1 and 5",
    ]


# Where an error comes from.


def boom(*_, **__):
    raise ZeroDivisionError("boom")


def location(run, act):
    """Return where an error comes from that `act` raises."""
    with pytest.raises(ZeroDivisionError) as raised:
        act()
    return failure_location(raised.value, run.state.global_step)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ("on_batch", "Boom.on_batch after step 0"),
        ("on_loss", "Boom.on_loss after step 0"),
        ("on_prediction_step", "Boom.on_prediction_step after step 1"),
        ("on_save", "Boom.on_save after step 1"),
        ("on_step_end", "Boom.on_step_end after step 1"),
        ("on_train_begin", "Boom.on_train_begin after step 0"),
    ],
)
def test_error_of_a_handler_is_located_at_the_handler(tmp_path, event, text):
    args = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    run = regression_trainer(tmp_path, args=args, eval_dataset=points(8))
    run.on(event, boom, id="Boom")
    assert location(run, run.train) == text


def test_error_of_a_handler_that_no_exception_class_catches_is_located_too(tmp_path):
    run = regression_trainer(tmp_path)

    def leave():
        raise SystemExit(3)

    run.on("on_loss", leave, id="Leaves")
    with pytest.raises(SystemExit) as raised:
        run.train()
    assert failure_location(raised.value, 0) == "Leaves.on_loss after step 0"


FAILURES = {
    "fetching batches of step 1": lambda run, patch: patch.setattr(run, "data_collator", boom),
    "forward of step 1": lambda run, patch: patch.setattr(run.model, "forward", boom),
    "backward of step 1": lambda run, patch: patch.setattr(torch.Tensor, "backward", boom),
    "the update of step 1": lambda run, patch: patch.setattr(torch.optim.AdamW, "step", boom),
    "an evaluation after step 1": lambda run, patch: patch.setattr(run, "prediction_step", boom),
    "a save after step 1": lambda run, patch: patch.setattr(LambdaLR, "state_dict", boom),
    "choosing a checkpoint after step 0": lambda run, patch: patch.setattr(type(run.run.ranks), "gather_objects", boom),
    "comparing arguments and callbacks after step 0": lambda run, patch: patch.setattr(
        "trainbus.engine.distributed.consistency.training_settings", boom
    ),
    "its program after step 0": lambda run, patch: patch.setattr(run, "get_train_dataloader", boom),
}
"""What fails, by where the error says it comes from."""


@pytest.mark.parametrize("text", FAILURES)
def test_error_is_located_at_the_activity(tmp_path, monkeypatch, text):
    args = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    run = regression_trainer(tmp_path, args=args, eval_dataset=points(8))
    if text.startswith("comparing"):
        monkeypatch.setattr(type(run.run.ranks), "single_process", False)
        monkeypatch.setattr(type(run.run.ranks), "gather_objects", lambda self, value: [value])
        monkeypatch.setattr("trainbus.engine.session.failure_monitor", lambda run: FailureMonitor())
    FAILURES[text](run, monkeypatch)
    assert location(run, run.train) == text


def test_error_of_the_agreement_is_located_there(tmp_path, monkeypatch):
    run = regression_trainer(tmp_path, callbacks=[StopAtTime(3600)])
    monkeypatch.setattr("trainbus.engine.api.training.agreement", lambda run: (Consensus(run, ()),) * 2)
    monkeypatch.setattr(type(run.run.ranks), "sum_numbers", boom)
    assert location(run, run.train) == "agreeing on requests after step 0"


def test_errors_of_evaluate_and_predict_are_located_outside_of_training(tmp_path):
    run = regression_trainer(tmp_path, eval_dataset=points(8))
    run.model.forward = boom
    assert location(run, run.evaluate) == "an evaluation after step 0"
    assert location(run, lambda: run.predict(points(8))) == "a prediction after step 0"


def test_activity_of_an_evaluation_that_a_subclass_overrides(tmp_path):
    class Own(Trainer):
        def evaluate(self, *_, **__):
            return self.evaluation_loop(self.get_eval_dataloader(), "Evaluation").metrics

    args = TrainingArguments(str(tmp_path), max_steps=1, eval_strategy="steps", eval_steps=1)
    run = Own(Regression(), args, train_dataset=points(8), eval_dataset=points(8))
    run.prediction_step = boom
    assert location(run, run.train) == "an evaluation after step 1"


def test_activity_is_restored_after_an_error_that_is_caught(tmp_path):
    run = regression_trainer(tmp_path, eval_dataset=points(8))
    seen = []

    def evaluates():
        run.prediction_step = boom
        seen.append(run.run.activity.name)
        with pytest.raises(ZeroDivisionError):
            run.evaluate()
        seen.append(run.run.activity.name)

    run.on("on_gradients", evaluates, id="Evaluates")
    run.on("on_step_end", boom, once=1, id="Boom")
    assert location(run, run.train) == "Boom.on_step_end after step 1"
    assert seen == ["the update", "the update"]
    assert run.run.activity.name == ""


def test_location_of_an_error_that_explains_another_is_that_of_the_cause(tmp_path):
    run = regression_trainer(tmp_path)
    run.model.forward = boom
    with pytest.raises(ZeroDivisionError) as raised:
        run.train()
    explained = ValueError("explained")
    explained.__cause__ = raised.value
    assert failure_location(explained, 3) == "forward of step 4"
    assert failure_location(ValueError("never raised"), 2) == "its program after step 2"


def test_activity_of_another_thread_is_its_own():
    activity = Activity()
    activity.name = FORWARD
    seen = []

    def save():
        with activity(SAVE):
            seen.append(activity.name)

    thread = threading.Thread(target=save)
    thread.start()
    thread.join()
    assert (seen, activity.name) == (["a save"], "forward")


def test_a_step_makes_no_call_for_its_activity(tmp_path):
    """Assigning the name calls no Python function: the property of `Activity` that the stepper relies on."""
    activity, calls = Activity(), []
    sys.setprofile(lambda frame, event, arg: calls.append(event) if event == "call" else None)
    activity.name = FORWARD
    sys.setprofile(None)
    assert calls == []
