"""Resuming: a resumed run equals the uninterrupted run from its checkpoint on."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open

from support.data import CountedRows, net_samples, points, sentences
from support.models import Net, Regression, bert
from support.outcomes import history, same_weights, weights
from support.trainers import regression_trainer
from trainbus import EMA, Checkpoint, EarlyStopping, Trainer, TrainingArguments, at, at_end, every
from trainbus.engine.arguments import script
from trainbus.engine.checkpoint.format import files
from trainbus.engine.checkpoint.format.codec import load_values
from trainbus.engine.checkpoint.read import listing
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.events import Callback, CheckpointError, record

EVERY_STEP = {"save_strategy": "steps", "save_steps": 1, "logging_strategy": "steps", "logging_steps": 1}


def make(folder: Path, *, seed: int = 0, **options: Any) -> Any:
    """A trainer of a model with dropout, which logs and saves every step."""
    args = {**EVERY_STEP, "num_train_epochs": 3, "learning_rate": 0.02, **options.pop("args", {})}
    return regression_trainer(folder, Regression(dropout=0.3, seed=seed), args=args, **options)


def resumed(folder: Path, checkpoint: Path, **options: Any) -> Any:
    """Go on from a checkpoint with a model of other weights, so that all it has it has from there."""
    run = make(folder, seed=1, **options)
    run.train(resume_from_checkpoint=str(checkpoint))
    return run


def assert_same_state(left: Any, right: Any) -> None:
    """Compare nested state, tensors in every bit."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same_state(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for mine, other in zip(left, right):
            assert_same_state(mine, other)
    elif isinstance(left, torch.Tensor):
        assert torch.equal(left, right)
    else:
        assert left == right


def assert_same_end(run: Any, unbroken: Any) -> None:
    """Weights, optimizer, schedule, state and logs are equal; the summary tells of the steps of its own session."""
    assert run.state.global_step == unbroken.state.global_step
    assert same_weights(weights(run.model), weights(unbroken.model))
    assert_same_state(run.optimizer.state_dict(), unbroken.optimizer.state_dict())
    assert_same_state(run.lr_scheduler.state_dict(), unbroken.lr_scheduler.state_dict())
    assert history(run)[:-1] == history(unbroken)[:-1]
    differing = ("log_history", "seconds", "best_model_checkpoint")
    mine, other = ({k: v for k, v in r.state.to_dict().items() if k not in differing} for r in (run, unbroken))
    assert mine == other


# Two epochs of five batches each; in windows of three, of two steps each.


@pytest.mark.parametrize(("accumulate", "step"), [(1, 3), (1, 5), (1, 7), (1, 10), (3, 1), (3, 2), (3, 3), (3, 5)])
def test_a_resumed_run_ends_as_the_unbroken_one(accumulate: int, step: int, tmp_path: Path):
    args = {"gradient_accumulation_steps": accumulate}
    unbroken = make(tmp_path / "unbroken", args=args)
    with record(unbroken.bus) as whole:
        unbroken.train()
    run = make(tmp_path / "resumed", seed=1, args=args)
    with record(run.bus) as trace:
        run.train(resume_from_checkpoint=str(tmp_path / "unbroken" / f"checkpoint-{step}"))
    assert_same_end(run, unbroken)
    # Each event comes as it came, from the beginning of the next step on.
    first = (step, "on_step_begin")
    assert trace.entries[trace.entries.index(first) :] == whole.entries[whole.entries.index(first) :]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # where there is one processor only
@pytest.mark.parametrize("step", [3, 5])
def test_workers_make_no_difference_to_resuming(step: int, tmp_path: Path):
    args = {"dataloader_num_workers": 2, "num_train_epochs": 2}
    unbroken = make(tmp_path / "unbroken", args=args)
    unbroken.train()
    run = resumed(tmp_path / "resumed", tmp_path / "unbroken" / f"checkpoint-{step}", args=args)
    assert_same_end(run, unbroken)


def test_a_checkpoint_of_an_epochs_end_begins_the_next_one(tmp_path: Path):
    args = {"save_strategy": "epoch", "eval_strategy": "epoch"}
    data = {"eval_dataset": points(6, 1)}
    unbroken = make(tmp_path / "unbroken", args=args, **data)
    unbroken.train()
    saved = tmp_path / "unbroken" / "checkpoint-5"
    position = SavedCheckpoint.open(saved).state["position"]
    assert [position[name] for name in ("epoch", "batches", "rows", "rows_per_batch")] == [1, 0, 0, 4]
    run = make(tmp_path / "resumed", seed=1, args=args, **data)
    with record(run.bus) as trace:
        run.train(resume_from_checkpoint=str(saved))
    assert_same_end(run, unbroken)
    assert trace.events.count("on_epoch_begin") == trace.events.count("on_evaluate") == 2


