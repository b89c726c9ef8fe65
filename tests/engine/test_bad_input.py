"""Errors name the fault, the place and the remedy, and the trainer stays usable."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

import trainbus
from support.checkpoints import names_in
from support.data import points
from support.models import Regression
from support.outcomes import same_weights, weights
from support.trainers import regression_trainer
from trainbus.engine.checkpoint.read.listing import survey
from trainbus.engine.checkpoint.read.verify import problems
from trainbus.engine.checkpoint.write import snapshot
from trainbus.events import (
    EVENTS,
    FLAGS,
    ArgumentError,
    Callback,
    DataError,
    ModelError,
    Stage,
    SubscriptionError,
    TrainbusError,
    record,
)


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from points(4)


class NoLoss(Regression):
    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        return {"logits": super().forward(x)["logits"], "extra": x}


class NoLossTuple(Regression):
    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        return (super().forward(x)["logits"], x)


class OtherNames(Regression):
    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> Any:
        return super().forward(pixels, labels)


class Misspelt(Callback):
    def on_step_ends(self) -> None:
        pass


class UnknownParameter(Callback):
    def on_step_end(self, losses: Any) -> None:
        pass


class Named(Callback):
    id = "mine"


def train(**options: Any) -> Callable[[Path], None]:
    return lambda folder: regression_trainer(folder, **options).train()


def make(**options: Any) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        regression_trainer(folder, **options)

    return build


WRONG: dict[str, tuple[Callable[[Path], None], type[TrainbusError], list[str]]] = {
    "an empty dataset": (train(train_dataset=[]), DataError, ["gives no batch", "0 samples"]),
    "a dataset smaller than a batch whose rest is dropped": (
        train(train_dataset=points(3), args={"dataloader_drop_last": True}),
        DataError,
        ["3 samples", "a batch has 4", "`dataloader_drop_last`"],
    ),
    "no dataset": (train(train_dataset=None), DataError, ["There is no training dataset", "`train_dataset`"]),
    "a dataset without length and no max_steps": (
        make(train_dataset=Endless()),
        ArgumentError,
        ["no length", "Set `max_steps`"],
    ),
    "an empty eval dataset": (
        lambda folder: regression_trainer(folder, eval_dataset=[]).evaluate(),
        DataError,
        ["The eval dataset has no samples", "Pass another"],
    ),
    "an empty eval dataset among several": (
        lambda folder: regression_trainer(folder, eval_dataset={"easy": points(2), "hard": []}).evaluate(),
        DataError,
        ["The eval dataset 'hard' has no samples"],
    ),
    "nothing to evaluate on": (
        lambda folder: regression_trainer(folder).evaluate(),
        DataError,
        ["There is no eval dataset", "`eval_dataset`"],
    ),
    "an eval dataset of another name": (
        lambda folder: regression_trainer(folder, eval_dataset={"easy": points(2), "hard": points(2)}).evaluate("hart"),
        ArgumentError,
        ["'hart'", "did you mean 'hard'", "easy"],
    ),
    "a batch that the model does not accept": (
        train(model=OtherNames(), args={"remove_unused_columns": False}),
        ModelError,
        ["OtherNames.forward cannot take the batch", "The batch has: x, labels", "forward takes: pixels, labels"],
    ),
    "a batch that lacks what the model needs": (
        train(model=OtherNames(), train_dataset=[{"pixels": row["x"]} for row in points(8)]),
        ModelError,
        ["'labels'", "The batch has: pixels", "forward takes: pixels, labels"],
    ),
    "a model that returns no loss": (
        train(model=NoLoss()),
        ModelError,
        ["NoLoss returned no loss", "the keys logits, extra", "from a batch of x, labels", "`loss`", "criterion="],
    ),
    "a model that returns no loss in a tuple": (
        train(model=NoLossTuple()),
        ModelError,
        ["NoLossTuple returned no loss", "a tuple of a tensor of shape (4,), a tensor of shape (4, 3)", "x, labels"],
    ),
    "a model that returns logits only, given a batch of tuples": (
        train(model=nn.Linear(3, 1), train_dataset=[row["x"] for row in points(8)]),
        ModelError,
        ["Linear returned no loss", "a tensor of shape (4, 1)", "criterion="],
    ),
    "a criterion without labels": (
        train(
            model=nn.Linear(3, 1),
            train_dataset=[{"input": row["x"]} for row in points(8)],
            criterion=nn.functional.mse_loss,
        ),
        ModelError,
        ["no 'labels'", "only: input"],
    ),
    "an optimizer that nobody knows": (
        make(args={"optim": "adamw_touch"}),
        ArgumentError,
        ["'adamw_touch'", "did you mean 'adamw_torch'", "adafactor", "sgd"],
    ),
    "a schedule that nobody knows": (
        make(args={"lr_scheduler_type": "cosinus"}),
        ArgumentError,
        ["'cosinus'", "did you mean 'cosine'", "linear", "greedy"],
    ),
    "negative steps": (make(args={"max_steps": -2}), ArgumentError, ["`max_steps` is -2", "-1 for epochs"]),
    "negative logging steps": (
        make(args={"logging_steps": -1}),
        ArgumentError,
        ["`logging_steps` is -1", "whole number of steps, or to a fraction"],
    ),
    "evaluations without an eval dataset": (
        make(args={"eval_strategy": "epoch"}),
        ArgumentError,
        ["eval_strategy='epoch'", "`eval_dataset`", "'no'"],
    ),
    "several things at once": (
        make(
            train_dataset=Endless(),
            args={"eval_strategy": "epoch"},
            criterion=nn.functional.mse_loss,
            compute_loss_func=nn.functional.mse_loss,
        ),
        ArgumentError,
        ["`eval_dataset`", "`max_steps`", "`criterion` and `compute_loss_func`"],
    ),
    "a misspelt handler": (
        make(callbacks=[Misspelt()]),
        SubscriptionError,
        ["Misspelt.on_step_ends", "did you mean 'on_step_end'"],
    ),
    "an unknown parameter": (
        make(callbacks=[UnknownParameter()]),
        SubscriptionError,
        ["UnknownParameter.on_step_end", "'losses'", "did you mean 'loss'"],
    ),
    "two callbacks with one id": (
        make(callbacks=[Named(), Named()]),
        SubscriptionError,
        ["Two callbacks have the id 'mine'", "id='...'"],
    ),
    "one callback twice": (
        lambda folder: (lambda same: make(callbacks=[same, same])(folder))(Named()),
        SubscriptionError,
        ["mine is already attached"],
    ),
    "something that is not a callback": (
        make(callbacks=[object()]),
        SubscriptionError,
        ["object is not a callback", "on_"],
    ),
    "both a model and a model_init": (
        make(model=Regression(), model_init=Regression),
        ArgumentError,
        ["exactly one of `model` and `model_init`"],
    ),
    "neither a model nor a model_init": (
        lambda folder: trainbus.Trainer(args=trainbus.TrainingArguments(str(folder))) and None,
        ArgumentError,
        ["exactly one of `model` and `model_init`"],
    ),
    "a model_init with the optimizers of some model": (
        make(model_init=Regression, optimizers=(torch.optim.SGD(Regression().parameters(), lr=0.1), None)),
        ArgumentError,
        ["`optimizer_cls_and_kwargs`"],
    ),
    "two optimizers": (
        make(
            optimizers=(torch.optim.SGD(Regression().parameters(), lr=0.1), None),
            optimizer_cls_and_kwargs=(torch.optim.SGD, {}),
        ),
        ArgumentError,
        ["`optimizers` and `optimizer_cls_and_kwargs`", "one of them"],
    ),
    "a metric that is not measured": (
        train(
            eval_dataset=points(4),
            args={"eval_strategy": "epoch", "metric_for_best_model": "eval_lost", "load_best_model_at_end": True},
        ),
        ArgumentError,
        ["'eval_lost'", "did you mean 'eval_loss'", "It measured:"],
    ),
    "a listed callback that contradicts the arguments": (
        make(args={"logging_strategy": "steps", "logging_steps": 7}, callbacks=[trainbus.Log(trainbus.every(3))]),
        ArgumentError,
        ["Log(trigger=every(3)", "logging_steps=7", "leave out one"],
    ),
}


@pytest.mark.parametrize(("do", "kind", "parts"), WRONG.values(), ids=WRONG)
def test_errors_have_a_remedy(do: Callable[[Path], None], kind: type[TrainbusError], parts: list[str], tmp_path: Path):
    with pytest.raises(TrainbusError) as caught:
        do(tmp_path)
    assert type(caught.value) is kind
    for part in parts:
        assert part in str(caught.value)


def test_an_error_of_the_model_itself_is_not_taken_for_a_batch_that_does_not_fit(tmp_path: Path):
    class Broken(Regression):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            return len(5)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        regression_trainer(tmp_path, Broken()).train()


# A callback that raises, in each event of a training with everything in it.


class Boom(Exception):
    """Raised by nobody else."""


class Witness(Callback):
    """Counts what it hears of an ending."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.heard: Counter[str] = Counter()
        self.exceptions: list[BaseException] = []

    def on_exception(self, exception: BaseException) -> None:
        self.heard["on_exception"] += 1
        self.exceptions.append(exception)

    def on_close(self) -> None:
        self.heard["on_close"] += 1


