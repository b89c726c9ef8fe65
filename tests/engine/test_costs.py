"""What a training costs: time by part and by callback, the verdict, and the lines before and after a training."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from support.data import net_samples
from support.models import Net
from trainbus import Callback, StatusFile, Trainer, TrainingArguments
from trainbus.engine.api.costs.peaks import peak_of
from trainbus.engine.api.costs.read import ONCE
from trainbus.engine.api.costs.remedy import remedy_of
from trainbus.engine.api.costs.verdict import START_AND_END, Dearest, blame_of, duration, judge, waiting_of
from trainbus.engine.checkpoint.storage import Disk
from trainbus.events import EVENTS, ArgumentError
from trainbus.events.activity import BACKWARD, EVALUATION, FORWARD, SAVE, Activity
from trainbus.events.timeline import (
    APPLY,
    CALL,
    CALLBACKS,
    COLLECT,
    COLLECTION,
    COPY,
    DATA,
    DONE,
    ENGINE,
    EVALUATE,
    FULL,
    LOGS,
    SAVES,
    SCOPES,
    STEP,
    Sums,
    Timeline,
)

SLOW = 0.004


class SlowRows(torch.utils.data.Dataset[Any]):
    """Rows that take time to read."""

    def __init__(self) -> None:
        self.rows = net_samples(160)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        time.sleep(SLOW / 2)
        return self.rows[index]


class Slow(Callback):
    """Takes time at the end of each step and in each evaluation batch."""

    def on_step_end(self) -> None:
        time.sleep(SLOW / 8)

    def on_prediction_step(self) -> None:
        time.sleep(5 * SLOW)


class Read(Callback):
    """Reads the costs in the middle of a training."""

    costs: Any = None

    def on_log(self) -> None:
        if self.costs is None:
            self.costs = TRAINED["trainer"].costs()


TRAINED: dict[str, Any] = {}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A training that waits for its data. All tests of this file read it."""
    folder, printed = tmp_path_factory.mktemp("costs"), []
    options = {"eval_strategy": "steps", "eval_steps": 20, "save_steps": 20, "logging_steps": 20, "use_cpu": True}
    args = TrainingArguments(str(folder), max_steps=60, per_device_train_batch_size=4, report_to="none", **options)
    read = Read()
    trainer = Trainer(Net(), args, train_dataset=SlowRows(), eval_dataset=net_samples(16), callbacks=[Slow(), read])
    TRAINED["trainer"] = trainer
    with pytest.raises(ArgumentError, match="no costs yet"):
        trainer.costs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainbus.callbacks.monitor.summary.say", printed.append)
        output = trainer.train()
    return trainer, read, folder, printed, output.metrics["train_runtime"]


def part(costs: Any, name: str) -> Any:
    return next(each for each in costs.parts if each.part == name)


def test_the_parts_add_up_to_the_session(trained: Any) -> None:
    trainer, _, _, _, seconds = trained
    costs = trainer.costs()
    assert costs.steps == 60
    assert sum(each.seconds for each in costs.parts) == pytest.approx(costs.seconds)
    assert 0.8 * seconds < costs.seconds, "it also holds the end of the training"
    assert part(costs, FORWARD).seconds > 0
    assert part(costs, BACKWARD).median > 0


def test_waiting_for_data_is_measured_and_judged(trained: Any) -> None:
    costs = trained[0].costs()
    assert part(costs, DATA).median >= SLOW
    assert part(costs, DATA).seconds >= 60 * SLOW
    assert costs.verdict.bound == "input"
    assert "of the step waits for data" in str(costs)
    assert str(costs).startswith("INPUT-BOUND")


def test_the_median_step_leaves_out_evaluations(trained: Any) -> None:
    costs = trained[0].costs()
    evaluation = part(costs, EVALUATE)
    assert (evaluation.times, part(costs, SAVES).times) == (3, 3)
    assert evaluation.seconds >= 3 * 2 * SLOW, "also the time of callbacks in the evaluation"
    assert evaluation.median == 0
    assert costs.step_seconds < costs.seconds / 60 + SLOW


