"""Recordings: what they hold, where two of them part, and replays."""

from __future__ import annotations

import errno
import json
import math
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from support.processes import run_program
from trainbus import (
    Callback,
    Csv,
    EarlyStopping,
    EarlyStoppingCallback,
    JsonLines,
    KeepBest,
    Record,
    Report,
    Trainer,
    TrainingArguments,
)
from trainbus.callbacks.base.line_file import LineFile
from trainbus.callbacks.monitor.record import fingerprint
from trainbus.engine.api.replay import replay
from trainbus.engine.api.replay_run import ReplayError
from trainbus.engine.api.report.recorded import read_recorded
from trainbus.engine.commands.main import main
from trainbus.events import EVENTS, record
from trainbus.events.catalog import Clock
from trainbus.events.recording.difference import Difference, first_difference
from trainbus.events.recording.files import RecordingError, read
from trainbus.events.recording.rows import rows_of

PROGRAM = Path(__file__).with_name("record_program.py")


def build(folder: Path, *callbacks: Any, swap: tuple[int, int] | None = None, **options: Any) -> Trainer:
    """Build a trainer of 12 steps that logs, evaluates, saves and has dropout."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    x = torch.randn(32, 4)
    if swap is not None:
        x[list(swap)] = x[list(swap[::-1])]
    data = TensorDataset(x, torch.arange(32) % 2)
    arguments = {
        **{"max_steps": 12, "per_device_train_batch_size": 4, "logging_steps": 1, "eval_strategy": "steps"},
        **{"eval_steps": 4, "save_steps": 4, "save_total_limit": 2, "load_best_model_at_end": True, "record": True},
        **{"use_cpu": True, "disable_tqdm": True},
    }
    return Trainer(
        nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2)),
        TrainingArguments(str(folder), **{**arguments, **options}),
        train_dataset=data,
        eval_dataset=TensorDataset(*data[:8]),
        criterion=nn.CrossEntropyLoss(),
        callbacks=list(callbacks),
    )


def at(event: str, step: int, do: Any) -> Any:
    """Return a callback that does something at an event of a step, from 1."""

    def handle(self: Any, run: Any, control: Any) -> None:
        inside = event != "on_step_end"
        if run.state.global_step + inside == step:
            do(run, control)

    return type("Planted", (Callback,), {event: handle})()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    trainer = build(folder)
    with record(trainer.bus) as trace:
        trainer.train()
    (folder / "trace.json").write_text(json.dumps(trace.entries))
    return folder


def difference(plain: Path, folder: Path, *callbacks: Any, **options: Any) -> Difference | None:
    build(folder, *callbacks, **options).train()
    return first_difference(read(plain), read(folder))


def test_a_recording_has_the_events_of_the_trace(plain: Path) -> None:
    announced = [event for _, event in json.loads((plain / "trace.json").read_text()) if event != "on_setup"]
    recorded = [each["e"] for each in read(plain).records if "e" in each for _ in range(each.get("n", 1))]
    assert recorded == announced


def test_a_recording_has_the_ledger(plain: Path) -> None:
    flags = [(each["s"], each["f"], each["do"], each["by"]) for each in read(plain).records if "f" in each]
    assert (4, "save", "request", "Checkpoint") in flags
    assert flags[-1] == (12, "training_stop", "take", "run")


def test_equal_runs_have_no_difference(plain: Path, tmp_path: Path) -> None:
    build(tmp_path).train()
    assert main(["diff", str(plain), str(tmp_path)]) == 0


def draw_torch(run: Any, control: Any) -> None:
    torch.rand(1)


def draw_numpy(run: Any, control: Any) -> None:
    np.random.rand()


def draw_python(run: Any, control: Any) -> None:
    random.random()


def other_loss(run: Any, control: Any) -> None:
    run.loss = run.loss * 1.001


def ask_to_save(run: Any, control: Any) -> None:
    control.request("save", "planted")


@pytest.mark.parametrize(
    ("event", "do", "what", "found_at"),
    [
        ("on_step_begin", draw_torch, "the random state before the batch", "on_batch"),
        ("on_batch", draw_numpy, "the random state after the step", "on_step_end"),
        ("on_batch", draw_python, "the random state of Python", "on_log_due"),
        ("on_loss", other_loss, "the loss", "on_gradients"),
        ("on_step_end", ask_to_save, "a flag", "request save"),
    ],
)
def test_a_planted_difference_is_found_at_its_step(
    plain: Path, tmp_path: Path, event: str, do: Any, what: str, found_at: str
) -> None:
    found = difference(plain, tmp_path, at(event, 6, do))
    assert found is not None
    assert (found.step, found.what, found.event) == (6, what, found_at)
    assert len(found.before) == 3


def test_another_order_of_the_data_is_found_at_the_first_step_that_has_it(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[int, list[float]] = {}

    def note(self: Any, run: Any, batch: Any) -> None:
        seen[run.state.global_step + 1] = batch[0][:, 0].tolist()

    noted = build(tmp_path / "noted", type("Note", (Callback,), {"on_batch": note})())
    first = noted.train_dataset.tensors[0][:, 0].tolist()
    noted.train()
    rows = {step: [first.index(value) for value in values] for step, values in seen.items()}
    early, late = rows[3][0], rows[6][0]
    found = difference(plain, tmp_path / "swapped", swap=(early, late))
    assert found is not None
    assert (found.step, found.what) == (3, "the data of the batch")
    capsys.readouterr()
    assert main(["diff", str(plain), str(tmp_path / "swapped"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["step"] == 3


def test_a_deletion_that_a_kill_hid_is_no_difference(tmp_path: Path) -> None:
    def kill(run: Any, control: Any) -> None:
        raise KeyError("killed")

    options = {"save_steps": 1, "load_best_model_at_end": False}
    build(tmp_path / "whole", **options).train()
    with pytest.raises(KeyError):
        build(tmp_path / "left", at("on_step_end", 6, kill), **options).train()
    build(tmp_path / "left", **options).train(resume_from_checkpoint=True)
    assert first_difference(read(tmp_path / "whole"), read(tmp_path / "left")) is None


@pytest.mark.parametrize("kill_at", [6, 11])
def test_a_resumed_run_equals_the_unbroken_one(plain: Path, tmp_path: Path, kill_at: int) -> None:
    def kill(run: Any, control: Any) -> None:
        raise KeyError("killed")

    with pytest.raises(KeyError):
        build(tmp_path, at("on_step_begin", kill_at, kill)).train()
    build(tmp_path).train(resume_from_checkpoint=True)
    assert len(read(tmp_path).sessions) == 2
    assert first_difference(read(plain), read(tmp_path)) is None
    assert not (tmp_path / "events-1.jsonl").exists()


@pytest.mark.parametrize("place", ["on_step_end:5", "on_step_begin:12", "on_log_due:6"])
def test_a_resumed_run_after_a_kill_has_every_record_of_the_unbroken_one(
    plain: Path, tmp_path: Path, place: str
) -> None:
    run_program(PROGRAM, tmp_path, place, timeout=60, code=-9)
    build(tmp_path).train(resume_from_checkpoint="auto")
    assert len(read(tmp_path).sessions) == 2
    assert first_difference(read(plain), read(tmp_path)) is None


def test_a_new_run_keeps_the_file_of_the_earlier_one(tmp_path: Path) -> None:
    for _ in range(2):
        build(tmp_path, max_steps=2).train()
    assert first_difference(read(tmp_path), read(tmp_path / "events-1.jsonl")) is None


def test_accumulated_batches_are_recorded_one_by_one(tmp_path: Path) -> None:
    build(tmp_path, max_steps=2, gradient_accumulation_steps=2).train()
    records = read(tmp_path).records
    assert len([each for each in records if each.get("e") == "on_batch" and "batch" in each]) == 4
    assert len([each for each in records if "loss" in each]) == 4


def test_values_that_are_not_finite_are_kept(tmp_path: Path) -> None:
    def poison(run: Any, control: Any) -> None:
        run.loss = run.loss * math.nan

    build(tmp_path, at("on_loss", 2, poison), max_steps=3, eval_strategy="no", load_best_model_at_end=False).train()
    logs = [each["logs"]["loss"] for each in read(tmp_path).records if "loss" in each.get("logs", {})]
    assert logs[1] == "NaN"


def test_a_full_disk_costs_one_warning_and_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: LineFile, text: str) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(LineFile, "append", full)
    trainer = build(tmp_path)
    trainer.train()
    assert trainer.state.global_step == 12
    assert caplog.text.count("The recording ends here") == 1


def test_a_torn_line_is_ignored_and_another_file_is_refused(plain: Path, tmp_path: Path) -> None:
    torn = tmp_path / "events.jsonl"
    torn.write_bytes((plain / "events.jsonl").read_bytes()[:-7])
    assert read(tmp_path).records
    torn.write_text("{}\n")
    with pytest.raises(RecordingError, match="is not a recording"):
        read(tmp_path)
    torn.write_text('{"recording": 99}\n')
    with pytest.raises(RecordingError, match="version 99"):
        read(tmp_path)
    assert main(["diff", str(tmp_path), str(tmp_path / "none")]) == 2


def test_a_recorder_that_is_off_costs_nothing(tmp_path: Path) -> None:
    trainer = build(tmp_path, record=False)
    assert not any(isinstance(each, Record) for each in trainer.bus.subscribers.values())
    trainer.train()
    assert trainer.bus.watchers == []
    assert trainer.control.ledger.watchers == []
    assert not (tmp_path / "events.jsonl").exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.bool])
def test_the_fingerprint_of_a_batch_depends_on_its_first_and_last_values(dtype: torch.dtype) -> None:
    one = torch.zeros(64, 200).to(dtype)
    for place in ((0, 0), (63, 199)):
        other = one.clone()
        other[place] = 1
        assert fingerprint({"x": one}) == fingerprint([one.clone()]) != fingerprint((other,))
    assert fingerprint({}) == 0


# Perfetto.


def test_the_trace_is_in_the_format_of_chrome(plain: Path, tmp_path: Path) -> None:
    assert main(["trace", str(plain), "--perfetto", str(tmp_path / "run.json")]) == 0
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} <= {"X", "i", "C", "M"}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events if event["ph"] == "X")
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert [f"step {step}" for step in range(1, 13)] == [name for name in names if name.startswith("step ")]
    assert {"forward", "backward", "update", "evaluation", "save 4", "training"} <= set(names)


# Replay.


class Spy(Callback):
    """Notes every call with everything that a recording has."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def note(self, event: str, args: Any, state: Any, control: Any, values: dict[str, Any]) -> None:
        checkpoint = values.get("checkpoint")
        flags = [name for name in ("log", "evaluate", "save", "training_stop", "epoch_stop") if control._reads(name)]
        loss, norm = (values.get(name) for name in ("loss", "grad_norm"))
        values = {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}
        self.calls.append(
            (
                *(event, state.global_step, state.epoch, state.samples_seen, state.best_metric, len(state.log_history)),
                *(values.get(name) for name in ("logs", "metrics", "learning_rate", "requested_by", "dataset_name")),
                *(None if value is None else float(value) for value in (loss, norm)),
                *(flags, checkpoint and checkpoint.step, args.learning_rate),
            )
        )


