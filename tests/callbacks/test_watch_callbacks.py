"""A watched run names the handler that does what it must not do, and accuses no other one."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch

from support.trainers import net_trainer
from trainbus import Callback, Stage, WatchCallbacks
from trainbus.events import ArgumentError
from trainbus.events.errors import HandlerError


def callback(event: str, does: Any, stage: Stage, name: str = "Faulty") -> Callback:
    """A callback with one handler, which receives the run."""

    def handler(self: Any, run: Any) -> None:
        does(run)

    return type(name, (Callback,), {event: handler, "stage": stage})()


def weight(run: Any) -> torch.Tensor:
    return next(run.model.parameters())


def scale(run: Any) -> None:
    weight(run).data.mul_(2)


def replace_model(run: Any) -> None:
    run.replace_model(type(run.model)())


def draw_own(run: Any) -> None:
    torch.randn(2, generator=torch.Generator().manual_seed(0))
    random.Random(0).random()


def to_eval_and_back(run: Any) -> None:
    mode = run.model.training
    run.model.eval()
    with torch.no_grad():
        weight(run).sum()
    run.model.train(mode)


def log_again(run: Any) -> None:
    run.log({"again": 1})


def log_once(run: Any) -> None:
    if "again" not in run.logs:
        run.log({"again": 1})


FAULTS = {
    "changes a weight": ("on_evaluate", scale, Stage.REPORT, "changed the weight 'blocks.0.linear.weight'"),
    "changes a weight after a batch": ("on_prediction_step", scale, Stage.DECIDE, "changed the weight"),
    "replaces the model": ("on_evaluate", replace_model, Stage.MEASURE, "replaced the model during an evaluation"),
    "draws from torch": ("on_step_end", lambda run: torch.randn(1), Stage.REPORT, "generator of torch"),
    "draws from Python": ("on_log", lambda run: random.random(), Stage.MEASURE, "generator of Python"),
    "turns gradients off": ("on_step_end", lambda run: torch.set_grad_enabled(False), Stage.DECIDE, "gradients off"),
    "sets eval mode": ("on_step_end", lambda run: run.model.eval(), Stage.REPORT, "the train or eval mode of"),
    "recursion": ("on_log", log_again, Stage.REPORT, "Faulty.on_log -> Faulty.on_log. Announce another event"),
}
NEIGHBOURS = {
    "changes a weight in the stage ACT": ("on_evaluate", scale, Stage.ACT),
    "changes a weight outside of evaluations": ("on_step_end", scale, Stage.DECIDE),
    "draws from its own generator": ("on_step_end", draw_own, Stage.REPORT),
    "draws as a decider": ("on_step_end", lambda run: torch.randn(1), Stage.DECIDE),
    "restores the mode": ("on_step_end", to_eval_and_back, Stage.REPORT),
    "logs once from a log": ("on_log", log_once, Stage.REPORT),
}
OPTIONS = {"debug": "callbacks", "eval_strategy": "steps", "eval_steps": 2, "logging_steps": 2}


@pytest.fixture(autouse=True)
def _gradients():
    yield
    torch.set_grad_enabled(True)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_handler(tmp_path, name):
    event, does, stage, said = FAULTS[name]
    good = callback(event, lambda run: None, stage, "Good")
    with pytest.raises(HandlerError, match=rf"^Faulty\.{event}") as caught:
        net_trainer(tmp_path, good, callback(event, does, stage), **OPTIONS).train()
    assert said in str(caught.value)
    assert "Good" not in str(caught.value)


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_good_neighbour_is_not_accused(tmp_path, name):
    trainer = net_trainer(tmp_path, callback(*NEIGHBOURS[name]), **OPTIONS)
    trainer.train()
    assert trainer.state.global_step == 6


def test_events_that_announce_each_other_are_named_as_a_chain(tmp_path):
    def evaluate(run: Any) -> None:
        run.announce("on_substep_end")

    def back(run: Any) -> None:
        run.announce("on_step_end")

    there = callback("on_step_end", evaluate, Stage.DECIDE, "There")
    with pytest.raises(HandlerError) as caught:
        net_trainer(tmp_path, there, callback("on_substep_end", back, Stage.DECIDE, "Back"), **OPTIONS).train()
    assert "There.on_step_end -> Back.on_substep_end -> There.on_step_end" in str(caught.value)


def test_a_slow_handler_is_shown_with_its_stack_and_a_quick_one_is_not(tmp_path, caplog):
    def linger(run: Any) -> None:
        if run.state.global_step == 2:
            time.sleep(0.5)

    slow = callback("on_step_end", linger, Stage.REPORT)
    quick = callback("on_step_end", lambda run: None, Stage.REPORT, "Quick")
    net_trainer(tmp_path, WatchCallbacks(slow_after=0.1), slow, quick).train()
    [record] = [each for each in caplog.records if "has been running" in each.getMessage()]
    assert record.getMessage().startswith("Faulty.on_step_end has been running for more than 0.1 s")
    assert "time.sleep(0.5)" in record.getMessage()


READS = {
    "item": lambda run: run.loss.item(),
    "float": lambda run: float(run.loss.detach()),
    "a condition": lambda run: run.loss > 3 and None,
    "a text": lambda run: f"{run.loss:.3f}",
    "a list": lambda run: weight(run).tolist(),
    "numpy": lambda run: weight(run).detach().numpy(),
    "a copy to the host": lambda run: weight(run).detach().to("cpu"),
    "a boolean mask": lambda run: weight(run)[weight(run) > 0],
    "counts": lambda run: torch.bincount(weight(run).detach().flatten().long().abs()),
    "a place": lambda run: torch.argwhere(weight(run) > 0),
    "a repetition": lambda run: weight(run).repeat_interleave(torch.ones(weight(run).shape[0]).long(), 0),
    "a comparison of tensors": lambda run: torch.equal(run.loss, run.loss),
}
NO_READS = {
    "a tensor that is kept": lambda run: [run.loss.detach().clone()],
    "a shape": lambda run: (run.loss.shape, run.loss.dtype, run.loss.device, len(weight(run))),
    "a copy in the background": lambda run: run.loss.detach().to("cpu", non_blocking=True),
    "a sum on the device": lambda run: torch.where(weight(run) > 0, 1.0, 0.0).sum() + run.loss.detach(),
    "a known repetition": lambda run: torch.ones(2).repeat_interleave(torch.tensor([1, 2]), output_size=3),
    "an own number": lambda run: float(run.state.epoch),
}


@pytest.mark.parametrize("name", READS)
def test_a_handler_that_reads_a_value_in_each_step_is_named_with_its_line(tmp_path, caplog, name):
    trainer = net_trainer(tmp_path, callback("on_loss", READS[name], Stage.REPORT), **OPTIONS)
    trainer.train()
    first, total = [each.getMessage() for each in caplog.records if "Faulty" in each.getMessage()]
    assert first.startswith("Faulty.on_loss reads a value of a tensor in a step: ")
    assert f"{__file__}:{READS[name].__code__.co_firstlineno}" in first
    assert total == "Faulty.on_loss read values of tensors 6 times in 6 steps."


@pytest.mark.parametrize("name", NO_READS)
def test_a_handler_that_reads_no_value_is_not_named(tmp_path, caplog, name):
    net_trainer(tmp_path, callback("on_loss", NO_READS[name], Stage.REPORT), **OPTIONS).train()
    assert "Faulty" not in caplog.text


@pytest.mark.parametrize("event", ["on_log", "on_evaluate", "on_train_end"])
def test_a_handler_may_read_values_outside_of_steps(tmp_path, caplog, event):
    net_trainer(tmp_path, callback(event, lambda run: weight(run).sum().item(), Stage.REPORT), **OPTIONS).train()
    assert "Faulty" not in caplog.text


def test_own_callbacks_are_not_accused(tmp_path, caplog):
    options = {**OPTIONS, "neftune_noise_alpha": None, "save_strategy": "steps", "save_steps": 2}
    net_trainer(tmp_path, load_best_model_at_end=True, **options).train()
    assert "reads a value" not in caplog.text


def test_an_unwatched_run_calls_the_handlers_themselves(tmp_path):
    trainer = net_trainer(tmp_path, callback("on_step_end", draw_own, Stage.REPORT))
    [found] = [each for each in trainer.bus.order_of("on_step_end") if each.owner_id == "Faulty"]
    assert "_watched" not in found.call.__qualname__
    watched = net_trainer(tmp_path, callback("on_step_end", draw_own, Stage.REPORT), debug="callbacks")
    [found] = [each for each in watched.bus.order_of("on_step_end") if each.owner_id == "Faulty"]
    assert "_watched" in found.call.__qualname__


@pytest.mark.parametrize("options", [{"slow_after": 0.0}, {"depth": 0}])
def test_impossible_limits_are_refused(options):
    with pytest.raises(ArgumentError, match="WatchCallbacks"):
        WatchCallbacks(**options)
