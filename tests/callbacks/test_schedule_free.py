"""Optimizers with two modes: trainings with the real package against transformers, bit for bit."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file

from support.callbacks import Boom
from support.data import net_samples, sentences
from support.models import Net
from support.outcomes import history, same_weights, weights
from support.trainers import both, net_trainer
from trainbus import EMA, Checkpoint, Evaluate, KeepBest, ScheduleFree, every, never
from trainbus.callbacks.optimizer.schedule_free import has_two_modes

schedulefree = pytest.importorskip("schedulefree")

LIBRARIES = ["trainbus", "transformers"]
NAMES = ["schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd"]


class EvalOnSave(transformers.TrainerCallback):
    """Puts transformers' optimizer into the mode that weights are saved in, which it does not do itself."""

    def __init__(self):
        self.saved = {}

    def on_save(self, args, state, control, model, optimizer, **kwargs):
        optimizer.eval()
        self.saved[state.global_step] = weights(model)


def both_trained(tmp_path, name, callbacks=lambda library: [], **args):
    shared = {"optim": name, "learning_rate": 0.01, "max_steps": 7, "per_device_train_batch_size": 4}
    shared |= {"logging_steps": 1, "warmup_steps": 2, "save_strategy": "no", **args}
    (theirs, _), (ours, _) = both(
        tmp_path, shared, callbacks=callbacks, train_dataset=sentences(24), eval_dataset=sentences(8, seed=1)
    )
    return theirs, ours


@pytest.mark.parametrize("name", NAMES)
def test_equals_transformers_with_evaluations_and_saves(name, tmp_path):
    evaluating = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 4}
    theirs, ours = both_trained(tmp_path, name, gradient_accumulation_steps=2, **evaluating)
    assert history(ours) == history(theirs)
    assert sum("eval_loss" in entry for entry in ours.state.log_history) == 4
    theirs.optimizer.eval()  # which transformers leaves to its user
    assert same_weights(weights(ours.model), weights(theirs.model))
    saved = [load_file(tmp_path / library / "checkpoint-4" / "model.safetensors") for library in LIBRARIES]
    assert same_weights(*saved)


@pytest.mark.parametrize("name", NAMES)
def test_a_save_without_an_evaluation_has_the_weights_to_evaluate(name, tmp_path):
    switching = EvalOnSave()
    saving = {"save_strategy": "steps", "save_steps": 3, "weight_decay": 0.1}
    theirs, ours = both_trained(
        tmp_path, name, lambda library: [switching] if library.__name__ == "transformers" else [], **saving
    )
    for step in (3, 6):
        assert same_weights(
            load_file(tmp_path / "trainbus" / f"checkpoint-{step}" / "model.safetensors"), switching.saved[step]
        )
    theirs.optimizer.eval()
    assert same_weights(weights(ours.model), weights(theirs.model))


def options(name):
    return {"optim": name, "learning_rate": 0.05, "lr_scheduler_type": "constant"}


@pytest.mark.parametrize("name", NAMES)
def test_resumes_exactly(name, tmp_path):
    unbroken = net_trainer(tmp_path, Checkpoint(every(3)), Evaluate(every(2)), **options(name))
    unbroken.train()
    resumed = net_trainer(tmp_path, Checkpoint(every(3)), Evaluate(every(2)), **options(name))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert same_weights(weights(resumed.model), weights(unbroken.model))


def mode(optimizer):
    return {group["train_mode"] for group in optimizer.param_groups}


def adamw(model):
    return schedulefree.AdamWScheduleFree(model.parameters(), lr=0.05)


@pytest.mark.parametrize("how", ["optimizers", "optimizer_cls_and_kwargs"])
def test_a_passed_optimizer_switches_modes_too(how, tmp_path):
    model = Net()
    given = (adamw(model), None) if how == "optimizers" else (schedulefree.AdamWScheduleFree, {"lr": 0.05})
    built = net_trainer(tmp_path, Evaluate(every(2)), Checkpoint(every(3)), model=model, **{how: given})
    assert list(built.callbacks).count("ScheduleFree") == 1
    heard = []
    for event in ("on_batch", "on_gradients", "on_prediction_step", "on_save", "on_train_end"):
        built.on(event, lambda optimizer, event=event: heard.append((event, *mode(optimizer))))
    built.train()
    assert set(heard) == {
        ("on_batch", True),
        ("on_gradients", True),
        ("on_prediction_step", False),
        ("on_save", False),
        ("on_train_end", False),
    }


def test_there_is_at_most_one_and_zero_for_other_optimizers(tmp_path):
    model = Net()
    given = (adamw(model), None)
    names = list(net_trainer(tmp_path, model=model, optimizers=given, optim="schedule_free_adamw").callbacks)
    assert [name for name in names if name.startswith("ScheduleFree")] == ["ScheduleFree"]
    listed = ScheduleFree()
    assert net_trainer(tmp_path, listed, model=model, optimizers=given).callbacks["ScheduleFree"] is listed
    plain = (torch.optim.SGD(model.parameters(), 0.1), None)
    assert "ScheduleFree" not in net_trainer(tmp_path, model=model, optimizers=plain).callbacks
    assert not has_two_modes(plain[0])
    net_trainer(tmp_path, ScheduleFree(), model=model, optimizers=plain).train()


def test_a_prediction_after_a_failed_training_uses_eval_mode(tmp_path):
    model = Net()
    built = net_trainer(tmp_path, model=model, optimizers=(adamw(model), None))

    def fail(state):
        if state.global_step == 3:
            raise Boom

    built.on("on_step_end", fail)
    with pytest.raises(Boom):
        built.train()
    assert mode(built.optimizer) == {True}
    built.predict(net_samples(8))
    assert mode(built.optimizer) == {False}


def test_the_best_weights_stay_as_they_were_saved(tmp_path):
    scores = iter([0.1, 0.9, 0.3])
    built = net_trainer(
        tmp_path,
        KeepBest("score"),
        Evaluate(every(2)),
        Checkpoint(never()),
        compute_metrics=lambda prediction: {"score": next(scores)},
        **options("schedule_free_sgd"),
    )
    built.train()
    assert same_weights(weights(built.model), load_file(tmp_path / "checkpoint-4" / "model.safetensors"))


def test_an_average_does_not_change_the_training(tmp_path):
    ends = []
    for callbacks in ([], [EMA(0.9)]):
        built = net_trainer(
            tmp_path, Evaluate(every(2)), Checkpoint(every(3)), *callbacks, **options("schedule_free_adamw")
        )
        seen = {}
        built.on("on_optimizer_step", lambda state, model, seen=seen: seen.update({state.global_step: weights(model)}))
        built.train()
        ends.append(seen)
    assert all(same_weights(ends[0][step], ends[1][step]) for step in range(6))
