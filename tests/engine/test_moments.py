"""Hugging Face's sixteen events, at its moments and with its arguments: one callback of theirs, in both trainers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from support.checkpoints import names_in
from support.data import points, sentences
from support.outcomes import history, last_window, same_weights, timeless, weights
from support.trainers import both, regression_trainer
from trainbus.events.catalog import CATALOG

SIXTEEN = (
    *("on_init_end", "on_train_begin", "on_epoch_begin", "on_step_begin"),
    *("on_substep_end", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end"),
    *("on_log", "on_evaluate", "on_prediction_step", "on_predict"),
    *("on_save", "on_epoch_end", "on_train_end", "on_push_begin"),
)
GIVEN = ("model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader")
FLAGS = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")

FLAGS_READ_AT = ("on_init_end", "on_substep_end", "on_step_end", "on_epoch_end", "on_save")
"""Where the flags are compared. Elsewhere they differ on purpose: here a flag is down from when it is acted on, there
`should_evaluate` stays up while evaluating and `should_training_stop` for good."""

MODE_READ_AT = ("on_substep_end", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end", "on_prediction_step")
"""Where train or eval mode is compared. Elsewhere it differs on purpose: an evaluation leaves the model as it found it
here, and in eval mode there, until the next training step."""


class Recorder(transformers.TrainerCallback):
    """Writes down everything that a callback of theirs can see."""

    def __init__(self, answer: Callable[[Any], Any] = lambda control: None) -> None:
        self.seen: list[dict[str, Any]] = []
        self.answer = answer

    def note(self, event: str, args: Any, state: Any, control: Any, kwargs: dict[str, Any]) -> Any:
        model: nn.Module = kwargs["model"]
        best = state.best_model_checkpoint
        self.seen.append(
            {
                "event": event,
                "step": state.global_step,
                "epoch": state.epoch,
                "absent": [name for name in GIVEN if name not in kwargs],
                "given": [name for name in GIVEN if kwargs.get(name) is not None],
                "planned": (state.max_steps, state.num_train_epochs),
                "logged": len(state.log_history),
                "best": (state.best_metric, state.best_global_step, best and Path(best).name),
                "rate": kwargs["optimizer"].param_groups[0]["lr"] if kwargs["optimizer"] is not None else None,
                "gradients": [name for name, weight in model.named_parameters() if weight.grad is not None],
                "weights": sum(weight.detach().double().sum().item() for weight in model.parameters()),
                "training": model.training if event in MODE_READ_AT else None,
                "flags": [flag for flag in FLAGS if getattr(control, flag)] if event in FLAGS_READ_AT else None,
                "logs": timeless(kwargs["logs"]) if event == "on_log" else kwargs.get("logs"),
                "metrics": timeless(kwargs["metrics"]) if "metrics" in kwargs else None,
            }
        )
        return self.answer(control)


def _hear(event: str) -> Callable[..., Any]:
    def handler(self: Recorder, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        return self.note(event, args, state, control, kwargs)

    return handler


for _event in SIXTEEN:
    setattr(Recorder, _event, _hear(_event))


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": (prediction.predictions.argmax(-1) == prediction.label_ids).mean()}


def record_both(
    folder: Path,
    args: dict[str, Any],
    more: Callable[[], list[Any]] = list,
    answer: Callable[[Any], Any] = lambda control: None,
    **options: Any,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Any, Any]:
    """Return what a recorder saw in their trainer and in ours, and the two trainers."""
    recorders: list[Recorder] = []

    def callbacks(library: Any) -> list[Any]:
        recorders.append(Recorder(answer))
        return [recorders[-1], *more()]

    args = {"num_train_epochs": 2, "logging_steps": 5, "learning_rate": 1e-3, "save_strategy": "no", **args}
    options = {"train_dataset": sentences(37), "eval_dataset": sentences(13, 1), **options}
    (theirs, _), (ours, _) = both(folder, args, callbacks=callbacks, **options)
    return recorders[0].seen, recorders[1].seen, theirs, ours


def without_last_window(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take out of our record the one difference that is wanted: the window since the last log is logged at the end."""
    extra = len(ours) - len(theirs)
    assert extra in (0, 1)
    if not extra:
        return ours
    end = ours[-1]["planned"][0]
    at = next(i for i, entry in enumerate(ours) if entry["event"] == "on_log" and entry["step"] == end)
    assert "loss" in ours[at]["logs"]
    assert ours[at - 1]["event"] == "on_step_end"
    ours[at - 1]["flags"].remove("should_log")
    rest = [{**entry, "logged": entry["logged"] - 1} for entry in ours[at + 1 :]]
    return ours[:at] + rest


