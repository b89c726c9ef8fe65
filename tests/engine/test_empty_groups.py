"""A step leaves out parameter groups without parameters, and nothing else can see this."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainbus.engine.seams import Seams


def optimizer_of(kind: type[torch.optim.Optimizer], weights: list[nn.Parameter], **options: Any) -> Any:
    return kind([{"params": weights}, {"params": []}], lr=0.1, **options)  # type: ignore[call-arg]


def weight_with_gradient() -> nn.Parameter:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.tensor([1.0, 2.0, 3.0])
    return weight


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop])
def test_step_with_an_empty_group_equals_the_step_of_torch(kind: type[torch.optim.Optimizer]):
    ours, theirs = weight_with_gradient(), weight_with_gradient()
    mine, other = optimizer_of(kind, [ours]), optimizer_of(kind, [theirs])
    groups = mine.param_groups
    for _ in range(3):
        assert Seams().step(mine)
        other.step()
    assert torch.equal(ours, theirs)
    assert mine.param_groups is groups
    assert repr(mine.state_dict()) == repr(other.state_dict())


def test_groups_are_complete_after_an_error(monkeypatch: pytest.MonkeyPatch):
    optimizer = optimizer_of(torch.optim.SGD, [weight_with_gradient()])
    monkeypatch.setattr(optimizer, "step", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Seams().step(optimizer)
    assert len(optimizer.param_groups) == 2


@pytest.fixture(params=["pre-hook", "post-hook", "global hook", "own class"])
def reading(request: pytest.FixtureRequest) -> Iterator[tuple[Any, list[int]]]:
    """An optimizer whose step runs code that is not of torch, and the numbers of groups that this code sees."""
    seen: list[int] = []

    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            seen.append(len(self.param_groups))

    optimizer = optimizer_of(Own if request.param == "own class" else torch.optim.SGD, [weight_with_gradient()])
    hook = lambda optimizer, *_: seen.append(len(optimizer.param_groups))  # noqa: E731
    handle = None
    if request.param == "pre-hook":
        optimizer.register_step_pre_hook(hook)
    elif request.param == "post-hook":
        optimizer.register_step_post_hook(hook)
    elif request.param == "global hook":
        handle = register_optimizer_step_pre_hook(hook)
    yield optimizer, seen
    if handle is not None:
        handle.remove()


def test_other_code_in_a_step_sees_all_groups(reading: tuple[Any, list[int]]):
    optimizer, seen = reading
    Seams().step(optimizer)
    assert seen == [2]