@pytest.mark.parametrize("logs", ["steps", "epoch"])
def test_a_checkpoint_of_an_epochs_last_step_ends_that_epoch_first(logs: str, tmp_path: Path):
    """It was written before the epoch's end was announced, with an evaluation and perhaps a log to come."""
    args = {"eval_strategy": "epoch", "save_steps": 5, "logging_strategy": logs}
    data = {"eval_dataset": points(6, 1)}
    unbroken = make(tmp_path / "unbroken", args=args, **data)
    unbroken.train()
    run = make(tmp_path / "resumed", seed=1, args=args, **data)
    with record(run.bus) as trace:
        run.train(resume_from_checkpoint=str(tmp_path / "unbroken" / "checkpoint-5"))
    assert_same_end(run, unbroken)
    assert (5, "on_evaluate") in trace.entries


def test_another_seed_in_the_arguments_keeps_the_saved_order(tmp_path: Path):
    unbroken = make(tmp_path / "unbroken")
    unbroken.train()
    run = resumed(tmp_path / "resumed", tmp_path / "unbroken" / "checkpoint-3", args={"seed": 7})
    assert_same_end(run, unbroken)


def test_no_row_of_the_batches_that_were_done_is_read(tmp_path: Path):
    unbroken = make(tmp_path / "unbroken", args={"num_train_epochs": 1})
    unbroken.train()
    rows = CountedRows(points(20))
    resumed(
        *(tmp_path / "resumed", tmp_path / "unbroken" / "checkpoint-3"),
        train_dataset=rows,
        args={"num_train_epochs": 1},
    )
    assert len(rows.read) == len(set(rows.read)) == 8  # of the last two batches


def test_a_finished_run_is_not_resumed(tmp_path: Path):
    for name, length in (("by steps", {"max_steps": 7}), ("by epochs", {"num_train_epochs": 1})):
        unbroken = make(tmp_path / name, args=length)
        unbroken.train()
        step = unbroken.state.global_step
        run = resumed(tmp_path / f"{name} again", tmp_path / name / f"checkpoint-{step}", args=length)
        assert run.state.global_step == step
        assert same_weights(weights(run.model), weights(unbroken.model))


def test_a_longer_run_resumes_from_the_end_of_a_shorter_one(tmp_path: Path):
    args = {"lr_scheduler_type": "constant"}
    longer = make(tmp_path / "longer", args={**args, "num_train_epochs": 2})
    longer.train()
    make(tmp_path / "shorter", args={**args, "num_train_epochs": 1}).train()
    run = resumed(tmp_path / "on", tmp_path / "shorter" / "checkpoint-5", args={**args, "num_train_epochs": 2})
    assert run.state.global_step == 10
    assert same_weights(weights(run.model), weights(longer.model))


# Which checkpoint.


def test_true_takes_the_newest_complete_one(tmp_path: Path):
    run = make(tmp_path, args={"max_steps": 11})
    run.train()
    (tmp_path / "checkpoint-90").mkdir()  # nothing in it
    (tmp_path / ".tmp-checkpoint-91").mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    assert [checkpoint.step for checkpoint in listing.list_checkpoints(tmp_path)] == list(range(1, 12))
    again = make(tmp_path, seed=1, args={"max_steps": 12})
    loaded: list[Any] = []
    again.on("on_load", lambda checkpoint: loaded.append(checkpoint))
    again.train(resume_from_checkpoint=True)
    assert [(checkpoint.step, checkpoint.path.name) for checkpoint in loaded] == [(11, "checkpoint-11")]
    assert again.state.global_step == 12


@pytest.mark.parametrize("wanted", [None, False, ""])
def test_no_requested_checkpoint_starts_a_new_run(wanted: Any, tmp_path: Path):
    make(tmp_path, args={"max_steps": 2}).train()
    run = make(tmp_path, args={"max_steps": 2})
    assert run.train(resume_from_checkpoint=wanted).metrics["train_loss"] > 0


