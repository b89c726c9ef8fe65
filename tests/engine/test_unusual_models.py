"""Models whose state is more than plain tensors: they are saved, and a run resumes with them."""

from __future__ import annotations

import copy
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from support.models import Regression
from support.outcomes import same_weights, weights
from support.trainers import regression_trainer
from trainbus import EMA, Trainer, TrainingArguments
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.engine.checkpoint.write.background_writer import BackgroundWriter
from trainbus.events.errors import CheckpointError


class WithExtraState(Regression):
    """A model with a state that is not a tensor: it counts its calls, and the count changes its output."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.calls: dict[Any, Any] = {"number": 0, "last": (1, "text", torch.zeros(2))}

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.calls = {"number": self.calls["number"] + 1, "last": (1, "text", x.detach().mean(0)[:2].clone())}
        return super().forward(x * (1 + 0.1 * self.calls["number"]), labels)

    def get_extra_state(self) -> Any:
        return self.calls

    def set_extra_state(self, state: Any) -> None:
        self.calls = state


class Lazy(nn.Module):
    """A model whose weights have no shape before its first batch."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(1))
        self.seed: int | None = seed

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.seed is not None:
            torch.manual_seed(self.seed)
            self.seed = None
        return {"loss": nn.functional.mse_loss(self.body(x).squeeze(-1), labels)}


class Expanded(Regression):
    """A model with buffers that repeat one place in memory."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.register_buffer("scale", torch.full((1,), 2.0 + seed).expand(3))
        self.register_buffer("table", torch.arange(3.0).expand(4, 3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return super().forward(x * self.scale + self.table[0], labels)


def run_of(folder: Path, model: nn.Module, **args: Any) -> Any:
    return regression_trainer(folder, model, args={"max_steps": 6, "save_strategy": "steps", "save_steps": 3, **args})


@pytest.mark.parametrize("async_save", [True, False])
@pytest.mark.parametrize("kind", [WithExtraState, Lazy, Expanded])
def test_a_run_resumes_to_the_same_bits(kind: Any, async_save: bool, tmp_path: Path) -> None:
    whole = run_of(tmp_path, kind(), async_save=async_save)
    whole.train()
    again = run_of(tmp_path / "again", kind(5), async_save=async_save)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    states = [run.model.state_dict() for run in (again, whole)]
    extra = [state.pop("_extra_state", {}) for state in states]
    assert same_weights(*states)
    assert repr(extra[0]) == repr(extra[1])


def test_the_weights_of_a_checkpoint_include_extra_state(tmp_path: Path) -> None:
    run = run_of(tmp_path, WithExtraState())
    run.train()
    found = SavedCheckpoint.open(tmp_path / "checkpoint-6").weights()
    assert found["_extra_state"]["number"] == 6
    fresh = WithExtraState(3)
    fresh.load_state_dict(found)
    assert same_weights({"weight": fresh.linear.weight}, {"weight": run.model.linear.weight})
    run.save_model(str(tmp_path / "out"))
    assert (tmp_path / "out" / "extra_state.safetensors").is_file()


def test_extra_state_that_no_checkpoint_can_hold_is_named(tmp_path: Path) -> None:
    class Odd(WithExtraState):
        def get_extra_state(self) -> Any:
            return {"calls": object()}

    with pytest.raises(CheckpointError, match=r"_extra_state.calls is a object, which a checkpoint cannot hold"):
        run_of(tmp_path, Odd()).train()


def test_a_forked_process_does_not_wait_for_the_writer_of_its_parent() -> None:
    writer, done = BackgroundWriter(), []
    writer.submit(lambda: time.sleep(1))
    child = os.fork()
    if not child:
        try:
            assert not writer.done
            writer.wait()
            writer.submit(lambda: done.append(True))
            writer.close()
            os._exit(0 if done else 3)
        finally:
            os._exit(4)
    deadline = time.monotonic() + 120
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.05)
    if not ended[0]:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert ended[0], "the forked process hangs"
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    writer.close()


def test_a_handler_may_fork_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    from trainbus.engine.checkpoint import storage

    write = storage.write_checkpoint

    def slowly(*arguments: Any) -> None:
        time.sleep(1)
        write(*arguments)

    monkeypatch.setattr(storage, "write_checkpoint", slowly)
    run = run_of(tmp_path, Regression())
    children = []

    def fork(state: Any) -> None:
        child = os.fork()
        if not child:
            raise SystemExit(7)
        children.append(child)

    run.on("on_step_end", fork, once=4)
    parent = os.getpid()
    try:
        run.train()
    finally:
        if os.getpid() != parent:
            os._exit(7)
    deadline = time.monotonic() + 120
    while not (ended := os.waitpid(children[0], os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.05)
    if not ended[0]:
        os.kill(children[0], 9)
        os.waitpid(children[0], 0)
    assert ended[0], "the forked process hangs"
    assert os.waitstatus_to_exitcode(ended[1]) == 7
    assert SavedCheckpoint.open(tmp_path / "checkpoint-3").problems() == []
    again = run_of(tmp_path, Regression(seed=3))
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert same_weights(weights(again.model), weights(run.model))


def lazy_layers(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(3))


@pytest.mark.parametrize("extra", [(), (EMA(0.9),)], ids=["plain", "EMA"])
def test_layers_without_shapes_are_counted_trained_and_resumed(extra: Any, tmp_path: Path, caplog: Any) -> None:
    rows = TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,)))

    def run_in(folder: Path, seed: int) -> Any:
        model = lazy_layers(seed)
        args = TrainingArguments(str(folder), use_cpu=True, max_steps=6, save_steps=3, report_to="none")
        return Trainer(
            model, args, train_dataset=rows, criterion=nn.functional.cross_entropy, callbacks=copy.deepcopy([*extra])
        )

    whole = run_in(tmp_path, 0)
    assert whole.get_num_trainable_parameters() == 0
    with caplog.at_level(logging.INFO, logger="trainbus"):
        whole.train()
    assert "Number of trainable parameters = 0" in caplog.text
    assert "4 parameters have no shape before the first batch" in caplog.text
    assert whole.get_num_trainable_parameters() == 6 * 4 + 4 + 4 * 3 + 3
    again = run_in(tmp_path / "again", 1)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert same_weights(weights(again.model), weights(whole.model))


class NotSavable(Regression):
    """A model whose library does not implement saving, such as peft's PeftMixedModel."""

    def save_pretrained(self, folder: str, **options: Any) -> None:
        raise NotImplementedError("Saving is not supported (yet).")


def test_a_model_whose_library_cannot_save_it_gets_a_plain_weight_file(tmp_path: Path) -> None:
    whole = run_of(tmp_path, NotSavable())
    whole.train()
    assert (tmp_path / "checkpoint-3" / "model.safetensors").is_file()
    again = run_of(tmp_path / "again", NotSavable(seed=5))
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert same_weights(weights(again.model), weights(whole.model))