def test_each_callback_has_its_own_time(trained: Any) -> None:
    found = {(each.callback, each.event): each for each in trained[0].costs().callbacks}
    assert found["Slow", "on_step_end"].calls == 60
    assert found["Slow", "on_step_end"].seconds >= 60 * SLOW / 8
    evaluations = part(trained[0].costs(), EVALUATE).seconds
    assert found["Evaluate", "on_evaluate_due"].seconds < evaluations / 2, "the evaluation is not time of the callback"
    assert trained[0].costs().dearest(3)[0][0] == "Slow"


def test_costs_are_read_during_a_training(trained: Any) -> None:
    _, read, *_ = trained
    assert 15 <= read.costs.steps <= 20
    assert part(read.costs, DATA).seconds > 0


def test_costs_are_json_and_escaped_html(trained: Any) -> None:
    trainer, *_ = trained
    values = json.loads(trainer.costs().to_json())
    assert {"parts", "callbacks", "verdict", "bound", "step_seconds", "samples_per_second"} <= values.keys()
    assert values["verdict"] == str(trainer.costs().verdict)
    assert "<table>" in trainer.costs()._repr_html_()
    before = trainer.args.output_dir
    trainer.args.output_dir = "<b>&"
    try:
        assert "&lt;b&gt;&amp;" in trainer._repr_html_()
        assert "<b>&" not in trainer._repr_html_()
    finally:
        trainer.args.output_dir = before


def test_the_status_file_has_the_costs(trained: Any) -> None:
    status = json.loads((trained[2] / "run_status.json").read_text())
    assert status["costs"]["bound"] == "input"
    assert status["costs"]["steps"] == 60
    assert {each["part"] for each in status["costs"]["parts"]} >= {DATA, FORWARD, EVALUATE}


def test_the_opening_lines_describe_the_training(trained: Any) -> None:
    _, _, folder, (opening, _), _ = trained
    lines = dict(line.split(maxsplit=1) for line in opening.splitlines()[1:])
    assert opening.startswith("Training\n")
    assert lines["model"].startswith("Net, ")
    assert lines["data"] == "160 rows"
    assert lines["batch"] == "4 x 1 accumulated x 1 rank = 4 rows a step"
    assert lines["steps"] == "60, 40 an epoch"
    assert lines["optimizer"].startswith("AdamW, learning rate 5e-05, schedule linear")
    assert lines["output"] == str(folder)
    texts = [line.index(line.split(maxsplit=1)[1]) for line in opening.splitlines()[1:]]
    assert len(set(texts)) == 1, "aligned"


def test_the_closing_lines_say_what_it_was(trained: Any) -> None:
    closing = trained[3][1]
    lines = dict(line.split(maxsplit=1) for line in closing.splitlines())
    assert "checkpoint-20, checkpoint-40, checkpoint-60" in lines["output"]
    assert "wait for data" in lines["time"]
    assert lines["callbacks"].startswith("Slow ")
    assert "samples a second" in lines["speed"]
    assert lines["verdict"].startswith("INPUT-BOUND")


def test_the_lines_name_the_loaded_model_and_the_resumed_checkpoint(tmp_path: Any, capsys: Any) -> None:
    def train(steps: int, resume: bool) -> str:
        options = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "load_best_model_at_end": True}
        args = TrainingArguments(str(tmp_path), max_steps=steps, report_to="none", use_cpu=True, **options)
        trainer = Trainer(Net(), args, train_dataset=net_samples(64), eval_dataset=net_samples(8))
        trainer.train(resume_from_checkpoint=resume)
        return str(capsys.readouterr().out)

    assert "loaded from step " in train(4, resume=False)
    printed = train(6, resume=True)
    assert "checkpoint-4, at step 4" in printed
    assert "best " in printed
    assert "eval_loss " in printed


