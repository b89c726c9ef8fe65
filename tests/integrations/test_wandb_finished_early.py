"""Programs that call `wandb.finish()` before the training ends, with the real client."""

from __future__ import annotations

import time

import pytest

from trainbus import Log, every

wandb = pytest.importorskip("wandb")

from wandb_files import segments, serve  # noqa: E402
from wandb_fixtures import QUIET, build, offline  # noqa: E402
from wandb_fixtures import environment as environment  # noqa: E402
from wandb_fixtures import service as service  # noqa: E402

from trainbus import Wandb  # noqa: E402
from trainbus.callbacks.base import row_tracker  # noqa: E402
from trainbus.integrations.wandb import client  # noqa: E402
from trainbus.integrations.wandb.client import hooks_of  # noqa: E402
from trainbus.integrations.wandb.opening import init  # noqa: E402


def opened(folder):
    settings = wandb.Settings(**QUIET)
    return wandb.init(project="mine", group="g", mode="offline", dir=str(folder), settings=settings)


def finish_at(trainer, step, event="on_step_end"):
    """Finish `wandb.run` at the end of a step, before the loss of the step is logged."""
    trainer.on(event, lambda state: wandb.finish() if state.global_step == step else None)
    return trainer


def wait_for(opened):
    """Wait up to a minute for a further run, which the tracker opens on its thread."""
    deadline = time.monotonic() + 60
    while not opened() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_run_of_ours_that_the_program_finishes_continues_in_a_further_part(tmp_path, caplog):
    trainer = finish_at(build(tmp_path, offline(tmp_path), Log(every(1))), 5)
    trainer.train()
    trainer.end()
    first, second = segments(tmp_path)
    assert first.run_id == second.run_id
    assert (first.steps, second.steps) == ([1, 2, 3, 4], [5, 6, 7, 8])
    assert [row["_step"] for row in first.rows + second.rows] == [*range(8)]
    assert second.summary["total/steps"] == 8
    [told] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "Rows after step 4 go to a further part of this run." in told
    assert "trainer.end()" in told
    assert (tmp_path / "out" / "_wandb_sync.sh").read_text().count("wandb sync") == 2


def test_the_warning_about_a_run_without_rows_names_no_step(tmp_path, caplog):
    trainer = finish_at(build(tmp_path, offline(tmp_path)), 0, "on_train_begin")
    trainer.train()
    trainer.end()
    assert segments(tmp_path)[-1].steps == [2, 4, 6, 8]
    assert "All rows go to a further part of this run." in caplog.text


def test_rows_after_the_end_of_a_run_of_the_program_go_to_another_run_of_its_project(tmp_path, caplog):
    mine = opened(tmp_path)
    trainer = finish_at(build(tmp_path, offline(tmp_path), Log(every(1))), 5)
    tracker = trainer.callbacks["Wandb"]

    def until_opened(state):
        """The checkpoint of step 8 has the id of the second run only if this run is open by then."""
        wait_for(lambda: state.global_step != 7 or tracker.run_id != mine.id)

    trainer.on("on_step_end", until_opened)
    trainer.train()
    state = tracker.state_dict()
    trainer.end()
    first, second = segments(tmp_path)
    assert (first.run_id, first.steps, first.exit_code) == (mine.id, [1, 2, 3, 4], 0)
    assert (second.run_id, second.steps) == (state["run_id"], [5, 6, 7, 8])
    assert second.run_id != mine.id
    assert (second.run.project, second.run.run_group) == ("mine", "g")
    assert second.config["arguments"]["max_steps"] == 8
    [told] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"Rows after step 4 go to the run {second.run_id}." in told
    resumed = build(tmp_path, offline(tmp_path), Log(every(1)), steps=10)
    resumed.train(resume_from_checkpoint="auto")
    resumed.end()
    third = segments(tmp_path)[-1]
    assert (third.run_id, third.steps) == (second.run_id, [9, 10])


def test_rows_go_to_the_run_that_the_program_opens_next(tmp_path):
    opened(tmp_path)
    trainer = build(tmp_path, offline(tmp_path), Log(every(1)))

    def next_run(state):
        if state.global_step == 5:
            wandb.finish()
            opened(tmp_path)

    trainer.on("on_step_end", next_run)
    trainer.train()
    trainer.end()
    assert wandb.run is not None, "the second run of the program stays open"
    assert not trainer.wandb
    assert trainer.callbacks["Wandb"].flush not in [hook.call for hook in hooks_of(wandb.run)]
    wandb.finish()
    first, second = segments(tmp_path)
    assert (first.steps, second.steps) == ([1, 2, 3, 4], [5, 6, 7, 8])


