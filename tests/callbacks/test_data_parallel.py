"""Several GPUs in one process, with a fake torch.nn.DataParallel on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainbus
from support.trainers import net_trainer
from trainbus import (
    ChunkedCrossEntropy,
    Compile,
    DataParallel,
    GradientCheckpointing,
    HalfEvaluation,
    MixedPrecision,
    OffloadActivations,
    RecurrentMemory,
    TrainingArguments,
)
from trainbus.callbacks.parallel.data_parallel import DataParallelModel
from trainbus.events import ArgumentError


class Spread(nn.Module):
    """Calls a model on each part of a batch, one after the other, and joins what it returns as torch does."""

    made: list[Spread] = []

    def __init__(self, module: nn.Module, device_ids: list[int]) -> None:
        super().__init__()
        self.module, self.parts = module, len(device_ids)
        self.rows: list[int] = []
        Spread.made.append(self)

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:
        cut = {name: value.chunk(self.parts) for name, value in named.items()}
        cuts = [value.chunk(self.parts) for value in inputs]
        outputs = []
        for part in range(len(next(iter([*cuts, *cut.values()])))):
            own = {name: values[part] for name, values in cut.items()}
            self.rows += [len(value) for name, value in own.items() if name == "x"]
            outputs.append(self.module(*(values[part] for values in cuts), **own))
        return _joined(outputs)


def _joined(outputs: list[Any]) -> Any:
    first = outputs[0]
    if isinstance(first, dict):
        return {name: _joined([output[name] for output in outputs]) for name in first}
    if isinstance(first, tuple):
        return tuple(map(_joined, zip(*outputs)))
    return torch.cat([output.reshape(1) if output.dim() == 0 else output for output in outputs])


class Line(nn.Module):
    def __init__(self, returns: str = "dict") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.returns = returns
        self.linear = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        predicted = self.linear(x).squeeze(-1)
        loss = nn.functional.mse_loss(predicted, labels)
        return {"loss": loss, "logits": predicted} if self.returns == "dict" else (loss, predicted)


class Counting(Line):
    """One whose loss is a sum, divided by the items of the whole step."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Any = None, **others: Any) -> Any:
        predicted = self.linear(x).squeeze(-1)
        loss = nn.functional.mse_loss(predicted, labels, reduction="sum")
        items = labels.numel() if num_items_in_batch is None else num_items_in_batch
        return {"loss": loss / items, "logits": predicted}


@pytest.fixture(autouse=True)
def spread(monkeypatch: pytest.MonkeyPatch) -> type[Spread]:
    monkeypatch.setattr(nn, "DataParallel", Spread)
    monkeypatch.setattr(Spread, "made", [])
    return Spread


def rows(count: int = 24) -> list[dict[str, Any]]:
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    return [{"x": row, "labels": row.sum()} for row in x]


def trained(folder: Path, model: nn.Module, callbacks: list[Any], **args: Any) -> Any:
    options = {"per_device_train_batch_size": 8, "max_steps": 4, "learning_rate": 0.05, "use_cpu": True}
    trainer = trainbus.Trainer(
        model,
        TrainingArguments(str(folder), **{**options, "save_strategy": "no", "disable_tqdm": True, **args}),
        train_dataset=rows(),
        eval_dataset=rows(10),
        callbacks=callbacks,
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("make", [Line, lambda: Line("tuple"), Counting])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_devices_come_to_the_weights_of_one(make: Any, accumulate: int, tmp_path: Path):
    one = trained(tmp_path, make(), [], gradient_accumulation_steps=accumulate)
    two = trained(tmp_path, make(), [DataParallel(devices=2)], gradient_accumulation_steps=accumulate)
    assert Spread.made[0].rows[:2] == [4, 4]
    for mine, other in zip(one.model.parameters(), two.model.parameters()):
        assert torch.allclose(mine, other, atol=1e-6)
    assert [entry["loss"] for entry in two.state.log_history if "loss" in entry] == pytest.approx(
        [entry["loss"] for entry in one.state.log_history if "loss" in entry]
    )
    assert two.evaluate()["eval_loss"] == pytest.approx(one.evaluate()["eval_loss"])


def test_evaluations_use_all_devices_and_unwrap_the_model(tmp_path: Path):
    trainer = trained(tmp_path, Line(), [DataParallel(devices=2)])
    made = len(Spread.made)
    predicted = trainer.predict(rows(10))
    assert len(Spread.made) == made + 1
    assert Spread.made[-1].rows == [4, 4, 1, 1]
    assert predicted.predictions.shape == (10,)
    assert trainer.model_wrapped is trainer.model


def test_the_saved_model_has_no_wrapper(tmp_path: Path):
    trained(tmp_path, Line(), [DataParallel(devices=2)], save_strategy="steps", save_steps=4)
    from safetensors.torch import load_file

    assert set(load_file(tmp_path / "checkpoint-4" / "model.safetensors")) == {"linear.weight", "linear.bias"}


def seen_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)