def _noting(event: str) -> Any:
    def handle(self: Spy, args: Any, state: Any, control: Any, **values: Any) -> None:
        if isinstance(loss := values.get("loss"), torch.Tensor):
            values["loss"] = loss.detach()
        self.note(event, args, state, control, values)

    return handle


for _event in EVENTS:
    setattr(Spy, _event.name, _noting(_event.name))


def test_a_replay_gives_a_callback_the_calls_of_the_live_run(tmp_path: Path) -> None:
    live, replayed = Spy(), Spy()
    build(tmp_path, live).train()
    played = replay(tmp_path, replayed)
    assert replayed.calls == live.calls
    assert played.calls == len(live.calls) > 100


def test_a_replay_tells_what_the_callback_requests(plain: Path) -> None:
    played = replay(plain, at("on_step_end", 3, lambda run, control: control.request("training_stop", "enough")))
    assert [str(entry) for entry in played.requests] == [
        "step 3: Planted request training_stop (False -> True) in on_step_end: enough"
    ]


@pytest.mark.parametrize(
    "stopping",
    [
        lambda: EarlyStopping(patience=1, threshold=10.0),
        lambda: EarlyStopping(target=10.0),
        lambda: EarlyStoppingCallback(1, early_stopping_threshold=10.0),
    ],
)
def test_a_replay_stops_where_the_live_run_stops(plain: Path, tmp_path: Path, stopping: Any) -> None:
    trainer = build(tmp_path, stopping())
    trainer.train()
    played = replay(plain, stopping())
    first = next(entry for entry in played.requests if entry.flag == "training_stop")
    assert (first.step, first.reason) == (
        trainer.state.global_step,
        trainer.control.why("training_stop").split(": ")[1],
    )
    assert trainer.state.global_step < 12


