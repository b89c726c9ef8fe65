"""Previews: their rows are those of the recording of the run, and they change nothing."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from preview_configurations import Configuration, KillAt, Killed, compared, drawn
from torch.utils.data import IterableDataset

from trainbus import EarlyStopping
from trainbus.engine.api.preview.result import Preview
from trainbus.engine.distributed.ranks import Ranks
from trainbus.events import ArgumentError, Callback
from trainbus.events.recording.files import read
from trainbus.events.recording.rows import difference, rows_of

SEEDS = range(60)
FAST = SEEDS[::6]


def basic(**arguments: Any) -> Configuration:
    return Configuration(0, 16, {"per_device_train_batch_size": 4, "max_steps": 20, "save_strategy": "no", **arguments})


def check(seed: int, folder: Path) -> None:
    configuration = drawn(seed)
    print(configuration)
    previewed, recorded, preview, left = compared(configuration, folder)
    assert previewed == recorded, f"seed {seed}"
    assert preview.kept == left, f"seed {seed}"


@pytest.mark.parametrize("seed", FAST)
def test_the_preview_of_a_run_equals_its_recording(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [seed for seed in range(200) if seed not in FAST])
def test_the_preview_of_every_run_equals_its_recording(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


def test_the_drawn_runs_vary() -> None:
    found = [drawn(seed) for seed in SEEDS]
    text = " ".join(str(each) for each in found)
    for word in (
        "EarlyStopping(",
        "EarlyStoppingCallback",
        "Keep(last=1, best=1)",
        "hard",
        "sparse_",
        "'best'",
        "0.34",
    ):
        assert word in text, word
    assert sum(each.kill_at > 0 for each in found) >= 10
    assert sum(each.several for each in found) >= 5


def test_a_preview_leaves_everything_as_it_was(tmp_path: Path) -> None:
    trainer = basic(save_strategy="steps", save_steps=5).trainer(tmp_path / "out")
    states, weights = torch.get_rng_state(), [weight.clone() for weight in trainer.model.parameters()]
    attached, state = list(trainer.bus.subscribers.values()), trainer.state.to_dict()
    first = trainer.preview(measure=True)
    assert torch.equal(states, torch.get_rng_state())
    assert all(torch.equal(one, other) for one, other in zip(weights, trainer.model.parameters()))
    assert all(weight.grad is None for weight in trainer.model.parameters())
    assert list(trainer.bus.subscribers.values()) == attached
    assert trainer.state.to_dict() == state
    assert trainer.run.mode == ""
    assert not (tmp_path / "out").exists()
    assert trainer.preview().rows == first.rows
    assert first.time["step"] > 0


def test_simulated_processes_divide_the_data(tmp_path: Path) -> None:
    arguments = {"per_device_train_batch_size": 4, "num_train_epochs": 2, "save_strategy": "no"}
    trainer = Configuration(0, 32, arguments).trainer(tmp_path)
    assert [trainer.preview(processes=count).max_steps for count in (1, 2, 4)] == [16, 8, 4]
    assert trainer.preview().max_steps == 16


def test_all_ranks_have_the_same_preview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = basic(save_strategy="steps", save_steps=4, save_total_limit=1).trainer(tmp_path)
    previews = []
    for rank in range(2):
        trainer.run.ranks = Ranks(rank, 2, rank)
        monkeypatch.setattr(type(trainer.args), "process_index", property(lambda self, rank=rank: rank))
        previews.append(trainer.preview())
    assert previews[0] == previews[1]
    assert previews[1].kept == [20]


@pytest.mark.parametrize(
    ("arguments", "callbacks", "warning"),
    [
        ({"eval_strategy": "steps", "eval_steps": 500}, [], "every(500) is never due, the run has 20 steps"),
        ({}, ["Checkpoint(every(7))"], "the last 6 steps are not saved"),
        ({}, ["KeepBest('eval_score', mode='max')"], "no evaluation measures one"),
        (
            {"eval_strategy": "steps", "eval_steps": 10},
            ["EarlyStopping('eval_score', patience=3, mode='max')"],
            "a patience of 3 needs 4 evaluations, but the run makes 2",
        ),
        ({"warmup_steps": 20}, [], "never reaches the full learning rate"),
        (
            {"eval_strategy": "steps", "eval_steps": 5},
            ["Checkpoint(every(5), keep=Keep(last=1))"],
            "nothing keeps the best one",
        ),
        ({"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 1.0}}, [], "never decays"),
        ({}, ["Log(every('10min'))"], "depends on the clock"),
    ],
)
def test_traps_are_named(arguments: Any, callbacks: Any, warning: str, tmp_path: Path) -> None:
    if any("Checkpoint" in text for text in callbacks):
        arguments = {**arguments, "save_strategy": "steps"}
    found = basic(**arguments)
    if any("Checkpoint" in text for text in callbacks):
        found.arguments.pop("save_strategy")
    found.callbacks = callbacks
    warnings = "\n".join(found.trainer(tmp_path).preview().warnings)
    assert warning in warnings


@pytest.mark.parametrize("stop", [10, 20])
def test_a_preview_of_a_resumed_run_has_no_traps_of_work_that_an_earlier_session_did(stop: int, tmp_path: Path) -> None:
    found = basic(eval_strategy="steps", eval_steps=5, save_strategy="steps", save_steps=5, logging_steps=5)
    found.callbacks = ["KeepBest('eval_loss')", "EarlyStopping(patience=3)"]
    trained = found.trainer(tmp_path)
    trained.on("on_step_end", lambda control: control.request("training_stop", "enough"), once=stop, id="me")
    trained.train()
    again = found.trainer(tmp_path)
    preview = again.preview(resume_from_checkpoint=True, measure=True)
    assumed = [text for text in preview.warnings if "assumed to improve" in text]
    assert len(assumed) == (stop == 10)  # at step 20, the run is complete and evaluates nothing
    assert preview.warnings == assumed
    evaluations = sum(row["what"] == "evaluate" for row in preview.rows)
    seconds = [(20 - stop) * preview.time["step"], evaluations * preview.time["evaluation"]]
    assert preview.time["evaluation_share"] == pytest.approx(seconds[1] / max(sum(seconds), 1e-12))


class Decides(Callback):
    def on_step_end(self, state: Any, control: Any) -> None:
        if state.global_step == 6:
            control.request("training_stop", "seen enough")


def test_a_callback_takes_part_if_it_says_so(tmp_path: Path) -> None:
    preview = basic().trainer(tmp_path, Decides()).preview()
    assert preview.steps == 20
    assert "Not in the preview: Decides" in preview.warnings[0]
    willing = type("Willing", (Decides,), {"previews": True})
    preview = basic().trainer(tmp_path, willing()).preview()
    assert (preview.steps, preview.rows[-1]["by"]) == (6, "Willing")


class Stream(IterableDataset[Any]):
    """A stream without a length."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return ((torch.ones(4) * row, row % 2) for row in range(self.rows))


