"""Early stopping: the decision alone, and its effect on a run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from support.callbacks import scripted, stop_at
from support.trainers import net_trainer
from trainbus import Checkpoint, EarlyStopping, EarlyStoppingCallback, Evaluate, every
from trainbus.callbacks.stopping.early_stopping import StopRule
from trainbus.events import ArgumentError

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("options", "values", "reasons"),
    [
        # Patience counts evaluations without improvement, and begins anew with each one.
        ({"patience": 2}, [3, 2, 2.5, 2.1], ["", "", "", "has not improved for 2 evaluations (best 2)"]),
        ({"patience": 2}, [3, 4, 2, 4, 4], ["", "", "", "", "has not improved for 2 evaluations (best 2)"]),
        ({"patience": 1}, [3, 3], ["", "has not improved for 1 evaluation (best 3)"]),
        ({"patience": 1}, [3, 3, 2], ["", "has not improved for 1 evaluation", ""]),
        # The threshold is in units of the metric, and must be exceeded.
        ({"patience": 1, "threshold": 0.5}, [3, 2.5], ["", "has not improved"]),
        ({"patience": 1, "threshold": 0.5}, [3, 2.25], ["", ""]),
        ({"patience": 2, "threshold": 0.5}, [3, 2.75, 2.25], ["", "", ""]),
        # A baseline is to be beaten from the beginning.
        ({"patience": 1, "baseline": 2.0}, [2.0], ["has not improved for 1 evaluation (best 2)"]),
        ({"patience": 1, "baseline": 2.0}, [1.9, 1.8], ["", ""]),
        # Worse than the limit of divergence stops at once; as bad as it does not.
        ({"patience": 9, "divergence": 5.0}, [5.0, 5.5], ["", "= 5.5 is worse than the limit 5"]),
        ({"patience": 9, "divergence": 0.5, "greater": True}, [0.5, 0.25], ["", "= 0.25 is worse than the limit 0.5"]),
        # NaN and infinity stop the run at once. If they may not, they are never an improvement and never the best.
        ({"patience": 9}, [3, NAN], ["", "is nan"]),
        ({"patience": 9}, [-INF], ["is -inf"]),
        ({"patience": 2, "finite": False}, [NAN, 3, 2, 4, NAN], ["", "", "", "", "has not improved for 2 evaluations"]),
        ({"patience": 2, "finite": False}, [NAN, NAN], ["", "has not improved for 2 evaluations (best none so far)"]),
        ({"patience": 1, "finite": False}, [INF, 3], ["", ""]),
        # The other direction.
        ({"patience": 1, "greater": True}, [0.5, 0.75, 0.75], ["", "", "for 1 evaluation (best 0.75)"]),
        ({"patience": 1, "greater": True, "threshold": 0.25}, [0.5, 0.75], ["", "has not improved"]),
    ],
)  # fmt: skip
def test_stops_when_patience_threshold_or_limit_is_exceeded(options, values, reasons):
    rule = StopRule("eval_score", **{"greater": False, **options})
    given = [rule.update(value) for value in values]
    assert [bool(reason) for reason in given] == [bool(reason) for reason in reasons], given
    for reason, part in zip(given, reasons):
        assert part in reason
        assert not reason or reason.startswith("eval_score ")


def stopping(folder, *callbacks, values, **options):
    around = (Evaluate(every(1)), Checkpoint(every(1)), *callbacks)
    return net_trainer(folder, *around, compute_metrics=scripted(values), max_steps=10, **options)


def test_stops_the_run_and_says_why(tmp_path):
    built = stopping(tmp_path, EarlyStopping("score", patience=2), values=[0.1, 0.5, 0.4, 0.3])
    built.train()
    assert built.state.global_step == 4
    assert built.control.why("training_stop") == (
        "stopped at step 4 by EarlyStopping: eval_score has not improved for 2 evaluations (best 0.5)"
    )


def test_works_alone_and_keeps_the_best_of_the_run(tmp_path):
    built = stopping(tmp_path, EarlyStopping("score", patience=1), values=[0.5, 0.4])
    built.train()
    assert built.state.global_step == 2
    assert (built.state.best_metric, built.state.best_model_checkpoint) == (None, None)


def test_several_watch_side_by_side(tmp_path):
    both = (EarlyStopping("score", patience=9), EarlyStopping("loss", patience=1, baseline=0.0, id="loss"))
    built = stopping(tmp_path, *both, values=[0.5])
    built.train()
    assert built.control.why("training_stop").startswith("stopped at step 1 by loss: eval_loss")


def test_patience_survives_a_resume(tmp_path):
    def build(values):
        return stopping(tmp_path, EarlyStopping("score", patience=3), values=values)

    broken = build([0.5, 0.4, 0.3])
    broken.on("on_step_end", stop_at(3))
    broken.train()
    assert broken.state.global_step == 3
    resumed = build([0.2, 0.1])
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4
    assert "has not improved for 3 evaluations (best 0.5)" in resumed.control.why("training_stop")


def test_a_new_run_resets_the_patience(tmp_path):
    built = stopping(tmp_path, EarlyStopping("score", patience=2), values=[0.5, 0.4, 0.3, 0.2, 0.1, 0.0])
    built.train()
    assert built.state.global_step == 3
    built.train()
    assert built.state.global_step == 3, "0.2 is the best of a run that has seen nothing else"


def test_evaluating_outside_of_training_does_not_count(tmp_path):
    callback = EarlyStopping("score", patience=1)
    built = stopping(tmp_path, callback, values=[0.5, 0.4, 0.3])
    built.train()
    waited = callback.state_dict()
    built.evaluate()
    assert callback.state_dict() == waited
    assert not built.control.should_training_stop


def test_a_metric_that_is_not_there_is_named_with_the_nearest(tmp_path):
    built = stopping(tmp_path, EarlyStopping("scroe"), values=[0.5])
    with pytest.raises(
        ArgumentError, match=r"EarlyStopping reads the metric 'eval_scroe'.*did you mean 'eval_score'\?"
    ):
        built.train()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"patience": 0}, "patience=0.*1 or more evaluations"),
        ({"threshold": -1.0}, "threshold=-1.0.*a threshold of 0 or more"),
        ({"mode": "maxx"}, "mode='maxx' is unknown; did you mean 'max'"),
    ],
)
def test_wrong_values_are_refused(wrong, message):
    with pytest.raises(ArgumentError, match=message):
        EarlyStopping("score", **wrong)


BEST = {"metric_for_best_model": "score", "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1}


@pytest.mark.parametrize(
    ("options", "values", "greater"),
    [
        ({}, [0.5, 0.5], True),
        ({"early_stopping_patience": 2}, [0.1, 0.5, 0.4, 0.6, 0.6, 0.3], True),
        ({"early_stopping_patience": 2, "early_stopping_threshold": 0.25}, [0.5, 0.6, 0.9, 0.9, 0.9], True),
        ({"early_stopping_patience": 2}, [0.5, 0.4, 0.6, 0.5, 0.1], False),
        ({"early_stopping_patience": 4}, [0.5, 0.4, 0.3, 0.2, 0.1], True),
    ],
)
def test_early_stopping_callback_stops_at_the_step_of_transformers(tmp_path, options, values, greater):
    """Our class of that name, and transformers' own, attached to our trainer, stop at the same step."""
    theirs = pytest.importorskip("transformers").EarlyStoppingCallback
    ends = []
    for kind in (EarlyStoppingCallback, theirs):
        built = net_trainer(
            tmp_path / kind.__module__.partition(".")[0],
            kind(**options),
            **{**BEST, "greater_is_better": greater, "load_best_model_at_end": True, "max_steps": 8},
            compute_metrics=scripted(values),
        )
        built.train()
        ends.append(built.state.global_step)
    assert ends[0] == ends[1]
    assert ends[0] < 8