@pytest.mark.parametrize(
    ("in_arguments", "wanted", "warnings"),
    [("auto", None, 1), (True, None, 1), ("auto", False, 0), ("auto", "auto", 0), (None, None, 0)],
)
def test_a_checkpoint_in_the_arguments_that_train_does_not_get_is_reported_once(
    in_arguments: Any, wanted: Any, warnings: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    script._warn_that_nothing_resumes.cache_clear()
    run = make(tmp_path, args={"max_steps": 1, "resume_from_checkpoint": in_arguments})
    for _ in range(2):
        run.train(resume_from_checkpoint=wanted)
    assert caplog.text.count("This training does not resume") == warnings


def remove(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


def shrink(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:40])


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (shutil.rmtree, r"checkpoint-2 cannot be resumed from: there is no such folder\."),
    "no state": (remove(files.STATE), r"checkpoint-2 cannot be resumed from: trainer_state\.json is missing\."),
    "no weights": (remove(files.MODEL), r"model\.safetensors is missing\. Resume from .*checkpoint-1, which is good"),
    "no optimizer": (remove(files.OPTIMIZER), r"optimizer\.safetensors is missing"),
    "no schedule": (remove(files.SCHEDULER), r"scheduler\.safetensors is missing"),
    "a damaged optimizer": (shrink(files.OPTIMIZER), r"optimizer\.safetensors has 40 bytes, but \d+ were written"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_an_unusable_checkpoint_names_the_reason(damage: Callable[[Path], Any], message: str, tmp_path: Path):
    make(tmp_path / "first", args={"max_steps": 2}).train()
    damage(tmp_path / "first" / "checkpoint-2")
    with pytest.raises(CheckpointError, match=message):
        resumed(tmp_path / "second", tmp_path / "first" / "checkpoint-2")


def test_a_missing_checkpoint_error_names_the_folder(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"no checkpoint to resume from in .*nowhere"):
        make(tmp_path / "nowhere").train(resume_from_checkpoint=True)


def test_weights_of_another_model_are_refused_with_their_names(tmp_path: Path):
    class Wider(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.extra = torch.nn.Linear(2, 2)

    make(tmp_path, args={"max_steps": 1}).train()
    with pytest.raises(CheckpointError, match=r"do not fit Wider: the checkpoint lacks extra\.bias, extra\.weight"):
        regression_trainer(tmp_path, Wider()).train(resume_from_checkpoint=True)


# What is in a checkpoint.


def test_every_file_of_a_checkpoint_is_safetensors_or_json(tmp_path: Path):
    run = regression_trainer(
        *(tmp_path, bert()),
        train_dataset=sentences(8),
        eval_dataset=sentences(8),
        args={"max_steps": 2, "save_strategy": "steps", "save_steps": 2, "eval_strategy": "epoch"},
        callbacks=[EMA(), EarlyStopping()],
    )
    run.train()
    written = list((tmp_path / "checkpoint-2").iterdir())
    assert {path.suffix for path in written} == {".safetensors", ".json"}
    assert {path.name for path in written} >= {
        *("model.safetensors", "config.json", "trainer_state.json", "training_args.json", "manifest.json"),
        *("optimizer.safetensors", "scheduler.safetensors", "callbacks.safetensors", "rng_state_0.safetensors"),
    }
    for path in written:
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        else:
            with safe_open(path, framework="pt") as file:
                assert file.keys() is not None
    loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "checkpoint-2")
    assert same_weights(weights(loaded), weights_in(tmp_path / "checkpoint-2"))


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dict


def test_a_checkpoint_of_the_model_only_holds_no_more(tmp_path: Path):
    make(tmp_path, args={"max_steps": 1, "save_only_model": True}).train()
    names = {path.name for path in (tmp_path / "checkpoint-1").iterdir()}
    assert not names & {"optimizer.safetensors", "scheduler.safetensors", "rng_state_0.safetensors"}
    with pytest.raises(CheckpointError, match="save_only_model"):
        make(tmp_path).train(resume_from_checkpoint=True)


def test_a_checkpoint_is_complete_when_on_save_is_announced(tmp_path: Path):
    seen: list[tuple[str, bool]] = []
    run = make(tmp_path, args={"max_steps": 1})
    run.on("on_save_begin", lambda checkpoint: seen.append(("on_save_begin", checkpoint.path.is_dir())), id="before")
    run.on(
        "on_save", lambda checkpoint: seen.append(("on_save", (checkpoint.path / files.MANIFEST).is_file())), id="after"
    )
    run.train()
    assert seen == [("on_save_begin", False), ("on_save", True)]


# The states of callbacks.


class Counting(Callback):
    """Counts the steps it has seen, over all sessions."""

    def __init__(self, id: str | None = None) -> None:
        self.id = id
        self.steps = 0
        self.loaded = 0

    def on_step_end(self) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "tensor": torch.full((2,), float(self.steps))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.loaded += 1
        assert torch.equal(state["tensor"], torch.full((2,), float(self.steps)))


def test_callbacks_are_given_their_state_in_place(tmp_path: Path):
    make(tmp_path, args={"max_steps": 4}, callbacks=[Counting(), Counting(), Counting("third")]).train()
    listed = [Counting("third"), Counting(), Counting()]
    run = make(tmp_path, args={"max_steps": 6}, callbacks=listed)
    seen: list[int] = []
    run.on("on_load", lambda: seen.extend(callback.steps for callback in listed))
    run.train(resume_from_checkpoint=True)
    assert seen == [4, 4, 4]  # the states are there when the others hear that the checkpoint is restored
    assert [(callback.steps, callback.loaded) for callback in listed] == [(6, 1)] * 3
    assert [run.callbacks[name] for name in ("third", "Counting", "Counting-2")] == listed


def test_a_stateful_callback_of_transformers_is_given_its_state_in_place(tmp_path: Path):
    args = {
        **{"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, "lr_scheduler_type": "constant"},
        **{"learning_rate": 1e-9, "optim": "sgd"},
    }

    def go(steps: int, **options: Any) -> Any:
        stopping = transformers.EarlyStoppingCallback(8, early_stopping_threshold=100.0)
        run = make(
            *(tmp_path,), args={**args, "max_steps": steps}, eval_dataset=points(4), callbacks=[stopping], **options
        )
        run.train(resume_from_checkpoint=steps > 5)
        assert run.callbacks["EarlyStoppingCallback"] is stopping
        return run, stopping

    _, stopping = go(5)
    waited = stopping.early_stopping_patience_counter
    assert waited in (4, 5)
    run, stopping = go(50)
    assert run.state.global_step == 5 + (8 - waited)
    assert stopping.early_stopping_patience_counter == 8


def test_early_stopping_resumes_its_patience(tmp_path: Path):
    args = {"eval_strategy": "steps", "eval_steps": 1, "learning_rate": 1e-9, "lr_scheduler_type": "constant"}
    options = {"eval_dataset": points(4)}

    def patient() -> EarlyStopping:
        return EarlyStopping("loss", patience=8, threshold=100.0)

    make(tmp_path, args={**args, "max_steps": 5}, callbacks=[patient()], **options).train()
    run = make(tmp_path, args={**args, "max_steps": 50}, callbacks=[patient()], **options)
    run.train(resume_from_checkpoint=True)
    assert run.state.global_step == 9  # the first evaluation is the best, and eight follow it
    assert "eval_loss has not improved for 8 evaluations" in run.control.why("training_stop")


def test_the_state_of_a_callback_that_is_absent_is_carried_on(tmp_path: Path):
    make(tmp_path, args={"max_steps": 3}, callbacks=[Counting("mine")]).train()
    without = make(tmp_path, args={"max_steps": 6})
    without.train(resume_from_checkpoint=True)
    assert SavedCheckpoint.open(tmp_path / "checkpoint-6").callback_states()["mine"]["steps"] == 3
    back = Counting("mine")
    make(tmp_path, args={"max_steps": 8}, callbacks=[back]).train(resume_from_checkpoint=True)
    assert back.steps == 3 + 2
    assert SavedCheckpoint.open(tmp_path / "checkpoint-8").callback_states()["mine"]["steps"] == 5


def test_recurrent_memory_ends_with_its_run(tmp_path: Path):
    make(tmp_path / "first", args={"max_steps": 2}, callbacks=[Counting("mine")]).train()
    run = make(tmp_path / "second", args={"max_steps": 3})
    run.train(resume_from_checkpoint=str(tmp_path / "first" / "checkpoint-2"))
    run.train()  # a new run, which has nothing to do with the first
    assert "mine" not in SavedCheckpoint.open(tmp_path / "second" / "checkpoint-3").callback_states()


def test_a_trigger_remembers_when_it_was_due(tmp_path: Path):
    """`at_end` is not due twice at the step of a checkpoint, and what was asked for before is not asked again."""
    make(tmp_path, args={"max_steps": 4, "save_steps": 4}).train()
    run = make(tmp_path, args={"max_steps": 4, "save_steps": 4})
    with record(run.bus) as trace:
        run.train(resume_from_checkpoint=True)
    assert "on_save" not in trace.events
    assert "on_step_begin" not in trace.events


def test_the_ledger_of_the_earlier_session_is_still_there(tmp_path: Path):
    run = make(tmp_path, args={"max_steps": 6})
    run.on("on_step_end", lambda control: control.request("training_stop", "enough for today"), once=3, id="boss")
    run.train()
    assert run.state.global_step == 3
    again = make(tmp_path, seed=1, args={"max_steps": 6})
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 6
    requests = [str(entry) for entry in again.control.ledger.of("training_stop") if entry.author == "boss"]
    assert requests == ["step 3: boss request training_stop (False -> True) in on_step_end: enough for today"]


def test_custom_values_in_a_checkpoint_are_kept_and_unsupported_types_are_named(tmp_path: Path):
    run = make(tmp_path, args={"max_steps": 1})
    run.on("on_save_begin", lambda checkpoint: checkpoint.extra.update(notes=[1, (2.5, "three")]), id="notes")
    run.train()
    path = tmp_path / "checkpoint-1" / files.CALLBACKS
    assert load_values(path)["extra"] == {"notes": [1, (2.5, "three")]}
    run.on("on_save_begin", lambda checkpoint: checkpoint.extra.update(odd={1, 2}), id="odd")
    with pytest.raises(CheckpointError, match=r"extra\.odd is a set, which a checkpoint cannot hold"):
        run.train()


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (torch.eye(2).to_sparse(), "of the layout torch.sparse_coo, which a checkpoint cannot hold"),
        (torch.empty(2, device="meta"), "without values, which a checkpoint cannot hold"),
    ],
)
def test_a_tensor_that_no_file_can_hold_is_named(tmp_path: Path, tensor: torch.Tensor, says: str):
    run = make(tmp_path, args={"max_steps": 1})
    run.on("on_save_begin", lambda checkpoint: checkpoint.extra.update(odd=tensor), id="odd")
    with pytest.raises(CheckpointError, match=rf"extra\.odd is a tensor {says}. Use a dense tensor"):
        run.train()


def test_an_error_in_the_state_of_a_callback_names_the_callback(tmp_path: Path):
    class Keeps(Callback):
        def state_dict(self) -> dict[str, int]:
            return {"n": 1}

        def load_state_dict(self, state: dict[str, int]) -> None:
            state["missing"]

    make(tmp_path, args={"max_steps": 1}, callbacks=[Keeps()]).train()
    with pytest.raises(KeyError) as raised:
        make(tmp_path, args={"max_steps": 2}, callbacks=[Keeps()]).train(resume_from_checkpoint=True)
    if sys.version_info >= (3, 11):  # notes are shown since Python 3.11
        assert "Keeps.load_state_dict failed, with the state of the checkpoint." in raised.value.__notes__


def test_checkpoints_of_triggers_resume_too(tmp_path: Path):
    """The same as above, said with a list."""
    spelled = {"save_strategy": "steps", "save_steps": 500}  # the defaults, so that they contradict nothing
    args = {"num_train_epochs": 2, "logging_strategy": "steps", "logging_steps": 1, **spelled}
    unbroken = make(tmp_path / "unbroken", args=args, callbacks=[Checkpoint(every(4) | at(7))])
    unbroken.train()
    assert [checkpoint.step for checkpoint in listing.list_checkpoints(tmp_path / "unbroken")] == [4, 7, 8]
    run = resumed(tmp_path / "resumed", tmp_path / "unbroken" / "checkpoint-7", args=args)
    assert_same_end(run, unbroken)


def test_a_run_stopped_within_an_epoch_resumes_within_it(tmp_path: Path):
    args = {"save_strategy": "no"}
    unbroken = make(tmp_path / "unbroken", args=args)
    unbroken.train()
    stopped = make(tmp_path / "stopped", callbacks=[Checkpoint(at_end())], args={"save_steps": 500})
    stopped.on("on_step_end", lambda control: control.request("training_stop"), once=7)
    stopped.train()
    run = resumed(tmp_path / "resumed", tmp_path / "stopped" / "checkpoint-7", args=args)
    assert same_weights(weights(run.model), weights(unbroken.model))
    assert run.state.epoch == unbroken.state.epoch


def sequential(optimizer: Any, parts: int) -> Any:
    parts_of = [torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, 2) for _ in range(parts)]
    return torch.optim.lr_scheduler.SequentialLR(optimizer, parts_of, [2 * number for number in range(1, parts)])


def test_a_schedule_that_does_not_fit_is_a_checkpoint_error(tmp_path: Path) -> None:
    def trainer(parts: int) -> Any:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        args = TrainingArguments(str(tmp_path), max_steps=4, save_steps=2, use_cpu=True, report_to="none")
        return Trainer(model, args, train_dataset=net_samples(), optimizers=(optimizer, sequential(optimizer, parts)))

    trainer(3).train()
    with pytest.raises(CheckpointError, match=r"does not fit the SequentialLR of this run"):
        trainer(2).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
