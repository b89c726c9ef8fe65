"""OffloadActivations: equal weights, and the saved tensors that it copies."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.callbacks import Boom
from support.models import Block, Net
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import (
    Compile,
    Evaluate,
    GradientCheckpointing,
    MixedPrecision,
    OffloadActivations,
    Trainer,
    TrainingArguments,
    every,
)
from trainbus.events import ArgumentError
from trainbus.events.errors import ModelError


def trained(folder: Path, *callbacks: Any, **options: Any) -> dict[str, torch.Tensor]:
    built = net_trainer(folder, *callbacks, Evaluate(every(3)), **options)
    built.train()
    assert not any("forward" in vars(module) for module in built.model.modules())
    return weights(built.model)


@pytest.mark.parametrize("blocks", [(), (Block,), ("Block", nn.Linear)], ids=str)
@pytest.mark.parametrize("least", [0, 100, 1 << 20])
def test_trains_to_the_same_weights(tmp_path: Path, blocks: Any, least: int) -> None:
    assert same_weights(trained(tmp_path, OffloadActivations(blocks, least)), trained(tmp_path))


def test_works_with_mixed_precision(tmp_path: Path) -> None:
    plain = trained(tmp_path, MixedPrecision("bf16"))
    assert same_weights(trained(tmp_path, MixedPrecision("bf16"), OffloadActivations(min_bytes=0)), plain)


def saved_bytes(model: nn.Module, batch: dict[str, torch.Tensor]) -> int:
    """Return the bytes that a forward of the blocks saves for backward, without the weights. torch's hooks count."""
    sizes = []
    owned = {weight.data_ptr() for weight in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in owned:
            sizes.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.blocks(batch["x"])
    return sum(sizes)


def test_all_activations_of_the_blocks_are_copied_and_no_weight(tmp_path: Path) -> None:
    offload = OffloadActivations((Block,), min_bytes=0)
    built = net_trainer(tmp_path, offload)
    batches: list[Any] = []
    built.on("on_batch", lambda batch: batches.append(batch))
    built.train()
    assert offload.offloaded_bytes == saved_bytes(built.model.train(), batches[-1]) > 0
    assert offload.kept_bytes == 0


def test_small_tensors_are_left_where_they_are(tmp_path: Path) -> None:
    offload = OffloadActivations((Block,), min_bytes=1 << 20)
    net_trainer(tmp_path, offload).train()
    assert offload.offloaded_bytes == 0
    assert offload.kept_bytes > 0


def test_copies_are_other_memory_with_the_same_layout() -> None:
    offload = OffloadActivations(min_bytes=0)
    tensor = torch.randn(4, 6, requires_grad=True).t() * 1
    copy, device, version = offload._pack(tensor, set())
    assert (device, version) == (tensor.device, None)
    assert torch.equal(copy, tensor)
    assert copy.stride() == tensor.stride()
    assert copy.data_ptr() != tensor.data_ptr()
    assert not copy.requires_grad


class InPlace(nn.Module):
    """A wrong model: it changes a tensor that backward needs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        hidden = self.linear(x)
        squared = hidden * hidden
        hidden.add_(1.0)
        return {"loss": squared.mean(), "logits": hidden}


@pytest.mark.parametrize("callbacks", [(), (OffloadActivations(),)], ids=["without", "with"])
def test_a_change_in_place_is_an_error_as_without_it(tmp_path: Path, callbacks: Any) -> None:
    with pytest.raises(RuntimeError, match=r"in-?place operation"):
        net_trainer(tmp_path, *callbacks, model=InPlace()).train()


def test_the_forward_is_restored_after_an_error(tmp_path: Path) -> None:
    built = net_trainer(tmp_path, OffloadActivations((Block,)))

    def fail() -> None:
        raise Boom

    built.on("on_loss", fail)
    with pytest.raises(Boom):
        built.train()
    assert not any("forward" in vars(module) for module in built.model.modules())


def test_it_says_that_a_cpu_gains_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net_trainer(tmp_path, OffloadActivations(), max_steps=1).train()
    assert "OffloadActivations saves no memory here: the model and its activations are on the CPU." in caplog.messages


def test_nonsense_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"OffloadActivations\(min_bytes=-1\): set 0 or more"):
        OffloadActivations(min_bytes=-1)
    with pytest.raises(ModelError, match="Net has no module of the class 'Blok'; did you mean 'Block'"):
        net_trainer(tmp_path, OffloadActivations(("Blok",))).train()
    model = Net()
    model.lists = nn.ModuleList([nn.Linear(2, 2)])
    with pytest.raises(ModelError, match="the class has no forward"):
        net_trainer(tmp_path, OffloadActivations((nn.ModuleList,)), model=model).train()
    for other in (GradientCheckpointing(blocks=(Block,)), Compile("eager")):
        with pytest.raises(ArgumentError, match="does not work with"):
            net_trainer(tmp_path, OffloadActivations((Block,)), other)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_holds_less_between_forward_and_backward(tmp_path: Path) -> None:
    """The activations are in pinned host memory when the loss is computed."""

    def trained(*callbacks: OffloadActivations) -> tuple[int, dict[str, torch.Tensor]]:
        """Return the bytes that the last loss adds to those of earlier trainers, and the weights."""
        gc.collect()
        before = torch.cuda.memory_allocated()
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
        data = torch.utils.data.TensorDataset(torch.randn(4096, 512), torch.randn(4096, 512))
        args = TrainingArguments(str(tmp_path), per_device_train_batch_size=2048, max_steps=2, save_strategy="no")
        built = Trainer(model, args, train_dataset=data, criterion=nn.functional.mse_loss, callbacks=[*callbacks])
        seen: list[int] = []
        built.on("on_loss", lambda: seen.append(torch.cuda.memory_allocated() - before))
        built.train()
        return seen[-1], weights(built.model)

    usual, plain = trained()
    less, offloaded = trained(OffloadActivations(min_bytes=0))
    assert less < usual - 6 * 2048 * 512 * 4
    assert same_weights(plain, offloaded)
