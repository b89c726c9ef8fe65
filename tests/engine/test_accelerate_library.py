"""The state of accelerate that a trainer initialises, on a GPU and on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import accelerate.state
import pytest
import torch

from support.models import Net
from trainbus import Trainer, TrainingArguments
from trainbus.engine.api.accelerate_library import initialize_accelerate


@pytest.fixture(autouse=True)
def new_state() -> Iterator[None]:
    """Let each test begin and end without a state of accelerate."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("local_rank", [None, "0"])
def test_on_a_gpu_the_state_names_the_gpu(
    local_rank: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accelerate gets other launcher variables than the run, and the device of the run stays the same."""
    built = Trainer(Net(), TrainingArguments(str(tmp_path), use_cpu=True))
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    if local_rank:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    built.args.use_cpu = False
    assert built.args.device == torch.device("cuda", 0)
    initialize_accelerate(built.run)
    assert accelerate.state.PartialState._shared_state["device"].type == "cuda"


def test_on_a_cpu_the_state_names_the_cpu(tmp_path: Path) -> None:
    Trainer(Net(), TrainingArguments(str(tmp_path), use_cpu=True))
    assert accelerate.state.PartialState._shared_state["device"].type == "cpu"
