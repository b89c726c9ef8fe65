"""The best model: found at any cadence, saved when it appears, and loaded at the end."""

from __future__ import annotations

import logging
import math

import pytest
from safetensors.torch import load_file

from support.callbacks import Poison, scripted, stop_at
from support.outcomes import same_weights, saved_steps, steps_of, weights
from support.trainers import net_trainer
from trainbus import Callback, Checkpoint, EarlyStopping, Evaluate, Keep, KeepBest, NaNGuard, at_end, every, never
from trainbus.callbacks.flow.keep_best import improves
from trainbus.events import ArgumentError


@pytest.mark.parametrize(
    ("value", "best", "greater", "expected"),
    [
        (1.0, None, True, True),
        (1.0, None, False, True),
        (2.0, 1.0, True, True),
        (2.0, 1.0, False, False),
        (0.5, 1.0, False, True),
        (1.0, 1.0, True, False),
        (1.0, 1.0, False, False),
        (math.nan, None, True, False),
        (math.nan, 1.0, False, False),
        (math.inf, 1.0, True, True),
        (1.0, math.nan, True, True),
        (1.0, math.nan, False, True),
        (math.nan, math.nan, False, False),
    ],
)
def test_only_a_better_finite_value_improves(value, best, greater, expected):
    assert improves(value, best, greater) is expected


def saved_weights(folder, step):
    return load_file(folder / f"checkpoint-{step}" / "model.safetensors")


def test_the_best_is_kept_although_the_cadences_differ(tmp_path):
    built = net_trainer(
        tmp_path,
        *(Evaluate(every(2)), Checkpoint(every(3), keep=Keep(total=1)), KeepBest("score")),
        compute_metrics=scripted([0.1, 0.9, 0.3]),
    )
    at_four = {}
    built.on("on_step_end", lambda model: at_four.update(weights(model)), once=4)
    built.train()
    assert saved_steps(tmp_path) == [4, 6]
    assert (built.state.best_metric, built.state.best_global_step) == (0.9, 4)
    assert built.state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    assert same_weights(weights(built.model), at_four)


def test_a_step_that_was_saved_before_it_was_found_best_is_the_best_one(tmp_path):
    # The last step of an epoch is saved at its end, and evaluated at the end of the epoch: 4 steps each.
    built = net_trainer(
        tmp_path,
        *(Evaluate(every(1, "epoch")), Checkpoint(every(2), keep=Keep(total=1))),
        KeepBest("score", save=False, load_at_end=False),
        max_steps=12,
        compute_metrics=scripted([0.1, 0.9, 0.3]),
    )
    built.train()
    assert (built.state.best_global_step, built.state.best_metric) == (8, 0.9)
    assert built.state.best_model_checkpoint == str(tmp_path / "checkpoint-8")
    assert saved_steps(tmp_path) == [8, 12]


@pytest.mark.parametrize("hears", [False, True], ids=["written on a thread", "written at once"])
def test_the_older_best_is_deleted_when_the_last_evaluation_finds_a_new_one(tmp_path, hears):
    # Step 12 is saved before its evaluation, and no save follows that would rotate.
    built = net_trainer(
        tmp_path,
        *(Evaluate(every(1, "epoch")), Checkpoint(every(2), keep=Keep(total=1))),
        KeepBest("score", save=False, load_at_end=False),
        max_steps=12,
        compute_metrics=scripted([0.1, 0.3, 0.9]),
    )
    if hears:
        built.on("on_save", lambda: None)
    built.train()
    assert built.state.best_model_checkpoint == str(tmp_path / "checkpoint-12")
    assert saved_steps(tmp_path) == [12]


def test_an_evaluation_after_training_deletes_nothing(tmp_path):
    built = net_trainer(
        tmp_path,
        *(Evaluate(every(4)), Checkpoint(every(2), keep=Keep(total=1)), KeepBest("score")),
        max_steps=8,
        compute_metrics=scripted([0.9, 0.3, 1.0]),
    )
    built.train()
    before = saved_steps(tmp_path)
    built.evaluate()
    assert saved_steps(tmp_path) == before == [4, 8]