def test_a_replay_of_a_resumed_run_has_the_clock_of_all_sessions(tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []

    class Reads(Callback):
        def on_step_end(self, run: Any) -> None:
            seen.append((run.clock(), run.seconds()))

    build(tmp_path, at("on_step_end", 8, lambda run, control: control.request("training_stop", "planted"))).train()
    build(tmp_path).train(resume_from_checkpoint=True)
    replay(tmp_path, Reads())
    assert len(seen) == 12
    assert seen == sorted(seen)


class SeesSession(Callback):
    """Notes the session, the state and the arguments."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def note(self, event: str, run: Any) -> None:
        state, session = run.state, run.session
        of_state = (state.global_step, state.epoch, state.max_steps, state.eval_steps)
        self.calls.append((event, session.resume_requested, session.first_step, of_state, run.args.learning_rate))

    def on_init_end(self, run: Any) -> None:
        self.note("on_init_end", run)

    def on_train_begin(self, run: Any) -> None:
        self.note("on_train_begin", run)

    def on_step_end(self, run: Any) -> None:
        self.note("on_step_end", run)


class LogsFirst(Callback):
    """Requests a log when a training begins."""

    def on_train_begin(self, control: Any) -> None:
        control.request("log", "the training begins")


STOP = at("on_step_end", 8, lambda run, control: control.request("training_stop", "planted"))


@pytest.mark.parametrize("recorded", ["both sessions", "the second session"])
def test_a_replay_of_a_resumed_run_shows_the_start_of_its_sessions(tmp_path: Path, recorded: str) -> None:
    first, second, replayed = SeesSession(), SeesSession(), SeesSession()
    both = recorded == "both sessions"
    build(tmp_path, first, STOP, record=both).train()
    build(tmp_path, second, max_steps=14, eval_steps=2, learning_rate=0.5).train(resume_from_checkpoint=True)
    replay(tmp_path, replayed)
    live = [*first.calls, *second.calls[1:]] if both else second.calls  # a replay builds one trainer
    assert replayed.calls == live
    assert live[-7][:3] == ("on_train_begin", True, 8)
    played = replay(tmp_path, LogsFirst())
    assert [entry.step for entry in played.requests] == ([0, 8] if both else [8])


def test_a_replay_of_a_run_that_found_no_checkpoint_knows_that_it_asked_to_resume(tmp_path: Path) -> None:
    live, replayed = SeesSession(), SeesSession()
    build(tmp_path, live).train(resume_from_checkpoint="auto")
    replay(tmp_path, replayed)
    assert replayed.calls == live.calls
    assert live.calls[1][:3] == ("on_train_begin", True, 0)


def test_a_replay_writes_no_file_of_the_run(plain: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(plain, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for callback in (JsonLines(), Csv(), Record(), Report(), KeepBest()):
        played = replay(folder, callback)
        assert not [entry for entry in played.requests if entry.action == "fail"], callback
    assert before == {path: path.read_bytes() for path in before}
    logged = [json.loads(line) for line in (folder / "replay" / "metrics.jsonl").read_text().splitlines()]
    assert [row["train/global_step"] for row in logged] == [*range(1, 13)]
    added = {path.relative_to(folder).parts[0] for path in folder.rglob("*") if path.is_file() and path not in before}
    assert added == {"replay"}


def test_a_replay_counts_epochs_as_the_run(tmp_path: Path) -> None:
    class Counts(Callback):
        seen: list[tuple[str, int]]

        def __init__(self) -> None:
            self.seen = []

        def on_epoch_begin(self, run: Any) -> None:
            self.seen.append(("begin", run.count(Clock.EPOCH, 0)))

        def on_step_end(self, run: Any) -> None:
            self.seen.append(("step", run.count(Clock.EPOCH, 0)))

        def on_epoch_end(self, run: Any) -> None:
            self.seen.append(("end", run.count(Clock.EPOCH, 0)))

    live, replayed = Counts(), Counts()
    build(tmp_path, live, max_steps=20).train()
    replay(tmp_path, replayed)
    assert replayed.seen == live.seen
    assert [count for name, count in live.seen if name == "end"] == [1, 2, 3]


def test_a_parameter_without_a_recording_raises_an_error_when_used(plain: Path) -> None:
    class Reads(Callback):
        def on_step_end(self, model: Any) -> None:
            assert model is not None
            model.parameters()

    with pytest.raises(ReplayError, match="A replay has no 'model'"):
        replay(plain, Reads())

    class Computes(Callback):
        def __init__(self, compute: Any) -> None:
            self.compute = compute

        def on_step_end(self, run: Any) -> None:
            self.compute(run.saves)

    for compute in (
        lambda saves: saves > 3,
        lambda saves: saves == 3,
        lambda saves: saves != 3,
        lambda saves: 3 in saves,
    ):
        with pytest.raises(ReplayError, match="A replay has no 'saves'"):
            replay(plain, Computes(compute))


def test_the_command_replays_a_callback_of_a_module(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "replayed_rules.py").write_text(
        "from trainbus import Callback\n\n\nclass Watch(Callback):\n"
        "    def __init__(self, step):\n        self.step = step\n"
        "    def on_log(self, state, control):\n        if state.global_step == self.step:\n"
        "            control.request('save', 'seen')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["replay", str(plain), "--callback", "replayed_rules:Watch(step=5)"]) == 0
    assert "step 5: Watch request save" in capsys.readouterr().out
    assert main(["replay", str(plain), "--callback", "replayed_rules"]) == 2
    assert main(["replay", str(plain), "--callback", "replayed_rules:Other"]) == 2
    capsys.readouterr()
    for call, problem in (
        ("replayed_rules:Watch", "missing 1 required positional argument: 'step'"),
        ("replayed_rules:Watch(limit=5)", "Watch takes no 'limit'. It takes: step. Write it as my_module:Watch"),
        ("math:pi", "is not a class"),
        ("replayed_rules", "does not have the form module:Class"),
        ("../replayed_rules:Watch(step=5)", "does not have the form module:Class"),
        ("replayed_rules:Wach(step=5)", "the module has no 'Wach'; did you mean 'Watch'?"),
        ("trainbus:EarlyStopping(patience=0)", "patience"),
    ):
        assert main(["replay", str(plain), "--callback", call]) == 2, call
        assert problem in capsys.readouterr().err


@pytest.mark.parametrize("place", [("on_batch", 5), ("on_evaluate_begin", 8), ("on_save", 8), ("on_log", 9)])
def test_a_run_that_a_signal_stopped_and_that_resumed_equals_the_unbroken_one(
    plain: Path, tmp_path: Path, place: tuple[str, int]
) -> None:
    event, step = place

    def stop(run: Any, state: Any) -> None:
        if state.global_step == step and not sent:
            sent.append(signal.raise_signal(signal.SIGTERM))

    sent: list[None] = []
    first = build(tmp_path)
    first.on(event, stop)
    with pytest.raises(SystemExit):
        first.train()
    saves = [line for line in read(tmp_path).records if line.get("e") == "on_save_begin"]
    if event != "on_save":  # else the signal comes after the first save of its step
        assert len({line["s"] for line in saves}) == len(saves)
    build(tmp_path).train(resume_from_checkpoint=True)
    assert first_difference(read(plain), read(tmp_path)) is None


def test_the_rows_of_a_resumed_run_do_not_name_the_stop_of_an_earlier_session(plain: Path, tmp_path: Path) -> None:
    build(tmp_path, at("on_step_end", 8, lambda run, control: control.request("training_stop", "planted"))).train()
    assert rows_of(read(tmp_path).records)[-2]["reason"] == "planted"
    build(tmp_path).train(resume_from_checkpoint=True)  # from the save of step 8, which comes before the stop
    assert rows_of(read(tmp_path).records) == rows_of(read(plain).records)
    assert read_recorded(tmp_path / "events.jsonl").decisions == read_recorded(plain / "events.jsonl").decisions


def test_rank_specific_deletions_and_requests_are_no_difference_between_ranks(plain: Path, tmp_path: Path) -> None:
    lines = (plain / "events.jsonl").read_text().splitlines()
    lines[0] = lines[0].replace('"rank":0', '"rank":1')
    alone = ('"do":"request"', '"e":"on_delete"')
    of_other = [line for line in lines if not any(text in line for text in alone)]
    assert len(of_other) < len(lines)
    (tmp_path / "events-rank1.jsonl").write_text("\n".join([*of_other, ""]))
    assert first_difference(read(plain), read(tmp_path / "events-rank1.jsonl")) is None


@pytest.mark.parametrize("damage", ["pattern", "version", "fields"])
def test_a_damaged_recording_is_refused_with_its_line(
    damage: str, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (plain / "events.jsonl").read_text().splitlines()
    if damage == "pattern":
        lines = [line for line in lines if not line.startswith('{"pattern"')]
    elif damage == "version":
        lines[0] = lines[0].replace('"recording":1', '"recording":"x"')
    else:
        lines[2] = '{"e":"on_step_begin"}'
    (tmp_path / "events.jsonl").write_text("\n".join([*lines, ""]))
    for command in (["trace", str(tmp_path)], ["diff", str(plain), str(tmp_path)]):
        assert main(command) == 2
        assert "events.jsonl" in capsys.readouterr().err
