"""State, control, callbacks and messages behave as transformers' programs expect."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.trainer_callback import ExportableState as TheirExportableState

import trainbus
from support.data import sentences
from support.models import bert
from support.outcomes import same_weights, weights
from support.trainers import hushed
from trainbus.events.errors import ArgumentError, CheckpointError

ARGS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "max_steps": 4,
    "save_steps": 2,
    "logging_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "metric_for_best_model": "loss",
    "learning_rate": 1e-9,
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}


def built(folder: Path, *callbacks: Any, library: Any = trainbus, model: Any = None, **args: Any) -> Any:
    with hushed():
        given = library.TrainingArguments(str(folder), **{**ARGS, **args})
        data = {"train_dataset": sentences(22), "eval_dataset": sentences(6, seed=1)}
        return library.Trainer(model=model or bert(), args=given, callbacks=list(callbacks), **data)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = built(tmp_path_factory.mktemp("trained"), trainbus.EarlyStoppingCallback(5, 0.2))
    trainer.train()
    return trainer


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= level)


# State and control.


def test_states_of_an_uninterrupted_and_a_resumed_run_are_equal(trained: Any) -> None:
    resumed = built(Path(trained.args.output_dir), trainbus.EarlyStoppingCallback(5, 0.2))
    resumed.train(resume_from_checkpoint=str(Path(trained.args.output_dir) / "checkpoint-2"))
    states = [dataclasses.asdict(trainer.state) for trainer in (trained, resumed)]
    for state in states:
        timed = ("runtime", "per_second")
        state["log_history"] = [
            {key: value for key, value in entry.items() if not key.endswith(timed)} for entry in state["log_history"]
        ]
    assert states[0] == states[1]
    assert resumed.run.seconds() > 0


def test_training_time_survives_a_state_file(tmp_path: Path) -> None:
    state = trainbus.TrainerState(global_step=3)
    state.seconds = 2.5
    state.save_to_json(tmp_path / "state.json")
    again = trainbus.TrainerState.load_from_json(tmp_path / "state.json")
    assert (again.seconds, again.global_step) == (2.5, 3)
    assert trainbus.TrainerState.from_dict(state.to_dict()).seconds == 2.5


@pytest.mark.parametrize("steps", [{"logging_steps": 0.1, "eval_steps": 0.25, "save_steps": 50}, {"logging_steps": 3}])
def test_state_computes_steps_as_transformers_does(steps: dict[str, Any]) -> None:
    args = dataclasses.make_dataclass(
        "Args", [(name, Any, steps.get(name)) for name in ("logging_steps", "eval_steps", "save_steps")]
    )()
    ours, theirs = trainbus.TrainerState(), transformers.TrainerState()
    ours.compute_steps(args, 90)
    theirs.compute_steps(args, 90)
    for name in ("logging_steps", "eval_steps", "save_steps"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_state_of_a_trainer_can_be_set_between_trainings(trained: Any, tmp_path: Path) -> None:
    trainer = built(tmp_path)
    path = Path(trained.args.output_dir) / "checkpoint-2/trainer_state.json"
    trainer.state = trainbus.TrainerState.load_from_json(path)
    assert trainer.state.global_step == 2
    trainer.state = transformers.TrainerState(global_step=7)
    assert (trainer.state.global_step, type(trainer.state)) == (7, trainbus.TrainerState)

    @trainer.on("on_step_end")
    def replace() -> None:
        trainer.state = trainbus.TrainerState()

    with pytest.raises(ArgumentError, match=r"The state cannot be replaced during train\(\)"):
        trainer.train()


def test_control_takes_flags_and_exports_them() -> None:
    flags = {"should_save": True, "should_training_stop": True, "should_log": False}
    ours, theirs = trainbus.TrainerControl(**flags), transformers.TrainerControl(**flags)
    assert ours.should_save
    assert ours.should_training_stop
    assert not ours.should_log
    assert ours.state() == theirs.state()
    with pytest.raises(ArgumentError, match="should_sav"):
        trainbus.TrainerControl(should_sav=True)


def test_control_that_is_assigned_requests_its_flags(tmp_path: Path) -> None:
    trainer = built(tmp_path, max_steps=1, save_strategy="no", eval_strategy="no")
    trainer.control = trainbus.TrainerControl(should_save=True)
    trainer.train()
    assert (tmp_path / "checkpoint-1").is_dir()


# Checkpoints.


def test_missing_checkpoint_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint") as theirs:
        built(tmp_path, library=transformers).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="checkpoint") as ours:
        built(tmp_path).train(resume_from_checkpoint=True)
    assert (type(theirs.value), type(ours.value)) == (ValueError, CheckpointError)
    assert isinstance(ours.value, OSError)


# Callbacks.


class Remembering:
    """A callback with a state under transformers' interface."""

    def __init__(self, value: str = "default", more: int = 0) -> None:
        self.value, self.more, self.steps = value, more, 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps += 1

    def state(self) -> dict[str, Any]:
        return {"args": {"value": self.value, "more": self.more}, "attributes": {"steps": self.steps}}


class Foreign(Remembering, transformers.TrainerCallback, TheirExportableState):
    """Written for transformers."""


class Ours(Remembering, trainbus.TrainerCallback, trainbus.ExportableState):
    """Written for transformers, with our names in place of its."""