def test_a_vetoed_checkpoint_of_a_step_is_not_the_best_one(tmp_path):
    built = net_trainer(
        tmp_path,
        *(Evaluate(every(1, "epoch")), Checkpoint(every(4))),
        KeepBest("score", save=False, load_at_end=False),
        max_steps=4,
        compute_metrics=scripted([0.9]),
    )
    built.on("on_save_begin", lambda control: control.veto("save", "not this one"))
    built.train()
    assert (built.state.best_global_step, built.state.best_model_checkpoint) == (4, None)


def test_a_new_best_requests_a_checkpoint(tmp_path):
    built = net_trainer(
        tmp_path, Evaluate(every(1)), Checkpoint(never()), KeepBest("score"),
        compute_metrics=scripted([0.3, 0.2, 0.5, 0.5, 0.4, 0.9]),
    )  # fmt: skip
    assert steps_of(built, "on_save") == [1, 3, 6]
    reasons = [entry.reason for entry in built.control.ledger.of("save") if entry.author == "KeepBest"]
    assert reasons == [f"eval_score is the best so far: {value}" for value in (0.3, 0.5, 0.9)]


def test_only_watches_if_configured(tmp_path):
    watching = KeepBest("score", save=False, load_at_end=False)
    built = net_trainer(
        tmp_path, Evaluate(every(1)), Checkpoint(never()), watching,
        compute_metrics=scripted([0.1, 0.9, 0.2]),
    )  # fmt: skip
    assert steps_of(built, "on_save") == []
    assert (built.state.best_metric, built.state.best_global_step) == (0.9, 2)


@pytest.mark.parametrize(
    ("stopping", "end"),
    [
        ([], 6),
        ([EarlyStopping("score", patience=2)], 4),
        ([NaNGuard("stop"), Poison(5)], 5),
    ],
    ids=["steps done", "early stopping", "NaN"],
)
def test_loads_the_best_after_any_stop(tmp_path, stopping, end):
    built = net_trainer(
        tmp_path,
        *(Evaluate(every(1)), Checkpoint(at_end()), KeepBest("score"), *stopping),
        compute_metrics=scripted([0.1, 0.9, 0.3, 0.2, 0.1]),
    )
    built.train()
    assert built.state.global_step == end
    assert same_weights(weights(built.model), saved_weights(tmp_path, 2))
    assert not same_weights(weights(built.model), saved_weights(tmp_path, end))


def test_loads_the_best_when_the_user_stops(tmp_path):
    built = net_trainer(
        tmp_path, Evaluate(every(1)), Checkpoint(at_end()), KeepBest("score"),
        compute_metrics=scripted([0.9, 0.1]),
    )  # fmt: skip
    built.on("on_step_end", stop_at(3))
    built.train()
    assert same_weights(weights(built.model), saved_weights(tmp_path, 1))


def test_the_last_model_stays_without_load_best(tmp_path):
    built = net_trainer(
        tmp_path, Evaluate(every(1)), Checkpoint(at_end()), KeepBest("score", load_at_end=False),
        compute_metrics=scripted([0.9, 0.1]),
    )  # fmt: skip
    built.train()
    assert same_weights(weights(built.model), saved_weights(tmp_path, 6))


@pytest.mark.parametrize("mode", ["min", "max"])
def test_nan_is_never_best(tmp_path, mode):
    built = net_trainer(
        tmp_path, Evaluate(every(1)), Checkpoint(never()), KeepBest("score", mode),
        compute_metrics=scripted([math.nan, 0.5, math.nan]),
    )  # fmt: skip
    built.train()
    assert (built.state.best_metric, built.state.best_global_step) == (0.5, 2)
    assert saved_steps(tmp_path) == [2]


