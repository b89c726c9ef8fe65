"""`trainer.accelerator`: what programs written for accelerate read, set and call."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import AcceleratorConfig as TheirConfig

import trainbus
from support.data import sentences
from support.models import bert
from support.outcomes import same_weights, weights
from support.trainers import hushed
from trainbus.engine.api.accelerator import INSTEAD
from trainbus.engine.api.accelerator_state import PROCESSES
from trainbus.engine.distributed.ranks import Ranks
from trainbus.events.errors import ArgumentError

ARGS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "max_steps": 6,
    "save_strategy": "no",
    "logging_steps": 1,
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}


def both(folder: Path, mixin: type = object, do: Any = lambda trainer: None, **args: Any) -> list[Any]:
    trainers = []
    for library in (transformers, trainbus):
        with hushed():
            given = library.TrainingArguments(str(folder), **{**ARGS, **args})
            cls = type("Mine", (mixin, library.Trainer), {}) if mixin is not object else library.Trainer
            trainers.append(cls(model=bert(), args=given, train_dataset=sentences(22), eval_dataset=sentences(6)))
            do(trainers[-1])
    return trainers


class OwnLoader:
    """Ends with `accelerator.prepare(loader)`, as the docs of transformers show."""

    def get_train_dataloader(self):
        loader = DataLoader(
            self.train_dataset, batch_size=4, shuffle=False, collate_fn=self.data_collator, drop_last=True
        )
        return self.accelerator.prepare(loader)


class Accumulating:
    """Uses the contexts and the numbers of accelerate in its step."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.accelerator.accumulate(model), self.accelerator.autocast():
            loss = self.compute_loss(model, inputs)
        steps = self.accelerator.gradient_accumulation_steps
        assert steps in (1, 2)  # theirs does not know the argument
        self.accelerator.backward(loss)
        total = self.accelerator.reduce(loss.detach(), reduction="mean")
        padded = self.accelerator.pad_across_processes(loss.detach()[None], dim=0, pad_index=-1)
        assert torch.equal(total, padded[0])
        return loss.detach()


@pytest.mark.parametrize("mixin", [OwnLoader, Accumulating])
def test_override_that_uses_the_accelerator_trains_as_in_transformers(tmp_path: Path, mixin: type) -> None:
    theirs, ours = both(tmp_path, mixin, do=lambda trainer: trainer.train())
    assert same_weights(weights(theirs.model), weights(ours.model))


CONFIGS = [
    None,
    {"split_batches": True},
    {"split_batches": True, "dispatch_batches": True, "even_batches": False, "non_blocking": True},
    TheirConfig(even_batches=False),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_accelerator_reads_as_that_of_transformers(tmp_path: Path, config: Any) -> None:
    theirs, ours = (trainer.accelerator for trainer in both(tmp_path, accelerator_config=config))
    for name in (
        *("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking"),
        *("mixed_precision", "num_processes", "process_index", "is_main_process", "gradient_accumulation_steps"),
        *("is_local_main_process", "local_process_index", "device", "parallelism_config"),
    ):
        assert getattr(ours, name, "absent") == getattr(theirs, name, None), name


def test_attributes_set_on_the_accelerator_persist(tmp_path: Path) -> None:
    _, ours = both(tmp_path, bf16=True, gradient_accumulation_steps=2)
    ours.accelerator.even_batches = False
    assert ours.accelerator.even_batches is False
    assert ours.accelerator is ours.accelerator
    assert (ours.accelerator.mixed_precision, ours.accelerator.gradient_accumulation_steps) == ("bf16", 2)
    assert ours.accelerator.free_memory(1, 2) == [None, None]


def test_wrappers_of_torch_are_unwrapped(tmp_path: Path) -> None:
    theirs, ours = both(tmp_path)
    for trainer in (theirs, ours):
        model = trainer.model
        assert trainer.accelerator.unwrap_model(nn.DataParallel(model)) is model
        assert trainer.accelerator.unwrap_model(model) is model
    assert ours.accelerator.unwrap_model(torch.compile(nn.DataParallel(ours.model))) is ours.model


@pytest.mark.parametrize(("first", "expected"), [(False, [1, 2, 9]), (True, [9, 1, 2])])
def test_tensors_are_padded_to_the_largest_of_all_ranks(tmp_path, first, expected, monkeypatch) -> None:
    _, ours = both(tmp_path)
    ranks = Ranks(0, 2)
    monkeypatch.setattr(Ranks, "gather_numbers", lambda self, *numbers: [numbers, (3,)])
    monkeypatch.setattr(ours.run, "ranks", ranks)
    padded = ours.accelerator.pad_across_processes({"a": torch.tensor([[1, 2]])}, 1, 9, first)["a"]
    assert padded.tolist() == [expected]
    assert ours.accelerator.pad_across_processes(torch.tensor(1.0)).item() == 1.0


def test_gradients_are_clipped_by_the_accelerator(tmp_path: Path) -> None:
    norms = []
    for trainer in both(tmp_path):
        weight = nn.Parameter(torch.ones(4))
        weight.grad = torch.full((4,), 3.0)
        norms.append((float(trainer.accelerator.clip_grad_norm_([weight], 1.0)), weight.grad.norm().item()))
        with trainer.accelerator.no_sync(trainer.model):
            pass
    assert norms[0] == norms[1]
    assert norms[1][0] == 6.0


@pytest.mark.parametrize("name", [*INSTEAD, "unheard_of"])
def test_name_that_the_accelerator_lacks_says_what_to_use(name: str) -> None:
    accelerator = trainbus.Trainer(bert(), trainbus.TrainingArguments(use_cpu=True)).accelerator
    assert not hasattr(accelerator, name)
    with pytest.raises(AttributeError, match=f"`trainer.accelerator` has no '{name}'") as raised:
        getattr(accelerator, name)
    assert INSTEAD.get(name, "Use the methods of the trainer") in str(raised.value)


def test_every_name_with_a_replacement_is_one_of_accelerate() -> None:
    set_at_construction = set(re.findall(r"self\.(\w+) = ", inspect.getsource(accelerate.Accelerator.__init__)))
    assert set(INSTEAD) <= set(dir(accelerate.Accelerator)) | set_at_construction


def parameters_of(method: Any) -> tuple[list[str], bool]:
    """Return the names of the parameters, and whether any further keyword is accepted."""
    found = inspect.signature(method).parameters.values()
    named = [each.name for each in found if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    return named, any(each.kind is each.VAR_KEYWORD for each in found)


def lacking(ours: type, theirs: type) -> dict[str, list[str]]:
    """Return public method -> the parameters of `theirs` that `ours` does not take. Both have the method."""
    found = {}
    for name in {*dir(ours)} & {*dir(theirs)}:
        if callable(getattr(theirs, name)) and callable(getattr(ours, name)) and not name.startswith("_"):
            known, open_ended = parameters_of(getattr(ours, name))
            missing = [one for one in parameters_of(getattr(theirs, name))[0] if one not in known and not open_ended]
            if missing:
                found[name] = missing
    return found


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (trainbus.engine.api.accelerator.Accelerator, accelerate.Accelerator),
        (trainbus.Trainer, transformers.Trainer),
        (trainbus.Seq2SeqTrainer, transformers.Seq2SeqTrainer),
        (trainbus.TrainingArguments, transformers.TrainingArguments),
        (trainbus.TrainerState, transformers.TrainerState),
    ],
    ids=lambda cls: cls.__name__,
)
def test_methods_take_the_parameters_of_the_replaced_class(ours: type, theirs: type) -> None:
    assert lacking(ours, theirs) == {}


