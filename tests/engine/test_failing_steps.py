"""A step that fails half-way, for want of memory for instance: nothing half updated is ever saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support.checkpoints import names_in
from support.data import points
from support.models import Regression
from support.outcomes import same_weights, weights
from support.trainers import regression_trainer
from trainbus.engine.checkpoint.read.listing import survey
from trainbus.engine.checkpoint.read.verify import problems

STEP = 4
"""The step that fails, in its second batch."""

ERRORS: dict[str, Callable[[], BaseException]] = {
    "RuntimeError": lambda: RuntimeError("CUDA error: an illegal memory access was encountered"),
    "out of memory": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "MemoryError": lambda: MemoryError("no memory"),
}


class Fault:
    """Raises once, at its n-th call."""

    def __init__(self, error: BaseException, nth: int) -> None:
        self.error, self.left = error, nth

    def __call__(self, *ignored: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


def fail_in(place: str, run: Any, error: BaseException) -> None:
    """Have a run fail in one place of step 4."""
    second = 2 * STEP
    if place == "forward":
        run.model.register_forward_pre_hook(Fault(error, second))
    elif place == "backward":
        run.model.linear.bias.register_hook(Fault(error, second))
    elif place == "the optimizer, before it":
        run.on("on_pre_optimizer_step", Fault(error, STEP), id="fault")
    else:

        def break_half_way() -> None:
            """The first parameter is updated, and the second one is not."""
            group, done = run.run.optimizer.param_groups[0], [*run.run.optimizer.param_groups[0]["params"]]
            fault, steps = Fault(error, STEP), iter(range(1, 100))

            def before(*ignored: Any) -> None:
                group["params"] = done[:1] if next(steps) == STEP else done

            run.run.optimizer.register_step_pre_hook(before)
            run.run.optimizer.register_step_post_hook(fault)

        run.on("on_train_begin", break_half_way, id="fault")


PLACES = ["forward", "backward", "the optimizer, before it", "the optimizer, half-way"]


def run_of(folder: Path, seed: int = 0, **args: Any) -> Any:
    every = {"max_steps": 6, "gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 1}
    args = {"logging_strategy": "steps", "logging_steps": 1, "lr_scheduler_type": "constant", **every, **args}
    return regression_trainer(folder, Regression(dropout=0.3, seed=seed), args=args, train_dataset=points(60))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = run_of(tmp_path_factory.mktemp("unbroken"))
    run.train()
    return run


@pytest.mark.parametrize("later", [True, False], ids=["on a thread", "in step"])
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("place", PLACES)
def test_a_failed_step_is_not_saved_and_the_run_resumes_from_the_previous_step(
    place: str, kind: str, later: bool, tmp_path: Path, unbroken: Any
):
    run = run_of(tmp_path, async_save=later)
    heard: list[BaseException] = []
    at_end: dict[int, Any] = {}
    run.on("on_step_end", lambda model, state: at_end.update({state.global_step: weights(model)}), id="looks")
    run.on("on_exception", lambda exception: heard.append(exception), id="hears")
    error = ERRORS[kind]()
    fail_in(place, run, error)
    with pytest.raises(type(error)) as caught:
        run.train()
    assert heard == [caught.value]
    assert caught.value is error
    assert run.state.global_step == STEP - 1
    captured = ["capsules"] if place in ("forward", "backward") else []
    assert names_in(tmp_path) == [*captured, *(f"checkpoint-{step}" for step in range(1, STEP))]
    for found in survey(tmp_path):
        assert problems(found.path, full=True) == []
        assert same_weights(load_file(found.path / "model.safetensors"), at_end[found.step])
    again = run_of(tmp_path, seed=1)
    again.train(resume_from_checkpoint=True)
    assert same_weights(weights(again.model), weights(unbroken.model))