@pytest.mark.parametrize("rows", [3, 7, 16, 50])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("stop", [0, 2, 3, 5])
def test_a_preview_of_a_stream_knows_its_epochs_if_their_samples_are_given(
    rows: int, drop_last: bool, stop: int, tmp_path: Path
) -> None:
    arguments = {"max_steps": 9, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    found = basic(**arguments, eval_strategy="epoch", logging_strategy="epoch", save_steps=1, save_total_limit=2)
    found.arguments |= {"save_strategy": "steps", "dataloader_drop_last": drop_last}

    def trainer(*more: Any) -> Any:
        made = found.trainer(tmp_path / "run", *more)
        made.train_dataset = Stream(rows)
        return made

    resume = None
    if stop:
        resume = "auto"
        with pytest.raises(Killed):
            trainer(KillAt(stop)).train()
    preview = trainer().preview(stream_rows=rows, resume_from_checkpoint=resume)
    again = trainer()
    again.train(resume_from_checkpoint=resume)
    records = read(tmp_path / "run").records
    begins = max(index for index, record in enumerate(records) if "session" in record)
    assert preview.rows == rows_of(records[begins:])
    assert preview.epochs == pytest.approx(again.state.epoch, abs=1e-6)
    assert not any("stream" in warning for warning in preview.warnings)


def test_a_preview_of_a_stream_warns_that_it_does_not_know_where_epochs_end(tmp_path: Path) -> None:
    def warnings(**arguments: Any) -> str:
        trainer = basic(**arguments).trainer(tmp_path)
        trainer.train_dataset = Stream(16)
        return "\n".join(trainer.preview().warnings)

    assert "Evaluate: due at the end of epochs. Pass `stream_rows`" in warnings(eval_strategy="epoch")
    assert "stream" not in warnings(eval_strategy="steps", eval_steps=5)


@pytest.mark.parametrize(("rows", "error"), [(0, "whole number"), (2.5, "whole number"), (16, "has 16 samples")])
def test_stream_rows_must_fit_the_data(rows: Any, error: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=error):
        basic().trainer(tmp_path).preview(stream_rows=rows)


def test_time_passes_if_the_length_of_a_step_is_given(tmp_path: Path) -> None:
    preview = basic(max_time="10min").trainer(tmp_path).preview(step_seconds=60)
    assert preview.rows[-1]["by"] == "StopAtTime"
    assert preview.steps < 10


def test_a_list_of_metrics_that_is_too_short_repeats_its_last_value(tmp_path: Path) -> None:
    trainer = basic(eval_strategy="steps", eval_steps=4).trainer(
        tmp_path, EarlyStopping("eval_score", patience=2, mode="max")
    )
    preview = trainer.preview(metrics={"score": [0.1, 0.2]})
    assert preview.steps == 16
    assert any("2 values are given" in warning for warning in preview.warnings)
    with pytest.raises(ArgumentError, match="has no value"):
        trainer.preview(metrics={"score": []})


@pytest.mark.parametrize(("losses", "deleted"), [([0.1, 0.9, 0.8], True), ([math.nan, 0.1, 0.2], False)])
def test_a_deleted_checkpoint_with_nan_is_not_the_best(tmp_path: Path, losses: list[float], deleted: bool) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4, "max_steps": 12}
    trainer = basic(**options, save_total_limit=2).trainer(tmp_path, EarlyStopping("loss", finite=False))
    warned = "\n".join(trainer.preview(metrics={"loss": losses}).warnings)
    assert ("The checkpoint of step 4, with the best metric, is deleted" in warned) is deleted


