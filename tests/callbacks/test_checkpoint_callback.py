"""The Checkpoint callback: content of a checkpoint, vetoes, and retention."""

from __future__ import annotations

import json
import logging

import pytest
from safetensors.torch import load_file

from support.callbacks import scripted
from support.checkpoints import names_in
from support.models import Net
from support.outcomes import logged, same_weights, saved_steps, steps_of, weights
from support.trainers import net_trainer
from trainbus import Callback, Checkpoint, Evaluate, Keep, KeepBest, Log, NaNGuard, Stage, every, never, order
from trainbus.engine.checkpoint.format.codec import load_values
from trainbus.engine.checkpoint.read.listing import list_checkpoints, newest_first
from trainbus.events import ArgumentError

FILES = {
    "callbacks.safetensors",
    "manifest.json",
    "model.safetensors",
    "optimizer.safetensors",
    "rng_state_0.safetensors",
    "scheduler.safetensors",
    "trainer_state.json",
    "training_args.json",
}


def test_a_checkpoint_holds_all_that_a_resume_needs(tmp_path):
    built = net_trainer(tmp_path, Checkpoint(every(4)), Log(every(2)), NaNGuard("skip"))
    at_four = {}
    built.on("on_step_end", lambda model: at_four.update(weights(model)), once=4)
    built.train()
    folder = tmp_path / "checkpoint-4"
    assert {path.name for path in folder.iterdir()} == FILES
    assert same_weights(load_file(folder / "model.safetensors"), at_four)
    state = json.loads((folder / "trainer_state.json").read_text())
    assert (state["global_step"], state["epoch"], state["max_steps"]) == (4, 1.0, 6)
    assert [entry["step"] for entry in state["log_history"]] == [2, 4]
    assert load_values(folder / "callbacks.safetensors")["callbacks"]["NaNGuard"] == {"skipped": 0, "in_a_row": 0}
    assert len(load_values(folder / "optimizer.safetensors")["state"]) == len(list(built.model.parameters()))
    assert json.loads((folder / "training_args.json").read_text())["learning_rate"] == 0.05


def test_leaves_no_partial_file(tmp_path):
    net_trainer(tmp_path, Checkpoint(every(2))).train()
    assert names_in(tmp_path) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


def test_save_only_model(tmp_path):
    net_trainer(tmp_path, Checkpoint(every(4)), save_only_model=True).train()
    assert {path.name for path in (tmp_path / "checkpoint-4").iterdir()} == FILES - {
        "optimizer.safetensors",
        "scheduler.safetensors",
        "rng_state_0.safetensors",
    }


class Veto(Callback):
    """Forbids one checkpoint, as late as anybody can."""

    @order(Stage.REPORT)
    def on_save_begin(self, control, checkpoint):
        if checkpoint.step == 4:
            control.veto("save", "the disk is full")


def test_a_handler_may_veto_a_save(tmp_path, caplog):
    built = net_trainer(tmp_path, Checkpoint(every(2)), Veto())
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        assert steps_of(built, "on_save") == [2, 6]
    assert saved_steps(tmp_path) == [2, 6]
    assert "step 4 is not written: a callback vetoed it" in caplog.text


def test_a_handler_may_add_to_it(tmp_path):
    built = net_trainer(tmp_path, Checkpoint(every(4)))
    built.on("on_save_begin", lambda checkpoint, model: checkpoint.extra.update(head=model.head.weight, note="mine"))
    built.train()
    extra = load_values(tmp_path / "checkpoint-4" / "callbacks.safetensors")["extra"]
    assert extra["note"] == "mine"
    assert same_weights(
        {"head": extra["head"]}, {"head": load_file(tmp_path / "checkpoint-4/model.safetensors")["head.weight"]}
    )


def test_the_manifest_has_the_metrics_of_that_very_step(tmp_path):
    built = net_trainer(tmp_path, Evaluate(every(3)), Checkpoint(every(2)))
    built.train()
    manifests = {step: json.loads((tmp_path / f"checkpoint-{step}/manifest.json").read_text()) for step in (2, 4, 6)}
    assert manifests[2]["metrics"] == manifests[4]["metrics"] == {}
    assert manifests[6]["metrics"]["eval_loss"] == logged(built, "eval_loss")[6]
    assert manifests[6]["step"] == 6


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (Keep(), [1, 2, 3, 4, 5, 6]),
        (Keep(last=2), [4, 5, 6]),
        (Keep(multiples=3), [3, 4, 6]),
        (Keep(total=2), [4, 6]),
        (Keep(total=4), [3, 4, 5, 6]),
        (Keep(last=1, best=2), [2, 4, 6]),
    ],
    ids=repr,
)
def test_keeps_the_configured_checkpoints(tmp_path, keep, expected):
    """The best of all, of step 4, stays in any case."""
    measured = scripted([0.1, 0.8, 0.3, 0.9, 0.2, 0.4])
    watching = KeepBest("score", save=False, load_at_end=False)
    built = net_trainer(
        tmp_path, Checkpoint(every(1), keep=keep), Evaluate(every(1)), watching, compute_metrics=measured
    )
    built.train()
    assert saved_steps(tmp_path) == expected


