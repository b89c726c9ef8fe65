"""Gradients that are not numbers: refused before they reach the weights, and never hidden."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from safetensors.torch import load_file

from support.callbacks import Poison, stop_at
from support.outcomes import logged, same_weights, saved_steps, weights
from support.trainers import net_trainer
from trainbus import Callback, Checkpoint, Log, NaNGuard, at_end, every
from trainbus.events import ArgumentError, NonFiniteError, record


def watched(built):
    """Have the weights and the optimizer's state of each step's end noted."""
    seen = {0: weights(built.model)}
    states = {}

    def note(state, model, optimizer):
        seen[state.global_step] = weights(model)
        states[state.global_step] = [
            {name: value.clone() for name, value in moments.items()} for moments in optimizer.state.values()
        ]

    built.on("on_step_end", note)
    return seen, states


def test_raises_before_the_weights_are_touched(tmp_path):
    built = net_trainer(tmp_path, NaNGuard(), Poison(3))
    seen, _ = watched(built)
    with pytest.raises(NonFiniteError) as caught:
        built.train()
    assert same_weights(weights(built.model), seen[2])
    message = str(caught.value)
    assert "the gradient norm is nan and the loss nan in step 3" in message
    assert "NaNGuard('skip')" in message


def test_skips_the_update_to_the_last_bit(tmp_path):
    guard = NaNGuard("skip")
    built = net_trainer(tmp_path, guard, Poison(3), Log(every(1)))
    seen, states = watched(built)
    built.train()
    assert same_weights(seen[3], seen[2]), "the weights"
    assert all(same_weights(after, before) for after, before in zip(states[3], states[2])), (
        "what the optimizer remembers"
    )
    assert not same_weights(seen[4], seen[3]), "and it goes on"
    assert all(torch.isfinite(value).all() for value in weights(built.model).values())
    assert (guard.skipped, built.state.steps_skipped, built.state.global_step) == (1, 1, 6)
    rates = logged(built, "learning_rate")
    assert rates[4] == rates[3] < rates[2], "the schedule waits with the weights"


def test_the_loss_is_logged_unchanged_and_no_active_option_is_advised(tmp_path, caplog):
    built = net_trainer(tmp_path, NaNGuard("skip"), Poison(3), Log(every(1)))
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        built.train()
    assert "The training loss is nan at step 3." in caplog.text
    assert "Add NaNGuard()" not in caplog.text
    assert [step for step, loss in logged(built, "loss").items() if math.isnan(loss)] == [3]
    assert math.isnan(logged(built, "grad_norm")[3])
    assert math.isnan(logged(built, "train_loss")[6])


def test_logs_each_skipped_step_with_its_reason(tmp_path, caplog):
    built = net_trainer(tmp_path, NaNGuard("skip"), Poison(3))
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        built.train()
    assert "NaNGuard: the gradient norm is nan and the loss nan in step 3. The update is skipped." in caplog.text
    [taken] = [entry for entry in built.control.ledger.of("skip_update") if entry.action == "take"]
    assert taken.reason == "NaNGuard: the gradient norm is nan and the loss nan in step 3"


def test_stops_in_good_order(tmp_path):
    built = net_trainer(tmp_path, NaNGuard("stop"), Poison(3), Checkpoint(at_end()))
    seen, _ = watched(built)
    with record(built.bus) as trace:
        built.train()
    assert built.state.global_step == 3
    assert "on_train_end" in trace.events
    assert "NaNGuard: the gradient norm is nan" in built.control.why("training_stop")
    assert saved_steps(tmp_path) == [3]
    assert same_weights(load_file(tmp_path / "checkpoint-3" / "model.safetensors"), seen[2])


def test_more_skips_in_a_row_than_the_limit_raise(tmp_path):
    built = net_trainer(tmp_path, NaNGuard("skip", limit=2), Poison(2, 3, 4))
    seen, _ = watched(built)
    with pytest.raises(NonFiniteError, match="in step 4"):
        built.train()
    assert built.state.steps_skipped == 2
    assert same_weights(weights(built.model), seen[1])


def test_a_good_step_resets_the_limit(tmp_path):
    built = net_trainer(tmp_path, NaNGuard("skip", limit=2), Poison(1, 2, 4, 5))
    built.train()
    assert (built.state.global_step, built.state.steps_skipped) == (6, 4)


class BrokenGradient(Callback):
    """Makes one number of one gradient infinite, though the loss is fine."""

    def on_gradients(self, state, model):
        if state.global_step + 1 == 3:
            model.blocks[0].linear.weight.grad[2, 3] = math.inf


@pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
def test_sees_a_single_infinity(tmp_path, max_grad_norm):
    built = net_trainer(tmp_path, NaNGuard("skip"), BrokenGradient(), max_grad_norm=max_grad_norm)
    seen, _ = watched(built)
    built.train()
    assert built.state.steps_skipped == 1
    assert same_weights(seen[3], seen[2])


def test_sees_one_bad_batch_of_several(tmp_path):
    guard, poison = NaNGuard("skip"), Poison(2)
    built = net_trainer(tmp_path, guard, gradient_accumulation_steps=2)
    seen, _ = watched(built)
    batches = []

    def spoil_one(run, state, loss):
        batches.append(state.global_step + 1)
        if batches.count(2) == 1 and state.global_step + 1 in poison.steps:
            run.loss = loss * math.nan

    built.on("on_loss", spoil_one)
    built.train()
    assert batches.count(2) == 2, "one of the two was good"
    assert guard.skipped == 1
    assert same_weights(seen[2], seen[1])


def test_without_it_the_weights_are_lost(tmp_path):
    """What the guard is for; should this ever change, the tests above prove nothing."""
    built = net_trainer(tmp_path, Poison(3))
    built.train()
    assert any(torch.isnan(value).any() for value in weights(built.model).values())


def test_counts_of_skipped_steps_survive_a_resume(tmp_path):
    def build(guard):
        return net_trainer(tmp_path, guard, Poison(2, 5), Checkpoint(every(3)))

    broken = build(NaNGuard("skip"))
    broken.on("on_step_end", stop_at(3))
    broken.train()
    guard = NaNGuard("skip")
    resumed = build(guard)
    resumed.train(resume_from_checkpoint=True)
    assert (guard.skipped, resumed.state.steps_skipped) == (2, 2)


def test_the_limit_counts_on_over_a_resume(tmp_path):
    def build():
        return net_trainer(tmp_path, NaNGuard("skip", limit=2), Poison(2, 3, 4), Checkpoint(every(3)))

    broken = build()
    broken.on("on_step_end", stop_at(3))
    broken.train()
    with pytest.raises(NonFiniteError, match="in step 4"):
        build().train(resume_from_checkpoint=True)


def test_a_new_run_counts_from_zero(tmp_path):
    guard = NaNGuard("skip", limit=2)
    built = net_trainer(tmp_path, guard, Poison(5, 6))
    built.train()
    built.train()
    assert (guard.skipped, built.state.steps_skipped) == (2, 2)


def test_an_unknown_action_is_refused():
    message = r"NaNGuard\('skp'\): the action is unknown; did you mean 'skip'\? Known: raise, skip, stop"
    with pytest.raises(ArgumentError, match=message):
        NaNGuard("skp")  # type: ignore[arg-type]
