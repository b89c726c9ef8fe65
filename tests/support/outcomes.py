"""Results of runs, to compare: weights, logs and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainbus.events import record

SPEED = ("_runtime", "_per_second", "_preparation_time")
"""Suffixes of logged values that differ from one run to the next, in both libraries."""


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of the weights of a model."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def same_weights(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Return whether weights are equal in every bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    """Return logged values without speeds and durations."""
    return {name: value for name, value in values.items() if not name.endswith(SPEED)}


def history(run: Any) -> list[dict[str, Any]]:
    """Return the log history of a trainer without speeds and durations."""
    return [timeless(entry) for entry in run.state.log_history]


def last_window(run: Any) -> dict[str, Any] | None:
    """Return the log entry with the training loss of the last step, or None if there is none."""
    logged = [entry for entry in run.state.log_history if "loss" in entry]
    return timeless(logged[-1]) if logged and logged[-1]["step"] == run.state.max_steps else None


def equal(left: Any, right: Any) -> bool:
    """Return whether nested values are equal, tensors in every bit."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


def steps_of(trained: Any, event: str) -> list[int]:
    """Train and return the steps at which an event was announced."""
    with record(trained.bus) as trace:
        trained.train()
    return [step for step, announced in trace.entries if announced == event]


def logged(trained: Any, key: str) -> dict[int, Any]:
    """Return the logged values of a key by step. Fail if one step has two."""
    entries = [entry for entry in trained.state.log_history if key in entry]
    values = {entry["step"]: entry[key] for entry in entries}
    assert len(values) == len(entries), f"{key} was logged twice at one step: {entries}"
    return values


def saved_steps(folder: Path | str) -> list[int]:
    """Return the steps of the checkpoints in a folder."""
    return sorted(int(path.name.removeprefix("checkpoint-")) for path in Path(folder).glob("checkpoint-*"))