def test_a_session_without_a_step_has_no_speed_and_no_verdict(tmp_path: Any, capsys: Any) -> None:
    printed = []
    for _ in range(2):
        args = TrainingArguments(str(tmp_path), max_steps=4, save_steps=2, report_to="none", use_cpu=True)
        Trainer(Net(), args, train_dataset=net_samples(64)).train(resume_from_checkpoint="auto")
        printed.append(capsys.readouterr().out)
    assert "  verdict " in printed[0]
    line = "  steps   none in this session, 4 in the run. All 4 planned steps were done before. To train more, raise "
    assert f"{line}`max_steps`" in printed[1].splitlines()
    assert "verdict" not in printed[1]
    assert "0 samples" not in printed[1]


def test_the_lines_are_silent_where_bars_are(tmp_path: Any, capsys: Any) -> None:
    for quiet in ({"disable_tqdm": True}, {"log_level": "error"}):
        before = logging.getLogger("trainbus").level
        args = TrainingArguments(str(tmp_path), max_steps=1, report_to="none", use_cpu=True, **quiet)  # type: ignore[arg-type]
        try:
            Trainer(Net(), args, train_dataset=net_samples(8)).train()
        finally:
            logging.getLogger("trainbus").setLevel(before)
        printed = capsys.readouterr().out
        assert "Training stopped at step 1" in printed
        assert "optimizer" not in printed
        assert "verdict" not in printed


# The timeline.


class Subscribed:
    """A handler as the bus marks it."""

    def __init__(self, owner_id: str) -> None:
        self.key = owner_id, "on_step_end"
        self.label = f"{owner_id}.on_step_end"


def opened() -> Timeline:
    timeline = Timeline()
    timeline.open(Activity())
    timeline._since = 0
    return timeline


def step(timeline: Timeline, at: int, *, handler: Any, evaluates: int = 0) -> int:
    """Mark a step of 100 nanoseconds, and an evaluation."""
    marks = timeline.marks
    marks += (STEP, at, FORWARD, at + 40, APPLY, at + 70, ENGINE, at + 80)
    marks += (CALL, 0, handler, at + 80, DONE, at + 90)
    if evaluates:
        timeline.look()
        marks += (CALL, 0, handler, at + 90, SCOPES[EVALUATION], at + 90, CALL, 0, handler, at + 90)
        marks += (DONE, at + 90 + evaluates, DONE, at + 90 + evaluates, DONE, at + 90 + evaluates)
    return at + 100 + evaluates


def stepped(steps: int, often: int = 0) -> tuple[Timeline, Sums, int]:
    """Mark steps with a handler named `Slow`, and an evaluation at every hundredth.

    Args:
        steps: the number of steps.
        often: fold after this number of steps. Default: if the list of marks is full.

    Returns:
        The timeline, its sums, and the time at the end.
    """
    timeline, at, slow = opened(), 0, Subscribed("Slow")
    for number in range(1, steps + 1):
        at = step(timeline, at, handler=slow, evaluates=5000 if number % 100 == 0 else 0)
        if number % often == 0 if often else len(timeline.marks) > FULL:
            timeline.fold_steps()
    timeline.marks += (STEP, at)
    sums = timeline.sums()
    timeline._watches = False
    return timeline, sums, at


def test_sampled_steps_represent_the_others_and_rare_ones_are_exact() -> None:
    timeline, sums, at = stepped(1000)
    assert timeline.steps == 1000
    assert timeline.times[EVALUATE] == 10
    assert sums.parts[EVALUATE] == 50_000
    assert sums.parts[DATA] == pytest.approx(1000 * 40)
    assert sums.parts[CALLBACKS] == pytest.approx(1000 * 10)
    assert sum(sums.parts.values()) == pytest.approx(at)
    assert sums.handlers["Slow", "on_step_end"][0] == pytest.approx(1000 * 10 + 50_000)
    assert sums.handlers["Slow", "on_step_end"][1] == pytest.approx(1020)
    assert {whole for whole, _ in timeline.rows} == {100}
    assert len(timeline.rows) < 200, "most steps are not added up one by one"


