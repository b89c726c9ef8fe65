"""Pushing to a hub that runs on this machine."""

import dataclasses
import json
import logging
import types
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from support.processes import run_on_two
from trainbus import Trainer, TrainingArguments
from trainbus.engine.checkpoint.protocols import WritesLater
from trainbus.events import ArgumentError, record

huggingface_hub = pytest.importorskip("huggingface_hub")

from hub_stub import hub  # noqa: E402
from huggingface_hub import constants  # noqa: E402
from huggingface_hub.errors import HfHubHTTPError  # noqa: E402

MODEL = {"README.md", "model.safetensors", "training_args.json"}
TO_RESUME = {
    *("callbacks.safetensors", "manifest.json", "optimizer.safetensors", "rng_state_0.safetensors"),
    *("scheduler.safetensors", "trainer_state.json"),
}
SECRET = "hf_" + "s" * 20


@pytest.fixture
def served(monkeypatch):
    with hub() as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.endpoint)
        # What it would wait between two tries.
        impatient = types.SimpleNamespace(**vars(__import__("time")) | {"sleep": lambda seconds: None})
        monkeypatch.setattr("huggingface_hub.utils._http.time", impatient)
        yield served
        served.open.set()
    huggingface_hub.close_session()


def data():
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.sum(1) > 0).long())


def build(folder, *callbacks, kind=Trainer, **options):
    """Build a trainer of six steps that saves at each second one, and pushes unless told otherwise."""
    torch.manual_seed(0)
    arguments = {"max_steps": 6, "save_steps": 2, "push_to_hub": True, "disable_tqdm": True, "hub_always_push": True}
    return kind(
        nn.Linear(4, 2),
        TrainingArguments(str(folder / "tried"), use_cpu=True, **{**arguments, **options}),
        train_dataset=data(),
        eval_dataset=data(),
        criterion=nn.CrossEntropyLoss(),
        callbacks=list(callbacks),
    )


def warnings_of(caplog):
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]


# What is pushed, and when.


def test_by_default_the_model_is_pushed_at_every_save_and_in_the_end(tmp_path, served):
    build(tmp_path).train()
    assert served.messages[:3] == [f"Training in progress, step {step}" for step in (2, 4, 6)]
    assert served.commits[0].names == MODEL
    assert {commit.repository for commit in served.commits} == {"me/tried"}
    assert set(served.repositories["me/tried"]) == MODEL
    assert not [*(tmp_path / "tried").glob(".push-*")]


def test_each_push_holds_the_weights_of_its_step(tmp_path, served):
    build(tmp_path, hub_strategy="all_checkpoints").train()
    for commit in served.commits[:6:2]:
        step = commit.message.rpartition(" ")[2]
        saved = (tmp_path / "tried" / f"checkpoint-{step}" / "model.safetensors").read_bytes()
        assert commit.files["model.safetensors"] == saved
    assert len({commit.files["model.safetensors"] for commit in served.commits[:6:2]}) == 3


def test_program_pushes_a_checkpoint_itself(tmp_path, served):
    trainer = build(tmp_path)
    trainer.train()
    before = len(served.messages)
    trainer._push_from_checkpoint(str(tmp_path / "tried" / "checkpoint-4"))
    trainer._finish_current_push()
    assert trainer.push_in_progress is None
    assert served.messages[before:] == ["Training in progress, step 6"]
    saved = (tmp_path / "tried" / "checkpoint-4" / "model.safetensors").read_bytes()
    assert served.commits[before].files["model.safetensors"] == saved


def test_with_the_strategy_end_there_is_one_push(tmp_path, served):
    build(tmp_path, hub_strategy="end").train()
    assert served.messages == ["End of training"]
    assert served.commits[0].names == MODEL


def test_with_the_strategy_checkpoint_the_newest_is_there_to_resume_from(tmp_path, served):
    build(tmp_path, hub_strategy="checkpoint").train()
    assert [message for message in served.messages if "checkpoint" in message] == [
        f"Training in progress, step {step}, checkpoint" for step in (2, 4, 6)
    ]
    names = {name.removeprefix("last-checkpoint/") for name in served.repositories["me/tried"] if "/" in name}
    assert names == TO_RESUME | MODEL - {"README.md"}


