"""A signal in an evaluation: the run stops after the step with a checkpoint, and resumes as if it had not stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from support.data import net_samples
from support.models import Net
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import Callback, Trainer, default_data_collator
from trainbus.events.errors import EvaluationStopped

OWN = net_samples(8, seed=3)
EVENTS = {
    "on_train_begin": 0,
    "on_epoch_begin": 2,
    "on_step_begin": 4,
    "on_gradients": 4,
    "on_step_end": 3,
    "on_log": 5,
    "on_epoch_end": 2,
    "on_evaluate_begin": 5,
    "on_evaluate": 5,
    "on_evaluate_end": 5,
    "on_save_begin": 5,
    "on_save": 5,
    "on_train_end": 8,
}
"""Event -> the number of completed steps at which a handler of the event evaluates."""
ONE_MORE = {"on_train_begin", "on_save_begin", "on_save"}
"""The events at which a checkpoint of the same step would call the handler twice. So the run makes one more step."""


class Random:
    """A collator that draws random numbers."""

    def __call__(self, features: list[Any]) -> Any:
        batch = default_data_collator(features)
        batch["x"] = batch["x"] + torch.rand(())
        return batch


class Evaluates(Callback):
    """Evaluates in handlers of one event, once, and may send signals in the second batch."""

    def __init__(self, event: str, how: str = "run", sends: tuple[str, ...] = (), step: int | None = None) -> None:
        self.event, self.how, self.sends = event, how, sends
        self.step = EVENTS[event] if step is None else step
        self.trainer: Any = None
        self.inside = self.done = False
        self.batches = 0

    def evaluate(self, event: str, run: Any) -> None:
        if event != self.event or self.done or run.state.global_step != self.step:
            return
        if event == "on_log" and "loss" not in run.logs:
            return
        self.inside = self.done = True
        if self.how == "run":
            run.evaluate(eval_dataset=OWN, metric_key_prefix="own")
        elif self.how == "trainer":
            self.trainer.evaluate(OWN, metric_key_prefix="own")
        else:
            run.log({"own": self.trainer.predict(OWN).metrics["test_loss"]})
        self.inside = False

    def on_prediction_step(self) -> None:
        if self.inside:
            self.batches += 1
            for name in self.sends if self.batches == 2 else ():
                os.kill(os.getpid(), getattr(signal, name))


def _handler(event: str) -> Any:
    def handle(self: Evaluates, run: Any) -> None:
        self.evaluate(event, run)

    return handle


for _event in EVENTS:
    setattr(Evaluates, _event, _handler(_event))


def trainer_of(folder: Path, *callbacks: Any, **options: Any) -> Trainer:
    every = {"eval_strategy": "steps", "eval_steps": 5, "logging_steps": 5, "save_steps": 5}
    options = {"max_steps": 8, "per_device_eval_batch_size": 2, **every, **options}
    data = {"train_dataset": net_samples(8), "eval_dataset": net_samples(8, seed=1), **options.pop("data", {})}
    built = net_trainer(folder, *callbacks, model=Net(), **data, **options)
    built.data_collator = Random()
    for each in callbacks:
        each.trainer = built
    return built


def numbers(trainer: Any) -> list[dict[str, Any]]:
    timing = ("_runtime", "_per_second")
    entries = [entry for entry in trainer.state.log_history if "train_runtime" not in entry]
    return [{name: value for name, value in entry.items() if not name.endswith(timing)} for entry in entries]


def saved_steps(folder: Path) -> list[int]:
    return sorted(int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*"))


def assert_same(resumed: Trainer, whole: Trainer) -> None:
    assert numbers(resumed) == numbers(whole)
    assert same_weights(weights(resumed.model), weights(whole.model))


CASES = [
    *((event, "run", "SIGTERM") for event in EVENTS),
    ("on_step_end", "run", "SIGINT"),
    ("on_epoch_end", "trainer", "SIGTERM"),
    ("on_step_end", "predict", "SIGTERM"),
    ("on_evaluate", "predict", "SIGINT"),
    ("on_save", "predict", "SIGTERM"),
]


@pytest.mark.parametrize(("event", "how", "name"), CASES)
def test_an_evaluation_of_a_handler_completes_and_then_the_run_stops(
    event: str, how: str, name: str, tmp_path: Path
) -> None:
    whole = trainer_of(tmp_path / "whole", Evaluates(event, how))
    whole.train()
    evaluates = Evaluates(event, how, (name,))
    stopped = trainer_of(tmp_path / "run", evaluates)
    with pytest.raises(SystemExit) as ended:
        stopped.train()
    assert ended.value.code == {"SIGTERM": 143, "SIGINT": 130}[name]
    assert evaluates.batches == 4
    during_step = event in ("on_epoch_begin", "on_step_begin", "on_gradients")
    last = EVENTS[event] + (event in ONE_MORE or during_step)
    assert stopped.state.global_step == last
    assert last in saved_steps(tmp_path / "run")
    resumed = trainer_of(tmp_path / "run", Evaluates(event, how))
    resumed.train(resume_from_checkpoint=True)
    assert_same(resumed, whole)


LAST_OF_EPOCH = [
    *((event, {"save_steps": 4}, 5) for event in ("on_save_begin", "on_save")),
    *((event, {"save_steps": 4}, 4) for event in ("on_step_end", "on_evaluate_end")),
    *((event, {"save_strategy": "epoch"}, 4) for event in ("on_step_end", "on_log", "on_evaluate", "on_evaluate_end")),
    ("on_save", {"save_strategy": "epoch"}, 5),
    ("on_epoch_end", {"save_strategy": "epoch"}, 4),
    ("on_step_end", {"save_steps": 100, "eval_strategy": "epoch"}, 4),
]
"""Event, arguments, and the last step of the session if the signal comes at step 4, the last step of an epoch."""


@pytest.mark.parametrize(("event", "options", "last"), LAST_OF_EPOCH)
def test_a_signal_at_the_last_step_of_an_epoch_saves_each_step_once(
    event: str, options: dict[str, Any], last: int, tmp_path: Path
) -> None:
    options = {"eval_steps": 2, "logging_steps": 2, **options}
    whole = trainer_of(tmp_path / "whole", Evaluates(event, step=4), **options)
    whole.train()
    stopped = trainer_of(tmp_path / "run", Evaluates(event, "run", ("SIGTERM",), step=4), **options)
    saves: list[int] = []
    stopped.on("on_save_begin", lambda state: saves.append(state.global_step), id="saves")
    with pytest.raises(SystemExit):
        stopped.train()
    assert stopped.state.global_step == last
    assert len(set(saves)) == len(saves)
    assert saves[-1] == last
    resumed = trainer_of(tmp_path / "run", Evaluates(event, step=4), **options)
    resumed.train(resume_from_checkpoint=True)
    assert_same(resumed, whole)


def test_a_second_ctrl_c_interrupts_the_evaluation_of_a_handler(tmp_path: Path) -> None:
    evaluates = Evaluates("on_step_end", sends=("SIGINT", "SIGINT"))
    trainer = trainer_of(tmp_path, evaluates)
    with pytest.raises(KeyboardInterrupt) as ended:
        trainer.train()
    assert not isinstance(ended.value, SystemExit)
    assert (evaluates.batches, trainer.state.global_step) == (2, 3)


def test_the_metrics_of_finished_datasets_are_logged_once(tmp_path: Path) -> None:
    """The signal comes in the second of two datasets. The resumed run evaluates both again."""
    data = {"eval_dataset": {"a": net_samples(8, seed=1), "b": net_samples(8, seed=2)}}
    whole = trainer_of(tmp_path / "whole", data=data)
    whole.train()
    stopped = trainer_of(tmp_path / "run", data=data)
    calls: list[int] = []

    def send() -> None:
        calls.append(1)
        if len(calls) == 6:
            os.kill(os.getpid(), signal.SIGTERM)

    stopped.on("on_prediction_step", send)
    with pytest.raises(SystemExit):
        stopped.train()
    assert (len(calls), stopped.state.global_step) == (6, 5)
    resumed = trainer_of(tmp_path / "run", data=data)
    resumed.train(resume_from_checkpoint=True)
    assert_same(resumed, whole)


def test_a_run_continues_after_a_handler_ends_an_evaluation(tmp_path: Path) -> None:
    """The epoch ends once, and a resumed run does not repeat the evaluation."""

    def ends(run: Any) -> None:
        if run.state.global_step == 5:
            raise EvaluationStopped("enough")

    heard: list[tuple[str, int]] = []
    trainer = trainer_of(tmp_path, eval_steps=1, save_steps=7)
    trainer.on("on_prediction_step", ends)
    for event in ("on_epoch_begin", "on_epoch_end"):
        trainer.on(event, lambda state, event=event: heard.append((event, state.global_step)))
    trainer.train()
    assert heard == [
        (f"on_epoch_{side}", step + 2 * (side == "end")) for step in (0, 2, 4, 6) for side in ("begin", "end")
    ]
    assert [entry["step"] for entry in numbers(trainer) if "eval_loss" in entry] == [1, 2, 3, 4, 6, 7, 8]
    resumed = trainer_of(tmp_path, eval_steps=1, save_steps=7)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))
    assert_same(resumed, trainer)