def test_early_stopping_callback_ignores_an_evaluation_on_start(tmp_path):
    theirs = pytest.importorskip("transformers").EarlyStoppingCallback
    for kind in (EarlyStoppingCallback, theirs):
        built = net_trainer(
            tmp_path / kind.__module__.partition(".")[0],
            kind(early_stopping_patience=1),
            **{**BEST, "eval_on_start": True, "max_steps": 8},
            compute_metrics=scripted([0.9, 0.5, 0.6, 0.55, 0.7]),
        )
        built.train()
        assert built.state.global_step == 3


def test_small_improvements_add_up_unlike_in_transformers(tmp_path):
    """There, each improvement is measured from the one before, however small, so that a slow climb is none."""
    theirs = pytest.importorskip("transformers").EarlyStoppingCallback
    ends = {}
    for kind in (EarlyStoppingCallback, theirs):
        built = net_trainer(
            tmp_path / kind.__module__.partition(".")[0],
            kind(early_stopping_patience=2, early_stopping_threshold=0.25),
            **{**BEST, "load_best_model_at_end": True, "max_steps": 8},
            compute_metrics=scripted([0.5, 0.7, 0.8, 0.9, 0.9]),
        )
        built.train()
        ends[kind] = built.state.global_step
    assert ends == {EarlyStoppingCallback: 5, theirs: 3}


def test_early_stopping_callback_survives_a_resume(tmp_path):
    def build(values):
        return net_trainer(
            tmp_path, EarlyStoppingCallback(3), **{**BEST, "max_steps": 8}, compute_metrics=scripted(values)
        )

    broken = build([0.5, 0.4, 0.3])
    broken.on("on_step_end", stop_at(3))
    broken.train()
    resumed = build([0.2])
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4


def test_early_stopping_callback_needs_a_metric_in_the_arguments(tmp_path):
    with pytest.raises(ArgumentError, match="EarlyStoppingCallback needs `metric_for_best_model`"):
        net_trainer(tmp_path, EarlyStoppingCallback()).train()


def test_a_value_that_is_good_enough_stops_at_once() -> None:
    rule = StopRule("eval_loss", greater=False, patience=2, target=0.5)
    assert rule.update(0.7) == ""
    assert rule.update(0.5) == "eval_loss = 0.5 reaches the target 0.5"
    assert StopRule("eval_f1", greater=True, patience=2, target=0.5).update(0.6)


def test_training_stops_at_the_target(tmp_path: Path) -> None:
    stopper = EarlyStopping("loss", patience=100, target=1e6)
    trainer = net_trainer(tmp_path, stopper, eval_strategy="steps", eval_steps=2)
    trainer.train()
    assert trainer.state.global_step == 2
    assert "reaches the target 1e+06" in trainer.control.why("training_stop")


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_run_in_which_a_callback_could_evaluate_and_did_not_warns(evaluates, tmp_path, caplog) -> None:
    trainer = net_trainer(tmp_path, EarlyStopping(patience=9), max_steps=2)
    trainer.on("on_step_end", lambda control: evaluates and control.request("evaluate"))
    trainer.train()
    warned = "EarlyStopping had no effect: the run made no evaluation that measures 'eval_loss'" in caplog.text
    assert warned is not evaluates
