"""`fused_step` equals `optimizer.step()` in every bit, or it returns False and changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from support.data import points
from support.models import Regression
from support.outcomes import equal
from support.trainers import regression_trainer
from trainbus.engine import seams
from trainbus.engine.optim import fused_step as module
from trainbus.engine.optim.fused_step import fused_step

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def weights(dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[nn.Parameter]:
    """Return parameters of several shapes. Some fill no vector register, and one has no element."""
    shapes = [(33, 7), (65,), (), (0,), (4, 3, 5), (128,)]
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(device, dtype)) for shape in shapes]


def mixed(device: str = "cpu") -> list[nn.Parameter]:
    return [*weights(device=device), *weights(torch.float64, device), *weights(torch.bfloat16, device)]


def give_gradients(parameters: list[nn.Parameter], step: int, skip: int = -1) -> None:
    generator = torch.Generator().manual_seed(step)
    for index, parameter in enumerate(parameters):
        gradient = torch.randn(parameter.shape, generator=generator).to(parameter.device, parameter.dtype)
        parameter.grad = None if index == skip else gradient


def parameters_of(optimizer: Any) -> list[nn.Parameter]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def decayed(device: str) -> Any:
    first, second = weights(device=device), weights(device=device)
    groups = [{"params": first, "weight_decay": 0.1}, {"params": second, "lr": 1e-2}]
    return AdamW(groups, lr=1e-3, fused=True)


SUPPORTED: dict[str, Callable[[str], Any]] = {
    "AdamW": lambda device: AdamW(weights(device=device), lr=1e-2, fused=True),
    "Adam": lambda device: Adam(weights(device=device), lr=1e-2, weight_decay=0.1, fused=True),
    "Adam, decoupled": lambda device: Adam(
        weights(device=device), 1e-2, weight_decay=0.1, decoupled_weight_decay=True, fused=True
    ),
    "maximize": lambda device: AdamW(weights(device=device), lr=1e-2, maximize=True, fused=True),
    "options": lambda device: AdamW(
        weights(device=device), lr=3e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.0, fused=True
    ),
    "two groups": decayed,
    "an empty group": lambda device: AdamW(
        [{"params": weights(device=device)}, {"params": [], "weight_decay": 0.0}], lr=1e-2, fused=True
    ),
    "three dtypes": lambda device: AdamW(mixed(device), lr=1e-2, fused=True),
    "many": lambda device: AdamW([each for _ in range(60) for each in weights(device=device)], lr=1e-2, fused=True),
}


def pair(name: str, device: str) -> tuple[Any, Any]:
    """Return two equal optimizers that made one step, so that their states exist."""
    found = []
    for _ in range(2):
        optimizer = SUPPORTED[name](device)
        give_gradients(parameters_of(optimizer), 0)
        optimizer.step()
        found.append(optimizer)
    return found[0], found[1]


def same(one: Any, other: Any) -> bool:
    return equal(one.state_dict(), other.state_dict()) and all(
        mine.equal(theirs) and mine.dtype == theirs.dtype
        for mine, theirs in zip(parameters_of(one), parameters_of(other), strict=True)
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SUPPORTED)
def test_the_update_equals_that_of_the_optimizer(name: str, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    ours, theirs = pair(name, device)
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.7) for each in (ours, theirs)]
    for step in range(1, 6):
        for optimizer in (ours, theirs):
            give_gradients(parameters_of(optimizer), step, skip=step if step % 2 else -1)
        assert fused_step(ours)
        theirs.step()
        for schedule in schedules:
            schedule.step()  # warns, which is an error here, if the optimizer made no step
        assert same(ours, theirs)


def test_it_uses_a_state_that_was_loaded() -> None:
    ours, theirs = pair("AdamW", "cpu")
    for optimizer in (ours, theirs):
        saved = copy.deepcopy(optimizer.state_dict())
        give_gradients(parameters_of(optimizer), 1)
        optimizer.step()
        optimizer.load_state_dict(saved)
        give_gradients(parameters_of(optimizer), 2)
    assert fused_step(ours)
    theirs.step()
    assert same(ours, theirs)


def test_without_any_gradient_nothing_changes() -> None:
    ours, theirs = pair("AdamW", "cpu")
    ours.zero_grad()
    assert fused_step(ours)
    assert same(ours, theirs)


class Subclass(AdamW):
    """An AdamW of a library."""


class Marked(nn.Parameter):
    """A parameter of a subclass, such as the parameter of a sharded module."""


@contextmanager
def nothing(optimizer: Any) -> Iterator[None]:
    yield


@contextmanager
def profiled(optimizer: Any) -> Iterator[None]:
    with torch.autograd.profiler.profile():
        yield


@contextmanager
def hooked(optimizer: Any) -> Iterator[None]:
    hook = register_optimizer_step_pre_hook(lambda *given: None)
    yield
    hook.remove()


@contextmanager
def hooked_after(optimizer: Any) -> Iterator[None]:
    hook = register_optimizer_step_post_hook(lambda *given: None)
    yield
    hook.remove()


@contextmanager
def with_own_hook(optimizer: Any) -> Iterator[None]:
    optimizer.register_step_pre_hook(lambda *given: None)
    yield


@contextmanager
def with_own_post_hook(optimizer: Any) -> Iterator[None]:
    optimizer.register_step_post_hook(lambda *given: None)
    yield


@contextmanager
def replaced(optimizer: Any) -> Iterator[None]:
    step = optimizer.step
    optimizer.step = lambda: step()
    yield


@contextmanager
def replaced_by_an_object(optimizer: Any) -> Iterator[None]:
    class Counted:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None: ...

    optimizer.step = Counted()
    yield


@contextmanager
def compiled(optimizer: Any) -> Iterator[None]:
    optimizer.step = torch.compile(optimizer.step)
    yield


@contextmanager
def replaced_in_class(optimizer: Any) -> Iterator[None]:
    original = AdamW.step

    def step(self: Any, closure: Any = None) -> Any:
        return original(self, closure)

    AdamW.step = step  # type: ignore[method-assign]
    yield
    AdamW.step = original  # type: ignore[method-assign]


@contextmanager
def scaled(optimizer: Any) -> Iterator[None]:
    optimizer.grad_scale = torch.ones(())
    yield


@contextmanager
def infinite(optimizer: Any) -> Iterator[None]:
    optimizer.found_inf = torch.zeros(())
    yield


@contextmanager
def sparse(optimizer: Any) -> Iterator[None]:
    first = parameters_of(optimizer)[0]
    first.grad = first.grad.to_sparse()
    yield


@contextmanager
def without_state(optimizer: Any) -> Iterator[None]:
    optimizer.state.clear()
    yield


REFUSED: dict[str, tuple[Callable[[], Any], Any]] = {
    "SGD": (lambda: SGD(weights(), lr=0.1, momentum=0.9), nothing),
    "a subclass": (lambda: Subclass(weights(), lr=0.1, fused=True), nothing),
    "not fused": (lambda: AdamW(weights(), lr=0.1), nothing),
    "for each": (lambda: AdamW(weights(), lr=0.1, foreach=True), nothing),
    "amsgrad": (lambda: AdamW(weights(), lr=0.1, amsgrad=True, fused=True), nothing),
    "a rate in a tensor": (lambda: AdamW(weights(), lr=torch.tensor(0.1), fused=True), nothing),
    "a second group that is not fused": (
        lambda: AdamW([{"params": weights()}, {"params": weights(), "fused": False}], lr=0.1, fused=True),
        nothing,
    ),
    "a subclass of parameters": (lambda: AdamW([Marked(each.data) for each in weights()], lr=0.1, fused=True), nothing),
    "a profiler": (lambda: AdamW(weights(), lr=0.1, fused=True), profiled),
    "a global hook": (lambda: AdamW(weights(), lr=0.1, fused=True), hooked),
    "a global hook after": (lambda: AdamW(weights(), lr=0.1, fused=True), hooked_after),
    "a hook": (lambda: AdamW(weights(), lr=0.1, fused=True), with_own_hook),
    "a hook after": (lambda: AdamW(weights(), lr=0.1, fused=True), with_own_post_hook),
    "a replaced step": (lambda: AdamW(weights(), lr=0.1, fused=True), replaced),
    "an object as step": (lambda: AdamW(weights(), lr=0.1, fused=True), replaced_by_an_object),
    "a compiled step": (lambda: AdamW(weights(), lr=0.1, fused=True), compiled),
    "a step replaced in the class": (lambda: AdamW(weights(), lr=0.1, fused=True), replaced_in_class),
    "a GradScaler": (lambda: AdamW(weights(), lr=0.1, fused=True), scaled),
    "an overflow": (lambda: AdamW(weights(), lr=0.1, fused=True), infinite),
    "no state": (lambda: AdamW(weights(), lr=0.1, fused=True), without_state),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses_and_changes_nothing(name: str) -> None:
    make, change = REFUSED[name]
    optimizer = make()
    give_gradients(parameters_of(optimizer), 0)
    optimizer.step()
    give_gradients(parameters_of(optimizer), 1)
    with change(optimizer):
        before = copy.deepcopy((optimizer.state_dict(), [each.data for each in parameters_of(optimizer)]))
        assert not fused_step(optimizer)
        assert equal(before, (optimizer.state_dict(), [each.data for each in parameters_of(optimizer)]))


def test_it_refuses_a_sparse_gradient() -> None:
    optimizer, _ = pair("AdamW", "cpu")
    with sparse(optimizer):
        assert not fused_step(optimizer)


def test_a_state_that_a_later_group_lacks_leaves_the_first_group_unchanged() -> None:
    optimizer, other = pair("two groups", "cpu")
    del optimizer.state[optimizer.param_groups[1]["params"][0]]
    assert not fused_step(optimizer)
    for mine, theirs in zip(parameters_of(optimizer), parameters_of(other)):
        assert mine.equal(theirs)


def test_a_training_uses_it_after_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    monkeypatch.setattr(seams, "fused_step", lambda optimizer: found.append(fused_step(optimizer)) or found[-1])
    args = {"max_steps": 5, "save_strategy": "no", "logging_steps": 2}
    regression_trainer(tmp_path, Regression(), args=args, train_dataset=points(22)).train()
    assert found == [False, True, True, True, True]


def test_a_training_without_it_gives_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = {"max_steps": 12, "save_strategy": "no", "weight_decay": 0.1, "learning_rate": 0.02}
    ours = regression_trainer(tmp_path, Regression(), args=args, train_dataset=points(22))
    ours.train()
    monkeypatch.setattr(seams, "fused_step", lambda optimizer: False)
    theirs = regression_trainer(tmp_path, Regression(), args=args, train_dataset=points(22))
    theirs.train()
    assert equal(ours.optimizer.state_dict(), theirs.optimizer.state_dict())
    for mine, other in zip(ours.model.parameters(), theirs.model.parameters()):
        assert mine.equal(other)


@pytest.mark.parametrize("cls", [AdamW, SGD, torch.optim.Adagrad, torch.optim.RMSprop])
def test_the_functions_of_torch_are_recognised(cls: Any) -> None:
    optimizer = cls(weights(), lr=0.1)
    assert not module.has_own_step(optimizer)
    torch.optim.lr_scheduler.ConstantLR(optimizer)  # replaces `step` by a wrapper of torch
    assert "step" in vars(optimizer)
    assert not module.has_own_step(optimizer)


@pytest.mark.parametrize(
    ("package", "own"), [("torch/optim", False), ("torch/_dynamo", True), ("torch/optimistic", True), ("torchao", True)]
)
def test_only_the_folder_of_the_optimizers_of_torch_is_their_code(package: str, own: bool) -> None:
    optimizer, _ = pair("AdamW", "cpu")
    file = Path(torch.__file__).parents[1] / package / "optimizer.py"
    names: dict[str, Any] = {}
    exec(compile("def step(closure=None): ...", str(file), "exec"), names)
    optimizer.step = names["step"]
    assert module.has_own_step(optimizer) is own
