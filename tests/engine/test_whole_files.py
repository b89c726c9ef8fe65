"""A disk that fails while a program writes files outside of a checkpoint: the earlier files stay."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from support.checkpoints import files_up_to
from support.models import llama
from trainbus import Trainer, TrainingArguments
from trainbus.events import CheckpointError

LIMIT = 100_000


class Wide(nn.Module):
    """A small layer and a layer of more than `LIMIT` bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(200, 50), nn.Linear(200, 200)

    def forward(self, x: torch.Tensor, labels: Any = None) -> dict[str, torch.Tensor]:
        return {"loss": self.second(x).sum() + self.first(x).sum()}


class OfTorch(Wide):
    """Writes itself with `torch.save`."""

    def save_pretrained(self, folder: str) -> None:
        torch.save(self.state_dict(), Path(folder) / "pytorch_model.bin")


class OfSafetensors(Wide):
    """Writes itself with safetensors."""

    def save_pretrained(self, folder: str) -> None:
        with (Path(folder) / "README.md").open("a") as card:
            card.write("saved\n")
        save_file(self.state_dict(), Path(folder) / "model.safetensors")


class Own(Trainer):
    """Writes its model with `torch.save`."""

    def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
        torch.save(self.model.state_dict(), Path(output_dir) / "weights.pt")


def trainer_of(folder: Path, model: nn.Module, cls: type[Trainer] = Trainer, **args: Any) -> Trainer:
    arguments = TrainingArguments(str(folder), use_cpu=True, report_to="none", **args)
    return cls(model, arguments, train_dataset=[{"x": torch.zeros(200), "labels": 0.0}])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def limited(size: int, write: Callable[[], Any]) -> str:
    """Return the error of a function that may only write files of `size` bytes."""
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    with files_up_to(size), pytest.raises(CheckpointError) as caught:
        write()
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == soft
    return str(caught.value)


MODELS = [Wide, OfTorch, OfSafetensors, llama]


@pytest.mark.parametrize("shard", ["5GB", "90KB"])
@pytest.mark.parametrize("model", MODELS)
def test_a_failed_save_leaves_the_earlier_model(model: Any, shard: str, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, model(), max_shard_size=shard)
    trainer.save_model()
    before = contents(tmp_path)
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.add_(1)
    smallest = 3_000 if model is llama else LIMIT
    said = limited(smallest, trainer.save_model)
    assert said.startswith(f"The model cannot be written to {tmp_path}: ")
    assert "ulimit -f" in said
    assert " is free. " in said
    assert contents(tmp_path) == before
    assert not list(tmp_path.glob(".tmp*"))
    trainer.save_model()
    after = contents(tmp_path)
    assert after.keys() == before.keys()
    assert after != before


@pytest.mark.parametrize("later", ["5GB", "90KB"])
@pytest.mark.parametrize("model", [Wide, llama])
def test_a_save_with_other_shards_replaces_all_weights(model: Any, later: str, tmp_path: Path) -> None:
    sizes = {"5GB": "90KB", "90KB": "5GB"} if model is Wide else {"5GB": "9KB", "90KB": "5GB"}
    trainer_of(tmp_path / "both", model(), max_shard_size=sizes[later]).save_model()
    (tmp_path / "both" / "notes.txt").write_text("mine")
    trainer_of(tmp_path / "both", made := model(), max_shard_size=later).save_model()
    trainer_of(tmp_path / "one", made, max_shard_size=later).save_model()
    both = contents(tmp_path / "both")
    assert both.pop("notes.txt") == b"mine"
    assert both == contents(tmp_path / "one")