@pytest.mark.parametrize("often", [1, 7, 100])
def test_sums_do_not_depend_on_the_moments_of_the_folds(often: int) -> None:
    """The time of all steps is the same, wherever the list of marks is full."""
    timeline, sums, at = stepped(500, often)
    assert timeline.steps == 500
    assert sums.parts[EVALUATE] == 25_000
    assert sum(sums.parts.values()) == pytest.approx(at)
    assert sums.handlers["Slow", "on_step_end"] == pytest.approx([500 * 10 + 25_000, 510])


def test_most_steps_are_not_added_up_one_by_one_with_many_handlers() -> None:
    """The list of marks is then full after a few steps."""
    timeline, at, slow = opened(), 0, Subscribed("Slow")
    for _ in range(700):
        timeline.marks += (STEP, at, APPLY, at + 1, CALL, 0)
        for number in range(500):
            timeline.marks += (slow, at + number)
            if len(timeline.marks) > FULL:
                timeline.fold_steps()
        timeline.marks += (DONE, at + 500)
        at += 600
    timeline.marks += (STEP, at)
    timeline.fold_steps()
    timeline._watches = False
    assert timeline.steps == 700
    assert len(timeline.rows) <= 101


def test_one_long_step_does_not_fill_the_memory_with_marks() -> None:
    timeline, slow = opened(), Subscribed("Slow")
    timeline.marks += (STEP, 0)
    for number in range(10 * FULL):
        timeline.marks += (CALL, 0, slow, number, DONE, number)
        if len(timeline.marks) > FULL:
            timeline.fold_steps()
    assert len(timeline.marks) <= FULL
    timeline._watches = False


def test_a_handler_that_ends_the_last_step_keeps_its_own_time() -> None:
    timeline, last = opened(), Subscribed("Last")
    at = step(timeline, 0, handler=Subscribed("Slow"))
    timeline.marks += (CALL, 0, last, at)
    timeline.end_step()
    timeline.marks += (DONE, at + 40, ENGINE, at + 50)
    sums = timeline.sums()
    timeline._watches = False
    assert sums.handlers["Last", "on_step_end"] == [40, 1]
    assert timeline.steps == 1


def test_an_open_evaluation_is_folded_in_pieces() -> None:
    timeline, slow = opened(), Subscribed("Slow")
    activity = Activity()
    activity.mark = timeline._mark_activity
    at = step(timeline, 0, handler=slow)
    timeline.marks += (STEP, at)
    with activity(EVALUATION):
        for _ in range(3):
            timeline.marks += (CALL, 0, slow, timeline.marks[-1] + 10, DONE, timeline.marks[-1] + 20)
            timeline.fold()
            timeline.marks += (ENGINE, timeline._since)
    timeline.fold()
    timeline._watches = False
    assert timeline.times[EVALUATE] == 1
    assert timeline.sums().parts[EVALUATE] > 0
    assert timeline._levels == []


def test_a_closed_timeline_keeps_no_marks() -> None:
    timeline = Timeline()
    timeline.marks += (STEP, 1)
    timeline.fold()
    assert timeline.marks == []
    assert sum(timeline.sums().parts.values()) == 0