SCENARIOS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "a rest to log": ({"logging_steps": 4}, {}),
    "accumulation with a ragged end": ({"gradient_accumulation_steps": 3, "logging_steps": 2}, {}),
    "evaluating and saving by steps": (
        {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 5},
        {"compute_metrics": accuracy},
    ),
    "everything by epochs": (
        {"eval_strategy": "epoch", "save_strategy": "epoch", "logging_strategy": "epoch"},
        {"compute_metrics": accuracy},
    ),
    "a rest to log before an evaluation": (
        {"eval_strategy": "epoch", "save_strategy": "epoch", "logging_steps": 4},
        {},
    ),
    "two datasets": (
        {"eval_strategy": "epoch"},
        {"eval_dataset": {"easy": sentences(9, 1), "hard": sentences(5, 2)}},
    ),
    "steps that end inside an epoch": ({"max_steps": 7, "logging_steps": 7}, {}),
    "the best of all steps at the end": (
        {
            **{"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2},
            **{"load_best_model_at_end": True},
        },
        {"compute_metrics": accuracy},
    ),
    "checkpoints of the best only": (
        {
            **{"num_train_epochs": 4, "learning_rate": 1e-2, "eval_strategy": "epoch", "save_strategy": "best"},
            **{"load_best_model_at_end": True},
        },
        {},
    ),
    "the first step logged": ({"logging_first_step": True}, {}),
    "an evaluation on start": ({"eval_strategy": "epoch", "eval_on_start": True}, {}),
    "evaluate() alone": ({}, {"do": lambda trainer: trainer.evaluate(), "compute_metrics": accuracy}),
    "predict() alone": ({}, {"do": lambda trainer: trainer.predict(sentences(9, 3)), "compute_metrics": accuracy}),
    "all three after one another": (
        {"num_train_epochs": 1},
        {
            "do": lambda trainer: (trainer.train(), trainer.evaluate(), trainer.predict(sentences(9, 3))),
            "compute_metrics": accuracy,
        },
    ),
}


@pytest.mark.parametrize(("args", "options"), SCENARIOS.values(), ids=SCENARIOS)
def test_a_callback_of_theirs_sees_the_same_run_in_both_trainers(
    args: dict[str, Any], options: dict[str, Any], tmp_path: Path
):
    theirs, ours, their_trainer, our_trainer = record_both(tmp_path, args, **options)
    ours = without_last_window(theirs, ours)
    assert [(entry["event"], entry["step"]) for entry in ours] == [(entry["event"], entry["step"]) for entry in theirs]
    for mine, other in zip(ours, theirs):
        assert mine == other
    assert same_weights(weights(their_trainer.model), weights(our_trainer.model))


def record_ours(folder: Path, do: Callable[[Any], Any] = lambda run: run.train(), **args: Any) -> list[dict[str, Any]]:
    """Return what a recorder saw in our trainer, with a model that is quick."""
    recorder = Recorder()
    do(regression_trainer(folder, args=args, callbacks=[recorder], eval_dataset=points(5, 1)))
    return recorder.seen


def test_one_run_shows_every_event_that_does_not_need_a_hub(tmp_path: Path):
    seen = record_ours(
        tmp_path,
        lambda run: (run.train(), run.predict(points(3, 2))),
        **{"gradient_accumulation_steps": 2, "eval_strategy": "epoch", "save_strategy": "epoch"},
    )
    assert {entry["event"] for entry in seen} == set(SIXTEEN) - {"on_push_begin"}


def test_the_catalogue_has_their_sixteen_and_marks_them():
    theirs = {name for name in dir(transformers.TrainerCallback) if name.startswith("on_")}
    assert theirs == set(SIXTEEN) == {event.name for event in CATALOG.values() if event.origin == "transformers"}


def test_an_event_that_the_engine_never_announces_reaches_their_callbacks_too(tmp_path: Path):
    recorder = Recorder()
    run = regression_trainer(tmp_path, callbacks=[recorder])
    run.bus.announce("on_push_begin")
    assert [entry["event"] for entry in recorder.seen] == ["on_init_end", "on_push_begin"]
    assert recorder.seen[-1]["absent"] == []


def test_a_rest_to_log_is_the_only_event_more(tmp_path: Path):
    theirs, ours, _, run = record_both(tmp_path, {"logging_steps": 4})
    assert len(ours) == len(theirs) + 1
    assert last_window(run) is not None


