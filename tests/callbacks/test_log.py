"""Logging: the mean loss per step, when it is due, and never twice."""

from __future__ import annotations

import logging
import math
from statistics import fmean

import pytest
import torch

from support.callbacks import Poison
from support.outcomes import logged
from support.trainers import net_trainer
from trainbus import Log, Trainer, at, at_end, every, never
from trainbus.callbacks.flow.log import from_strategy
from trainbus.engine.checkpoint.read.world_size import mean_losses
from trainbus.engine.loss.loss_window import Losses
from trainbus.events import ArgumentError


def losses_of(built: Trainer) -> dict[int, float]:
    """Train, and return the loss of each step, added up over its batches."""
    losses: dict[int, float] = {}

    def note(state, loss):
        losses[state.global_step + 1] = losses.get(state.global_step + 1, 0.0) + loss.item()

    built.on("on_substep_end", note)
    built.on("on_gradients", note)
    built.train()
    return losses


def mean(losses: dict[int, float], first: int, last: int) -> float:
    return fmean(losses[step] for step in range(first, last + 1))


def test_logs_the_mean_of_the_steps_since_the_last_time(tmp_path):
    built = net_trainer(tmp_path, Log(every(4) | at_end()))
    losses = losses_of(built)
    assert logged(built, "loss") == pytest.approx({4: mean(losses, 1, 4), 6: mean(losses, 5, 6)})


def test_means_are_per_step_and_not_per_batch(tmp_path):
    built = net_trainer(tmp_path, Log(every(2)), gradient_accumulation_steps=3)
    losses = losses_of(built)
    expected = {step: mean(losses, step - 1, step) for step in (2, 4, 6)}
    assert logged(built, "loss") == pytest.approx(expected)


def test_logging_first_step_logs_after_step_one(tmp_path):
    built = net_trainer(tmp_path, logging_steps=4, logging_first_step=True)
    losses = losses_of(built)
    expected = {1: losses[1], 4: mean(losses, 2, 4), 6: mean(losses, 5, 6)}
    assert logged(built, "loss") == pytest.approx(expected)


def test_a_prefix_has_its_own_mean(tmp_path):
    built = net_trainer(tmp_path, Log(every(2)), Log(every(3), prefix="third_"))
    losses = losses_of(built)
    assert logged(built, "loss") == pytest.approx({step: mean(losses, step - 1, step) for step in (2, 4, 6)})
    assert logged(built, "third_loss") == pytest.approx({step: mean(losses, step - 2, step) for step in (3, 6)})
    assert logged(built, "learning_rate").keys() == {2, 4, 6}
    assert logged(built, "train_loss").keys() == {6}


@pytest.mark.parametrize("saved", [1, 2, 4, 5])
def test_a_resumed_run_restores_the_mean_of_each_prefix(tmp_path, saved):
    def build(folder, **options):
        more = [Log(every(5), prefix="fifth_"), Log(every(1, "epoch") | at_end(), prefix="epoch_")]
        return net_trainer(folder, Log(every(2)), *more, save_strategy="steps", save_steps=1, **options)

    whole = build(tmp_path / "whole")
    whole.train()
    build(tmp_path / "left").train()
    resumed = build(tmp_path / "left")
    resumed.train(resume_from_checkpoint=str(tmp_path / "left" / f"checkpoint-{saved}"))
    for name in ("loss", "fifth_loss", "epoch_loss"):
        assert logged(resumed, name) == logged(whole, name), name
        assert len(logged(whole, name)) > 0


def test_windows_of_a_checkpoint_are_restored_when_they_open_and_in_place():
    def losses():
        return Losses(0, torch.device("cpu"), lambda total: total[None])

    one = losses()
    window = one.open(0, "sparse_")
    one.open(0)  # without a name: not in the checkpoint
    one.add(torch.tensor(2.0))
    state = one.state_dict()
    other = losses()
    other.load_state_dict(state)
    assert other.state_dict() == state  # also if the callback is gone, so that a later session may restore it
    assert other.open(1, "sparse_").read(1) == 2.0
    window.read(1)
    one.load_state_dict(state)
    assert window.read(1) == 2.0
    assert "windows" not in losses().state_dict()


def test_another_world_size_takes_the_mean_over_ranks_for_each_window():
    ranks = [{"sum": 1.0, "since": 2, "windows": {"a": {"sum": 3.0, "since": 0}}}]
    ranks.append({"sum": 2.0, "since": 2, "windows": {"a": {"sum": 6.0, "since": 0}}})
    assert mean_losses(ranks) == {"sum": 1.5, "since": 2, "windows": {"a": {"sum": 4.5, "since": 0}}}


