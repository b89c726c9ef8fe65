"""What users of other trainers complained about for years, and what happens here: one test for each.

The numbers are those of our own list. Each test runs the answer; none of them describes another library.
"""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from support.callbacks import Boom, Poison, scripted, stop_at
from support.data import net_samples
from support.outcomes import logged, same_weights, saved_steps, weights
from support.trainers import net_trainer
from trainbus import (
    EMA,
    Callback,
    Checkpoint,
    EarlyStopping,
    Evaluate,
    Keep,
    KeepBest,
    Log,
    NaNGuard,
    Stage,
    at_end,
    every,
    never,
    order,
)
from trainbus.engine.checkpoint.format.codec import load_values
from trainbus.engine.checkpoint.store import read_state
from trainbus.events import NonFiniteError, SubscriptionError, record


def test_P01_order_is_declared_and_not_that_of_the_list(tmp_path):
    """Which callback runs first depends on where it happens to stand in a list."""
    heard = []

    class Measures(Callback):
        stage = Stage.MEASURE

        def on_step_end(self):
            heard.append("measures")

    class Decides(Callback):
        def on_step_end(self):
            heard.append("decides")

    class DecidesLater(Callback):
        after = ("Decides",)

        def on_step_end(self):
            heard.append("decides later")

    class Reports(Callback):
        stage = Stage.REPORT

        def on_step_end(self):
            heard.append("reports")

    in_order = (Measures, Decides, DecidesLater, Reports)
    for listed in (in_order, in_order[::-1]):
        heard.clear()
        built = net_trainer(tmp_path, *listed, max_steps=1)
        built.train()
        assert heard == ["measures", "decides", "decides later", "reports"]
        planned = [hearer.owner_id for hearer in built.bus.order_of("on_step_end")]
        named = [kind.__name__ for kind in in_order]
        assert [name for name in planned if name in named] == named, "and the order can be asked for"
    with pytest.raises(SubscriptionError, match=r"'Decides'.*no callback has that id"):
        net_trainer(tmp_path, DecidesLater())


def test_P02_the_end_unwinds_in_reverse_order(tmp_path):
    """Things are closed in the order in which they were opened, so that the first closes under the second's feet."""
    opened, closed = [], []

    def scope(name):
        class Scope(Callback):
            def on_train_begin(self):
                opened.append(name)

            def on_close(self):
                closed.append(name)

        return Scope()

    net_trainer(tmp_path, scope("first"), scope("second"), scope("third")).train()
    assert opened == ["first", "second", "third"]
    assert closed == ["third", "second", "first"]


def test_P03_callbacks_that_change_the_model_run_before_callbacks_that_read_it(tmp_path):
    """A model that adjusts itself after a step does so before or after the callbacks, and one cannot say which."""
    largest = []

    class Looks(Callback):
        def on_optimizer_step(self, model):
            largest.append(max(weight.abs().max().item() for weight in model.parameters()))

    class Clamps(Callback):
        stage = Stage.PREPARE

        @torch.no_grad()
        def on_optimizer_step(self, model):
            for weight in model.parameters():
                weight.clamp_(-0.25, 0.25)

    net_trainer(tmp_path, Looks(), Clamps()).train()
    assert largest == [0.25] * 6