@pytest.mark.parametrize(("strategy", "pushes"), [("end", 1), ("every_save", 2), ("checkpoint", 3)])
def test_the_times_of_the_pushes_at_the_end_are_known(strategy, pushes, tmp_path, served):
    trainer = build(tmp_path, hub_strategy=strategy)
    pushing = trainer.callbacks["PushToHub"]
    assert isinstance(pushing, WritesLater)
    assert pushing.slowest_write == 0
    trainer.train()
    assert pushing.slowest_write == pushing.publisher.stopwatch.slowest * pushes > 0
    assert not pushing.busy


def test_a_pushed_checkpoint_is_resumed_from(tmp_path, served):
    unbroken = build(tmp_path / "unbroken", push_to_hub=False, max_steps=8)
    unbroken.train()
    build(tmp_path, hub_strategy="checkpoint", max_steps=8, save_steps=3).train()
    downloaded = tmp_path / "elsewhere" / "last-checkpoint"
    downloaded.mkdir(parents=True)
    pushed = {
        name: content
        for commit in served.commits
        if "step 3" in commit.message or "step 6" in commit.message
        for name, content in commit.files.items()
    }
    for name, content in pushed.items():
        if name.startswith("last-checkpoint/"):
            (downloaded.parent / name).write_bytes(content)
    resumed = build(tmp_path / "resumed", push_to_hub=False, max_steps=8)
    resumed.train(resume_from_checkpoint=str(downloaded))
    assert torch.equal(resumed.model.weight, unbroken.model.weight)


def test_with_the_strategy_all_checkpoints_each_has_its_folder(tmp_path, served):
    build(tmp_path, hub_strategy="all_checkpoints", save_total_limit=1).train()
    folders = {name.partition("/")[0] for name in served.repositories["me/tried"] if "/" in name}
    assert folders == {"checkpoint-2", "checkpoint-4", "checkpoint-6"}


def test_epochs_are_named_where_saves_go_by_epochs(tmp_path, served):
    build(tmp_path, save_strategy="epoch", max_steps=-1, num_train_epochs=2).train()
    assert served.messages[:2] == ["Training in progress, epoch 1", "Training in progress, epoch 2"]


