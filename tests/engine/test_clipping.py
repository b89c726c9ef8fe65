"""`clip_gradients` equals torch's `clip_grad_norm_` in every bit, whichever way it computes the norm."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainbus.engine import seams

Gradients = Callable[[], list[torch.Tensor | None]]


def normal(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape) * scale).to(dtype)


ONE_GROUP: dict[str, Gradients] = {
    "float32": lambda: [normal(8, 4), normal(8), normal(2, 8)],
    "one": lambda: [normal(3)],
    "scalar": lambda: [torch.tensor(2.5)],
    "empty": lambda: [normal(0), normal(4)],
    "bfloat16": lambda: [normal(8, 4, dtype=torch.bfloat16), normal(8, dtype=torch.bfloat16)],
    "float16": lambda: [normal(8, 4, dtype=torch.float16), normal(8, dtype=torch.float16)],
    "float16 with an infinite norm": lambda: [normal(900, dtype=torch.float16, scale=9e3)],
    "complex": lambda: [normal(8, 4, dtype=torch.complex64), normal(8, dtype=torch.complex64)],
    "float64": lambda: [normal(8, 4, dtype=torch.float64), normal(8, dtype=torch.float64)],
    "transposed": lambda: [normal(4, 8).t(), normal(8)],
    "without some": lambda: [normal(8, 4), None, normal(2, 8)],
    "tiny": lambda: [normal(8, 4, scale=1e-30), normal(8, scale=1e-30)],
    "infinite": lambda: [torch.tensor([1.0, float("inf")]), normal(8)],
    "NaN": lambda: [torch.tensor([1.0, float("nan")]), normal(8)],
    "many": lambda: [normal(3, 3) for _ in range(300)],
}
SEVERAL_GROUPS: dict[str, Gradients] = {
    "two dtypes": lambda: [normal(8, 4), normal(8, dtype=torch.float64)],
    "none": lambda: [None, None],
    "no parameters": lambda: [],
}


def parameters_with(gradients: list[torch.Tensor | None]) -> list[nn.Parameter]:
    found = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros(1) if gradient is None else torch.zeros_like(gradient))
        parameter.grad = None if gradient is None else gradient.clone()
        found.append(parameter)
    return found


@pytest.mark.parametrize("limit", [0.0, 1e-3, 1.0, 1e9])
@pytest.mark.parametrize("name", [*ONE_GROUP, *SEVERAL_GROUPS])
def test_norm_and_gradients_equal_those_of_torch(name: str, limit: float, monkeypatch: pytest.MonkeyPatch):
    searches, original = [], seams._clip_groups
    monkeypatch.setattr(seams, "_clip_groups", lambda *given: searches.append(1) or original(*given))
    torch.manual_seed(0)
    gradients = {**ONE_GROUP, **SEVERAL_GROUPS}[name]()
    ours, theirs = parameters_with(gradients), parameters_with(gradients)

    norm = seams.clip_gradients(torch.optim.SGD([nn.Parameter(torch.zeros(1))]), ours, limit)
    expected = torch.nn.utils.clip_grad_norm_(theirs, limit if limit else float("inf"))

    assert bool(searches) == (name in SEVERAL_GROUPS)
    assert norm.dtype == expected.dtype
    assert torch.equal(norm, expected) or (norm.isnan() and expected.isnan())
    if limit == 0:  # the gradients are only measured
        theirs = parameters_with(gradients)
    for mine, other in zip(ours, theirs):
        assert (mine.grad is None) == (other.grad is None)
        if mine.grad is not None:
            assert torch.equal(mine.grad.nan_to_num(7.0), other.grad.nan_to_num(7.0))


def test_gradients_with_a_graph_are_clipped_without_a_record_of_the_clipping():
    weight = nn.Parameter(torch.ones(3))
    (gradient,) = torch.autograd.grad(weight.pow(3).sum(), [weight], create_graph=True)
    weight.grad = gradient
    version = gradient._version
    norm = seams.clip_gradients(torch.optim.SGD([weight]), [weight], 1.0)
    assert not norm.requires_grad
    assert gradient._version == version + 1
    assert weight.grad.norm().item() == pytest.approx(1.0)
