"""Resume with other parameter groups: each parameter gets its own optimizer state, or an error says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import trainbus
from support.data import points
from support.models import OtherDecay, Regression, Vectors
from support.outcomes import same_weights, weights
from support.trainers import hushed
from trainbus import HalfWeights
from trainbus.events import CheckpointError


class Ours(OtherDecay, trainbus.Trainer):
    """A trainer of trainbus with other decaying parameters."""


class Theirs(OtherDecay, transformers.Trainer):
    """A trainer of transformers with other decaying parameters."""


def build(
    kind: Any, folder: Path, optimizers: Any = (None, None), model: Any = None, callbacks: Any = None, **args: Any
) -> Any:
    library = transformers if issubclass(kind, transformers.Trainer) else trainbus
    settings = {
        **{"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 0.01, "optim": "adamw_torch"},
        **{"per_device_train_batch_size": 4, "use_cpu": True, "disable_tqdm": True, "report_to": "none", **args},
    }
    arguments = library.TrainingArguments(str(folder), **settings)
    model = Vectors() if model is None else model
    return kind(model, arguments, train_dataset=points(20), optimizers=optimizers, callbacks=callbacks)


def averages(trainer: Any) -> dict[str, list[float]]:
    """Return name of a parameter -> the average of its gradients in the optimizer."""
    state = trainer.optimizer.state
    return {name: state[weight]["exp_avg"].tolist() for name, weight in trainer.model.named_parameters()}


def saved(kind: Any, folder: Path, **args: Any) -> tuple[Path, dict[str, list[float]]]:
    """Train for two steps. Return the checkpoint and the averages at this step."""
    trainer = build(kind, folder, max_steps=2, lr_scheduler_type="constant", **args)
    with hushed():
        trainer.train()
    return folder / "checkpoint-2", averages(trainer)


def resumed(kind: Any, folder: Path, checkpoint: Path, **args: Any) -> dict[str, list[float]]:
    """Resume from a checkpoint. Return the averages before the next step."""
    trainer = build(kind, folder, lr_scheduler_type="constant", **args)
    found: dict[str, list[float]] = {}
    trainer.on("on_train_begin", lambda: found.update(averages(trainer)))
    trainer.train(resume_from_checkpoint=str(checkpoint))
    return found


RATES = {"learning_rates": {"weight_2": 0.5, "bias_1": 0.2}}
DECAYS = [(0.1, 0.0), (0.0, 0.1), (0.1, 0.2)]


@pytest.mark.parametrize(("before", "after"), DECAYS)
@pytest.mark.parametrize("options", [{}, RATES], ids=["one rate", "several rates"])
@pytest.mark.parametrize("kind", [trainbus.Trainer, Ours])
def test_each_parameter_keeps_its_state_with_another_weight_decay(
    kind: Any, options: dict[str, Any], before: float, after: float, tmp_path: Path
) -> None:
    if kind is trainbus.Trainer and options:
        options = {"learning_rates": {"weight_2": 0.5, "bias": 0.2}}
    checkpoint, expected = saved(kind, tmp_path / "a", weight_decay=before, **options)
    assert len({*map(tuple, expected.values())}) == len(Vectors.NAMES)
    assert resumed(kind, tmp_path / "b", checkpoint, weight_decay=after, **options) == expected


class Shift(nn.Module):
    """A loss with two vectors of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.scale = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(2))

    def forward(self, predicted: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (predicted * self.scale + self.offset - labels).pow(2).mean()


@pytest.mark.parametrize(("before", "after"), DECAYS)
def test_a_loss_module_keeps_its_state_with_another_weight_decay(before: float, after: float, tmp_path: Path) -> None:
    found: list[dict[str, list[float]]] = []
    for decay, steps in ((before, 2), (after, 4)):
        data, loss = torch.utils.data.TensorDataset(torch.ones(8, 3), torch.zeros(8, 2)), Shift()
        args = trainbus.TrainingArguments(
            str(tmp_path), max_steps=steps, weight_decay=decay, save_steps=2, use_cpu=True
        )
        trainer = trainbus.Trainer(nn.Linear(3, 2), args, train_dataset=data, criterion=loss)
        event = "on_train_end" if steps == 2 else "on_train_begin"
        state, names = lambda trainer=trainer: trainer.optimizer.state, dict(loss.named_parameters())
        trainer.on(event, lambda s=state, n=names: found.append({k: s()[w]["exp_avg"].tolist() for k, w in n.items()}))
        with hushed():
            trainer.train(resume_from_checkpoint=steps == 4)
    assert found[0] == found[1]
    assert found[0]["offset"] != found[0]["scale"]


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_each_parameter_keeps_its_state_of_transformers(decay: float, tmp_path: Path) -> None:
    checkpoint, expected = saved(Theirs, tmp_path / "a", weight_decay=0.1)
    assert resumed(Ours, tmp_path / "b", checkpoint, weight_decay=decay) == expected


def test_groups_of_the_user_are_not_divided_again(tmp_path: Path) -> None:
    """Their sizes equal the sizes of the trainer's own groups, with other parameters."""
    model = Vectors()
    groups = [[model.weight_1, model.bias_1], [model.weight_2, model.bias_2]]
    made = torch.optim.AdamW([{"params": group} for group in groups])
    with hushed():
        build(trainbus.Trainer, tmp_path / "a", (made, None), model, max_steps=2).train()
    model = Vectors()
    made = torch.optim.AdamW([{"params": [model.weight_1]}, {"params": [model.weight_2, model.bias_1, model.bias_2]}])
    again = build(trainbus.Trainer, tmp_path / "b", (made, None), model, weight_decay=0.1)
    with pytest.raises(CheckpointError, match=r"groups of 2 and 2 parameters.* groups of 1 and 3\..* the same groups"):
        again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))