def test_the_current_part_does_not_depend_on_the_moments_of_the_folds() -> None:
    slow, outer = Subscribed("Slow"), Subscribed("Outer")
    evaluation, save = SCOPES[EVALUATION], SCOPES[SAVE]
    slow_name, outer_name = "Slow.on_step_end", "Outer.on_step_end"
    expected: list[tuple[Any, str, str]] = [  # a mark, then what runs after it, and the part that its time counts for
        (STEP, DATA, DATA),
        (COPY, COPY, COPY),
        (DATA, DATA, DATA),
        (FORWARD, FORWARD, FORWARD),
        (CALL, FORWARD, FORWARD),
        (slow, slow_name, CALLBACKS),
        (DONE, FORWARD, FORWARD),
        (ENGINE, ENGINE, ENGINE),
        (CALL, ENGINE, ENGINE),
        (outer, outer_name, CALLBACKS),
        (evaluation, EVALUATE, EVALUATE),
        (CALL, EVALUATE, EVALUATE),
        (slow, slow_name, EVALUATE),
        (COLLECTION, COLLECT, EVALUATE),
        (DONE, slow_name, EVALUATE),
        (DONE, EVALUATE, EVALUATE),
        (save, SAVES, EVALUATE),
        (DONE, EVALUATE, EVALUATE),
        (DONE, outer_name, CALLBACKS),
        (DONE, ENGINE, ENGINE),
        (STEP, DATA, DATA),
    ]
    for fold_after in range(len(expected) + 1):
        timeline = opened()
        for number, (what, doing, part) in enumerate(expected):
            timeline.marks += (what, number)
            if number == fold_after:
                timeline.fold()
            assert (timeline.doing(), timeline.part()) == (doing, part), f"{number}, {fold_after}"
        timeline._watches = False


# The verdict.


def test_the_verdict_counts_the_workers_that_hide_the_wait() -> None:
    medians = {DATA: 0.064, FORWARD: 0.036}
    verdict = judge(medians, medians, workers=0, processors=8)
    assert str(verdict) == (
        "INPUT-BOUND: 64% of the step waits for data; 2 workers would hide it: set dataloader_num_workers=2"
    )
    assert "3 workers" in str(judge({DATA: 0.04, FORWARD: 0.1}, {DATA: 0.04, FORWARD: 0.1}, workers=2, processors=8))


def test_the_verdict_has_two_remedies_if_there_are_too_few_processors() -> None:
    """Data that waits for a disk or a network needs no processor."""
    medians = {DATA: 0.032, FORWARD: 0.0017}
    assert judge(medians, medians, workers=0, processors=2).action == (
        "19 workers would hide it, and this run has 2 processors: if the data waits for a disk or a network, set "
        "dataloader_num_workers=19, and if it is computed, prepare it once, before the training"
    )
    medians = {DATA: 1.0, FORWARD: 0.001}
    assert "1001 workers would hide it" in judge(medians, medians, workers=0, processors=2).action
    assert "set dataloader_num_workers=32, and" in judge(medians, medians, workers=0, processors=2).action
    assert "set dataloader_num_workers=40, and" in judge(medians, medians, workers=40, processors=2).action
    assert "has 1 processor: if" in judge(medians, medians, workers=0, processors=1).action


def test_the_mean_step_has_no_zero_in_its_remedies() -> None:
    assert judge({DATA: 1.0}, {}, steps=100, workers=0).bound == "input"


def test_the_verdict_advises_no_worker_if_a_batch_loads_faster_than_a_worker_sends_it() -> None:
    medians = {DATA: 0.0005, FORWARD: 0.001}
    assert str(judge(medians, medians, workers=0, processors=8)) == (
        "INPUT-BOUND: 33% of the step waits for data; a batch loads in 500 us, and a worker would take about 2 ms to "
        "send it: use larger batches"
    )
    assert "use larger batches" not in str(judge(medians, medians, workers=1, processors=8))


@pytest.mark.parametrize(
    ("totals", "bound"),
    [
        ({FORWARD: 1.0, CALLBACKS: 0.3}, "callback"),
        ({FORWARD: 1.0, EVALUATE: 2.0}, "evaluation"),
        ({FORWARD: 1.0, DATA: 0.05}, "compute"),
        ({}, "unknown"),
    ],
)
def test_the_verdict_names_the_largest_part_over_its_limit(totals: dict[str, float], bound: str) -> None:
    assert judge(totals, {FORWARD: 0.01} if totals else {}, dearest=Dearest("Slow")).bound == bound


