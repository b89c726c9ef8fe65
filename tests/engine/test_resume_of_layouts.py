"""A run whose weights are not contiguous resumes to the bits of the uninterrupted run, in every optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.outcomes import same_weights, weights
from support.trainers import regression_trainer
from trainbus.callbacks.model.ema import EMA
from trainbus.engine.checkpoint.format.codec import encode, load_values
from trainbus.engine.checkpoint.format.tensor_file import write_tensors
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint

ROWS = [
    {"x": torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(row)), "labels": torch.tensor(row % 2)}
    for row in range(24)
]


class Net(nn.Module):
    """A CNN in channels_last, and a linear layer with a transposed weight."""

    def __init__(self, seed: int = 0, layout: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, 8, 3, bias=False)  # before a normalization, its gradient would be only rounding
        self.norm = nn.BatchNorm2d(8)
        self.end = nn.Linear(8 * 16, 2)
        if layout:
            self.to(memory_format=torch.channels_last)
            self.end.weight = nn.Parameter(self.end.weight.detach().t().contiguous().t())

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        dtype = self.conv.weight.dtype
        logits = self.end(self.norm(self.conv(x.to(dtype)).float()).relu().flatten(1).to(dtype)).float()
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def run_of(folder: Path, seed: int = 0, layout: bool = True, callbacks: tuple[Any, ...] = (), **args: Any) -> Any:
    options = {"max_steps": 10, "save_strategy": "steps", "save_steps": 4, "learning_rate": 0.02, **args}
    return regression_trainer(folder, Net(seed, layout), args=options, train_dataset=ROWS, callbacks=list(callbacks))


def resumed(folder: Path, callback: Any = None, layout: bool = True, **args: Any) -> tuple[Any, Any]:
    """Return an uninterrupted run, and one that resumed from its fourth step with other weights at first."""
    made = [() if callback is None else (callback(),) for _ in range(2)]
    whole = run_of(folder, callbacks=made[0], **args)
    whole.train()
    again = run_of(folder / "again", seed=5, layout=layout, callbacks=made[1], **args)
    again.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    return whole, again


def strides(run: Any) -> list[tuple[int, ...]]:
    groups = run.optimizer.param_groups
    states = [run.optimizer.state[weight] for group in groups for weight in group["params"]]
    return [value.stride() for state in states for value in state.values() if isinstance(value, torch.Tensor)]


OPTIMIZERS = {
    **{name: {"optim": name} for name in ("adamw_torch_fused", "adamw_torch", "adafactor", "rmsprop", "adagrad")},
    "sgd with momentum": {"optim": "sgd", "optim_args": "momentum=0.9"},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resume_restores_the_strides_of_the_optimizer_state(name: str, tmp_path: Path) -> None:
    whole, again = resumed(tmp_path, **OPTIMIZERS[name])
    assert same_weights(weights(again.model), weights(whole.model))
    assert strides(again) == strides(whole)


@pytest.mark.parametrize("kind", ["Adamax", "NAdam", "RAdam", "ASGD", "Rprop", "Adadelta"])
def test_resume_restores_the_strides_of_every_optimizer_of_torch(kind: str, tmp_path: Path) -> None:
    ends = []
    for folder, seed, resume in ((tmp_path, 0, None), (tmp_path / "again", 5, str(tmp_path / "checkpoint-4"))):
        run = run_of(folder, seed)
        run.optimizer = getattr(torch.optim, kind)(run.model.parameters(), lr=0.01)
        run.train(resume_from_checkpoint=resume)
        ends.append((weights(run.model), strides(run)))
    assert same_weights(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "sgd"])
def test_resume_restores_the_strides_of_the_state_of_master_weights(optim: str, tmp_path: Path) -> None:
    whole, again = resumed(tmp_path, bf16=True, fp16_opt_level="O2", optim=optim)
    assert same_weights(weights(again.model), weights(whole.model))
    assert strides(again) == strides(whole)


def test_resume_restores_the_strides_of_an_average(tmp_path: Path) -> None:
    seen: list[tuple[int, ...]] = []

    class Watched(EMA):
        def on_step_end(self) -> None:
            seen[:] = [average.stride() for average in self._average.values()]

    whole, again = resumed(tmp_path, lambda: Watched(decay=0.5))
    assert same_weights(weights(again.model), weights(whole.model))
    assert seen == [weight.stride() for weight in again.model.parameters()]


def test_a_run_may_resume_with_another_memory_format(tmp_path: Path) -> None:
    whole, again = resumed(tmp_path, layout=False, optim="adamw_torch_fused")
    for mine, other in zip(again.model.parameters(), whole.model.parameters()):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)  # matrix products of another layout round


def test_a_checkpoint_without_strides_resumes_to_the_same_bits(tmp_path: Path, monkeypatch: Any) -> None:
    # As an earlier release wrote it.
    monkeypatch.setattr("trainbus.engine.checkpoint.format.codec.stride_to_store", lambda tensor: None)
    whole, again = resumed(tmp_path, optim="adamw_torch_fused")
    assert same_weights(weights(again.model), weights(whole.model))


def test_a_checkpoint_of_transformers_resumes_with_strides(tmp_path: Path) -> None:
    import transformers
    from safetensors.torch import save_file

    class Theirs(transformers.Trainer):
        def _save(self, output_dir: Any, state_dict: Any = None) -> None:  # their own refuses such weights
            Path(output_dir).mkdir(parents=True, exist_ok=True)
            state = {name: weight.contiguous() for name, weight in self.model.state_dict().items()}
            save_file(state, Path(output_dir) / "model.safetensors")

    args = {"max_steps": 10, "save_steps": 4, "learning_rate": 0.02, "optim": "adamw_torch_fused", "use_cpu": True}
    args |= {"per_device_train_batch_size": 4, "report_to": "none", "disable_tqdm": True, "max_grad_norm": 0}
    theirs = Theirs(Net(), transformers.TrainingArguments(str(tmp_path), **args), train_dataset=ROWS)
    theirs.train()
    again = run_of(tmp_path / "again", 5, optim="adamw_torch_fused", max_grad_norm=0)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert same_weights(weights(again.model), weights(theirs.model))


def test_values_of_callbacks_keep_their_strides(tmp_path: Path) -> None:
    tensors = {
        "transposed": torch.arange(6.0).view(2, 3).t(),
        "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "expanded": torch.ones(3, 1).expand(3, 4),
        "with gaps": torch.randn(4, 8)[:, ::2],
        "none": torch.empty(0, 3),
        "number": torch.tensor(1.0),
    }
    with open(tmp_path / "values.safetensors", "wb") as file:
        write_tensors(file, *encode(tensors, "values"))
    for whole in (True, False):
        loaded = load_values(tmp_path / "values.safetensors", whole=whole)
        for name, tensor in tensors.items():
            value = loaded[name] if isinstance(loaded[name], torch.Tensor) else loaded[name].whole()
            assert value.equal(tensor), name
            assert value.stride() == tensor.clone().stride(), name


def test_the_state_of_a_checkpoint_reads_with_its_strides(tmp_path: Path) -> None:
    whole = run_of(tmp_path, optim="adamw_torch_fused")
    whole.train()
    state = SavedCheckpoint.open(tmp_path / "checkpoint-10").optimizer_state()
    for number, entries in whole.optimizer.state_dict()["state"].items():
        assert state["state"][number]["exp_avg"].whole().stride() == entries["exp_avg"].stride()
