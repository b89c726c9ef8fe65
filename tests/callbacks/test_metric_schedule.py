"""Schedules that follow a metric: moved by evaluations, and by nothing else."""

from __future__ import annotations

import pytest

from support.callbacks import scripted
from support.data import net_samples
from support.outcomes import logged
from support.trainers import net_trainer
from trainbus import Evaluate, MetricSchedule, every
from trainbus.events import ArgumentError

PLATEAU = {
    **{"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5}},
    **{"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1, "learning_rate": 0.08},
}


def rates(built):
    built.train()
    return [logged(built, "learning_rate")[step] for step in range(1, built.state.max_steps + 1)]


def losses(built, values):
    """Have these losses measured, one per evaluation."""
    remaining = list(values)
    built.on("on_evaluate_dataset", lambda metrics: metrics.update(eval_loss=remaining.pop(0)))
    return built


def test_moves_after_each_evaluation_that_is_no_better(tmp_path):
    built = losses(net_trainer(tmp_path, **PLATEAU, max_steps=8), [1.0, 2.0, 0.5, 0.6])
    assert rates(built) == [0.08, 0.08, 0.08, 0.08, 0.04, 0.04, 0.04, 0.04]
    assert built.optimizer.param_groups[0]["lr"] == 0.02, "after the last"


def test_does_not_move_before_the_first_step(tmp_path):
    built = losses(net_trainer(tmp_path, **PLATEAU, eval_on_start=True), [0.1, 2.0, 1.5, 1.0])
    assert rates(built) == [0.08] * 6


def test_follows_the_metric_of_the_best_model(tmp_path):
    built = net_trainer(
        tmp_path, **{**PLATEAU, "metric_for_best_model": "score", "greater_is_better": False},
        compute_metrics=scripted([0.5, 0.9, 0.1]),
    )  # fmt: skip
    assert rates(built) == [0.08, 0.08, 0.08, 0.08, 0.04, 0.04]


def test_an_explicit_callback_names_its_metric(tmp_path):
    built = net_trainer(tmp_path, MetricSchedule("score"), **PLATEAU, compute_metrics=scripted([0.5, 0.9, 0.1]))
    assert rates(built) == [0.08, 0.08, 0.08, 0.08, 0.04, 0.04]


def test_another_dataset_does_not_move_it(tmp_path):
    built = net_trainer(
        tmp_path, Evaluate(every(1), dataset=net_samples(4), name="other"), **{**PLATEAU, "eval_steps": 6}
    )
    assert rates(built) == [0.08] * 6


def test_a_metric_that_is_not_there_is_named_with_the_nearest(tmp_path):
    built = net_trainer(tmp_path, MetricSchedule("scroe"), **PLATEAU, compute_metrics=scripted([0.5]))
    with pytest.raises(ArgumentError, match=r"MetricSchedule reads the metric 'eval_scroe'.*did you mean 'eval_score'"):
        built.train()


def test_leaves_other_schedules_alone(tmp_path):
    built = net_trainer(tmp_path, MetricSchedule(), Evaluate(every(1)), logging_steps=1, learning_rate=0.06)
    assert rates(built) == pytest.approx([0.06, 0.05, 0.04, 0.03, 0.02, 0.01])


def test_evaluating_after_training_does_not_move_it(tmp_path):
    built = losses(net_trainer(tmp_path, **PLATEAU), [1.0, 0.9, 0.8, 5.0, 6.0])
    built.train()
    built.evaluate()
    built.evaluate()
    assert built.optimizer.param_groups[0]["lr"] == 0.08


def test_arguments_build_the_callback(tmp_path):
    assert "MetricSchedule" not in net_trainer(tmp_path).callbacks
    assert net_trainer(tmp_path, **PLATEAU).callbacks["MetricSchedule"] == MetricSchedule("loss")


@pytest.mark.parametrize("event", ["on_step_end", "on_evaluate_end"])
def test_a_second_evaluation_of_a_step_does_not_move_it(event, tmp_path):
    plain = rates(net_trainer(tmp_path / "plain", **PLATEAU, max_steps=8))
    built = net_trainer(tmp_path / "twice", **PLATEAU, max_steps=8)
    inside = []

    def again(step):
        if step % 2 == 0 and not inside:
            inside.append(True)
            built.evaluate()
            inside.clear()

    built.on(event, lambda state: again(state.global_step))
    assert rates(built) == plain


def test_each_evaluation_of_the_run_moves_it(tmp_path):
    """A request and an interval can cause two evaluations at one step. transformers counts both."""
    once = rates(net_trainer(tmp_path / "once", **PLATEAU, max_steps=8))
    twice = net_trainer(tmp_path / "twice", **{**PLATEAU, "eval_strategy": "epoch"}, max_steps=8)
    twice.on("on_step_end", lambda state, control: control.request("evaluate") if state.global_step % 2 == 0 else None)
    seen = []
    twice.on("on_evaluate_end", lambda state: seen.append(state.global_step))
    assert rates(twice) != once
    assert len(seen) > len(set(seen))