@pytest.mark.parametrize(
    ("metric", "mode", "best"),
    [("score", None, 0.9), ("score", "min", 0.1), ("eval_score", "max", 0.9), ("my_loss", None, 0.1)],
)
def test_mode_or_metric_name_decides_the_best_value(tmp_path, metric, mode, best):
    name = metric.removeprefix("eval_")
    built = net_trainer(
        tmp_path, Evaluate(every(2)), KeepBest(metric, mode, save=False, load_at_end=False),
        compute_metrics=scripted([0.5, 0.9, 0.1], name),
    )  # fmt: skip
    built.train()
    assert built.state.best_metric == best


def test_a_metric_that_is_not_there_is_named_with_the_nearest(tmp_path):
    built = net_trainer(tmp_path, Evaluate(every(2)), KeepBest("scroe"), compute_metrics=scripted([0.5]))
    with pytest.raises(ArgumentError) as caught:
        built.train()
    message = str(caught.value)
    assert "KeepBest reads the metric 'eval_scroe'" in message
    assert "did you mean 'eval_score'?" in message
    assert "It measured: eval_score, eval_loss," in message


def test_an_unknown_mode_is_refused():
    with pytest.raises(ArgumentError, match="mode='mix' is unknown; did you mean"):
        KeepBest("score", "mix")  # type: ignore[arg-type]


def test_an_evaluation_before_the_first_step_makes_no_checkpoint(tmp_path):
    built = net_trainer(
        tmp_path, Evaluate(every(2), on_start=True), Checkpoint(never()), KeepBest("score"),
        compute_metrics=scripted([9.0, 0.1, 0.5, 0.2]),
    )  # fmt: skip
    assert steps_of(built, "on_save") == [2, 4]
    assert (built.state.best_metric, built.state.best_global_step) == (0.5, 4)


class Veto(Callback):
    def on_save_begin(self, control, checkpoint):
        if checkpoint.step == 4:
            control.veto("save", "the disk is full")


def test_a_best_that_could_not_be_saved_does_not_lose_the_one_before(tmp_path, caplog):
    built = net_trainer(
        tmp_path, Evaluate(every(2)), Checkpoint(never()), KeepBest("score"), Veto(),
        compute_metrics=scripted([0.5, 0.9, 0.1]),
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        built.train()
    assert same_weights(weights(built.model), saved_weights(tmp_path, 2))
    assert "best model, of step 4, was not saved" in caplog.text


def test_warns_if_no_best_was_saved(tmp_path, caplog):
    built = net_trainer(
        tmp_path, Evaluate(every(2)), Checkpoint(never()), KeepBest("score", save=False),
        compute_metrics=scripted([0.5]),
    )  # fmt: skip
    last = {}
    built.on("on_step_end", lambda model: last.update(weights(model)))
    with caplog.at_level(logging.WARNING, logger="trainbus"):
        built.train()
    assert "No checkpoint of a best eval_score was written" in caplog.text
    assert same_weights(weights(built.model), last)


def test_the_best_of_before_a_resume_is_remembered(tmp_path):
    def build(values):
        around = (Evaluate(every(2)), Checkpoint(every(2), keep=Keep(last=1)), KeepBest("score"))
        return net_trainer(tmp_path, *around, compute_metrics=scripted(values), max_steps=8)

    broken = build([0.9, 0.5])
    broken.on("on_step_end", stop_at(4))
    broken.train()
    resumed = build([0.7, 0.8])
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert resumed.state.global_step == 8
    assert (resumed.state.best_metric, resumed.state.best_global_step) == (0.9, 2)
    assert saved_steps(tmp_path) == [2, 8]
    assert same_weights(weights(resumed.model), saved_weights(tmp_path, 2))


def test_the_best_is_found_in_a_folder_that_was_moved(tmp_path):
    def build(folder, values):
        around = (Evaluate(every(2)), Checkpoint(every(2)), KeepBest("score"))
        return net_trainer(tmp_path / folder, *around, compute_metrics=scripted(values))

    broken = build("before", [0.9, 0.5])
    broken.on("on_step_end", stop_at(4))
    broken.train()
    (tmp_path / "before").rename(tmp_path / "after")
    resumed = build("after", [0.7])
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 6
    assert same_weights(weights(resumed.model), saved_weights(tmp_path / "after", 2))


def test_a_new_run_has_a_new_best(tmp_path):
    built = net_trainer(
        tmp_path, Evaluate(every(6)), Checkpoint(never()), KeepBest("score"),
        compute_metrics=scripted([0.9, 0.1]),
    )  # fmt: skip
    built.train()
    built.train()
    assert built.state.best_metric == 0.1


def test_evaluating_after_training_changes_nothing(tmp_path):
    built = net_trainer(
        tmp_path, Evaluate(every(6)), Checkpoint(never()), KeepBest("score"),
        compute_metrics=scripted([0.1, 0.9]),
    )  # fmt: skip
    built.train()
    built.evaluate()
    assert built.state.best_metric == 0.1
    assert not built.control.should_save


def test_two_keep_best_callbacks_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"KeepBest\(.*does not work with KeepBest\(.*both choose the best model"):
        net_trainer(tmp_path, Evaluate(every(2)), KeepBest("loss"), KeepBest("score", id="second")).train()