def test_P04_best_model_needs_no_matching_cadences(tmp_path):
    """To end with the best model, one has to save exactly when one evaluates."""
    built = net_trainer(
        tmp_path, Evaluate(every(2)), Checkpoint(every(5)), KeepBest("score"),
        compute_metrics=scripted([0.1, 0.9, 0.3]),
    )  # fmt: skip
    at_four = {}
    built.on("on_step_end", lambda model: at_four.update(weights(model)), once=4)
    built.train()
    assert same_weights(weights(built.model), at_four)
    spelled = net_trainer(
        tmp_path / "arguments", compute_metrics=scripted([0.1, 0.9, 0.3]),
        **{"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "epoch"},
        **{"load_best_model_at_end": True, "metric_for_best_model": "score"},
    )  # fmt: skip
    spelled.train()
    assert same_weights(weights(spelled.model), at_four), "nor do arguments have to match"


def test_P07_the_last_step_is_evaluated_and_saved(tmp_path):
    """A run whose length is not a multiple of its intervals ends with a model that nobody evaluated or saved."""
    built = net_trainer(tmp_path, Evaluate(every(4) | at_end()), Checkpoint(every(4) | at_end()))
    built.train()
    assert logged(built, "eval_loss").keys() == {4, 6}
    assert saved_steps(tmp_path) == [4, 6]
    assert same_weights(weights(built.model), load_file(tmp_path / "checkpoint-6" / "model.safetensors"))


@pytest.mark.parametrize("cadence", [every(3), every(1, "epoch")], ids=repr)
def test_P07_also_when_the_run_is_stopped_early(tmp_path, cadence):
    """The same, when the run ends before its planned end: by hand, or by an evaluation at the end of an epoch."""
    built = net_trainer(tmp_path / "by hand", Evaluate(at_end()), Checkpoint(at_end()))
    built.on("on_step_end", stop_at(3))
    built.train()
    assert logged(built, "eval_loss").keys() == {3}
    assert saved_steps(tmp_path / "by hand") == [3]

    around = (Evaluate(cadence), EarlyStopping("score", patience=1), Checkpoint(at_end()), Log(at_end()))
    built = net_trainer(tmp_path / "early", *around, max_steps=20, compute_metrics=scripted([0.5, 0.4]))
    built.train()
    end = 6 if cadence == every(3) else 8
    assert built.state.global_step == end
    assert saved_steps(tmp_path / "early") == [end]
    assert logged(built, "loss").keys() == {end}


def test_P08_patience_survives_a_resume(tmp_path):
    """After a resume, early stopping begins to wait anew, and a run that is restarted often never stops."""

    def build(values):
        around = (Evaluate(every(1)), EarlyStopping("score", patience=3), Checkpoint(every(1)))
        return net_trainer(tmp_path, *around, compute_metrics=scripted(values), max_steps=12)

    for session, values in enumerate([[0.5, 0.4], [0.4], [0.4]]):
        built = build(values)
        built.on("on_step_end", stop_at(session + 2))
        built.train(resume_from_checkpoint=session > 0)
    assert built.state.global_step == 4
    assert "EarlyStopping: eval_score has not improved for 3 evaluations" in built.control.why("training_stop")


def test_P09_early_stopping_needs_no_best_model_and_no_checkpoints(tmp_path):
    """Early stopping works only together with loading the best model, or only at steps that are saved."""
    built = net_trainer(
        tmp_path, Evaluate(every(1)), EarlyStopping("score", patience=2), Checkpoint(never()),
        compute_metrics=scripted([0.1, 0.5, 0.4, 0.3]),
    )  # fmt: skip
    built.train()
    assert built.state.global_step == 4
    assert saved_steps(tmp_path) == []
    assert built.state.best_metric is None


def test_P10_a_checkpoint_holds_the_states_after_all_callbacks_of_the_step(tmp_path):
    """A checkpoint is written before some callbacks had their turn, and holds their states of a step ago."""

    class Counts(Callback):
        def __init__(self):
            self.heard = {"on_step_end": 0, "on_log": 0, "on_evaluate_end": 0}

        @order(Stage.RELEASE)
        def on_step_end(self):
            self.heard["on_step_end"] += 1

        @order(Stage.RELEASE)
        def on_log(self, logs):
            self.heard["on_log"] += "loss" in logs

        @order(Stage.RELEASE)
        def on_evaluate_end(self):
            self.heard["on_evaluate_end"] += 1

        def state_dict(self):
            return dict(self.heard)

    net_trainer(tmp_path, Checkpoint(every(3)), Log(every(1)), Evaluate(every(1)), Counts()).train()
    for step in (3, 6):
        states = load_values(tmp_path / f"checkpoint-{step}" / "callbacks.safetensors")["callbacks"]
        assert states["Counts"] == {"on_step_end": step, "on_log": step, "on_evaluate_end": step}


def test_P11_evaluation_comes_before_saving(tmp_path):
    """A checkpoint is chosen, or named, by the metric of an evaluation that was made before the last one."""
    values = [0.3, 0.9, 0.5]
    built = net_trainer(tmp_path, Checkpoint(every(2)), Evaluate(every(2)), compute_metrics=scripted(values))
    with record(built.bus) as trace:
        built.train()
    for step, value in zip((2, 4, 6), values):
        of_step = [event for at, event in trace.entries if at == step]
        assert of_step.index("on_evaluate_end") < of_step.index("on_save_begin")
        manifest = json.loads((tmp_path / f"checkpoint-{step}" / "manifest.json").read_text())
        assert manifest["metrics"]["eval_score"] == value


def test_P15_one_point_per_optimizer_step(tmp_path):
    """With accumulated batches, loggers count batches, or log a step several times."""
    built = net_trainer(tmp_path, Log(every(1)), gradient_accumulation_steps=4)
    losses = {}

    def note(state, loss):
        losses[state.global_step + 1] = losses.get(state.global_step + 1, 0.0) + loss.item()

    built.on("on_substep_end", note)
    built.on("on_gradients", note)
    built.train()
    assert logged(built, "loss") == pytest.approx(losses)
    assert list(losses) == [1, 2, 3, 4, 5, 6]


def test_P16_handlers_get_batch_outputs_and_loss_by_name(tmp_path):
    """A callback cannot see what the model was given, what it returned, and the loss."""
    live, after = [], []

    class Looks(Callback):
        def on_loss(self, batch, outputs, loss):
            live.append((batch, outputs, loss, loss.requires_grad))

        def on_step_end(self, batch, outputs, loss):
            after.append((batch, outputs, loss, loss.requires_grad))

    net_trainer(tmp_path, Looks()).train()
    assert len(live) == len(after) == 6
    for (batch, outputs, loss, requires_grad), (same_batch, same_outputs, detached, still) in zip(live, after):
        assert (requires_grad, still) == (True, False)
        assert loss.item() == detached.item()
        assert loss.item() == torch.nn.functional.mse_loss(outputs["logits"], batch["labels"]).item()
        assert same_batch is batch
        assert same_outputs is outputs


def test_P16_outputs_are_freed_if_no_handler_names_them(tmp_path):
    """And it costs nothing where nobody asks."""
    built = net_trainer(tmp_path)
    kept = []
    built.on("on_step_end", lambda run: kept.append(run.outputs))
    built.train()
    assert kept == [None] * 6


def test_P17_gradients_are_live_in_the_documented_events(tmp_path):
    """Gradients are cleared before a callback can look at them."""
    seen = {}

    def look(event):
        def note(model):
            seen.setdefault(event, set()).add(all(weight.grad is not None for weight in model.parameters()))

        return note

    built = net_trainer(tmp_path, max_grad_norm=0.01)
    for event in ("on_gradients", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end"):
        built.on(event, look(event))
    norms = {}
    for event in ("on_gradients", "on_pre_optimizer_step"):
        built.on(event, _norm_noted(norms, event))
    built.train()
    assert seen == {
        **{"on_gradients": {True}, "on_pre_optimizer_step": {True}, "on_optimizer_step": {True}},
        "on_step_end": {False},
    }
    assert min(norms["on_gradients"]) > 0.02
    assert norms["on_pre_optimizer_step"] == pytest.approx([0.01] * 6, rel=1e-3), "clipped in between"


def _norm_noted(norms, event):
    def note(model):
        total = math.sqrt(sum(weight.grad.pow(2).sum().item() for weight in model.parameters()))
        norms.setdefault(event, []).append(total)

    return note


def test_P18_handlers_get_optimizer_schedule_and_run_by_name(tmp_path):
    """A callback is given neither the optimizer nor a way to the rest of the run."""
    seen = []

    class Looks(Callback):
        def on_train_begin(self, run, optimizer, lr_scheduler, train_dataloader):
            seen.append((optimizer, lr_scheduler, train_dataloader, run))

        def on_step_end(self, optimizer, state):
            if state.global_step == 3:
                for group in optimizer.param_groups:
                    group["lr"] = 0.0  # and what it changes is the real thing

    built = net_trainer(tmp_path, Looks(), lr_scheduler_type="constant", weight_decay=0.0)
    ends = {}
    built.on("on_step_end", lambda state, model: ends.update({state.global_step: weights(model)}))
    built.train()
    optimizer, schedule, loader, run = seen[0]
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert (optimizer, schedule, loader) == (built.optimizer, built.lr_scheduler, built.train_dataloader)
    assert (run.model, run.state, run.args) == (built.model, built.state, built.args)
    assert not same_weights(ends[3], ends[2])
    assert same_weights(ends[4], ends[3]), "the rate of 0 was used; then the schedule set its own again"


@pytest.mark.parametrize("reporter_first", [True, False])
def test_P19_a_value_that_a_callback_adds_reaches_everybody(tmp_path, reporter_first):
    """What one callback adds to the logs is missing from the tracker, if the tracker stands before it in the list."""
    reported = []

    class Adds(Callback):
        def on_log(self, logs):
            if "loss" in logs:
                logs["perplexity"] = math.exp(logs["loss"])

    class Tracker(Callback):
        stage = Stage.REPORT

        def on_log(self, logs):
            reported.append(dict(logs))

    listed = [Tracker(), Adds()] if reporter_first else [Adds(), Tracker()]
    built = net_trainer(tmp_path, *listed, Log(every(3)), Checkpoint(every(6)))
    built.train()
    expected = {step: math.exp(loss) for step, loss in logged(built, "loss").items()}
    assert list(expected) == [3, 6]
    assert [logs["perplexity"] for logs in reported if "loss" in logs] == list(expected.values())
    assert logged(built, "perplexity") == expected, "the history"
    saved = read_state(tmp_path / "checkpoint-6")["log_history"]
    assert [entry["perplexity"] for entry in saved if "loss" in entry] == list(expected.values()), "the checkpoint"


@pytest.mark.parametrize(
    "event", ["on_setup", "on_train_begin", "on_loss", "on_prediction_step", "on_save", "on_train_end"]
)
def test_P20_every_callback_closes_on_an_error(tmp_path, event):
    """When a run fails, files stay open and trackers never learn of it."""
    heard = []

    class Opens(Callback):
        stage = Stage.PREPARE

        def on_setup(self):
            heard.append("opened")

        def on_exception(self, exception):
            heard.append(type(exception).__name__)

        def on_close(self):
            heard.append("closed")

    class ClosesBadly(Callback):
        def on_close(self):
            raise RuntimeError("and this one fails to close")

    built = net_trainer(tmp_path, Opens(), ClosesBadly(), Evaluate(every(2)), Checkpoint(every(3)))

    def fail():
        raise Boom

    built.on(event, fail)
    with pytest.raises(Boom):
        built.train()
    assert heard == ["opened", "Boom", "closed"], "and the first error is the one that is raised"


def test_P26_a_loss_that_is_no_number_is_seen_and_can_be_stopped(tmp_path):
    """A loss that is NaN is left out of the logs, and by the time it is noticed the weights are lost."""
    hidden_from_nobody = net_trainer(tmp_path, Log(every(1)), Poison(3))
    hidden_from_nobody.train()
    assert math.isnan(logged(hidden_from_nobody, "loss")[3])

    guarded = net_trainer(tmp_path, NaNGuard(), Poison(3))
    at_two = {}
    guarded.on("on_step_end", lambda model: at_two.update(weights(model)), once=2)
    with pytest.raises(NonFiniteError, match="in step 3"):
        guarded.train()
    assert same_weights(weights(guarded.model), at_two)


def test_P27_one_end_of_an_evaluation_with_the_metrics_of_all_datasets(tmp_path):
    """With several evaluation sets, a callback is told of each by itself, and can never compare or combine them."""
    both = {"first": net_samples(8, seed=1), "second": net_samples(8, seed=2)}
    built = net_trainer(tmp_path, Evaluate(every(3)), EarlyStopping("second_loss", patience=9), eval_dataset=both)
    ends, each = [], []
    built.on("on_evaluate_end", lambda metrics: ends.append(dict(metrics)))
    built.on("on_evaluate", lambda metrics: each.append(dict(metrics)))
    built.train()
    assert len(ends) == 2
    assert all({"eval_first_loss", "eval_second_loss"} <= metrics.keys() for metrics in ends)
    assert [("eval_first_loss" in one, "eval_second_loss" in one) for one in each] == [(True, False), (False, True)] * 2
    assert ends[1]["eval_first_loss"] == each[2]["eval_first_loss"]


def test_P27_a_metric_over_all_datasets_can_choose_the_best(tmp_path):
    """The same: their mean, made by a callback in three lines, chooses the best model."""
    both = {"first": net_samples(8, seed=1), "second": net_samples(8, seed=2)}

    class Mean(Callback):
        stage = Stage.MEASURE

        def on_evaluate_end(self, metrics):
            metrics["eval_mean_loss"] = (metrics["eval_first_loss"] + metrics["eval_second_loss"]) / 2

    watching = KeepBest("mean_loss", save=False, load_at_end=False)
    built = net_trainer(tmp_path, Evaluate(every(2)), watching, Mean(), eval_dataset=both)
    built.train()
    first, second = (logged(built, f"eval_{name}_loss") for name in both)
    assert built.state.best_metric == min((first[step] + second[step]) / 2 for step in (2, 4, 6))


def test_P32_logs_per_step_and_per_epoch_side_by_side(tmp_path):
    """One can log every so many steps or every epoch, and not both."""
    built = net_trainer(tmp_path, Log(every(1)), Log(every(1, "epoch"), prefix="epoch_"), max_steps=8)
    built.train()
    steps, epochs = logged(built, "loss"), logged(built, "epoch_loss")
    assert list(steps) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert epochs == pytest.approx({end: sum(steps[step] for step in range(end - 3, end + 1)) / 4 for end in (4, 8)})


def test_P33_an_update_is_skipped_cleanly(tmp_path):
    """A callback that finds a step bad cannot leave it out without leaving out everything that hangs on it."""

    class Refuses(Callback):
        def on_gradients(self, state, control):
            if state.global_step + 1 == 3:
                control.request("skip_update", "a batch of another language")

    built = net_trainer(tmp_path, Refuses(), Log(every(1)), Evaluate(every(3)), Checkpoint(every(3)), EMA(0.5))
    ends = {}
    built.on("on_step_end", lambda state, model: ends.update({state.global_step: weights(model)}))
    built.train()
    assert same_weights(ends[3], ends[2])
    assert not same_weights(ends[4], ends[3])
    assert (built.state.global_step, built.state.steps_skipped) == (6, 1)
    assert logged(built, "loss").keys() == {1, 2, 3, 4, 5, 6}
    assert logged(built, "eval_loss").keys() == {3, 6}, "what is due at that step is done all the same"
    assert saved_steps(tmp_path) == [3, 6]
    [taken] = [entry for entry in built.control.ledger.of("skip_update") if entry.action == "take"]
    assert (taken.step, taken.reason) == (2, "Refuses: a batch of another language")


@pytest.mark.parametrize("stopped_by", ["nobody", "early stopping", "hand", "NaN"])
def test_P34_the_best_weights_load_after_any_stop(tmp_path, stopped_by):
    """The best weights come back only if it was early stopping that ended the run."""
    callbacks = {
        "early stopping": [EarlyStopping("score", patience=2)],
        "NaN": [NaNGuard("stop"), Poison(5)],
    }.get(stopped_by, [])
    built = net_trainer(
        tmp_path, Evaluate(every(1)), Checkpoint(never(), keep=Keep(last=1)), KeepBest("score"), *callbacks,
        compute_metrics=scripted([0.1, 0.9, 0.3, 0.2]),
    )  # fmt: skip
    if stopped_by == "hand":
        built.on("on_step_end", stop_at(3))
    at_two, last = {}, {}
    built.on("on_step_end", lambda model: at_two.update(weights(model)), once=2)
    built.on("on_step_end", lambda model: last.update(weights(model)))
    built.train()
    assert built.state.global_step == {"nobody": 6, "early stopping": 4, "hand": 3, "NaN": 5}[stopped_by]
    assert same_weights(weights(built.model), at_two)
    assert not same_weights(at_two, last)


def test_P41_requests_before_training_are_served(tmp_path):
    """Beginning to train wipes away what was asked for before."""
    built = net_trainer(tmp_path, Log(never()), Evaluate(never()), Checkpoint(never()))
    built.control.should_log = built.control.should_evaluate = True
    built.control.request("save", "asked for before the run")
    built.train()
    assert logged(built, "loss").keys() == logged(built, "eval_loss").keys() == {1}
    assert saved_steps(tmp_path) == [1]

    built.control.request("training_stop", "changed my mind")
    before = weights(built.model)
    assert built.train().global_step == 0
    assert same_weights(weights(built.model), before)
    assert built.control.why("training_stop") == "stopped at step 0 by you: changed my mind"
    assert built.train().global_step == 6, "and it holds for one run"


def test_P41_ragged_accumulation_fires_every_event(tmp_path):
    """A last step of fewer batches than the others is made without some of its events."""
    built = net_trainer(tmp_path, train_dataset=net_samples(20), gradient_accumulation_steps=3, max_steps=4)
    with record(built.bus) as trace:
        built.train()
    step = ("on_gradients", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end")

    def of_batches(count):
        batches = ["on_batch", "on_loss", "on_substep_end"] * count
        return ["on_step_begin", *batches[:-1], *step]

    inside = {*step, "on_step_begin", "on_batch", "on_loss", "on_substep_end"}
    happened = [event for event in trace.events if event in inside]
    assert happened == [*of_batches(3), *of_batches(2)] * 2, "5 batches an epoch, in steps of 3 and of 2"


@pytest.mark.parametrize(("saved", "ends"), [(every(2), 2), (every(1, "epoch"), 1)], ids=repr)
def test_P41_a_stopped_epoch_stays_stopped_after_a_resume(tmp_path, saved, ends):
    """A run that left an epoch early goes back into it when it is resumed."""

    class Leaves(Callback):
        def on_step_end(self, state, control):
            if state.global_step == 2:
                control.request("epoch_stop", "enough of this one")

    def build(folder):
        built = net_trainer(tmp_path / folder, Leaves(), Checkpoint(saved))
        built.epochs = []
        built.on("on_step_end", lambda state: built.epochs.append((state.global_step, state.epoch)))
        return built

    unbroken = build("unbroken")
    unbroken.train()
    assert unbroken.epochs == [(1, 0.25), (2, 0.5), (3, 1.25), (4, 1.5), (5, 1.75), (6, 2.0)]
    resumed = build("resumed")
    with record(resumed.bus) as trace:
        resumed.train(resume_from_checkpoint=str(tmp_path / "unbroken" / "checkpoint-2"))
    assert resumed.epochs == unbroken.epochs[2:]
    assert trace.events.count("on_epoch_end") == ends, "that of the stopped epoch too, if it came after the checkpoint"
    assert same_weights(weights(resumed.model), weights(unbroken.model))