def test_the_final_push_has_the_best_model_and_its_card_names_it(tmp_path, served):
    trainer = build(
        tmp_path,
        **{"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "greater_is_better": True},
    )
    trainer.train()
    assert trainer.state.best_global_step == 2, "a larger loss is better here"
    best, last = served.commits[0].files, served.commits[-1].files
    assert served.messages[-1] == "End of training"
    assert last["model.safetensors"] == best["model.safetensors"]
    first = next(entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry)
    assert f"- Loss: {first:.4f}\n" in last["README.md"].decode()


def test_each_push_is_announced(tmp_path, served):
    trainer = build(tmp_path)
    with record(trainer.bus) as trace:
        trainer.train()
    assert [step for step, event in trace.entries if event == "on_push_begin"] == [2, 4, 6, 6]


def test_the_callback_in_the_list_gives_the_same(tmp_path, served):
    from trainbus import PushToHub

    build(
        tmp_path, PushToHub("team/model", strategy="end", token=SECRET), push_to_hub=False, hub_always_push=False
    ).train()
    assert [(commit.repository, commit.message) for commit in served.commits] == [("team/model", "End of training")]
    assert served.commits[0].token == f"Bearer {SECRET}"


TRANSLATED = {
    "training_args.bin": "training_args.json",
    "optimizer.pt": "optimizer.safetensors",
    "scheduler.pt": "scheduler.safetensors",
    "rng_state.pth": "rng_state_0.safetensors",
}
OURS_ALONE = {"callbacks.safetensors", "manifest.json"}


@pytest.mark.parametrize("strategy", ["end", "every_save", "checkpoint", "all_checkpoints"])
def test_the_same_is_pushed_as_by_transformers(tmp_path, served, monkeypatch, strategy):
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr("transformers.utils.hub._hf_api", None)
    from support.data import sentences
    from support.trainers import both

    class Patient(transformers.TrainerCallback):
        """Waits for each push. transformers pushes the output folder itself, and the next save changes this folder."""

        def __init__(self, trainer):
            self.trainer = trainer

        def on_save(self, args, state, control, **kwargs):
            self.trainer._finish_current_push()

    def do(trainer):
        if isinstance(trainer, transformers.Trainer):
            trainer.add_callback(Patient(trainer))
        trainer.train()
        trainer.push_to_hub()

    both(
        tmp_path,
        {
            **{"max_steps": 4, "save_steps": 2, "push_to_hub": True, "hub_strategy": strategy},
            **{"hub_always_push": True, "hub_revision": "tried", "eval_strategy": "steps", "eval_steps": 2},
        },
        do,
        train_dataset=sentences(16),
        eval_dataset=sentences(8),
    )
    said = {name: [] for name in served.repositories}
    for commit in served.commits:
        said[commit.repository].append((commit.message, commit.revision))
    # The card that goes with each push here is as it will be in the end, so that nothing is left to be pushed then.
    last = [] if strategy == "end" else [("End of training", "tried")]
    assert said["me/trainbus"] + last == said["me/transformers"]
    assert {_translated(name) for name in served.repositories["me/transformers"]} == {
        name for name in served.repositories["me/trainbus"] if name.rpartition("/")[2] not in OURS_ALONE
    }


def _translated(name):
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}{TRANSLATED.get(file, file)}"


# The repository.


def test_the_repository_is_made_before_the_first_step(tmp_path, served):
    trainer = build(tmp_path, hub_model_id="team/model", hub_private_repo=True, hub_token=SECRET)
    made = []
    trainer.on("on_step_begin", lambda: made.append(list(served.asked_for)), once=1)
    trainer.train()
    assert made[0] == [{"name": "model", "organization": "team", "visibility": "private"}]
    assert trainer.hub_model_id == "team/model"
    assert len(served.asked_for) == 1
    assert {commit.token for commit in served.commits} == {f"Bearer {SECRET}"}


def test_an_existing_one_is_used(tmp_path, served):
    served.repositories["me/tried"] = {"kept.txt": b"as it was"}
    build(tmp_path, hub_strategy="end").train()
    assert served.repositories["me/tried"]["kept.txt"] == b"as it was"
    assert served.messages == ["End of training"]


def test_visibility_of_a_repository_stays_unless_an_argument_sets_it(tmp_path, served):
    build(tmp_path, hub_strategy="end").train()
    assert "visibility" not in served.asked_for[0]


def test_the_token_is_written_nowhere(tmp_path, served, caplog):
    caplog.set_level(logging.DEBUG)
    trainer = build(tmp_path, hub_token=SECRET, hub_strategy="all_checkpoints")
    trainer.train()
    args = trainer.args
    assert args.to_dict()["hub_token"] == "<HUB_TOKEN>"
    assert json.loads(args.to_json_string())["hub_token"] == "<HUB_TOKEN>"
    shown = f"{args!r} {args.to_sanitized_dict()} {trainer.describe()} {caplog.text}"
    assert SECRET not in shown
    written = [path.read_bytes() for path in (tmp_path / "tried").rglob("*") if path.is_file()]
    assert written
    assert not any(SECRET.encode() in content for content in written)
    assert not any(SECRET.encode() in content for commit in served.commits for content in commit.files.values())


@pytest.mark.parametrize(
    ("name", "value"), [("hub_model_id", ""), ("hub_strategy", "every-save"), ("hub_revision", "")]
)
def test_arguments_that_cannot_work_are_refused(tmp_path, name, value):
    with pytest.raises(ArgumentError, match=name):
        TrainingArguments(str(tmp_path), push_to_hub=True, **{name: value})