def test_equal_directions_in_other_forms_agree():
    assert KeepBest("loss") == KeepBest("eval_loss", "min")
    assert KeepBest("loss") != KeepBest("loss", "max")
    assert KeepBest("score") != KeepBest("other")
    assert KeepBest("score") != "score"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, None),
        ({"load_best_model_at_end": True}, KeepBest("loss")),
        ({"save_strategy": "best", "metric_for_best_model": "loss"}, KeepBest("loss", load_at_end=False)),
        ({"metric_for_best_model": "score"}, KeepBest("score", save=False, load_at_end=False)),
        (
            {"load_best_model_at_end": True, "metric_for_best_model": "f1", "greater_is_better": False},
            KeepBest("f1", "min"),
        ),
    ],
    ids=str,
)
def test_arguments_build_the_callback(tmp_path, arguments, expected):
    built = net_trainer(tmp_path, eval_strategy="steps", eval_steps=2, **arguments)
    assert built.callbacks.get("KeepBest") == expected


def test_save_strategy_best_saves_the_bests_only(tmp_path):
    built = net_trainer(
        tmp_path, eval_strategy="steps", eval_steps=1, save_strategy="best", metric_for_best_model="score",
        compute_metrics=scripted([0.3, 0.2, 0.5, 0.5, 0.4, 0.1]),
    )  # fmt: skip
    built.train()
    assert saved_steps(tmp_path) == [1, 3]


# A run without evaluations.


def warnings_of(built) -> list[tuple[int, str]]:
    """Train, and return the steps and the texts of the warnings of `KeepBest`."""
    steps: list[tuple[int, str]] = []

    class Steps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            steps.append((built.state.global_step, record.getMessage()))

    handler = Steps(logging.WARNING)
    logging.getLogger("trainbus.callbacks.flow.keep_best").addHandler(handler)
    try:
        built.train()
    finally:
        logging.getLogger("trainbus.callbacks.flow.keep_best").removeHandler(handler)
    return steps


def test_a_run_without_evaluations_gets_a_warning_before_the_first_step(tmp_path):
    found = warnings_of(net_trainer(tmp_path, KeepBest("loss")))
    assert [step for step, _ in found] == [0, 6]
    assert found[0][1].startswith("KeepBest finds no best model, because this run makes no evaluations. Set `eval_")
    assert found[1][1].startswith("No checkpoint of a best eval_loss was written")


def test_a_run_that_may_evaluate_gets_no_warning_before_the_first_step(tmp_path):
    quiet = KeepBest("loss", save=False, load_at_end=False)
    assert warnings_of(net_trainer(tmp_path / "quiet", quiet)) == []
    planned = net_trainer(tmp_path / "planned", KeepBest("loss"), eval_strategy="steps", eval_steps=2)
    assert warnings_of(planned) == []
    asks = net_trainer(tmp_path / "asks", KeepBest("loss"))
    asks.on("on_step_end", lambda control: control.request("evaluate"), once=2)
    assert warnings_of(asks) == []