def test_best_uses_the_loss_by_default(tmp_path):
    losses = [3.0, 1.0, 2.0, 4.0, 5.0, 6.0]
    built = net_trainer(tmp_path, Checkpoint(every(1), keep=Keep(best=1)), Evaluate(every(1)))
    built.on("on_evaluate_dataset", lambda metrics: metrics.update(eval_loss=losses.pop(0)))
    built.train()
    assert saved_steps(tmp_path) == [2, 6]


@pytest.mark.parametrize(("limit", "expected"), [(1, [2, 6]), (2, [2, 6]), (3, [2, 5, 6])])
def test_the_limit_of_the_arguments_spares_the_best(tmp_path, limit, expected):
    built = net_trainer(
        tmp_path,
        compute_metrics=scripted([0.1, 0.9, 0.3, 0.5, 0.2, 0.4]),
        **{"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "save_total_limit": limit},
        **{"load_best_model_at_end": True, "metric_for_best_model": "score"},
    )
    built.train()
    assert saved_steps(tmp_path) == expected
    assert built.state.best_global_step == 2
    assert same_weights(weights(built.model), load_file(tmp_path / "checkpoint-2" / "model.safetensors"))


def test_the_best_that_was_saved_outlives_a_better_that_was_not(tmp_path):
    """What will be loaded at the end is what stays, whatever the best step may be by now."""
    keep_best = KeepBest("score", save=False)
    built = net_trainer(
        tmp_path,
        *(Checkpoint(every(2), keep=Keep(last=1)), Evaluate(every(1)), keep_best),
        compute_metrics=scripted([0.1, 0.5, 0.9, 0.3, 0.3, 0.3]),
    )
    built.train()
    assert built.state.best_global_step == 3
    assert saved_steps(tmp_path) == [2, 6]
    assert same_weights(weights(built.model), load_file(tmp_path / "checkpoint-2" / "model.safetensors"))


def test_writes_on_requests_of_other_callbacks(tmp_path):
    built = net_trainer(tmp_path, Checkpoint(never()))
    built.on("on_step_end", lambda control: control.request("save", "the user wants it"), once=3)
    built.train()
    assert saved_steps(tmp_path) == [3]


def test_a_step_that_was_saved_before_is_saved_again(tmp_path):
    built = net_trainer(tmp_path, Checkpoint(every(6)), model_init=Net)
    built.train()
    (tmp_path / "checkpoint-6" / "model.safetensors").write_bytes(b"old")
    built.train()
    assert same_weights(load_file(tmp_path / "checkpoint-6" / "model.safetensors"), weights(built.model))


def test_two_checkpoint_callbacks_are_refused(tmp_path):
    with pytest.raises(
        ArgumentError, match=r"every\(2\).*every\(3\).*both raise the flag 'save'. Join their triggers with \|"
    ):
        net_trainer(tmp_path, Checkpoint(every(2)), Checkpoint(every(3), id="second")).train()


def test_a_new_run_in_a_used_folder_keeps_its_own_checkpoints_and_leaves_the_old_ones(tmp_path):
    for steps in (8, 4):
        net_trainer(tmp_path, max_steps=steps, save_steps=2, save_total_limit=1).train()
    found = list_checkpoints(tmp_path)
    assert [checkpoint.step for checkpoint in found] == [4, 8]
    assert newest_first(found)[0].step == 4


def test_a_damaged_one_is_neither_counted_nor_deleted(tmp_path):
    built = net_trainer(tmp_path, max_steps=6, save_steps=1, save_total_limit=2, async_save=False)
    built.on("on_step_begin", lambda: (tmp_path / "checkpoint-2" / "model.safetensors").unlink(), once=3)
    built.train()
    assert saved_steps(tmp_path) == [2, 5, 6]


def test_folders_without_a_manifest_are_not_deleted(tmp_path):
    built = net_trainer(tmp_path, max_steps=6, save_steps=1, save_total_limit=1, async_save=False)
    built.on("on_step_begin", lambda: (tmp_path / "checkpoint-2" / "manifest.json").unlink(), once=3)
    built.train()
    assert saved_steps(tmp_path) == [2, 6]


@pytest.mark.parametrize("keep", [2, None, "last", {"last": 2}], ids=str)
def test_a_retention_that_is_no_keep_is_refused_at_once(keep):
    with pytest.raises(ArgumentError, match=r"is not a rule. Set a `Keep`, such as keep=Keep\(last=2\)"):
        Checkpoint(every(4), keep=keep)