def test_names_that_cannot_work_are_refused_before_the_training(tmp_path):
    from trainbus import PushToHub

    with pytest.raises(ArgumentError, match="cannot be the name of a repository"):
        build(tmp_path, hub_model_id="a/b/c")
    with pytest.raises(ArgumentError, match="did you mean 'every_save'"):
        PushToHub(strategy="every_sav")


# Pushes under way.


def held(tmp_path, served, **options):
    """Train while the first commit is held back until step 5, and return what the events were."""
    served.open.clear()
    trainer = build(tmp_path, **options)

    def let_through():
        assert served.arrived.wait(30)
        served.open.set()
        trainer.callbacks["PushToHub"].publisher.wait()

    trainer.on("on_step_end", let_through, once=5)
    with record(trainer.bus) as trace:
        trainer.train()
    return [step for step, event in trace.entries if event == "on_push_begin"]


def test_a_push_under_way_is_not_doubled(tmp_path, served):
    begun = held(tmp_path, served, hub_always_push=False)
    assert served.messages[:2] == ["Training in progress, step 2", "Training in progress, step 6"]
    assert begun == [2, 6, 6]


def test_it_runs_if_requested(tmp_path, served):
    begun = held(tmp_path, served, hub_always_push=True)
    assert served.messages[:3] == [f"Training in progress, step {step}" for step in (2, 4, 6)]
    assert begun == [2, 4, 6, 6]


def test_a_checkpoint_that_is_deleted_under_way_arrives_whole(tmp_path, served):
    held(tmp_path, served, hub_strategy="all_checkpoints", save_total_limit=1)
    assert not (tmp_path / "tried" / "checkpoint-2").exists()
    pushed = {name for name in served.repositories["me/tried"] if name.startswith("checkpoint-2/")}
    assert pushed == {f"checkpoint-2/{name}" for name in TO_RESUME | MODEL - {"README.md"}}


def test_the_newest_checkpoint_gets_there_though_its_turn_was_skipped(tmp_path, served):
    served.open.clear()
    trainer = build(tmp_path, hub_strategy="checkpoint", hub_always_push=False)
    trainer.on("on_train_end", lambda: served.open.set())
    trainer.train()
    saved = (tmp_path / "tried" / "checkpoint-6" / "trainer_state.json").read_bytes()
    assert served.repositories["me/tried"]["last-checkpoint/trainer_state.json"] == saved


def test_an_older_one_does_not_take_its_place(tmp_path, served):
    held(tmp_path, served, hub_strategy="checkpoint", hub_always_push=False)
    assert [message for message in served.messages if "checkpoint" in message] == [
        f"Training in progress, step {step}, checkpoint" for step in (2, 6)
    ]


def test_all_that_were_skipped_follow_under_their_names(tmp_path, served):
    held(tmp_path, served, hub_strategy="all_checkpoints", hub_always_push=False)
    assert [message for message in served.messages if "checkpoint" in message] == [
        f"Training in progress, step {step}, checkpoint" for step in (2, 6, 4)
    ]


def test_a_training_that_fails_still_waits_for_its_pushes(tmp_path, served):
    trainer = build(tmp_path)

    def fail(state):
        if state.global_step == 3:
            raise RuntimeError("as planned")

    trainer.on("on_step_end", fail)
    with pytest.raises(RuntimeError, match="as planned"):
        trainer.train()
    assert served.messages == ["Training in progress, step 2"]
    assert not [*(tmp_path / "tried").glob(".push-*")]


# A hub that fails.


@pytest.mark.parametrize("status", [403, 500])
def test_failed_push_commits_are_named_and_training_continues(tmp_path, served, caplog, status):
    served.failing["/commit/"] = status
    trainer = build(tmp_path)
    assert trainer.train().global_step == 6
    told = [line for line in warnings_of(caplog) if "to me/tried failed: " in line]
    commits = [*(f"Training in progress, step {step}" for step in (2, 4, 6)), "End of training"]
    assert [line.split("'")[1] for line in told] == commits
    assert all(str(status) in line for line in told)
    assert not [*(tmp_path / "tried").glob(".push-*")]