def test_other_frozen_parameters_are_an_error(tmp_path: Path) -> None:
    build(trainbus.Trainer, tmp_path / "a", model=Regression(), max_steps=2).train()
    model = Regression()
    next(model.parameters()).requires_grad_(False)
    with pytest.raises(CheckpointError, match="freeze the same"):
        build(trainbus.Trainer, tmp_path / "b", model=model).train(str(tmp_path / "a" / "checkpoint-2"))


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    **{f"DeepSpeed, stage {stage}": {"deepspeed": {"zero_optimization": {"stage": stage}}} for stage in (0, 1, 3)},
}


@pytest.mark.parametrize(("before", "after"), [(0.1, 0.0), (0.0, 0.1)])
@pytest.mark.parametrize("way", WAYS)
def test_another_weight_decay_changes_nothing(
    way: str, before: float, after: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options in the checkpoint are used, each for the parameters of its group."""
    if way != "plain":
        pytest.importorskip("deepspeed")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    checkpoint, _ = saved(Ours, tmp_path / "saved", weight_decay=before)
    ends = []
    for decay in (before, after):
        again = build(Ours, tmp_path / str(decay), lr_scheduler_type="constant", weight_decay=decay, **WAYS[way])
        again.train(resume_from_checkpoint=str(checkpoint))
        ends.append(weights(again.model))
        assert again.optimizer.param_groups[0]["weight_decay"] == before
    assert same_weights(*ends)


@pytest.mark.parametrize(("before", "after"), [(0.1, 0.0), (0.0, 0.1)])
def test_half_weights_resume_with_another_weight_decay(before: float, after: float, tmp_path: Path) -> None:
    build(Ours, tmp_path / "a", max_steps=2, weight_decay=before, callbacks=[HalfWeights("bf16")]).train()
    ends = []
    for decay in (before, after):
        again = build(Ours, tmp_path / str(decay), weight_decay=decay, callbacks=[HalfWeights("bf16")])
        again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
        ends.append(weights(again.model))
    assert same_weights(*ends)
