"""Options of DDP: arguments, and refusals before the model is built."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from trainbus import DDP, GradientCheckpointing, TrainingArguments
from trainbus.callbacks.parallel.ddp import recomputes_activations
from trainbus.events.errors import ArgumentError


@pytest.fixture
def one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("one_of_two")
def test_every_argument_is_passed_on(tmp_path: Path):
    spelt = {"find_unused_parameters": False, "bucket_cap_mb": 5, "broadcast_buffers": False, "static_graph": True}
    args = TrainingArguments(str(tmp_path), use_cpu=True, **{f"ddp_{name}": value for name, value in spelt.items()})
    assert DDP.from_arguments(args) == DDP(**spelt)


@pytest.mark.parametrize(("spelt", "name"), [("FP16", "fp16"), ("power_sgd", "powersgd"), ("powersgd", "powersgd")])
def test_hooks_have_the_names_of_accelerate(spelt: str, name: str):
    assert DDP(comm_hook=spelt).comm_hook == name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"comm_hook": "fp61"}, "did you mean 'fp16'"),
        ({"comm_hook": "fp16", "comm_options": {"a": 1}}, "applies to powersgd only"),
        ({"comm_hook": "powersgd", "find_unused_parameters": True}, "is not supported: the messages of the search"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], said: str):
    with pytest.raises(ArgumentError, match=said):
        DDP(**options)


@pytest.mark.usefixtures("one_of_two")
def test_a_static_graph_works_only_without_accumulation(tmp_path: Path):
    with pytest.raises(ArgumentError, match="`ddp_static_graph=True` needs one batch per step"):
        TrainingArguments(str(tmp_path), use_cpu=True, ddp_static_graph=True, gradient_accumulation_steps=2)


def test_recomputation_is_detected_for_every_way_to_enable_it():
    def run(*callbacks: Any, model: nn.Module | None = None) -> Any:
        bus = SimpleNamespace(subscribers=dict(enumerate(callbacks)))
        return SimpleNamespace(bus=bus, model=model or nn.Linear(1, 1))

    switched = nn.Linear(1, 1)
    switched.gradient_checkpointing = True  # type: ignore[assignment]
    assert not recomputes_activations(run())
    assert recomputes_activations(run(GradientCheckpointing()))
    assert recomputes_activations(run(model=nn.Sequential(switched)))