def test_training_continues_without_a_repository_and_retries(tmp_path, served, caplog):
    served.failing["/repos/create"] = 500
    trainer = build(tmp_path)
    trainer.on("on_step_end", lambda: served.failing.clear(), once=3)
    assert trainer.train().global_step == 6
    assert len([line for line in warnings_of(caplog) if "The repository on the hub could not be created" in line]) == 1
    assert served.messages[0] == "Training in progress, step 4"
    assert (tmp_path / "tried" / "checkpoint-2").is_dir()


def test_required_repository_stops_training_if_it_cannot_be_created(tmp_path, served):
    from trainbus import PushToHub

    served.failing["/repos/create"] = 403
    trainer = build(tmp_path, PushToHub(on_error="raise"), push_to_hub=False, hub_always_push=False)
    with pytest.raises(HfHubHTTPError, match="403"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_an_unreachable_hub_does_not_stop_training(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert build(tmp_path).train().global_step == 6
    [told] = [entry for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert "ConnectError" in told.getMessage()
    assert "`trainer.push_to_hub()` pushes the output folder" in told.getMessage()
    assert told.exc_info is None
    assert (tmp_path / "tried" / "model.safetensors").is_file()


def test_repeated_failures_warn_once(tmp_path, served, caplog):
    served.failing["/repos/create"] = 500
    trainer = build(tmp_path)

    def break_and_mend(state):
        if state.global_step == 3:
            served.failing.clear()
        if state.global_step == 5:
            served.failing["/repos/create"] = 500
            trainer.callbacks["PushToHub"].publisher.name = trainer.hub_model_id = None

    trainer.on("on_step_end", break_and_mend)
    trainer.train()
    assert len([line for line in warnings_of(caplog) if "The repository on the hub could not be created" in line]) == 2
    assert served.messages == ["Training in progress, step 4"]


# The Trainer's methods.


def test_a_push_by_hand_needs_no_arguments(tmp_path, served):
    trainer = build(tmp_path, push_to_hub=False)
    trainer.train()
    assert served.commits == []
    assert "PushToHub" not in trainer.callbacks
    commit = trainer.push_to_hub("By hand", token=SECRET, revision="other", private=True, tags="mine", license="mit")
    assert commit.oid == f"{1:040x}"
    assert [(c.message, c.revision, c.token) for c in served.commits] == [("By hand", "other", f"Bearer {SECRET}")]
    assert served.asked_for[0]["visibility"] == "private"
    card = huggingface_hub.ModelCard(served.commits[0].files["README.md"].decode())
    assert card.data.tags == ["mine", "generated_from_trainer"]
    assert card.data.license == "mit"


def test_a_push_can_run_in_the_background(tmp_path, served):
    trainer = build(tmp_path, push_to_hub=False)
    served.open.clear()
    pushed = trainer.push_to_hub(blocking=False)
    assert isinstance(pushed, Future)
    assert served.arrived.wait(30)
    assert not pushed.done()
    served.open.set()
    assert pushed.result().commit_message == "End of training"


def test_a_failed_manual_push_is_an_error(tmp_path, served):
    served.failing["/commit/"] = 403
    with pytest.raises(HfHubHTTPError, match="403"):
        build(tmp_path).push_to_hub()


def test_checkpoints_and_hidden_work_stay_behind(tmp_path, served):
    trainer = build(tmp_path, push_to_hub=False)
    trainer.train()
    out = tmp_path / "tried"
    hidden = (".run_status.json.7", "runs/.events.7", "capsules/.step-3.7/capsule.json")  # of a writer at work
    for name in ("_mine/a.txt", ".tmp-checkpoint-8/a.txt", ".push-8/a.txt", "runs/events", *hidden):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("here")
    trainer.push_to_hub()
    assert served.commits[0].names == MODEL | {"runs/events"}


def test_saving_the_model_after_the_training_pushes_it(tmp_path, served, caplog):
    trainer = build(tmp_path, hub_strategy="end")
    trainer.train()
    assert served.messages == ["End of training"]
    with torch.no_grad():
        trainer.model.weight.zero_()
    trainer.save_model()
    assert served.messages == ["End of training", "Model save"]
    served.failing["/commit/"] = 403
    with torch.no_grad():
        trainer.model.weight.fill_(1)
    trainer.save_model()
    assert any("The model is saved, but the push failed" in line for line in warnings_of(caplog))


def test_methods_that_are_overridden_are_those_that_are_called(tmp_path, served):
    class Mine(Trainer):
        def create_model_card(self, **options):
            Path(self.args.output_dir, "README.md").write_text(f"step {self.state.global_step}")

        def save_model(self, output_dir=None):
            super().save_model(output_dir)
            Path(output_dir or self.args.output_dir, "more.txt").write_text("more")

    build(tmp_path, kind=Mine).train()
    assert served.commits[0].files["README.md"] == b"step 2"
    assert served.commits[0].files["more.txt"] == b"more"
    assert len(served.commits) == 3, "the end brought nothing new"


def test_only_the_first_rank_pushes(tmp_path, served):
    trainer = build(tmp_path, hub_strategy="checkpoint")
    trainer.run.ranks = dataclasses.replace(trainer.run.ranks, rank=1)
    trainer.run.state.is_world_process_zero = False
    with record(trainer.bus) as trace:
        trainer.train()
    assert served.asked_for == []
    assert served.commits == []
    assert trace.events.count("on_push_begin") == 1, "the one that all processes take part in, for the model is saved"
    assert trainer.push_to_hub() is None
    assert not (tmp_path / "tried" / "README.md").exists()


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
def test_only_one_of_two_processes_pushes(tmp_path, served):
    program = Path(__file__).with_name("hub_program.py")
    run_on_two(program, tmp_path / "tried", timeout=150, HF_ENDPOINT=served.endpoint)
    assert len(served.asked_for) == 1
    steps = [f"Training in progress, step {step}{what}" for step in (2, 4) for what in ("", ", checkpoint")]
    assert served.messages == [*steps, "By hand"]
    assert "last-checkpoint/rng_state_1.safetensors" in served.repositories["me/tried"]
    assert b"num_devices: 2" in served.commits[-1].files["README.md"]


def test_the_card_has_the_header_that_the_hub_reads(tmp_path, served):
    trainer = build(tmp_path, push_to_hub=False, eval_strategy="steps", eval_steps=3)
    trainer.compute_metrics = lambda prediction: {"accuracy": 0.5}
    trainer.train()
    trainer.create_model_card(
        language=["en", "de"], tasks="text-classification", dataset_tags="imdb", dataset="IMDb", model_name="Mine"
    )
    path = tmp_path / "tried" / "README.md"
    data = huggingface_hub.ModelCard.load(path).data
    assert data.language == ["en", "de"]
    assert data.datasets == ["imdb"]
    assert data.metrics == ["accuracy"]
    [result] = data.eval_results
    assert (result.task_type, result.dataset_name, result.metric_type, result.metric_value) == (
        *("text-classification", "IMDb", "accuracy"),
        0.5,
    )
    assert "# Mine" in path.read_text()
    trainer.create_model_card(tags="later")
    path.write_text(path.read_text().replace("tags:", "library_name: peft\ntags:"))
    trainer.create_model_card()
    data = huggingface_hub.ModelCard.load(path).data
    assert data.tags == ["later", "generated_from_trainer"]
    assert data.library_name == "peft"


@pytest.mark.parametrize("strategy", ["end", "every_save", "checkpoint", "all_checkpoints"])
def test_the_strategies_of_transformers_are_known(strategy):
    from transformers.trainer_utils import HubStrategy as Theirs

    from trainbus import PushToHub

    assert PushToHub(strategy=Theirs(strategy)).strategy == strategy


@pytest.mark.parametrize("token", [None, True, "hf_token"])
def test_a_token_may_be_the_stored_one(token):
    from trainbus import PushToHub

    assert PushToHub(token=token).token == token