def test_shares_are_shares_of_the_session() -> None:
    """The callbacks take 0.6 of 3 seconds of steps, in a session of 3.5 seconds."""
    totals = {FORWARD: 2.4, CALLBACKS: 0.6}
    verdict = judge(totals, totals, dearest=Dearest("Slow"), start_and_end=0.5)
    assert str(verdict) == "CALLBACK-BOUND: 17% of the session is in callbacks, most in Slow; " + Dearest().remedy
    totals = {FORWARD: 3.0}
    assert judge(totals, totals, start_and_end=0.5).evidence == "86% of the session is forward, backward and update"


@pytest.mark.parametrize(
    ("totals", "ends", "verdict"),
    [
        ({FORWARD: 0.05, SAVES: 0.03}, 0.92, "UNKNOWN: the steps took only 80 ms, and 92% of the session is in callb"),
        ({FORWARD: 0.28, EVALUATE: 0.2}, 0.43, "UNKNOWN: the steps took only 480 ms, and 47% of the session is in ca"),
        ({FORWARD: 3.0, CALLBACKS: 2.0}, 5.0, "START-BOUND: 50% of the session is in callbacks before the first step"),
        ({FORWARD: 3.0, SAVES: 9.0}, 5.0, "SAVE-BOUND: 53% of the session is saving"),
        ({FORWARD: 3.0, SAVES: 0.5}, 0.9, "COMPUTE-BOUND: 68% of the session is forward"),
        ({FORWARD: 0.5, SAVES: 0.5}, 0.2, "SAVE-BOUND: 42% of the session is saving"),
    ],
)
def test_the_start_and_the_end_are_parts_of_the_session(totals: dict[str, float], ends: float, verdict: str) -> None:
    medians = {FORWARD: totals[FORWARD]}
    found = judge(totals, medians, start_and_end=ends, once=Dearest("Push"), dearest=Dearest("Slow"))
    assert str(found).startswith(verdict)
    assert ("Push" in str(found)) == ("before the first step" in str(found))


@pytest.mark.parametrize(
    ("totals", "bound"),
    [
        ({FORWARD: 6.0, LOGS: 4.0}, "log"),
        ({FORWARD: 6.0, EVALUATE: 6.0}, "evaluation"),
        ({FORWARD: 6.0, DATA: 6.0, LOGS: 1.0}, "input"),
        ({FORWARD: 6.0, LOGS: 0.1}, "compute"),
    ],
)
def test_a_session_without_an_ordinary_step_has_a_verdict(totals: dict[str, float], bound: str) -> None:
    """Each step logs, so more steps do not help."""
    medians = dict.fromkeys(totals, 0.0)
    assert judge(totals, medians, steps=4000, processors=8, workers=0).bound == bound
    assert judge(totals, {}, steps=4000, processors=8, workers=0).bound == bound
    assert judge(totals, medians, steps=3).bound == "unknown"
    assert judge(dict.fromkeys(totals, 0.0), medians, steps=4000).bound == "unknown"


def test_a_training_that_logs_each_step_has_a_verdict(tmp_path: Any) -> None:
    args = TrainingArguments(str(tmp_path), max_steps=40, logging_steps=1, save_strategy="no", use_cpu=True)
    trainer = Trainer(Net(), args, train_dataset=net_samples(64))
    trainer.train()
    assert "no ordinary step" not in str(trainer.costs().verdict)


def test_the_verdict_and_the_parts_have_one_denominator(trained: Any) -> None:
    costs = trained[0].costs()
    ends = part(costs, START_AND_END)
    assert ends.seconds == pytest.approx(sum(each.seconds for each in costs.callbacks if each.event in ONCE))
    assert ends.seconds > 0
    assert sum(each.share for each in costs.parts) == pytest.approx(1)
    slow = sum(each.seconds for each in costs.callbacks if each.callback == "Slow" and each.event == "on_step_end")
    assert slow <= part(costs, CALLBACKS).seconds < costs.seconds - ends.seconds