def test_several_gpus_in_one_process_are_all_used(monkeypatch: pytest.MonkeyPatch):
    seen_gpus(monkeypatch, 3)
    args = TrainingArguments(per_device_train_batch_size=4, per_device_eval_batch_size=5)
    assert args.n_gpu == 3
    assert args.parallel_mode == "not_distributed"
    assert (args.train_batch_size, args.eval_batch_size) == (12, 15)
    assert str(args.device) == "cuda:0"
    assert DataParallel.from_arguments(args) == DataParallel(3)


@pytest.mark.parametrize(
    ("gpus", "launched", "options"), [(1, {}, {}), (3, {"LOCAL_RANK": "1"}, {}), (3, {}, {"use_cpu": True})]
)
def test_one_gpu_a_launcher_or_use_cpu_gives_one_device(
    gpus: int, launched: dict[str, str], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    seen_gpus(monkeypatch, gpus)
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    args = TrainingArguments(per_device_train_batch_size=4, **options)
    assert args.n_gpu == (0 if options else 1)
    assert args.train_batch_size == 4
    assert DataParallel.from_arguments(args) is None


def test_each_device_divides_by_its_part_of_the_items():
    told = []

    class Told(nn.Module):
        def forward(self, x: torch.Tensor, num_items_in_batch: torch.Tensor) -> torch.Tensor:
            told.append(num_items_in_batch.tolist())
            return x.sum()

    DataParallelModel(Told(), 2)(x=torch.ones(4), num_items_in_batch=torch.tensor(10.0))
    assert told == [[5.0], [5.0]]


@pytest.mark.parametrize(("rows", "parts"), [(8, 4), (9, 3), (3, 3), (1, 1)])
def test_a_small_batch_is_divided_by_the_devices_that_get_samples(rows: int, parts: int):
    """torch gives 3 of 4 devices the samples of a batch of 9."""
    x, y = torch.randn(rows, 3), torch.randn(rows)
    model = Counting()
    whole = model(x=x, labels=y, num_items_in_batch=torch.tensor(20.0))["loss"]
    losses = DataParallelModel(model, 4)(x=x, labels=y, num_items_in_batch=torch.tensor(20.0))["loss"]
    assert len(losses) == parts
    assert losses.mean().item() == pytest.approx(whole.item())


class Copying(Spread):
    """Calls copies of the model, as torch does: each copy has its own weights, here one more than those before."""

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:
        devices = list(range(self.parts))
        copies = vars(self)["replicate"](self.module, devices)
        return [copy(*inputs, **named) for copy in copies]


def copies_of(module: nn.Module, devices: list[int], detach: bool) -> list[nn.Module]:
    """Stands for the function of torch that copies a module to GPUs."""
    made = [module._replicate_for_data_parallel() for _ in devices]
    for number, copy in zip(devices, made):
        for name, weight in module.named_parameters(recurse=False):
            setattr(copy, name, weight + number)
    return made


class Bias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bias.to(x.dtype) + x


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("half", [MixedPrecision("bf16"), HalfEvaluation("bf16")], ids=lambda each: type(each).__name__)
def test_half_precision_computes_with_the_weights_of_each_device(
    half: Any, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(nn, "DataParallel", Copying)
    monkeypatch.setattr("trainbus.callbacks.parallel.data_parallel.replicate", copies_of)
    seen = []
    callbacks = [half, DataParallel(2)] if before else [DataParallel(2), half]
    trainer = trainbus.Trainer(Bias(), TrainingArguments(str(tmp_path), use_cpu=True), callbacks=callbacks)
    trainer.prediction_step = lambda model, inputs, *_, **__: (seen.extend(model(inputs["x"])), (None,) * 3)[1]
    trainer.evaluate([{"x": torch.ones(())}])
    assert [value.item() for value in seen] == [1.0, 2.0]
    assert trainer.model(torch.ones(())).item() == 1.0


@pytest.mark.gpu
def test_two_gpus_train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    monkeypatch.undo()
    one = trained(tmp_path, Line(), [DataParallel(devices=1)], use_cpu=False, per_device_train_batch_size=4)
    two = trained(tmp_path, Line(), [DataParallel(devices=2)], use_cpu=False, per_device_train_batch_size=4)
    assert two.args.n_gpu >= 2
    for mine, other in zip(one.model.parameters(), two.model.parameters()):
        assert torch.allclose(mine, other, atol=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        Compile("eager"),
        OffloadActivations(),
        ChunkedCrossEntropy(),
        GradientCheckpointing(blocks=("Linear",)),
        RecurrentMemory(),
    ],
    ids=lambda other: type(other).__name__,
)
def test_callbacks_that_replace_a_forward_are_refused_on_several_gpus(tmp_path: Path, other: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{type(other).__name__}.* computes with the weights of the first GPU"):
        net_trainer(tmp_path, DataParallel(2), other)
    net_trainer(tmp_path, DataParallel(1), other)


def test_recomputation_by_the_model_itself_works_on_several_gpus(tmp_path: Path) -> None:
    net_trainer(tmp_path, DataParallel(2), GradientCheckpointing())