def test_a_model_may_extend_its_card(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("card\n")
    trainer = trainer_of(tmp_path, OfSafetensors())
    trainer.save_model()
    assert (tmp_path / "README.md").read_text() == "card\nsaved\n"


def test_a_save_with_a_method_of_its_own_is_explained(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, Wide(), Own)
    assert "torch could not write all bytes of a file" in limited(LIMIT, trainer.save_model)


def test_a_folder_that_is_a_file_is_explained(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(CheckpointError, match=r"The model cannot be written to .*taken: .* Choose a folder"):
        trainer_of(tmp_path, Wide()).save_model(str(tmp_path / "taken"))


def test_an_error_of_the_network_stays(tmp_path: Path) -> None:
    class Remote(Wide):
        def save_pretrained(self, folder: str) -> None:
            raise ConnectionError("no route")

    with pytest.raises(ConnectionError, match="no route"):
        trainer_of(tmp_path, Remote()).save_model()


WRITES: dict[str, Callable[[Trainer], Any]] = {
    "The trainer state": lambda trainer: trainer.save_state(),
    "The metrics": lambda trainer: trainer.save_metrics("all", {f"metric_{index}": index for index in range(40)}),
    "The model card": lambda trainer: trainer.create_model_card(),
    "The exported model": lambda trainer: trainer.export_model(
        str(trainer.args.output_path), inputs={"x": torch.zeros(2, 200)}
    ),
}


@pytest.mark.parametrize("what", WRITES)
def test_a_failed_write_leaves_the_earlier_file(what: str, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, Wide())
    WRITES[what](trainer)
    before = contents(tmp_path)
    trainer.state.global_step = 7
    said = limited(LIMIT if what == "The exported model" else 300, lambda: WRITES[what](trainer))
    assert said.startswith(f"{what} cannot be written to {tmp_path}: ")
    assert contents(tmp_path) == before
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


class WithLinks(Wide):
    """Writes links besides its weights."""

    def save_pretrained(self, folder: str) -> None:
        (Path(folder) / "parts").mkdir()
        (Path(folder) / "parts" / "one.txt").write_text("one")
        (Path(folder) / "latest").symlink_to("parts")
        save_file(self.state_dict(), Path(folder) / "model.safetensors")


def test_links_of_a_model_are_kept(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "out", WithLinks())
    trainer.save_model()
    trainer.save_model()
    assert (tmp_path / "out" / "latest").is_symlink()
    assert (tmp_path / "out" / "latest" / "one.txt").read_text() == "one"


def test_a_subfolder_can_be_on_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def one_file_system(source: Any, target: Any) -> None:
        if Path(target).parent.name == "parts" and Path(source).parent != Path(target).parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        replace(source, target)

    monkeypatch.setattr(os, "replace", one_file_system)
    trainer_of(tmp_path, WithLinks()).save_model()
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["one.txt"]


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_a_save_of_a_named_adapter_deletes_the_other_weights_of_an_earlier_save(tmp_path: Path) -> None:
    config = peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
    model: Any = peft.get_peft_model(llama(), config, adapter_name="tuned")
    norm = next(weight for name, weight in model.named_parameters() if "norm" in name)
    norm.requires_grad_(True)
    trainer = trainer_of(tmp_path, model)
    trainer.save_model()
    assert (tmp_path / "other_weights.safetensors").is_file()
    norm.requires_grad_(False)
    trainer.save_model()
    assert not (tmp_path / "other_weights.safetensors").exists()
    assert (tmp_path / "tuned" / "adapter_model.safetensors").is_file()


def test_pickled_weights_replace_the_weights_of_an_earlier_model(tmp_path: Path) -> None:
    trainer_of(tmp_path, Wide(), max_shard_size="50KB").save_model()
    trainer_of(tmp_path, OfTorch()).save_model()
    assert [path.name for path in tmp_path.iterdir()] == ["pytorch_model.bin"]


def test_a_link_to_a_file_of_the_run_stays(tmp_path: Path) -> None:
    kept, folder = tmp_path / "kept" / "state.json", tmp_path / "out"
    kept.parent.mkdir()
    folder.mkdir()
    kept.write_text("{}")
    (folder / "trainer_state.json").symlink_to(kept)
    trainer_of(folder, Wide()).save_state()
    assert (folder / "trainer_state.json").is_symlink()
    assert "global_step" in kept.read_text()
    assert list(kept.parent.iterdir()) == [kept]


def test_a_link_to_a_device_stays(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").symlink_to("/dev/null")
    trainer_of(tmp_path, Wide()).save_state()
    assert Path("/dev/null").is_char_device()
    assert list(tmp_path.iterdir()) == [tmp_path / "trainer_state.json"]