# Gradients are where they are promised.


def test_gradients_live_from_the_first_backward_until_the_step_ends(tmp_path: Path):
    ours = record_ours(tmp_path, gradient_accumulation_steps=3, max_steps=2)
    alive = {event: {bool(seen["gradients"]) for seen in ours if seen["event"] == event} for event in SIXTEEN}
    for event in ("on_substep_end", "on_pre_optimizer_step", "on_optimizer_step"):
        assert alive[event] == {True}, event
    for event in ("on_train_begin", "on_step_begin", "on_step_end", "on_log", "on_epoch_end", "on_train_end"):
        assert alive[event] == {False}, event


def test_weights_move_between_the_two_optimizer_events_and_nowhere_else(tmp_path: Path):
    ours = record_ours(tmp_path, max_steps=3, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2)
    moved = {later["event"] for earlier, later in pairwise(ours) if earlier["weights"] != later["weights"]}
    assert moved == {"on_optimizer_step"}


# Callbacks of theirs that decide.


@pytest.mark.parametrize("by", ["epoch", "steps"])
def test_their_early_stopping_stops_both_at_the_same_step(by: str, tmp_path: Path):
    args = {
        **{"num_train_epochs": 8, "learning_rate": 1e-2, "logging_steps": 3, "load_best_model_at_end": True},
        **{"eval_strategy": by, "save_strategy": by, "eval_steps": 3, "save_steps": 3},
    }
    theirs, ours, their_trainer, our_trainer = record_both(
        tmp_path, args, more=lambda: [transformers.EarlyStoppingCallback(1)]
    )
    assert our_trainer.state.global_step == their_trainer.state.global_step < our_trainer.state.max_steps
    assert ours == theirs
    assert "EarlyStoppingCallback" in our_trainer.control.why("training_stop")


class Wishes(transformers.TrainerCallback):
    """Asks for work by assigning flags, as callbacks of theirs do, and returns the control."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control.should_log = state.global_step in (1, 3)
        control.should_evaluate = state.global_step == 2
        if state.global_step == 4:
            control.should_save = True
        return control


def test_flags_assigned_by_transformers_callbacks_are_served(tmp_path: Path):
    args = {"logging_strategy": "no", "num_train_epochs": 1}
    theirs, ours, their_trainer, our_trainer = record_both(tmp_path, args, more=lambda: [Wishes()])
    assert [(seen["event"], seen["step"]) for seen in ours] == [(seen["event"], seen["step"]) for seen in theirs]
    assert history(our_trainer) == history(their_trainer)
    assert names_in(tmp_path / "trainbus") == ["checkpoint-4"]


# What handlers return.

ANSWERS: dict[str, Callable[[Any], Any]] = {
    "the control": lambda control: control,
    "True": lambda control: True,
    "a list": lambda control: [control],
    "a string": lambda control: "done",
    "a control of theirs with nothing raised": lambda control: transformers.TrainerControl(),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_the_return_value_of_a_handler_is_ignored(answer: Callable[[Any], Any], tmp_path: Path):
    def train(name: str, **options: Any) -> Any:
        args = {"logging_strategy": "steps", "logging_steps": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
        run = regression_trainer(tmp_path / name, args=args, eval_dataset=points(5, 1), **options)
        run.train()
        return run

    quiet, talking = train("quiet", callbacks=[Recorder()]), train("talking", callbacks=[Recorder(answer)])
    assert same_weights(weights(quiet.model), weights(talking.model))
    assert history(quiet) == history(talking)
    asked = [[(entry.flag, entry.action) for entry in run.control.ledger] for run in (quiet, talking)]
    assert asked[0] == asked[1]


def test_a_control_of_theirs_that_is_returned_is_a_request(tmp_path: Path):
    class NewControl(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            return transformers.TrainerControl(should_training_stop=state.global_step == 3)

    run = regression_trainer(tmp_path, callbacks=[NewControl()])
    run.train()
    assert run.state.global_step == 3
    assert run.control.why("training_stop") == "stopped at step 3 by NewControl: returned by the handler"


def test_a_callback_of_theirs_may_replace_gradients_before_the_update(tmp_path: Path):
    class NoGradient(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            torch._foreach_zero_([weight.grad for weight in model.parameters() if weight.grad is not None])

    run = regression_trainer(tmp_path, callbacks=[NoGradient()])
    before = weights(run.model)
    run.train()
    assert run.state.global_step == 10
    assert same_weights(weights(run.model), before)