class Failing(Callback):
    """Raises at the n-th announcement of an event, once in its life."""

    def __init__(self, event: str, nth: int = 1, error: Callable[[], BaseException] = Boom) -> None:
        self.nth, self.error, self.calls = nth, error, 0
        setattr(self, event, self.fail)

    def fail(self) -> None:
        self.calls += 1
        if self.calls == self.nth:
            raise self.error()


EVERYTHING = {
    **{"num_train_epochs": 2, "gradient_accumulation_steps": 2, "eval_strategy": "epoch", "save_strategy": "epoch"},
    **{"logging_strategy": "steps", "logging_steps": 1, "load_best_model_at_end": True, "save_total_limit": 1},
}


def whole_run(folder: Path, *callbacks: Any) -> Any:
    return regression_trainer(folder, args=EVERYTHING, eval_dataset=points(6, 1), callbacks=list(callbacks))


ENDINGS = ("on_exception", "on_close")
ELSEWHERE = ("on_init_end", "on_load", "on_predict", "on_push_begin", "on_end", "on_exception")
"""What a training from the beginning that goes well does not announce."""
ANNOUNCED = [event.name for event in EVENTS if event.name not in ELSEWHERE]


class Whole(NamedTuple):
    """A whole run that went well."""

    announced: Counter[str]
    before: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    run = whole_run(tmp_path_factory.mktemp("whole"))
    before = weights(run.model)
    commits: list[str] = []
    run.on("on_commit", lambda: commits.append("on_commit"))  # a trace leaves out those of a thread
    with record(run.bus) as trace:
        run.train()
    others = [event for event in trace.events if event != "on_commit"]
    return Whole(Counter([*others, *commits]), before, weights(run.model))


