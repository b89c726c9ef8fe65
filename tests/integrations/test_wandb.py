"""Runs of Weights & Biases with the real client: offline, and read back from their files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from random import Random
from statistics import median
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from support.callbacks import Boom
from support.processes import run_on_two
from trainbus import KeepBest, Log, MixedPrecision, every
from trainbus.events.errors import ArgumentError

wandb = pytest.importorskip("wandb")

from wandb_files import read, segments, serve  # noqa: E402
from wandb_fixtures import QUIET, build, offline  # noqa: E402
from wandb_fixtures import environment as environment  # noqa: E402
from wandb_fixtures import service as service  # noqa: E402

from trainbus import Wandb  # noqa: E402
from trainbus.integrations.wandb import client, identity, opening  # noqa: E402
from trainbus.integrations.wandb.artifacts import name_of  # noqa: E402
from trainbus.integrations.wandb.limits import loss_not_finite  # noqa: E402
from trainbus.integrations.wandb.opening import _client_environment  # noqa: E402
from trainbus.integrations.wandb.options import folder_of  # noqa: E402
from trainbus.integrations.wandb.run_file import last_written  # noqa: E402


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """One training of 8 steps with what a user adds, finished, and its segment."""
    folder = tmp_path_factory.mktemp("tracked")
    best = KeepBest("eval_loss")
    callback = offline(folder, options={"config": {"mine": {"a": 1}}}, tags=["t1"], group="g", notes="n", entity="ann")
    trainer = build(folder, callback, Log(every(2)), best)

    def custom(run, state):
        if state.global_step == 6:
            run.log({"a.b/c d": 1.5, "nested": {"x": {"y": 2}}})

    trainer.on("on_step_end", custom)
    trainer.train()
    live = trainer.wandb
    trainer.evaluate()
    trainer.end()
    [segment] = segments(folder)
    return trainer, segment, live, folder


def test_each_step_is_one_row_with_all_values_under_the_names_of_transformers(tracked):
    trainer, segment, _, _ = tracked
    during = segment.rows[:-1]
    assert [row["train/global_step"] for row in during] == [2, 4, 6, 8]
    assert [row["_step"] for row in segment.rows] == [0, 1, 2, 3, 4]
    losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    assert {row["train/global_step"]: row["train/loss"] for row in during} == losses
    assert [("eval/loss" in row, "train/loss" in row) for row in during] == [(i % 2 == 1, True) for i in range(4)]
    assert all({"train/epoch", "train/learning_rate", "train/grad_norm"} <= row.keys() for row in during)


def test_dotted_nested_and_spaced_keys_are_kept(tracked):
    _, segment, _, _ = tracked
    [row] = [row for row in segment.rows if "train/a.b/c d" in row]
    assert row["train/a.b/c d"] == 1.5
    assert row["train/nested"] == {"x": {"y": 2}}
    assert row["train/global_step"] == 6


def test_an_evaluation_after_the_training_is_a_row_of_the_same_run(tracked):
    _, segment, live, _ = tracked
    assert segment.rows[-1]["eval/loss"] == segment.rows[-2]["eval/loss"]
    assert segment.rows[-1]["train/global_step"] == 8
    assert live is not None
    assert live.id == segment.run_id


def test_each_key_has_its_axis_without_a_glob(tracked):
    _, segment, _, _ = tracked
    assert "*" not in "".join(segment.axes)
    assert segment.axes["train/global_step"] == ""
    expected = {"train/loss", "eval/loss", "train/epoch", "train/nested.x.y", "train/a\\.b/c d"}
    assert {segment.axes[name] for name in expected} == {"train/global_step"}


def test_the_summary_has_the_best_value_the_reason_and_the_speed(tracked):
    trainer, segment, _, _ = tracked
    summary, state = segment.summary, trainer.state
    assert "all 8 steps are done" in summary["stopped"]
    assert (summary["best/eval/loss"], summary["best/step"]) == (state.best_metric, state.best_global_step)
    assert summary["total/steps"] == 8
    assert summary["total/seconds"] > 0
    assert summary["total/samples_per_second"] > 0
    assert {"train_runtime", "train_loss", "total_flos", "train_steps_per_second"} <= summary.keys()
    assert segment.exit_code == 0


def test_the_config_is_nested_and_merges_the_options_of_the_user(tracked):
    trainer, segment, _, _ = tracked
    config = segment.config
    assert config["mine"] == {"a": 1}
    assert config["arguments"]["max_steps"] == 8
    assert "logging_steps" not in config["arguments"]  # Log(every(2)) replaces what it would build
    assert "Log(trigger=every(2)" in config["callbacks"]["Log"]
    assert config["model"]["num_parameters"] == config["model"]["num_trainable"] == 10
    assert config["data"]["train"]["rows"] == 32
    assert config["distributed"]["world_size"] == 1
    assert config["environment"]["torch"] == torch.__version__
    assert trainer.args.logging_steps == 500


def test_the_options_reach_the_run(tracked):
    _, segment, _, _ = tracked
    run = segment.run
    assert (run.project, run.entity, run.display_name, run.run_group, run.notes) == ("demo", "ann", "tried", "g", "n")
    assert list(run.tags) == ["t1"]


def test_the_id_is_on_disk_and_in_every_checkpoint(tracked):
    trainer, segment, _, folder = tracked
    stored = json.loads((folder / "out" / "_wandb_run.json").read_text())
    assert stored["run_id"] == segment.run_id == trainer.run.run_id
    assert stored["finished"]
    for step in (4, 8):
        state = json.loads((folder / "out" / f"checkpoint-{step}" / "trainer_state.json").read_text())
        assert segment.run_id in json.dumps(state)


def test_the_sync_commands_are_written_into_the_folder_of_the_run(tracked):
    _, _, _, folder = tracked
    script = (folder / "out" / "_wandb_sync.sh").read_text()
    [path] = folder.glob("wandb/offline-run-*")
    assert f"wandb sync {path}" in script.splitlines()


def test_explicit_precision_replaces_the_arguments_in_the_config(tmp_path):
    trainer = build(tmp_path, offline(tmp_path), MixedPrecision("bf16"), steps=1)
    trainer.train()
    trainer.end()
    [segment] = segments(tmp_path)
    assert "bf16" not in segment.config["arguments"]
    assert "MixedPrecision" in segment.config["callbacks"]


def test_a_resume_writes_no_row_twice_and_records_its_changes(tmp_path):
    first = build(tmp_path, offline(tmp_path))
    first.train()
    first.end()
    second = build(tmp_path, offline(tmp_path), steps=12, save_total_limit=3, max_steps=12)
    second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    second.end()
    one, two = segments(tmp_path)
    assert one.run_id == two.run_id
    assert one.config["arguments"]["max_steps"] == two.config["arguments"]["max_steps"] == 8
    change = two.config["resume"]["1"]
    assert change["step"] == 4
    assert change["arguments"]["max_steps"] == 12
    assert "resume" not in one.config


def test_after_a_crash_the_rows_beyond_the_checkpoint_are_not_repeated(tmp_path):
    first = build(tmp_path, offline(tmp_path), Log(every(1)))

    def crash(state):
        if state.global_step == 7:
            raise RuntimeError("as planned")

    first.on("on_step_end", crash)
    with pytest.raises(RuntimeError, match="as planned"):
        first.train()
    second = build(tmp_path, offline(tmp_path), Log(every(1)))
    second.train(resume_from_checkpoint="auto")
    second.end()
    one, two = segments(tmp_path)
    assert one.run_id == two.run_id
    assert one.steps == [1, 2, 3, 4, 5, 6]
    assert two.steps == [7, 8]
    assert [row["_step"] for row in one.rows + two.rows] == list(range(8))
    assert (one.exit_code, two.exit_code) == (1, 0)
    assert "as planned" in one.summary["stopped"]


def test_rows_that_a_killed_process_lost_are_restored_from_the_log_history(tmp_path):
    first = build(tmp_path, offline(tmp_path), Log(every(1)))
    first.train()
    first.end()
    [path] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    path.write_bytes(path.read_bytes()[:7])  # what a kill leaves before the client's first flush
    second = build(tmp_path, offline(tmp_path), Log(every(1)))
    second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    second.end()
    assert segments(tmp_path)[-1].steps == list(range(1, 9))
    assert f"wandb sync {path.parent}" not in (tmp_path / "out" / "_wandb_sync.sh").read_text().splitlines()


def test_a_log_before_a_resumed_training_leaves_the_run_whole(tmp_path):
    def twice(run, state):
        run.log({"x": state.global_step})
        run.log({"x": -state.global_step})

    for steps in (4, 8):
        trainer = build(tmp_path, offline(tmp_path), steps=steps)
        trainer.on("on_step_end", twice)
        if steps == 8:
            [path] = tmp_path.glob("wandb/offline-run-*/*.wandb")
            path.write_bytes(path.read_bytes()[:7])  # what a kill leaves before the client's first flush
            trainer.log({"before": 1})
        trainer.train(resume_from_checkpoint="auto")
        trainer.end()
    found = segments(tmp_path)
    assert [segment.steps for segment in found[1:]] == [[0], [step for step in range(1, 9) for _ in range(2)]]
    assert [row["train/x"] for row in found[2].rows] == [sign * step for step in range(1, 9) for sign in (1, -1)]
    assert found[2].run_id == trainer.run.run_id != found[1].run_id
    commands = (tmp_path / "out" / "_wandb_sync.sh").read_text()
    assert commands.count("wandb sync") == 2  # the empty part is not uploaded


def test_rows_of_the_last_step_are_counted_over_the_blocks_of_a_file(tmp_path):
    trainer = build(tmp_path, offline(tmp_path), steps=4)
    trainer.on("on_step_end", lambda run, state: [run.log({"x": i, "text": "y" * 9000}) for i in range(6)])
    trainer.train()
    trainer.end()
    [path] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert segments(tmp_path)[0].steps.count(4) == 6
    assert (found := last_written(path, "train/global_step")).rows == 6
    assert (found.step, found.counter) == (4, 23)


def test_the_counter_of_the_client_continues_after_rows_of_the_user(tmp_path):
    """Rows of the user have no step, and a resumed session may write no row: `wandb sync` loses repeated counters."""
    for steps, rows in ((8, 700), (8, 0), (8, 0), (12, 0)):
        trainer = build(tmp_path, offline(tmp_path, on_change="continue"), steps=steps)
        trainer.train(resume_from_checkpoint="auto")
        for number in range(rows):  # more than a block of the file
            trainer.wandb.log({"mine": number, "text": "x" * 100})
        trainer.end()
    found = segments(tmp_path)
    counters = [row["_step"] for segment in found for row in segment.rows]
    assert counters == sorted(set(counters))
    assert sum("mine" in row for segment in found for row in segment.rows) == 700
    assert [step for segment in found for step in segment.steps] == [2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize("on_change", ["continue", "fork", "new"])
def test_a_resume_with_other_arguments_continues_forks_or_starts_a_new_run(tmp_path, on_change, caplog):
    first = build(tmp_path, offline(tmp_path))
    first.train()
    first.end()
    second = build(tmp_path, offline(tmp_path, on_change=on_change), learning_rate=1e-2)
    second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    second.end()
    one, two = segments(tmp_path)
    if on_change == "continue":
        assert one.run_id == two.run_id
        assert two.steps == [6, 8]
        assert "learning_rate" in caplog.text
        assert "on_change='fork'" in caplog.text
        assert not {row["_step"] for row in one.rows} & {row["_step"] for row in two.rows}
        return
    assert one.run_id != two.run_id
    assert two.config["arguments"]["learning_rate"] == 1e-2
    assert two.steps == ([2, 4, 6, 8] if on_change == "fork" else [6, 8])
    assert two.config.get("forked_from") == ({"run": one.run_id, "step": 4} if on_change == "fork" else None)


def test_rows_survive_the_users_own_calls_of_log(tmp_path):
    trainer = build(tmp_path, offline(tmp_path))
    trainer.on("on_step_end", lambda: [trainer.wandb.log({"mine": n}) for n in range(3)])
    trainer.train()
    trainer.end()
    [segment] = segments(tmp_path)
    assert [row["train/global_step"] for row in segment.rows if "train/loss" in row] == [2, 4, 6, 8]
    assert sum("mine" in row for row in segment.rows) == 24


def test_a_lower_step_is_written_with_one_warning(tmp_path, caplog):
    live = wandb.init(mode="offline", dir=str(tmp_path), settings=wandb.Settings(**QUIET))
    for _ in range(2):
        build(tmp_path, Wandb()).train()
    assert not live._is_finished
    live.finish()
    [segment] = segments(tmp_path)
    assert segment.run_id == live.id
    assert segment.steps == [2, 4, 6, 8] * 2
    assert wandb.run is None


def test_a_run_of_the_user_is_used_and_left_open(tmp_path):
    live = wandb.init(mode="offline", dir=str(tmp_path), settings=wandb.Settings(**QUIET))
    trainer = build(tmp_path, Wandb())
    trainer.train()
    assert trainer.wandb is live
    trainer.end()
    live.log({"after": 1})
    live.finish()
    [segment] = segments(tmp_path)
    assert segment.config["arguments"]["max_steps"] == 8
    assert "after" in segment.rows[-1]


def test_two_callbacks_of_one_trainer_have_a_run_each(tmp_path):
    def trained(steps):
        other = Wandb(project="other", mode="offline", options=offline(tmp_path).options)
        trainer = build(tmp_path, offline(tmp_path), other, steps=steps)
        trainer.train(resume_from_checkpoint="auto")
        trainer.end()

    trained(8)
    trained(12)
    found = segments(tmp_path)
    steps = {}
    for segment in found:
        steps.setdefault((segment.run.project, segment.run_id), []).extend(segment.steps)
    assert sorted(project for project, _ in steps) == ["demo", "other"]
    assert list(steps.values()) == [[2, 4, 6, 8, 10, 12]] * 2


def test_two_callbacks_that_were_killed_before_a_checkpoint_continue_their_own_runs(tmp_path):
    names = [uuid.uuid4().hex + end for end in ("", "-2", "-10")]
    for name in names:
        identity.store(tmp_path, identity.Identity(name, (identity.Segment("gone", True),)), opens=True)
    assert [identity.load_last(tmp_path, number).run_id for number in (1, 2, 10)] == names
    assert identity.load_last(tmp_path, 3) is None


def restarted_without_a_checkpoint(folder, end):
    """Train, end the training in its step 3 with `end`, train again in a new trainer, and return the segments."""
    for ends in (end, lambda: None):
        trainer = build(folder, offline(folder), save_strategy="no")
        trainer.on("on_step_begin", lambda state, ends=ends: ends() if state.global_step == 2 else None)
        with suppress(Boom, SystemExit):
            trainer.train(resume_from_checkpoint="auto")
        trainer.end()
    return segments(folder)


def fail():
    raise Boom("step 3")


@pytest.mark.parametrize("end", [fail, lambda: os.kill(os.getpid(), signal.SIGTERM)], ids=["error", "signal"])
def test_a_restart_before_the_first_checkpoint_continues_the_run(end, tmp_path):
    first, second = restarted_without_a_checkpoint(tmp_path, end)
    assert first.run_id == second.run_id
    assert first.steps[0] == 2
    assert sorted({*first.steps, *second.steps}) == sorted(first.steps + second.steps), "no row is written twice"
    assert {*first.steps, *second.steps} >= {2, 4, 6, 8}


def test_a_training_after_a_success_without_a_checkpoint_is_another_run(tmp_path):
    first, second = restarted_without_a_checkpoint(tmp_path, lambda: None)
    assert first.run_id != second.run_id
    assert first.steps == second.steps == [2, 4, 6, 8]


def test_a_restart_before_the_first_checkpoint_uses_the_id_of_the_user(tmp_path, monkeypatch):
    def fail_and_name():
        monkeypatch.setenv("WANDB_RUN_ID", "chosen")
        raise Boom("step 3")

    first, second = restarted_without_a_checkpoint(tmp_path, fail_and_name)
    assert (first.run_id == "chosen", second.run_id) == (False, "chosen")
    assert second.steps == [2, 4, 6, 8]


def test_two_trainings_of_one_process_have_a_run_each(tmp_path):
    one, two = build(tmp_path / "a", offline(tmp_path)), build(tmp_path / "b", offline(tmp_path))
    one.train()
    two.train()
    two.evaluate()
    one.evaluate()
    one.end()
    two.end()
    found = segments(tmp_path)
    assert len({segment.run_id for segment in found}) == 2
    assert [sum("eval/loss" in row for row in segment.rows) for segment in found] == [3, 3]
    assert wandb.run is None


def test_a_further_training_does_not_join_the_open_run_of_another_trainer(tmp_path):
    one, two = build(tmp_path / "a", offline(tmp_path)), build(tmp_path / "b", offline(tmp_path))
    one.train()
    two.train()
    one.train()  # ends the first run, which was `wandb.run`, while the run of the other trainer is open
    assert wandb.run is one.wandb
    assert one.wandb.id != two.wandb.id
    one.end()
    two.end()
    assert [segment.steps for segment in segments(tmp_path)] == [[2, 4, 6, 8]] * 3
    assert wandb.run is None


def test_a_training_leaves_a_run_with_create_new_alone(tmp_path):
    beside = wandb.init(mode="offline", dir=str(tmp_path), reinit="create_new")
    trainer = build(tmp_path / "a", offline(tmp_path))
    trainer.train()
    assert trainer.wandb.id != beside.id
    trainer.end()
    beside.log({"loss": 1.0})
    beside.finish()


def test_a_second_training_from_the_start_is_another_run(tmp_path):
    trainer = build(tmp_path, offline(tmp_path))
    trainer.evaluate()
    trainer.train()
    first = trainer.wandb.id
    trainer.train()
    assert trainer.wandb.id != first
    trainer.end()
    one, two = segments(tmp_path)
    assert one.steps == [0, 2, 4, 6, 8]
    assert two.steps == [2, 4, 6, 8]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"options": {"projet": "x"}}, "did you mean 'project'"),
        ({"options": {"settings": {"init_timout": 3}}}, "did you mean 'init_timeout'"),
        ({"options": {"settings": {"init_timeout": "soon"}}}, "init_timeout"),
        ({"mode": "ofline"}, "did you mean 'offline'"),
        ({"project": "a/b"}, "project"),
        ({"on_change": "forc"}, "did you mean 'fork'"),
        ({"axis": "tokns"}, "did you mean 'tokens'"),
        ({"log_model": "ends"}, "did you mean 'end'"),
        ({"watch": "gradient"}, "did you mean 'gradients'"),
        ({"mode": "shared", "options": {"fork_from": "abc?_step=3"}}, "does not work with fork_from"),
        ({"options": {"mode": "shared", "resume_from": "abc?_step=3"}}, "does not work with resume_from"),
        ({"options": {"settings": {"mode": "shared", "fork_from": "abc?_step=3"}}}, "does not work with fork_from"),
        ({"shared": True, "mode": "offline"}, "shared=True needs the service"),
        ({"options": None}, r"Wandb\(options=None\): set a dict"),
        ({"options": {"config": SimpleNamespace(a=1)}}, r"Wandb\(options\['config'\]=.*: set a dict, such as vars"),
        ({"axis": ["step"]}, "set the name of an axis"),
        ({"init_timeout": "60s"}, "set a number of seconds above 0"),
        ({"init_timeout": 0}, "set a number of seconds above 0"),
        ({"finish_timeout": None}, "set a number of seconds, 0 or more"),
        ({"reference_above": "10GB"}, "set a number of bytes, such as 10e9"),
        ({"tables": True}, r"set Predictions\(rows=64\)"),
        ({"alerts": "no"}, "set True or False"),
        ({"shared": True, "options": {"fork_from": "abc?_step=3"}}, "does not work with fork_from"),
    ],
)
def test_a_wrong_option_is_an_error_at_construction(options, message):
    with pytest.raises(ArgumentError, match=message):
        Wandb(**options)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("WANDB_MODE", "Offline", "WANDB_MODE='Offline' is unknown; did you mean 'offline'"),
        ("WANDB_TAGS", "x" * 100, "WANDB_TAGS='xxx.* Tags must be between 1 and 64 characters"),
        ("WANDB_PROJECT", "a/b", "WANDB_PROJECT='a/b': .* cannot contain"),
        ("WANDB_RUN_ID", "a/b", "WANDB_RUN_ID='a/b': .* cannot contain"),
    ],
)
def test_a_wrong_environment_variable_is_an_error_at_construction(variable, value, message, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ArgumentError, match=message):
        Wandb()
    monkeypatch.setenv("WANDB_DISABLED", "true ")
    Wandb()


@pytest.mark.parametrize(("tags", "seen"), [("", None), ("a,", "a"), (" , ", None), ("a, b", "a,b")])
def test_the_client_does_not_see_empty_variables(tags, seen, monkeypatch):
    monkeypatch.setenv("WANDB_TAGS", tags)
    monkeypatch.setenv("WANDB_RUN_ID", "")
    before = dict(os.environ)
    with _client_environment():
        assert os.environ.get("WANDB_TAGS") == seen
        assert "WANDB_RUN_ID" not in os.environ
        wandb.Settings().update_from_env_vars(os.environ)
    assert dict(os.environ) == before


def test_environment_variables_of_transformers_are_honoured(tmp_path, monkeypatch):
    values = {
        "PROJECT": "envp",
        "NAME": "envn",
        "RUN_GROUP": "envg",
        "TAGS": "a, b",
        "NOTES": "envo",
        "MODE": "offline",
    }
    for name, value in {**values, "DIR": str(tmp_path), "WATCH": "all", "LOG_MODEL": "end", "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    trainer = build(tmp_path, report_to="wandb", run_name=None)
    callback = trainer.callbacks["Wandb"]
    assert (callback.watch, callback.log_model) == ("all", "end")
    trainer.train()
    trainer.end()
    [segment] = segments(tmp_path)
    run = segment.run
    assert (run.project, run.display_name, run.run_group, run.notes) == ("envp", "envn", "envg", "envo")
    assert list(run.tags) == ["a", "b"]
    assert any(name.startswith("gradients/") for row in segment.rows for name in row)
    monkeypatch.setenv("WANDB_LOG_MODEL", "ende")
    with pytest.raises(ArgumentError, match="did you mean 'end'"):
        Wandb()


def test_wandb_disabled_turns_it_off(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DISABLED", "true")
    trainer = build(tmp_path, offline(tmp_path), report_to="wandb")
    trainer.train()
    assert trainer.wandb is None
    assert not list(tmp_path.glob("wandb/*"))


def test_report_to_builds_the_wandb_callback(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    trainer = build(tmp_path, report_to="wandb", run_name="mine", project="here")
    callback = trainer.callbacks["Wandb"]
    assert (callback.name, callback.project) == ("mine", "here")
    trainer.train()
    assert trainer.wandb.disabled
    trainer.end()


def test_a_stop_request_of_the_web_page_stops_and_saves_under_the_name_of_the_user(tmp_path):
    callback = offline(tmp_path, entity="ann")
    trainer = build(tmp_path, callback)
    trainer.on("on_step_begin", lambda state: state.global_step == 4 and callback._request_stop())
    trainer.train()
    trainer.end()
    assert trainer.state.global_step == 5
    assert (tmp_path / "out" / "checkpoint-5").is_dir()
    entries = [entry for entry in trainer.control.ledger if "Stop button" in entry.reason]
    assert "ann (wandb)" in {entry.author for entry in entries}


@pytest.mark.parametrize(
    ("error", "code"), [(RuntimeError("no"), 1), (KeyboardInterrupt(), 255), (SystemExit(3), 3), (SystemExit(), 0)]
)
def test_the_exit_code_says_how_the_run_ended(tmp_path, error, code):
    trainer = build(tmp_path, offline(tmp_path))

    def end(state):
        if state.global_step == 3:
            raise error

    trainer.on("on_step_end", end)
    with pytest.raises(type(error)):
        trainer.train()
    [segment] = segments(tmp_path)
    assert segment.exit_code == code
    assert segment.steps == [2]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 255)])
def test_a_signal_marks_the_run_as_preempted_or_stopped(tmp_path, number, code):
    trainer = build(tmp_path, offline(tmp_path))
    trainer.on("on_step_begin", lambda state: state.global_step == 4 and os.kill(os.getpid(), number))
    with pytest.raises(SystemExit):
        trainer.train()
    [segment] = segments(tmp_path)
    assert (segment.exit_code, segment.preempting) == (code, number == signal.SIGTERM)
    assert segment.steps == [2, 4, trainer.state.global_step]
    assert signal.Signals(number).name in segment.summary["stopped"]


def test_a_tracker_adds_less_than_a_millisecond_to_a_step(tmp_path):
    took = Counter()

    @contextmanager
    def timed(state):
        began = time.perf_counter()
        yield
        took[state.global_step] += time.perf_counter() - began

    class Timed(Wandb):
        def on_log(self, run, state, logs):
            with timed(state):
                super().on_log(run, state, logs)

        def on_step_end(self, run, state, control):
            with timed(state):
                super().on_step_end(run, state, control)

    options = {"dir": str(tmp_path), "settings": QUIET}
    trainer = build(tmp_path, Timed("demo", mode="offline", options=options), Log(every(1)), steps=100, save_steps=100)
    trainer.train()
    trainer.end()
    assert len(took) >= 100
    assert median(took.values()) < 1e-3  # of most steps, which do not wait for a processor
    assert segments(tmp_path)[0].steps == list(range(1, 101))


def test_rows_that_the_service_did_not_receive_are_reported_at_the_end(tmp_path, caplog):
    trainer = build(tmp_path, offline(tmp_path))

    def refuse(row, **options):
        raise ConnectionError("the service is down")

    def break_client(state):
        if state.global_step == 4:
            trainer.wandb.log = refuse

    trainer.on("on_step_end", break_client)
    trainer.train()
    trainer.end()
    assert trainer.state.global_step == 8
    assert "wandb did not receive" in caplog.text
    assert "the service is down" in caplog.text


def test_checkpoints_become_artifacts_with_aliases(tmp_path):
    trainer = build(tmp_path, offline(tmp_path, log_model="checkpoint"), KeepBest("eval_loss"), save_total_limit=None)
    trainer.train()
    trainer.end()
    [segment] = segments(tmp_path)
    aliases = [sorted(artifact.aliases) for artifact in segment.artifacts]
    assert [sorted({*each} - {"best"}) for each in aliases] == [["latest", "step-4"], ["latest", "step-8"]]
    # The first version may be uploaded while it is the best one. The client then moves the alias to the later one.
    last_is_best = trainer.state.best_global_step == 8
    assert ("best" in aliases[1]) is last_is_best
    assert "best" in aliases[0] or last_is_best
    assert {artifact.name for artifact in segment.artifacts} == {"model-tried"}
    metadata = json.loads(segment.artifacts[0].metadata)
    assert metadata["step"] == 4
    assert metadata["size_bytes"] > 0
    assert metadata["metrics"]["eval_loss"] > 0
    files = {entry.path for entry in segment.artifacts[0].manifest.contents}
    assert {"model.safetensors", "manifest.json"} <= files


@pytest.mark.parametrize(
    ("name", "artifact"), [("nämé x/y", "model-n-m--x-y"), ("模型", "model-0a"), ("a.b-c_", "model-a.b-c_")]
)
def test_an_artifact_has_a_name_that_wandb_accepts(name, artifact):
    run = SimpleNamespace(args=SimpleNamespace(run_name=name, output_dir="out"))
    assert name_of(run, "0a") == artifact
    wandb.Artifact(artifact, "model")


def test_a_checkpoint_that_resumes_in_another_folder_repeats_no_row(tmp_path):
    first = build(tmp_path, offline(tmp_path))
    first.train()
    first.end()
    (tmp_path / "out").rename(tmp_path / "copied")
    second = build(tmp_path, offline(tmp_path))  # `out` has no identity
    second.train(resume_from_checkpoint=str(tmp_path / "copied" / "checkpoint-4"))
    second.end()
    assert [segment.steps for segment in segments(tmp_path)] == [[2, 4, 6, 8], []]
    assert (tmp_path / "out" / "_wandb_sync.sh").read_text().count("wandb sync") == 2


def test_the_final_model_is_an_artifact_and_a_large_one_a_reference(tmp_path):
    trainer = build(tmp_path, offline(tmp_path, log_model="end", reference_above=10))
    trainer.train()
    trainer.end()
    [segment] = segments(tmp_path)
    [artifact] = segment.artifacts
    assert {"latest", "final_model", "step-8"} <= set(artifact.aliases)
    assert all(entry.ref for entry in artifact.manifest.contents)


def test_the_artifact_of_the_best_model_describes_the_best_step(tmp_path):
    trainer = build(tmp_path, offline(tmp_path, log_model="end"), KeepBest("eval_loss", mode="max"))
    trainer.train()
    trainer.end()
    [artifact] = segments(tmp_path)[0].artifacts
    metadata, best = json.loads(artifact.metadata), trainer.state.best_global_step
    evaluated = [entry for entry in trainer.state.log_history if "eval_loss" in entry and entry["step"] == best]
    assert best == 4
    assert (metadata["step"], metadata["metrics"]["eval_loss"]) == (4, trainer.state.best_metric)
    assert metadata["epoch"] == evaluated[0]["epoch"]
    assert {"latest", "final_model", "step-4"} == set(artifact.aliases)


def test_gradients_and_weights_are_histograms_at_log_steps(tmp_path):
    plain = build(tmp_path / "plain")
    plain.train()
    trainer = build(tmp_path, offline(tmp_path, watch="all"))
    trainer.train()
    trainer.end()
    [segment] = segments(tmp_path)
    for row in segment.rows:
        for name in ("gradients/weight", "parameters/weight", "gradients/bias"):
            assert row[name]["_type"] == "histogram"
        assert sum(row["gradients/weight"]["values"]) == 8
    assert segment.steps == [2, 4, 6, 8]
    for one, other in zip(plain.model.parameters(), trainer.model.parameters()):
        assert torch.equal(one, other)


def test_a_failure_sends_one_alert_with_its_reason(tmp_path):
    trainer = build(tmp_path, offline(tmp_path, alerts=True))

    def fail(run, state):
        if state.global_step in (2, 3):
            run.log({"other_loss": float("nan")})
        if state.global_step == 4:
            raise RuntimeError("as planned")

    trainer.on("on_step_end", fail)
    with pytest.raises(RuntimeError):
        trainer.train()
    [segment] = segments(tmp_path)
    assert [alert.title for alert in segment.alerts] == ["The loss is not finite"] * 2 + ["The run failed"]
    assert "as planned" in segment.alerts[-1].text
    assert all(alert.wait_duration == 600_000 for alert in segment.alerts)


@pytest.mark.parametrize("number", [float("nan"), np.float32("inf"), torch.tensor(float("-inf"))])
def test_a_loss_of_any_number_type_that_is_not_finite_is_named(number):
    assert loss_not_finite({"a": number, "eval_loss": number}) == f"eval_loss is {float(number)}"
    assert loss_not_finite({"a": number, "loss": 1.0, "losses": 3}) == ""


def test_limits_are_guarded_with_one_warning_that_names_the_key(caplog):
    from trainbus.integrations.wandb.limits import Guard, Limits

    guard = Guard(Limits(keys=3, value_bytes=40, row_bytes=100))
    row = guard.apply({"a": 1, "text": "x" * 50, "c": torch.tensor(2.0), "d": 4})
    assert row == {"a": 1, "text": "x" * 10, "c": 2.0}
    assert "'text' is longer" in caplog.text
    assert "'d' is not recorded" in caplog.text
    caplog.clear()
    guard.apply({"e": 1, "text": "x" * 50})
    assert caplog.text == ""


def test_values_that_are_left_out_are_passed_on():
    from trainbus.integrations.wandb.limits import Guard, Limits

    left_out = []
    guard = Guard(Limits(value_bytes=10), leave_out=lambda *noted: left_out.append(noted))
    row = {"meta": torch.zeros(2, device="meta"), "long": list(range(9)), "kept": 1}
    for _ in range(2):
        assert guard.apply(row) == {"kept": 1}
    assert [name for name, _, _ in left_out] == ["meta", "long"] * 2
    assert left_out[1][2] == "it has 27 bytes, and 10 are allowed"


def test_other_axes_are_columns_on_request(tmp_path):
    trainer = build(tmp_path, offline(tmp_path, axis={"eval/*": "epoch", "train/loss": "samples"}))
    trainer.train()
    trainer.end()
    [segment] = segments(tmp_path)
    assert segment.axes["eval/loss"] == "train/epoch"
    assert segment.axes["train/loss"] == "train/samples_seen"
    assert segment.axes["train/learning_rate"] == "train/global_step"
    assert [row["train/samples_seen"] for row in segment.rows] == [16, 32, 48, 64]


def test_the_axis_of_tokens_is_a_column(tmp_path):
    trainer = build(tmp_path, offline(tmp_path, axis="tokens"))
    trainer.on("on_step_end", lambda state: setattr(state, "num_input_tokens_seen", 100 * state.global_step))
    trainer.train()
    trainer.end()
    [segment] = segments(tmp_path)
    assert segment.axes["train/loss"] == segment.axes["eval/loss"] == "train/num_input_tokens_seen"
    assert segment.axes["train/num_input_tokens_seen"] == "train/global_step"
    assert all(row["train/num_input_tokens_seen"] > 0 for row in segment.rows)


def test_a_service_of_the_client_that_dies_loses_no_row(tmp_path, caplog):
    trainer = build(tmp_path, offline(tmp_path), Log(every(1)))

    def kill_service(state):
        if state.global_step == 4:
            process = wandb.setup()._connection._proc._process
            process.kill()
            process.wait()

    trainer.on("on_step_end", kill_service)
    trainer.train()
    trainer.end()
    found = segments(tmp_path)
    assert [step for segment in found for step in segment.steps] == list(range(1, 9))
    assert len({segment.run_id for segment in found if segment.run_id}) == 1
    assert found[-1].exit_code == 0
    assert "continues with another one" in caplog.text
    assert "did not receive" not in caplog.text


def test_rows_that_the_service_has_not_written_to_the_file_yet_are_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr("trainbus.integrations.wandb.client.wait_until_complete", lambda folder: False)
    first = build(tmp_path, offline(tmp_path))
    first.train()
    first.end()
    [path] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert segments(tmp_path)[0].steps == [2, 4, 6, 8]
    whole = path.read_bytes()
    path.write_bytes(whole[:7])  # the file as a slow service leaves it for a while
    second = build(tmp_path, offline(tmp_path))
    second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    second.end()
    path.write_bytes(whole)
    assert [segment.steps for segment in segments(tmp_path)] == [[2, 4, 6, 8], []]


def test_rows_that_the_client_could_not_write_are_reported_and_restored_by_a_resume(tmp_path, monkeypatch, caplog):
    complete = client.wait_until_complete

    def cut_off(folder):
        """Leave what a full disk leaves."""
        assert complete(folder)
        [file] = folder.glob("run-*.wandb")
        while last_written(file, "train/global_step").step > 4:
            file.write_bytes(file.read_bytes()[:-20])
        return False

    with monkeypatch.context() as patch:
        patch.setattr(client, "wait_until_complete", cut_off)
        trainer = build(tmp_path, offline(tmp_path))
        trainer.train()
        trainer.end()
    assert "ends at step 4, and the last row is of step 8. The client stops writing if the disk is full." in caplog.text
    client._UNSEEN.clear()  # as in another process
    again = build(tmp_path, offline(tmp_path))
    again.train(resume_from_checkpoint="auto")
    again.end()
    first, second = segments(tmp_path)
    assert (first.run_id, first.steps, second.steps) == (second.run_id, [2, 4], [6, 8])


def test_a_run_whose_folder_was_removed_is_reported(tmp_path, caplog):
    trainer = build(tmp_path, offline(tmp_path))
    trainer.on("on_train_end", lambda: shutil.rmtree(tmp_path / "wandb"))
    trainer.train()
    trainer.end()
    assert "has no run file any more, so its rows cannot be uploaded." in caplog.text


def test_values_of_every_kind_are_recorded(tmp_path, caplog):
    trainer = build(tmp_path, offline(tmp_path))
    mine = {
        **{"nan": float("nan"), "inf": float("inf"), "bool": True, "none": None, "text": "x", 5: 6, "": 7},
        **{"numpy": np.float32(1.5), "int64": np.int64(3), "tensor": torch.tensor(2.5), "when": datetime(2026, 1, 2)},
        **{"image": Image.new("RGB", (4, 4)), "column": pandas.Series([1, 2]), "sparse": torch.eye(2).to_sparse()},
        **{"imaginary": torch.tensor(1j), "meta": torch.zeros(2, device="meta"), "array": np.full(2, object())},
        **{"list": [1, torch.tensor(2)], "nested": {1: {"deep": np.bool_(True)}}, "k" * 3000: 1, "object": object()},
    }
    refused = {"odd": type("Odd", (), {"__module__": "wandb"})(), "kept": 1}
    values = {2: mine, 3: mine, 4: refused, 5: refused}
    trainer.on("on_step_end", lambda run, state: run.log(values.get(state.global_step, {})))
    trainer.train()
    trainer.end()
    [segment] = segments(tmp_path)
    assert segment.steps == [*range(1, 9)]
    assert segment.rows[3]["train/kept"] == 1
    assert {"train/loss", "eval/loss"} <= segment.rows[3].keys()
    row = segment.rows[1]
    assert (row["train/bool"], row["train/numpy"], row["train/int64"], row["train/tensor"]) == (True, 1.5, 3, 2.5)
    assert row["train/5"] == 6
    assert row["train/nested"]["1"]["deep"] is True
    assert "2026-01-02" in row["train/when"]
    assert (row["train/column"], row["train/sparse"]) == ([1, 2], [[1, 0], [0, 1]])
    assert {"train/image", "train/imaginary", "train/loss"} <= row.keys()
    said = [record.getMessage() for record in caplog.records if "does not record" in record.getMessage()]
    assert [text.partition(", a value")[0] for text in said] == [
        "wandb does not record 'train/meta'",
        "wandb does not record 'train/odd'",
    ]


def kill_and_resume(folder, kills, steps, seed):
    """Kill a training at random moments and resume it, until it is done. Return its segments, and the real kills."""
    random = Random(seed)
    program = [sys.executable, str(Path(__file__).with_name("wandb_kill_program.py")), str(folder), str(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("WANDB_SERVICE", None)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    killed = 0
    with subprocess.Popen(program, env=environment, **pipes) as parent:
        for turn in range(kills + 1):
            # One kill of four is at any moment of the start. The others are within a step or a save.
            early, allowed = random.random() < 0.25, random.randint(1, 2 * max(2, steps // max(kills, 1)))
            pause = random.random() * (2.0 if early else 0.03)
            print("go", file=parent.stdin, flush=True)
            child, done, timer = 0, 0, None
            for line in parent.stdout:
                kind, _, number = line.strip().partition(" ")
                if kind == "process":
                    child = int(number)
                    if early and turn < kills:
                        timer = threading.Timer(pause, os.kill, (child, signal.SIGKILL))
                        timer.start()
                elif kind == "status":
                    assert turn < kills or number == "0"
                    killed += int(number) == signal.SIGKILL
                    break
                elif kind == "done":  # other lines are those of the training itself
                    done += 1
                    if turn < kills and not early and done == allowed:
                        time.sleep(pause)
                        os.kill(child, signal.SIGKILL)
            if timer is not None:
                timer.cancel()
        parent.stdin.close()
    # The client adds `-1` to the name of a second folder of the same second.
    paths = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.parent.name)
    return [read(path) for path in paths], killed


def check_killed(found, steps):
    rows = [row for segment in found for row in segment.rows]
    assert [row["train/global_step"] for row in rows] == list(range(1, steps + 1))
    assert [row["_step"] for row in rows] == list(range(steps))
    assert len({segment.run_id for segment in found if segment.run_id}) == 1


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_the_id_is_on_disk_before_the_client_opens_the_run(tmp_path, monkeypatch, mode):
    seen = []
    original = opening._call_init

    def call(request, options, timeout):
        stored = identity.load(request.folder)
        seen.append((options["id"], stored and stored.run_id))
        return original(request, options, timeout)

    monkeypatch.setattr(opening, "_call_init", call)
    trainer = build(tmp_path, Wandb("demo", mode=mode, options={"dir": str(tmp_path), "settings": QUIET}))
    trainer.train()
    trainer.end()
    [(given, stored)] = seen
    assert stored == (given if mode == "offline" else None)


@pytest.mark.timeout(600)  # two processes on a busy machine
def test_a_kill_and_a_resume_leave_every_step_once_in_one_run(tmp_path):
    found, _ = kill_and_resume(tmp_path, kills=1, steps=20, seed=3)
    check_killed(found, 20)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_200_random_kills_and_resumes_leave_every_step_once_in_one_run(tmp_path, part):
    seed, kills = int(os.environ.get("TRAINBUS_KILL_SEED") or time.time_ns() % 10**6) + part, 20
    print(f"TRAINBUS_KILL_SEED={seed - part}, part {part}")
    found, killed = kill_and_resume(tmp_path, kills, steps=20 * kills, seed=seed)
    check_killed(found, 20 * kills)
    assert killed > kills // 2  # a training that is done early is not killed
    full = sum(bool(segment.rows) for segment in found)
    print(f"{killed} kills, {20 * kills} steps in {len(found)} files, {full} of them with rows")


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_parameters_of_a_sweep_override_the_arguments_before_they_are_checked(tmp_path, monkeypatch, caplog):
    file = tmp_path / "config.yaml"
    file.write_text("wandb_version: 1\nlearning_rate:\n  value: 0.25\nmax_steps:\n  value: 3\nwidth:\n  value: 7\n")
    monkeypatch.setenv("WANDB_SWEEP_PARAM_PATH", str(file))
    trainer = build(tmp_path, offline(tmp_path))
    assert (trainer.args.learning_rate, trainer.args.max_steps) == (0.25, 3)
    assert "learning_rate=0.25 overrides 5e-05" in caplog.text
    trainer.train()
    trainer.end()
    assert trainer.state.global_step == 3
    [segment] = segments(tmp_path)
    assert segment.config["arguments"]["learning_rate"] == 0.25
    file.write_text("wandb_version: 1\nmax_steps:\n  value: soon\n")
    with pytest.raises(ArgumentError, match="max_steps"):
        build(tmp_path, offline(tmp_path))


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """A tracked training on two ranks under a sweep, and what each rank saw."""
    folder = tmp_path_factory.mktemp("ranks")
    file = folder / "config.yaml"
    file.write_text("wandb_version: 1\nlearning_rate:\n  value: 0.25\nmax_steps:\n  value: 2\nwidth:\n  value: 7\n")
    program = Path(__file__).with_name("wandb_ranks_program.py")
    with serve() as stub, pytest.MonkeyPatch.context() as patched:
        patched.delenv("WANDB_SERVICE", raising=False)  # the ranks start their own service
        settings = {
            "WANDB_SWEEP_PARAM_PATH": str(file),
            "STUB": stub.url,
            "WANDB_API_KEY": "a" * 40,
            "WANDB_MODE": "online",
        }
        run_on_two(program, folder, timeout=300, **settings)
    return folder, [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)], stub


def test_rank_0_receives_the_parameters_of_a_sweep_for_all_ranks(two_ranks):
    _, ranks, _ = two_ranks
    for seen in ranks:
        assert (seen["rate"], seen["steps"]) == (0.25, 2)
        assert any("learning_rate=0.25 overrides" in line for line in seen["listed"])
        assert not any("width" in line for line in seen["listed"])
        assert "max_steps" in seen["refused"]
    assert [seen["tracked"] for seen in ranks] == [True, False]


def test_histograms_are_written_on_two_ranks(two_ranks):
    [segment] = segments(two_ranks[0])
    assert segment.rows[-1]["gradients/weight"]["_type"] == "histogram"


def test_charts_count_the_samples_of_all_ranks_once(two_ranks):
    folder, _, _ = two_ranks
    [segment] = segments(folder)
    files = next(folder.glob("wandb/offline-run-*/files"))
    cells = json.loads((files / segment.rows[-1]["eval/confusion_matrix_table"]["path"]).read_text())["data"]
    assert sum(cell[2] for cell in cells) == 22
    shown = json.loads((files / segment.rows[-1]["eval/predictions"]["path"]).read_text())["data"]
    assert [row[0] for row in shown] == [0, 1, 2, 3, 8, 9, 10, 11, 16]  # rows of rank 0's batches


def test_a_shared_run_has_one_writer_of_rows_and_one_of_metrics_on_each_further_machine(two_ranks):
    folder, _, stub = two_ranks
    assert [row["train/global_step"] for row in stub.rows] == [1, 2, 3, 4]
    assert len({upsert["name"] for upsert in stub.upserts}) == 1
    assert [len(list(folder.glob(f"node-{rank}/wandb/run-*"))) for rank in (0, 1)] == [1, 1]
    assert stub.exit_codes == [0]  # rank 0 alone decides the final state
    assert {"rank-0", "rank-1"} <= stub.labels


def test_each_run_of_a_process_is_written_where_the_program_works_at_its_start(tmp_path, monkeypatch):
    callback = {"mode": "offline", "options": {"settings": QUIET}}
    folders = [tmp_path / name for name in ("one", "two", "named", "chosen")]
    for folder in folders:
        folder.mkdir()
        if folder.name in ("one", "two"):
            monkeypatch.chdir(folder)
        else:
            monkeypatch.setenv("WANDB_DIR", str(tmp_path / "named"))  # stays set for the last run
        if folder.name == "chosen":
            callback["options"] = {"settings": {**QUIET, "root_dir": str(folder)}}
        trainer = build(folder, Wandb(**callback))
        trainer.train()
        trainer.end()
    assert [len(list(folder.glob("wandb/offline-run-*"))) for folder in folders] == [1, 1, 1, 1]


def test_a_folder_that_cannot_be_used_does_not_end_the_training(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_DIR", "/proc/wandb")
    trainer = build(tmp_path, Wandb(mode="offline", options={"settings": QUIET}))
    trainer.train()
    [part] = identity.load(tmp_path / "out").segments
    trainer.end()
    assert Path(part.folder).is_relative_to(tempfile.gettempdir())  # where the client writes it then
    assert read(next(Path(part.folder).glob("*.wandb"))).steps == [2, 4, 6, 8]
    monkeypatch.delenv("WANDB_DIR")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert folder_of({}) == tempfile.gettempdir()


def test_a_run_that_starts_early_is_the_run_of_the_training_and_of_its_resume(tmp_path):
    out = str(tmp_path / "out")
    early = offline(tmp_path).start(out)
    assert early.live is not None
    assert json.loads((tmp_path / "out" / "_wandb_run.json").read_text())["run_id"] == early.run_id
    first = build(tmp_path, early)
    first.train()
    first.end()
    second = build(tmp_path, offline(tmp_path).start(out, resume=True), Log(every(1)))
    second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    second.end()
    one, two = segments(tmp_path)
    assert one.run_id == two.run_id == early.run_id
    assert one.steps == [2, 4, 6, 8]
    assert two.steps == []
    assert one.config["arguments"]["max_steps"] == 8


def test_an_error_before_the_training_fails_a_run_that_started_early(tmp_path):
    program = (
        "import sys; from trainbus import Wandb\n"
        "settings = {'silent': True, 'console': 'off', 'x_disable_stats': True, 'disable_git': True}\n"
        "Wandb(mode='offline', options={'dir': sys.argv[1], 'settings': settings}).start(sys.argv[1] + '/out')\n"
        "raise RuntimeError('no data')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert "no data" in done.stderr
    [segment] = segments(tmp_path)
    assert segment.exit_code == 1


def test_the_config_of_a_run_on_the_cpu_names_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainbus.integrations.wandb.config import run_config
    from trainbus.testing import tiny_trainer

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda *_: "a GPU")
    assert run_config(tiny_trainer(tmp_path).run)["environment"]["gpu"] is None