def test_missing_parameter_is_found() -> None:
    class Short:
        def save_model(self) -> None: ...

    assert lacking(Short, transformers.Trainer) == {"save_model": ["output_dir", "_internal_call"]}


def test_state_of_the_accelerator_reads_as_that_of_accelerate(tmp_path: Path) -> None:
    theirs, ours = (trainer.accelerator for trainer in both(tmp_path))
    for name in (*PROCESSES, "deepspeed_plugin", "fsdp_plugin", "parallelism_config"):
        if not callable(value := getattr(theirs.state, name, None)):
            assert getattr(ours.state, name) == value, name
    assert ours.distributed_type == theirs.distributed_type
    with ours.state.main_process_first():
        ours.state.wait_for_everyone()
    with pytest.raises(AttributeError, match=r"no 'device_mesh'\. It has device, distributed_type"):
        _ = ours.state.device_mesh


def test_lists_of_objects_are_joined(tmp_path: Path, monkeypatch) -> None:
    theirs, ours = (trainer.accelerator for trainer in both(tmp_path))
    assert ours.gather_for_metrics(["a"], use_gather_object=True) == theirs.gather_for_metrics(["a"], True) == ["a"]
    assert torch.equal(ours.reduce(torch.ones(2), "sum", 2.0), theirs.reduce(torch.ones(2), "sum", 2.0))
    monkeypatch.setattr(Ranks, "gather_objects", lambda self, value: [value, ["b", "c"]])
    monkeypatch.setattr(ours.run, "ranks", Ranks(0, 2))
    assert ours.gather_for_metrics(["a"]) == ["a", "b", "c"]
    assert ours.gather_for_metrics([torch.ones(1)], use_gather_object=True) == [torch.ones(1), "b", "c"]


def test_handler_of_autocast_is_refused(tmp_path: Path) -> None:
    _, ours = both(tmp_path)
    with pytest.raises(ArgumentError, match="takes no handler"):
        ours.accelerator.autocast(autocast_handler=object())


@pytest.mark.parametrize("options", [{}, {"bf16": True}], ids=str)
def test_autocast_outside_of_a_session_is_that_of_the_arguments(tmp_path: Path, options: dict[str, Any]) -> None:
    dtypes, layer = [], nn.Linear(2, 2)
    for trainer in both(tmp_path, **options):
        with trainer.accelerator.autocast():
            dtypes.append(layer(torch.ones(1, 2)).dtype)
    assert dtypes[0] == dtypes[1]


def test_other_model_that_can_be_trained_is_reported_on_several_ranks(tmp_path: Path, monkeypatch, caplog) -> None:
    _, ours = both(tmp_path)
    ours.accelerator.prepare(nn.Linear(2, 2))
    monkeypatch.setattr(ours.run, "ranks", Ranks(0, 2))
    ours.accelerator.prepare(ours.model, nn.Linear(2, 2).requires_grad_(False), ours.model.bert)
    ours.accelerator.prepare_model(nn.Linear(2, 2), evaluation_mode=True)
    assert "average" not in caplog.text
    ours.accelerator.prepare(nn.Linear(2, 2))
    assert "does not wrap this Linear, so the ranks do not average its gradients" in caplog.text
