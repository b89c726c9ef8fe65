"""Evaluations: their triggers, before the first step, and on additional datasets."""

from __future__ import annotations

import pytest

from support.data import net_samples
from support.outcomes import logged, steps_of
from support.trainers import net_trainer
from trainbus import EarlyStopping, Evaluate, KeepBest, every, never
from trainbus.events import ArgumentError


def test_evaluates_when_due(tmp_path):
    assert steps_of(net_trainer(tmp_path, Evaluate(every(2))), "on_evaluate_begin") == [2, 4, 6]


def test_on_start_evaluates_before_the_first_epoch(tmp_path):
    built = net_trainer(tmp_path, Evaluate(every(4), on_start=True))
    order = []
    for event in ("on_train_begin", "on_evaluate_end", "on_epoch_begin"):
        built.on(event, _noted(order, event))
    assert steps_of(built, "on_evaluate_begin") == [0, 4]
    assert order[:3] == ["on_train_begin", "on_evaluate_end", "on_epoch_begin"]


def _noted(order, event):
    return lambda: order.append(event)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 3}, [4, 6]),
        ({"eval_strategy": "steps", "eval_steps": 5, "eval_delay": 6}, [6]),
        ({"eval_strategy": "epoch", "eval_delay": 1.5, "max_steps": 12}, [8, 12]),
        ({"eval_strategy": "steps", "eval_steps": 4}, [4, 6]),
        ({"eval_strategy": "steps", "eval_steps": 0.5}, [3, 6]),
    ],
)
def test_arguments_build_the_callback(tmp_path, arguments, expected):
    assert steps_of(net_trainer(tmp_path, **arguments), "on_evaluate_begin") == expected


def test_a_step_that_is_due_twice_is_evaluated_once(tmp_path):
    built = net_trainer(tmp_path, Evaluate(every(2) | every(1, "epoch")), max_steps=8)
    assert steps_of(built, "on_evaluate_begin") == [2, 4, 6, 8]


def test_a_separate_dataset_is_evaluated_besides_the_main_one(tmp_path):
    other = net_samples(12, seed=2)
    built = net_trainer(tmp_path, Evaluate(every(3)), Evaluate(every(2), dataset=other, name="other"))
    names = []
    built.on("on_evaluate_dataset", lambda state, dataset_name: names.append((state.global_step, dataset_name)))
    built.train()
    assert logged(built, "eval_loss").keys() == {3, 6}
    assert logged(built, "eval_other_loss").keys() == {2, 4, 6}
    assert names == [(2, "other"), (3, ""), (4, "other"), (6, ""), (6, "other")]
    assert built.evaluate(other)["eval_loss"] == pytest.approx(logged(built, "eval_other_loss")[6])


def test_it_joins_the_callback_from_arguments(tmp_path):
    built = net_trainer(
        tmp_path, Evaluate(every(2), dataset=net_samples(4), name="other"), eval_strategy="steps", eval_steps=3
    )
    built.train()
    assert logged(built, "eval_loss").keys() == {3, 6}
    assert logged(built, "eval_other_loss").keys() == {2, 4, 6}


def test_callbacks_ignore_datasets_without_their_metric(tmp_path):
    watching = (EarlyStopping("loss", patience=9), KeepBest("loss", save=False, load_at_end=False))
    built = net_trainer(
        tmp_path, Evaluate(every(3)), Evaluate(every(2), dataset=net_samples(4), name="other"), *watching
    )
    built.train()
    assert built.state.best_global_step in (3, 6)


def test_the_metric_of_another_dataset_can_be_watched(tmp_path):
    keep = KeepBest("eval_other_loss", save=False, load_at_end=False)
    built = net_trainer(tmp_path, Evaluate(every(3)), Evaluate(every(2), dataset=net_samples(4), name="other"), keep)
    built.train()
    measured = logged(built, "eval_other_loss")
    assert built.state.best_metric == min(measured.values())
    assert measured[built.state.best_global_step] == built.state.best_metric