def test_a_whole_run_announces_every_event_that_is_tested_here(whole: Whole):
    assert set(whole.announced) == set(ANNOUNCED)


def assert_as_good_as_new(run: Any, whole: Whole) -> None:
    """Nothing of the run that failed is left: with the weights put back, another does what the first would have."""
    assert (run.run.mode, run.run.exception, run.run.batch) == ("", None, None)
    assert not any(run.control.raised(flag) or run.control.vetoed(flag) for flag in FLAGS)
    run.model.load_state_dict(whole.before)
    run.optimizer = None
    run.train()
    assert run.state.global_step == 6
    assert same_weights(weights(run.model), whole.after)


@pytest.mark.parametrize("stage", [Stage.PREPARE, Stage.DECIDE, Stage.RELEASE], ids=["first", "middle", "last"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("event", [event for event in ANNOUNCED if event != "on_close"])
def test_a_callback_that_raises_ends_the_run_in_good_order(
    event: str, last: bool, stage: Stage, whole: Whole, tmp_path: Path
):
    """At the first and at the last announcement of each event, as the first of its hearers, in the middle, and last."""
    early, late, failing = Witness("early"), Witness("late"), Failing(event, whole.announced[event] if last else 1)
    failing.stage = stage
    run = whole_run(tmp_path, early, failing, late)
    with pytest.raises(Boom) as caught:
        run.train()
    assert f"Failing.{event} failed after step" in "\n".join(caught.value.__notes__)
    for witness in (early, late):
        assert witness.heard == dict.fromkeys(ENDINGS, 1)
        assert witness.exceptions == [caught.value]
    assert not list(tmp_path.glob(".tmp-*"))
    for found in survey(tmp_path):
        assert problems(found.path, full=True) == []
    assert_as_good_as_new(run, whole)


def test_all_callbacks_close_although_one_raises(whole: Whole, tmp_path: Path):
    early, late = Witness("early"), Witness("late")
    run = whole_run(tmp_path, early, Failing("on_close"), late)
    with pytest.raises(Boom) as caught:
        run.train()
    assert "Failing.on_close failed after step 6" in "\n".join(caught.value.__notes__)
    assert early.heard == late.heard == {"on_close": 1}  # the training itself went well
    assert_as_good_as_new(run, whole)


def test_the_first_error_wins_over_those_of_the_ending(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    witness = Witness("witness")
    failing = [Failing("on_exception", error=lambda: ValueError("second")), Failing("on_close", error=KeyError)]
    run = whole_run(tmp_path, *failing, Failing("on_loss"), witness)
    with caplog.at_level(logging.ERROR), pytest.raises(Boom):
        run.train()
    assert witness.heard == dict.fromkeys(ENDINGS, 1)
    assert "on_exception failed while the run was ending with Boom(): second" in caplog.text
    assert "on_close failed while the run was ending with Boom()" in caplog.text


@pytest.mark.parametrize("event", ["on_step_begin", "on_loss", "on_step_end", "on_prediction_step", "on_save_begin"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_ends_the_run_in_good_order(error: type[BaseException], event: str, whole: Whole, tmp_path: Path):
    witness = Witness("witness")
    run = whole_run(tmp_path, witness, Failing(event, nth=2, error=error))
    with pytest.raises(error) as caught:
        run.train()
    assert witness.heard == dict.fromkeys(ENDINGS, 1)
    assert witness.exceptions == [caught.value]
    assert not list(tmp_path.glob(".tmp-*"))
    assert_as_good_as_new(run, whole)


def test_an_interrupt_inside_the_model_is_no_different(whole: Whole, tmp_path: Path):
    class Interrupted(Regression):
        calls = 0

        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            self.calls += 1
            if self.calls == 2:  # the second batch of the first step: half of a step's gradients are there
                raise KeyboardInterrupt
            return super().forward(x, labels)

    witness = Witness("witness")
    run = regression_trainer(tmp_path, Interrupted(), args=EVERYTHING, eval_dataset=points(6, 1), callbacks=[witness])
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert witness.heard == dict.fromkeys(ENDINGS, 1)
    assert_as_good_as_new(run, whole)


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
def test_a_failed_checkpoint_leaves_no_files(
    error: type[BaseException], whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*args: Any) -> None:
        raise error

    run = whole_run(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(snapshot, "_loader_position", fail)
        with pytest.raises(error):
            run.train()
    assert names_in(tmp_path) == []
    assert_as_good_as_new(run, whole)


def test_evaluate_and_predict_close_all_callbacks(tmp_path: Path):
    for do in (lambda run: run.evaluate(), lambda run: run.predict(points(4))):
        witness = Witness("witness")
        run = whole_run(tmp_path, witness, Failing("on_prediction_step"))
        with pytest.raises(Boom):
            do(run)
        assert witness.heard == dict.fromkeys(ENDINGS, 1)
        do(run)
        assert witness.heard == {"on_exception": 1, "on_close": 2}


def test_requests_of_one_session_are_not_served_in_the_next(tmp_path: Path):
    """A stop that an evaluation alone asks for, as a callback for early stopping may, stops no later training."""
    run = whole_run(tmp_path)
    handle = run.on("on_evaluate", lambda control: control.request("training_stop", "worse"), id="stopper")
    run.evaluate()
    handle()
    run.train()
    assert run.state.global_step == 6


def test_dropout_is_off_until_evaluation_handlers_ran_and_on_after_a_failed_evaluation(
    tmp_path: Path,
):
    modes: dict[str, set[bool]] = {"on_loss": set(), "on_prediction_step": set(), "on_evaluate_end": set()}
    run = whole_run(tmp_path, Failing("on_evaluate_dataset"))
    for event, seen in modes.items():
        run.on(event, lambda model, seen=seen: seen.add(model.training))
    with pytest.raises(Boom):
        run.train()
    run.train()
    assert modes == {"on_loss": {True}, "on_prediction_step": {False}, "on_evaluate_end": {False}}


def test_a_callback_with_an_impossible_order_is_not_attached(tmp_path: Path) -> None:
    class Lost(Callback):
        before = ("Nobody",)

        def on_step_end(self) -> None: ...

    built = regression_trainer(tmp_path)
    before = list(built.callbacks)
    with pytest.raises(SubscriptionError, match="Nobody"):
        built.add_callback(Lost())
    assert list(built.callbacks) == before
    built.train()
