"""WatchModules logs what a raw loop with hooks measures, and leaves no hook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.models import Net
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import WatchModules, every


def logged(trainer: Any) -> dict[int, dict[str, float]]:
    """Return the values of each step, without those of the summary."""
    return {
        entry["step"]: {name: value for name, value in entry.items() if "/" in name}
        for entry in trainer.state.log_history
        if any("/" in name for name in entry)
    }


def test_it_logs_what_hooks_measure(tmp_path: Path) -> None:
    trainer = net_trainer(tmp_path, WatchModules(every(2)), max_steps=4)
    expected: dict[int, dict[str, float]] = {}
    outputs: dict[str, torch.Tensor] = {}
    trainer.model.head.register_forward_hook(lambda module, inputs, output: outputs.update(head=output.detach()))

    def measure(state: Any, model: Any) -> None:
        values, head = {}, outputs["head"]
        for name in ("blocks.0.linear", "blocks.1.linear", "head"):
            parts = [*model.get_submodule(name).parameters()]
            values[f"gradients/{name}"] = torch.cat([part.grad.flatten() for part in parts]).norm().item()
            values[f"weights/{name}"] = torch.cat([part.detach().flatten() for part in parts]).norm().item()
        values["activations/head/mean"] = head.mean().item()
        values["activations/head/std"] = head.std(correction=0).item()
        values["activations/head/max"] = head.abs().max().item()
        expected[state.global_step + 1] = values

    trainer.on("on_gradients", measure)
    trainer.train()
    found = logged(trainer)
    assert found.keys() == {2, 4}
    for step, values in found.items():
        assert {name: values[name] for name in expected[step]} == pytest.approx(expected[step], rel=1e-5)
    assert "activations/blocks.0.linear/mean" in found[2]


def test_only_the_chosen_modules_and_values_are_logged(tmp_path: Path) -> None:
    trainer = net_trainer(tmp_path, WatchModules(every(1), modules="head", activations=False), max_steps=1)
    trainer.train()
    assert logged(trainer)[1].keys() == {"gradients/head", "weights/head"}


def test_it_changes_nothing_and_leaves_no_hook(tmp_path: Path) -> None:
    plain = net_trainer(tmp_path, max_steps=3)
    plain.train()
    watched = net_trainer(tmp_path, WatchModules(every(1)), model=Net(), max_steps=3)
    watched.train()
    assert same_weights(weights(plain.model), weights(watched.model))
    assert not any(module._forward_hooks for module in watched.model.modules())
