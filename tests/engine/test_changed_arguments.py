"""Arguments that a program changes on `trainer.args` after it built the Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

import trainbus
from support.data import points
from support.models import Regression
from support.outcomes import history, same_weights, saved_steps, weights
from trainbus import Callback, Checkpoint, DefaultFlowCallback, Log, every
from trainbus.callbacks.parallel.fsdp import FSDP
from trainbus.events.capabilities import Capability
from trainbus.events.errors import ArgumentError

BASE = {"num_train_epochs": 1, "per_device_train_batch_size": 4, "learning_rate": 0.05, "save_strategy": "no"}
CHANGES: dict[str, dict[str, Any]] = {
    "epochs": {"num_train_epochs": 3, "logging_steps": 5},
    "steps": {"max_steps": 7, "logging_steps": 2, "logging_first_step": True},
    "evaluation by epoch": {"num_train_epochs": 2, "eval_strategy": "epoch", "logging_strategy": "epoch"},
    "evaluation by steps": {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True, "logging_steps": 3},
    "saves": {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1, "logging_steps": 1},
    "saves by epoch": {"save_strategy": "epoch", "num_train_epochs": 2, "logging_steps": 1},
    "optimizer": {"learning_rate": 0.2, "weight_decay": 0.1, "max_grad_norm": 0.1, "optim": "adafactor"},
    "schedule": {"lr_scheduler_type": "cosine", "warmup_steps": 2, "logging_steps": 1},
    "batches": {"per_device_train_batch_size": 2, "logging_steps": 1},
    "accumulation": {"gradient_accumulation_steps": 2, "logging_steps": 1},
    "no logs": {"logging_strategy": "no"},
    "best model": {
        **{"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": False},
        **{"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "learning_rate": 0.9},
    },
}
IGNORED = {"per_device_train_batch_size"}
"""Changes that transformers ignores: it reads the batch size when the Trainer is built."""


def built(folder: Path, library: Any = trainbus, callbacks: Any = None, **args: Any) -> Any:
    arguments = library.TrainingArguments(
        str(folder), **{**BASE, "disable_tqdm": True, "use_cpu": True, "report_to": "none", **args}
    )
    data = {"train_dataset": points(18), "eval_dataset": points(6, seed=1)}
    return library.Trainer(Regression(0.2), arguments, callbacks=callbacks, **data)


def change(trainer: Any, changes: dict[str, Any]) -> Any:
    for name, value in changes.items():
        setattr(trainer.args, name, value)
    return trainer


@pytest.mark.parametrize("changes", CHANGES.values(), ids=[*CHANGES])
@pytest.mark.filterwarnings("ignore")
def test_changes_take_effect_as_in_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = change(built(tmp_path / "theirs", transformers), changes)
    theirs.train()
    ours = change(built(tmp_path / "ours"), changes)
    ours.train()
    given = built(tmp_path / "given", **changes)
    given.train()
    assert history(ours) == history(given)
    assert same_weights(weights(ours.model), weights(given.model))
    if IGNORED & changes.keys():
        assert not same_weights(weights(ours.model), weights(theirs.model))
        return
    assert same_weights(weights(ours.model), weights(theirs.model))
    steps = [entry["step"] for entry in history(theirs) if "loss" in entry or "eval_loss" in entry]
    assert [step for step in (entry["step"] for entry in history(ours)) if step in steps][: len(steps)] == steps
    assert saved_steps(tmp_path / "ours") == saved_steps(tmp_path / "given")
    if "saves" in str(changes):
        assert saved_steps(tmp_path / "ours") == saved_steps(tmp_path / "theirs")


def test_callbacks_are_in_the_order_of_a_trainer_with_these_arguments(tmp_path: Path) -> None:
    changes = {**CHANGES["best model"], "neftune_noise_alpha": 1.0, "gradient_checkpointing": False}
    ours = change(built(tmp_path, callbacks=[Callback()]), changes)
    ours.args.fp16_full_eval = False
    ours._follow_arguments()
    given = built(tmp_path, callbacks=[Callback()], **changes)
    assert [type(each) for each in ours.callbacks.values()] == [type(each) for each in given.callbacks.values()]
    assert ours.bus.describe() == given.bus.describe()


def test_a_change_between_two_trainings_takes_effect_and_can_be_undone(tmp_path: Path) -> None:
    trainer = built(tmp_path, logging_steps=1)
    for expected, strategy in ((5, "steps"), (0, "no"), (5, "steps")):
        trainer.args.logging_strategy = strategy
        trainer.train()
        assert sum("loss" in entry for entry in history(trainer)) == expected


def test_replaced_arguments_take_effect(tmp_path: Path) -> None:
    trainer = built(tmp_path / "a")
    trainer.args = built(tmp_path / "b", max_steps=3, logging_steps=1).args
    trainer.train()
    assert [entry["step"] for entry in history(trainer) if "loss" in entry] == [1, 2, 3]


def test_an_impossible_change_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="eval_strategy"):
        change(built(tmp_path), {"eval_strategy": "sometimes"}).train()


def test_a_listed_callback_decides_and_a_warning_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = change(built(tmp_path, callbacks=[Log(every(2))]), {"logging_steps": 1})
    trainer.train()
    assert [entry["step"] for entry in history(trainer) if "loss" in entry] == [2, 4]
    assert "logging_steps=1 has no effect, because Log = Log(" in caplog.text


def test_a_flow_callback_reads_the_changed_arguments(tmp_path: Path) -> None:
    trainer = change(built(tmp_path, callbacks=[DefaultFlowCallback()]), {"logging_steps": 2, "num_train_epochs": 2})
    trainer.train()
    assert [entry["step"] for entry in history(trainer) if "loss" in entry] == [2, 4, 6, 8, 10]


def test_a_removed_callback_stays_removed(tmp_path: Path) -> None:
    trainer = built(tmp_path, save_strategy="steps", save_steps=2)
    trainer.remove_callback(Checkpoint)
    change(trainer, {"save_steps": 1}).train()
    assert saved_steps(tmp_path) == []


def test_a_change_of_what_places_the_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {Capability.PLACES_MODEL}
    monkeypatch.setattr(FSDP, "from_arguments", lambda args: FSDP() if args.fsdp else None)
    assert FSDP.capabilities >= places
    with pytest.raises(ArgumentError, match=r"fsdp.* changed .*FSDP places the model\. Set the arguments before"):
        change(built(tmp_path), {"fsdp": "full_shard"}).train()