def test_a_short_session_does_not_blame_a_callback_of_the_library() -> None:
    own, totals = Dearest("StatusFile", "save less often", own=True), {FORWARD: 0.5, CALLBACKS: 0.5}
    verdict = judge(totals, {FORWARD: 0.1}, dearest=own)
    assert str(verdict).startswith(
        "UNKNOWN: the steps took only 1 s, in which the callbacks of trainbus have fixed costs"
    )
    longer = {part: 3 * seconds for part, seconds in totals.items()}
    assert judge(longer, {FORWARD: 0.1}, dearest=own).action == "save less often"
    assert judge(totals, {FORWARD: 0.1, CALLBACKS: 0.1}, dearest=own).bound == "callback", "each step has this cost"
    assert judge(totals, {FORWARD: 0.1}, dearest=Dearest("Slow")).bound == "callback", "a callback of the user"


@pytest.mark.parametrize("event", [event.name for event in EVENTS])
def test_the_remedy_for_each_event_names_an_argument_or_the_help(event: str) -> None:
    remedy = remedy_of("StatusFile", StatusFile(), event)
    named = re.search(r"set larger (\w+)$", remedy)
    assert named or remedy == "leave it out, or change its options: see `help(StatusFile)`"
    if named:
        assert named[1] in {each.name for each in dataclasses.fields(TrainingArguments)}
        assert event.removeprefix("on_")[:3] in {"log", "sav", "sna", "com", "del", "pus", "eva", "pre"}


def test_the_remedy_depends_on_the_owner_of_the_callback() -> None:
    assert remedy_of("Slow", Slow(), "on_log") == "let it do its work less often"
    assert remedy_of("show", lambda: None, "on_save") == "let it do its work less often"
    assert remedy_of("StepCapture", None, "on_batch") == "set capsule=False"
    assert TrainingArguments(capsule=False).capsule is False


def test_the_wait_for_the_write_of_a_checkpoint_is_time_of_the_save(tmp_path: Path, monkeypatch: Any) -> None:
    waits = 0.05
    write = Disk.write

    def slowly(self: Any, *args: Any) -> None:
        time.sleep(waits)
        write(self, *args)

    monkeypatch.setattr(Disk, "write", slowly)
    args = TrainingArguments(str(tmp_path), max_steps=8, save_steps=2, report_to="none", use_cpu=True)
    trainer = Trainer(Net(), args, train_dataset=net_samples(64))
    trainer.train()
    costs = trainer.costs()
    assert part(costs, SAVES).times == 4
    assert part(costs, SAVES).seconds > 3 * waits
    assert sum(each.seconds for each in costs.callbacks if each.callback == "Checkpoint") < waits
    assert costs.verdict.bound == "save"


def test_waiting_in_a_collective_is_charged_to_the_slowest_rank() -> None:
    fast = {DATA: 0.01, FORWARD: 0.02, BACKWARD: 0.09}
    slow = {DATA: 0.06, FORWARD: 0.02, BACKWARD: 0.04}
    assert waiting_of([fast, slow]) == [pytest.approx(0.05), 0]
    blame = blame_of([fast, slow])
    assert blame is not None
    assert (blame.rank, blame.part) == (1, DATA)
    assert blame.waiting == pytest.approx(0.05)
    verdict = judge(fast, fast, blame=blame)
    assert verdict.bound == "rank"
    assert "rank 1" in str(verdict)
    assert blame_of([fast]) is None


def test_the_peak_of_a_gpu_is_known_by_its_name() -> None:
    assert peak_of("NVIDIA H100 80GB HBM3", half=True, tf32=False) == 989.4e12
    assert peak_of("NVIDIA H100 PCIe", half=True, tf32=False) == 756e12
    assert peak_of("NVIDIA A100-SXM4-80GB", half=False, tf32=True) == 156e12
    assert peak_of("NVIDIA A10", half=False, tf32=False) == 31.2e12
    assert peak_of("Another", half=True, tf32=False) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(2e-6, "2 us"), (0.0125, "12.5 ms"), (3.0, "3 s"), (200, "3 min 20 s"), (7320, "2 h 2 min")]
)
def test_a_duration_has_a_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text