@pytest.mark.parametrize("owner", ["trainer", "program"])
def test_a_program_that_finishes_its_run_when_the_training_ends_loses_no_row(tmp_path, owner, caplog):
    if owner == "program":
        opened(tmp_path)
    trainer = finish_at(build(tmp_path, offline(tmp_path), Log(every(1))), 8, "on_train_end")
    trainer.train()
    trainer.end()
    found = segments(tmp_path)
    assert found[0].steps == [*range(1, 9)]
    assert "eval/loss" in found[0].rows[-1]
    if owner == "program":  # no further run for values of the summary
        assert len(found) == 1
        told = f"The program finished the run {found[0].run_id}, so its summary lacks stopped, total/steps"
        assert told in caplog.text
    else:
        assert {part.run_id for part in found} == {found[0].run_id}
        assert found[-1].summary["total/steps"] == 8


def test_an_evaluation_after_the_end_of_the_run_is_a_row(tmp_path):
    trainer = build(tmp_path, offline(tmp_path))
    trainer.train()
    wandb.finish()
    assert trainer.wandb is None
    trainer.evaluate()
    wait_for(lambda: trainer.wandb is not None)
    assert trainer.wandb is not None
    trainer.end()
    first, second = segments(tmp_path)
    assert (first.run_id, second.steps) == (second.run_id, [8])
    assert "eval/loss" in second.rows[0]


def test_a_training_that_fails_after_the_end_of_its_run_is_recorded_as_failed(tmp_path):
    trainer = finish_at(build(tmp_path, offline(tmp_path), Log(every(1))), 3)

    def fail(state):
        if state.global_step == 3:
            raise RuntimeError("broken")

    trainer.on("on_step_end", fail)
    with pytest.raises(RuntimeError, match="broken"):
        trainer.train()
    found = segments(tmp_path)
    assert found[-1].exit_code == 1
    assert "broken" in found[-1].summary["stopped"]


def test_online_the_service_receives_each_step_once(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    with serve() as stub:
        monkeypatch.setenv("WANDB_BASE_URL", stub.url)
        tracker = Wandb("p", options={"dir": str(tmp_path), "settings": {**QUIET, "base_url": stub.url}})
        trainer = build(tmp_path, tracker, Log(every(1)))

        def finish(state):
            if state.global_step == 5:
                wandb.finish()
                stub.existing = True

        trainer.on("on_step_end", finish)
        trainer.train()
        trainer.end()
        wandb.teardown()
    assert [row["train/global_step"] for row in stub.rows] == [*range(1, 9)]
    assert stub.exit_codes == [0, 0]
    assert len({upsert["name"] for upsert in stub.upserts if upsert.get("name")}) == 1


@pytest.mark.parametrize("owner", ["trainer", "program"])
@pytest.mark.parametrize("first", ["evaluate", "train"])
def test_a_training_after_the_end_of_the_run_waits_for_the_further_part(tmp_path, owner, first, monkeypatch):
    """The first training, and the further part, have the same callback in two trainers."""
    monkeypatch.setattr(row_tracker, "DRAIN_SECONDS", 0.1)
    if owner == "program":
        opened(tmp_path)
    tracker, found = offline(tmp_path), []
    trainer = build(tmp_path, tracker, Log(every(1)))
    getattr(trainer, first)()
    wandb.finish()

    def slow(request):
        time.sleep(1)  # longer than the training
        return init(request)

    monkeypatch.setattr(client, "init", slow)
    trainer = build(tmp_path, tracker, Log(every(1)))
    trainer.on("on_train_begin", lambda: found.append((trainer.wandb, wandb.run)))
    trainer.train()
    assert found[0][0] is not None
    assert found[0][0] is found[0][1]
    assert found[0][0] is trainer.wandb
    trainer.end()
    assert segments(tmp_path)[-1].steps == [*range(1, 9)]


def test_a_handler_sees_the_run_when_training_begins(tmp_path):
    trainer, found = build(tmp_path, offline(tmp_path)), []
    trainer.on("on_train_begin", lambda: found.append((trainer.wandb, wandb.run)))
    trainer.train()
    trainer.end()
    assert found[0][0] is not None
    assert found[0][0] is found[0][1]