def test_a_misspelled_metric_is_named(tmp_path: Path) -> None:
    def warnings(**metrics: Any) -> str:
        stopping = EarlyStopping("eval_score", patience=2, mode="max")
        trainer = basic(eval_strategy="steps", eval_steps=4).trainer(tmp_path, stopping)
        return "\n".join(trainer.preview(metrics={name: [value] for name, value in metrics.items()}).warnings)

    assert "eval_scor: no callback reads this metric; did you mean 'eval_score'?" in warnings(scor=0.5)
    assert "no callback reads" not in warnings(score=0.5, scores=0.4)
    assert "no callback reads" not in warnings(throughput=0.5)


def test_the_differences_of_previews_are_rows_numbers_and_learning_rates(tmp_path: Path) -> None:
    def preview(**arguments: Any) -> Preview:
        return (
            basic(**{"logging_steps": 5, "save_steps": 10, "save_strategy": "steps", **arguments})
            .trainer(tmp_path)
            .preview()
        )

    plan = preview()
    assert plan.differences(preview(seed=3)) == []
    assert plan.differences(preview(learning_rate=0.5))[0].startswith("- learning rate: 5e-05 at first")
    steps = {"lr_scheduler_kwargs": {"power": 1.0}, "lr_scheduler_type": "polynomial"}
    bent = {**steps, "lr_scheduler_kwargs": {"power": 1.0, "lr_end": 0.0}}
    assert preview(**steps).differences(preview(**bent))[0].startswith("- learning rate")
    one, other = preview(), preview()
    other.rows[1]["learning_rate"] *= 1.001
    assert one.differences(other) == ["- learning rate at step 10: 2.75e-05", "+ learning rate at step 10: 2.75275e-05"]
    assert plan.differences(preview(save_steps=20))[0] == "- step 10: save by Checkpoint"


def test_the_difference_of_many_rows_takes_no_minutes() -> None:
    rows = [[{"step": 3 * step, "what": "log", "by": by} for step in range(3000)] for by in ("Log", "Dense")]
    began = time.perf_counter()
    found = difference(*rows)
    assert time.perf_counter() - began < 20  # before: hours
    assert found[:4] == [
        "- step 0: log by Log",
        "+ step 0: log by Dense",
        "- step 3: log by Log",
        "+ step 3: log by Dense",
    ]
    assert len(found) == 6000


def test_every_form_shows_the_rows(tmp_path: Path) -> None:
    preview = basic(logging_steps=5).trainer(tmp_path).preview()
    (tmp_path / "plan.json").write_text(preview.to_json())
    assert Preview.load(tmp_path / "plan.json") == preview
    assert json.loads(preview.to_json())["counts"]["log"] == 4
    for text in (str(preview), preview.to_markdown(), preview._repr_html_()):
        assert text.count("due by every(5)") == 4
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ArgumentError, match="is not a preview"):
        Preview.load(tmp_path / "other.json")


def test_a_run_warns_at_its_first_departure_from_a_plan(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(basic(logging_steps=5).trainer(tmp_path / "a").preview().to_json())
    basic(logging_steps=5, plan=str(plan)).trainer(tmp_path / "b").train()
    assert "differs from the preview" not in caplog.text
    basic(logging_steps=4, plan=str(plan)).trainer(tmp_path / "c").train()
    assert caplog.text.count("differs from the preview") == 1
    assert "planned step 5: log by Log, but step 4: log by Log comes now" in caplog.text


@pytest.mark.parametrize(
    "change",
    [{"learning_rate": 5.000001e-05}, {"warmup_steps": 1}, {"lr_scheduler_type": "cosine"}],
    ids=["rate", "warmup", "schedule"],
)
def test_a_run_warns_at_its_first_departure_from_a_planned_learning_rate(
    change: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(basic(logging_steps=1).trainer(tmp_path / "a").preview().to_json())
    basic(logging_steps=1, plan=str(plan)).trainer(tmp_path / "b").train()
    assert "differs from the preview" not in caplog.text
    trainer = basic(logging_steps=1, plan=str(plan), **change).trainer(tmp_path / "c")
    trainer.train()
    assert caplog.text.count("differs from the preview") == 1
    planned = {
        row["step"]: row["learning_rate"] for row in json.loads(plan.read_text())["rows"] if "learning_rate" in row
    }
    found = {row["step"]: row["learning_rate"] for row in trainer.state.log_history if "learning_rate" in row}
    step = next(step for step in planned if planned[step] != found[step])
    expected = f"planned a learning rate of {planned[step]} at step {step}, but the run logs {found[step]}"
    assert expected in caplog.text


def test_a_preview_in_training_is_refused(tmp_path: Path) -> None:
    trainer = basic().trainer(tmp_path)
    trainer.bus.on("on_step_end", lambda: trainer.preview())
    with pytest.raises(ArgumentError, match="before or after train"):
        trainer.train()