def test_a_callback_with_a_prefix_joins_the_one_from_arguments(tmp_path):
    built = net_trainer(tmp_path, Log(every(3), prefix="third_"), logging_steps=2)
    built.train()
    assert logged(built, "loss").keys() == {2, 4, 6}
    assert logged(built, "third_loss").keys() == {3, 6}


def test_two_without_a_prefix_are_refused(tmp_path):
    with pytest.raises(
        ArgumentError,
        match=r"every\(2\).*every\(3\).*the flag 'log'\. Join .*, or give one of them a prefix\.$",
    ):
        net_trainer(tmp_path, Log(every(2)), Log(every(3))).train()


def test_no_value_is_logged_twice_at_one_step(tmp_path):
    built = net_trainer(tmp_path, Log(every(2) | every(1, "epoch") | at_end()), max_steps=8)
    built.on("on_step_end", lambda control: control.request("log", "again"), every=2)
    built.on("on_epoch_end", lambda control: control.request("log", "and again"))
    built.train()
    assert logged(built, "loss").keys() == {2, 4, 6, 8}
    assert logged(built, "train_loss").keys() == {8}


def test_a_log_callback_may_join_a_trainer_that_does_not_log(tmp_path):
    built = net_trainer(tmp_path, logging_strategy="no")
    built.add_callback(Log(every(3)))
    built.train()
    assert logged(built, "loss").keys() == {3, 6}
    assert logged(built, "train_loss").keys() == {6}


def test_a_request_of_another_callback_is_served_only_by_the_main_logger(tmp_path):
    built = net_trainer(tmp_path, Log(never()), Log(never(), prefix="other_"))
    built.on("on_step_end", lambda control: control.request("log"), once=3)
    built.train()
    assert logged(built, "loss").keys() == {3}
    assert logged(built, "other_loss") == {}


def test_logs_the_learning_rate_and_the_gradient_norm_of_the_step(tmp_path):
    norms = {}
    built = net_trainer(tmp_path, Log(every(1)), learning_rate=0.06, max_grad_norm=0.1)
    built.on("on_gradients", lambda state, model: norms.update({state.global_step + 1: _norm(model)}))
    built.train()
    assert logged(built, "learning_rate") == pytest.approx({step: 0.01 * (7 - step) for step in range(1, 7)})
    assert logged(built, "grad_norm") == pytest.approx(norms), "the norm before clipping"


def _norm(model):
    return math.sqrt(sum(weight.grad.pow(2).sum().item() for weight in model.parameters()))


def test_the_summary_has_the_mean_of_the_whole_run(tmp_path):
    built = net_trainer(tmp_path, Log(every(4)))
    losses = losses_of(built)
    assert logged(built, "train_loss") == pytest.approx({6: mean(losses, 1, 6)})
    assert built.state.log_history[-1].keys() >= {"train_runtime", "train_samples_per_second", "total_flos"}


def test_warns_once_of_a_loss_that_is_no_number(tmp_path, caplog):
    built = net_trainer(tmp_path, Poison(2, 4), Log(every(1)))
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        built.train()
    warnings = [record.getMessage() for record in caplog.records if "loss is nan" in record.getMessage()]
    assert len(warnings) == 1
    assert "at step 2" in warnings[0]
    assert "Add NaNGuard()" in warnings[0]
    assert math.isnan(logged(built, "loss")[2]), "it is logged as it is"


@pytest.mark.parametrize(
    ("strategy", "steps", "after", "expected"),
    [
        ("no", 5, 0, never()),
        ("epoch", 5, 0, every(1, "epoch")),
        ("epoch", None, 2, every(1, "epoch", after=2)),
        ("steps", 5, 0, every(5) | at_end(early=False)),
        ("steps", None, 0, every(500) | at_end(early=False)),
        ("steps", 0.25, 0, every(0.25) | at_end(early=False)),
        ("steps", 5, 7, every(5, after=7) | (at_end(early=False) & every(1, after=7))),
    ],
)
def test_strategies_are_triggers(strategy, steps, after, expected):
    assert from_strategy(strategy, steps, after) == expected


def test_an_unknown_strategy_is_refused():
    with pytest.raises(ArgumentError, match=r"The strategy 'best' is unknown. Set no, epoch or steps"):
        from_strategy("best", 1)


def test_the_first_step_is_a_trigger_too(tmp_path):
    args = net_trainer(tmp_path, logging_steps=4, logging_first_step=True).args
    assert Log.from_arguments(args) == Log(every(4) | at_end(early=False) | at(1))