@pytest.mark.parametrize("cls", [Foreign, Ours])
def test_exported_states_are_restored_with_several_of_a_class(cls: type, tmp_path: Path) -> None:
    built(tmp_path, cls("first", 1), cls("second", 2)).train()
    again = [cls(), cls()]
    built(tmp_path, *again, max_steps=5).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [(each.value, each.more, each.steps) for each in again] == [("first", 1, 5), ("second", 2, 5)]
    assert cls.from_state(again[0].state()).value == "first"


def test_early_stopping_counts_and_exports_as_in_transformers(tmp_path: Path) -> None:
    exported = []
    for library in (transformers, trainbus):
        stopping = library.EarlyStoppingCallback(9, early_stopping_threshold=1.0)
        trainer = built(tmp_path / library.__name__, stopping, library=library, load_best_model_at_end=True)
        trainer.train()
        exported.append(stopping.state())
    assert exported[0] == exported[1]


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("greater", [True, False])
@pytest.mark.parametrize(
    "values",
    [[NAN, 1, 2, 3, 4, 5], [1, NAN, 2, NAN, 3, 4], [1, NAN, NAN, 2, 3, 4], [NAN, NAN, NAN, 1, 2, 3], [INF, 3, -INF]],
    ids=str,
)
def test_early_stopping_counts_values_that_are_not_finite_as_transformers(
    values: list[float], greater: bool, tmp_path: Path
) -> None:
    ends = []
    for library in (transformers, trainbus):
        stopping, signed = library.EarlyStoppingCallback(2), iter(values if greater else [-value for value in values])
        trainer = built(
            tmp_path / library.__name__,
            stopping,
            library=library,
            max_steps=len(values),
            eval_steps=1,
            metric_for_best_model="score",
            greater_is_better=greater,
        )
        trainer.compute_metrics = lambda prediction, signed=signed: {"score": next(signed)}
        trainer.train()
        ends.append((trainer.state.global_step, stopping.early_stopping_patience_counter))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("library", [transformers, trainbus])
def test_early_stopping_of_a_subclass_decides_by_its_own_rule(library: Any, tmp_path: Path) -> None:
    class Impatient(library.EarlyStoppingCallback):
        def check_metric_value(self, args, state, control, metric_value):
            assert metric_value > 0
            self.early_stopping_patience_counter += 2

    trainer = built(tmp_path, Impatient(3), library=library, max_steps=8, load_best_model_at_end=True)
    trainer.train()
    assert trainer.state.global_step == 4


def test_callback_added_twice_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Twice(trainbus.TrainerCallback):
        """Does nothing."""

    trainer = built(tmp_path, Twice)
    assert "Twice" not in messages(caplog)
    trainer.add_callback(Twice())
    assert "Two callbacks of the class Twice are attached" in messages(caplog)
    caplog.clear()
    built(tmp_path, Twice(), Twice())
    assert "Two callbacks of the class Twice are attached" in messages(caplog)
    caplog.clear()
    built(tmp_path, trainbus.EarlyStopping("loss", 3), trainbus.EarlyStopping("loss", 5))
    assert "Two callbacks" not in messages(caplog)


# Messages.


def test_callback_that_only_the_checkpoint_has_is_warned_of(trained: Any, caplog: pytest.LogCaptureFixture) -> None:
    folder = Path(trained.args.output_dir)
    built(folder).train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    assert "states of callbacks that are not attached: EarlyStoppingCallback" in messages(caplog)


def test_other_batch_size_and_intervals_are_warned_of(trained: Any, caplog: pytest.LogCaptureFixture) -> None:
    folder = Path(trained.args.output_dir)
    stopping = trainbus.EarlyStoppingCallback(5, 0.2)
    trainer = built(folder, stopping, per_device_train_batch_size=2, logging_steps=1, save_strategy="no", max_steps=3)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    assert "train_batch_size was 4 and is 2, logging_steps was 2 and is 1" in messages(caplog)
    caplog.clear()
    built(folder, stopping).train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    assert "other settings" not in messages(caplog)


def test_training_announces_its_sizes_at_level_info(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="trainbus"):
        trainer = built(tmp_path, gradient_accumulation_steps=2, save_strategy="no", log_level="info")
        trainer.train()
    said = messages(caplog, logging.INFO)
    assert "***** Running training *****" in said
    for line in (
        "Num examples = 22",
        "Num Epochs = 2",
        "Total train batch size (w. parallel, distributed & accumulation) = 8",
        "Total optimization steps = 4",
    ):
        assert line in said


def test_label_smoothing_of_multi_label_models_is_warned_of_and_off(tmp_path: Path) -> None:
    def model() -> Any:
        made = bert()
        made.config.problem_type = "multi_label_classification"
        return made

    rows = [{**row, "labels": torch.tensor([1.0, 0.0])} for row in sentences(22)]
    trainers = []
    for library in (transformers, trainbus):
        given = {**ARGS, "save_strategy": "no", "eval_strategy": "no", "learning_rate": 1e-3}
        args = library.TrainingArguments(str(tmp_path), label_smoothing_factor=0.1, **given)
        with pytest.warns(UserWarning, match="not compatible with multi-label classification"):
            trainer = library.Trainer(model(), args)
        trainer.train_dataset = rows
        trainer.train()
        trainers.append(trainer)
    assert trainers[1].label_smoother is None
    assert same_weights(weights(trainers[0].model), weights(trainers[1].model))
