"""Predictions keep the structure of the model's outputs: nested tuples, lists, dicts and named tuples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from support.data import points
from support.trainers import regression_trainer

ROWS = 11


class Pair(NamedTuple):
    first: Any
    second: Any


class Fixed(Mapping[str, Any]):
    """A mapping that accepts no dict."""

    def __init__(self, *, first: Any, second: Any) -> None:
        self.values_by_name = {"first": first, "second": second}

    def __getitem__(self, name: str) -> Any:
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return 2


STRUCTURES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], tuple[Any, Any]], type]] = {
    "tuple": (lambda one, two: (one, two), tuple, tuple),
    "list": (lambda one, two: [one, two], tuple, list),
    "dict": (lambda one, two: {"first": one, "second": two}, lambda found: (found["first"], found["second"]), dict),
    "named tuple": (Pair, tuple, Pair),
    "nested": (
        lambda one, two: [Pair(one, {"b": (two,)})],
        lambda found: (found[0].first, found[0].second["b"][0]),
        list,
    ),
    "mapping": (lambda one, two: Fixed(first=one, second=two), lambda found: (found["first"], found["second"]), dict),
}
"""Name -> how the model builds the structure of two tensors, how to take them out, and the class of the result."""


class Structured(nn.Module):
    """Returns its two outputs in a structure."""

    def __init__(self, build: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.build = build

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        value = x.reshape(len(x), -1) * self.weight
        return {"loss": (value.mean() - labels.mean()) ** 2, "outputs": self.build(value, 2 * value)}


@pytest.mark.parametrize("options", [{}, {"eval_accumulation_steps": 1}, {"eval_do_concat_batches": False}], ids=str)
@pytest.mark.parametrize("name", STRUCTURES)
def test_predictions_keep_the_structure_of_the_outputs(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    build, take, kind = STRUCTURES[name]
    rows = points(ROWS)
    args = {"per_device_eval_batch_size": 4, **options}
    found = regression_trainer(tmp_path, Structured(build), args=args, train_dataset=rows).predict(rows).predictions
    batches = found if options.get("eval_do_concat_batches") is False else [found]
    assert {type(batch) for batch in batches} == {kind}
    one, two = (np.concatenate(parts) for parts in zip(*map(take, batches)))
    expected = np.stack([row["x"].reshape(-1).numpy() for row in rows])
    np.testing.assert_array_equal(one, expected)
    np.testing.assert_array_equal(two, 2 * expected)