def test_one_of_the_trainers_datasets_by_name(tmp_path):
    both = {"first": net_samples(4, seed=1), "second": net_samples(4, seed=2)}
    built = net_trainer(tmp_path, Evaluate(every(3)), Evaluate(every(2), dataset="second"), eval_dataset=both)
    built.train()
    assert logged(built, "eval_first_loss").keys() == {3, 6}
    at = [entry["step"] for entry in built.state.log_history if "eval_second_loss" in entry]
    assert at == [2, 3, 4, 6, 6], "with both, and by itself"


def test_a_request_of_another_callback_is_served_only_by_the_main_evaluation(tmp_path):
    built = net_trainer(tmp_path, Evaluate(never()), Evaluate(never(), dataset=net_samples(4), name="other"))
    built.on("on_step_end", lambda control: control.request("evaluate"), once=3)
    built.train()
    assert logged(built, "eval_loss").keys() == {3}
    assert logged(built, "eval_other_loss") == {}


def test_a_single_evaluation_may_have_its_own_dataset(tmp_path):
    built = net_trainer(tmp_path, Evaluate(never(), dataset=net_samples(4)), eval_dataset=None)
    built.on("on_step_end", lambda control: control.request("evaluate"), once=3)
    built.train()
    assert logged(built, "eval_loss").keys() == {3}


def test_an_evaluation_callback_may_join_a_trainer_that_does_not_evaluate(tmp_path):
    built = net_trainer(tmp_path)
    built.add_callback(Evaluate(every(3)))
    built.train()
    assert logged(built, "eval_loss").keys() == {3, 6}


def test_two_of_one_name_are_refused(tmp_path):
    with pytest.raises(
        ArgumentError,
        match=r"every\(2\).*every\(3\).*the flag 'evaluate'\. Join .*, or give one of them a dataset and a name\.$",
    ):
        net_trainer(tmp_path, Evaluate(every(2)), Evaluate(every(3))).train()


def test_a_name_without_a_dataset_is_refused():
    with pytest.raises(ArgumentError, match=r"'other'.*dataset"):
        Evaluate(name="other")


def test_a_dataset_that_the_trainer_does_not_have_is_named(tmp_path):
    built = net_trainer(tmp_path, Evaluate(every(2), dataset="secnd"), eval_dataset={"second": net_samples(4)})
    with pytest.raises(ArgumentError, match="'secnd'; did you mean 'second'"):
        built.train()


def test_a_large_dataset_is_not_printed():
    assert repr(Evaluate(every(2), dataset=net_samples(1000), name="other")) == (
        "Evaluate(trigger=every(2), on_start=False, name='other', id=None)"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"eval_steps": 100, "minimum_eval_times": 3}, {2, 4, 6}),
        ({"eval_steps": 1, "minimum_eval_times": 2}, {1, 2, 3, 4, 5, 6}),
        ({"eval_steps": 0.5, "minimum_eval_times": 3}, {2, 4, 6}),
        ({"eval_steps": 100, "eval_delay": 3, "minimum_eval_times": 3}, {3, 4, 5, 6}),
        ({"eval_steps": 100}, {6}),
    ],
    ids=str,
)
def test_a_run_evaluates_a_minimum_of_times(tmp_path, arguments, expected):
    built = net_trainer(tmp_path, eval_strategy="steps", **arguments)
    built.train()
    assert logged(built, "eval_loss").keys() == expected


def test_a_minimum_of_times_is_for_an_interval_in_steps(tmp_path):
    with pytest.raises(
        ArgumentError, match="`minimum_eval_times=3` reduces `eval_steps`, which `eval_strategy='epoch'` does not use"
    ):
        net_trainer(tmp_path, eval_strategy="epoch", minimum_eval_times=3)


def test_a_minimum_of_times_below_one_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="`minimum_eval_times` is 0"):
        net_trainer(tmp_path, eval_strategy="steps", minimum_eval_times=0)
