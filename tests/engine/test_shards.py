"""Weights in several files: dealt out as huggingface_hub does, read by it, by transformers and by a resumed run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from support.checkpoints import chosen, flip, names_in
from support.data import points, sentences
from support.models import bert
from support.outcomes import same_weights, weights
from support.trainers import hushed, regression_trainer
from trainbus import TrainingArguments
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.engine.checkpoint.read.verify import problems, weight_files
from trainbus.engine.checkpoint.write.model_files import bytes_in, save_weights
from trainbus.events import ArgumentError, CheckpointError

INDEX = "model.safetensors.index.json"


class Deep(nn.Module):
    """Layers of several sizes, with dropout, and one weight under two names."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Dropout(0.2), nn.Linear(20, 20), nn.Linear(20, 3))
        self.again = nn.Linear(3, 20)
        self.again.weight = self.layers[0].weight
        self.head = nn.Linear(20, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        predicted = self.head(self.again(self.layers(x))).squeeze(-1)
        return {"loss": nn.functional.mse_loss(predicted, labels), "logits": predicted}


def plain(folder: Path, seed: int = 0, **args: Any) -> Any:
    args = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "max_shard_size": "1KB", **args}
    return regression_trainer(folder, Deep(seed), args=args)


def of_transformers(folder: Path, seed: int = 0, **args: Any) -> Any:
    args = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "max_shard_size": "4KB", **args}
    return regression_trainer(folder, bert(), args=args, train_dataset=sentences(20))


BOTH = pytest.mark.parametrize("make", [plain, of_transformers], ids=["plain", "of transformers"])


@BOTH
@pytest.mark.parametrize("later", [True, False], ids=["on a thread", "in step"])
def test_a_run_resumed_from_shards_equals_the_uninterrupted_run(make: Callable[..., Any], later: bool, tmp_path: Path):
    with hushed():
        run = make(tmp_path / "run", async_save=later)
        run.train()
        folder = tmp_path / "run" / "checkpoint-2"
        assert len(weight_files(SavedCheckpoint.open(folder))) > 2
        assert "model.safetensors" not in names_in(folder)
        assert problems(folder, full=True) == []
        again = make(tmp_path / "again", seed=1, save_strategy="no")
        again.train(resume_from_checkpoint=str(folder))
    assert same_weights(weights(again.model), weights(run.model))


def test_transformers_reads_them(tmp_path: Path):
    import transformers

    with hushed():
        run = of_transformers(tmp_path)
        run.train()
        loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-4")
    assert same_weights(weights(loaded), weights(run.model))


def test_huggingface_hub_reads_those_of_a_plain_model(tmp_path: Path):
    hub = pytest.importorskip("huggingface_hub")
    model = nn.Sequential(nn.Linear(3, 20), nn.Linear(20, 20), nn.Linear(20, 1))
    save_weights(model.state_dict(), tmp_path, 1000)
    assert len(weight_files(SavedCheckpoint.open(tmp_path))) == 3
    read = nn.Sequential(nn.Linear(3, 20), nn.Linear(20, 20), nn.Linear(20, 1))
    hub.load_torch_model(read, tmp_path)
    assert same_weights(weights(read), weights(model))


NAMED = {f"layer {number}": torch.rand(size) for number, size in enumerate((3, 9, 1, 250, 40, 40, 1, 7))}


def held_by(folder: Path) -> dict[str, list[str]]:
    """The names of the tensors in each file of a folder."""
    return {path.name: sorted(load_file(path)) for path in sorted(folder.glob("*.safetensors"))}


@pytest.mark.parametrize("limit", [1000, 1160, 1300, 1700])
def test_they_are_dealt_out_as_huggingface_hub_does(limit: int, tmp_path: Path):
    """The same tensors in the same files, with the same index, where no tensor is larger than a file may be."""
    hub = pytest.importorskip("huggingface_hub")
    save_weights(NAMED, tmp_path, limit)
    theirs = hub.split_torch_state_dict_into_shards(NAMED, max_shard_size=limit)
    assert held_by(tmp_path) == {name: sorted(held) for name, held in theirs.filename_to_tensors.items()}
    assert (tmp_path / INDEX).is_file() == theirs.is_sharded
    if theirs.is_sharded:
        index = json.loads((tmp_path / INDEX).read_text())
        assert index == {"metadata": theirs.metadata, "weight_map": theirs.tensor_to_filename}


@pytest.mark.parametrize("limit", [1, 40, 100, 500])
def test_a_tensor_above_the_shard_size_has_its_own_file(limit: int, tmp_path: Path):
    save_weights(NAMED, tmp_path, limit)
    held = held_by(tmp_path)
    assert sorted(name for names in held.values() for name in names) == sorted(NAMED)
    for names in held.values():
        assert len(names) == 1 or sum(NAMED[name].nbytes for name in names) <= limit
    read = nn.Module()
    for name, tensor in NAMED.items():
        read.register_buffer(name, torch.zeros_like(tensor))
    SavedCheckpoint.open(tmp_path).load_weights(read)
    assert same_weights(weights(read), NAMED)


def test_a_weight_with_two_names_is_in_one_of_them_and_comes_back_under_both(tmp_path: Path):
    model, read = Deep(), Deep(seed=1)
    save_weights(model.state_dict(), tmp_path, 300)
    held = [name for path in tmp_path.glob("*.safetensors") for name in load_file(path)]
    assert sorted(held) == sorted(set(held))
    assert not {"layers.0.weight", "again.weight"} <= set(held)
    SavedCheckpoint.open(tmp_path).load_weights(read)
    assert same_weights(weights(read), weights(model))
    assert read.again.weight is read.layers[0].weight


# What an earlier saving left.


@pytest.mark.parametrize("sizes", [("1KB", "1GB"), ("1GB", "1KB"), ("1KB", "400"), ("400", "1KB")], ids=" then ".join)
def test_the_model_that_was_saved_last_is_the_one_that_is_read(sizes: tuple[str, str], tmp_path: Path):
    for seed, size in enumerate(sizes, 1):
        plain(tmp_path / "run", seed, max_shard_size=size).save_model(str(tmp_path / "model"))
    read = Deep()
    SavedCheckpoint.open(tmp_path / "model").load_weights(read)
    assert same_weights(weights(read), weights(Deep(seed=2)))
    expected = (
        ["model.safetensors"] if sizes[1] == "1GB" else [*weight_files(SavedCheckpoint.open(tmp_path / "model")), INDEX]
    )
    assert names_in(tmp_path / "model") == expected


# Damage.


@BOTH
def test_any_damage_to_a_shard_or_to_the_index_is_found(make: Callable[..., Any], tmp_path: Path, caplog):
    with hushed():
        make(tmp_path).train()
    folder = tmp_path / "checkpoint-4"
    for name in (*weight_files(SavedCheckpoint.open(folder)), INDEX):
        whole = (folder / name).read_bytes()
        for damage in ("one bit", "half", "empty", "absent"):
            if damage == "one bit":
                flip(folder / name)
            elif damage == "absent":
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(whole[: len(whole) // 2] if damage == "half" else b"")
            caplog.clear()
            assert chosen(tmp_path, True) == tmp_path / "checkpoint-2"
            assert f"- checkpoint-4: {name}" in caplog.text
            (folder / name).write_bytes(whole)
    assert problems(folder, full=True) == []


def test_shards_that_lack_a_weight_are_refused_by_its_name(tmp_path: Path):
    save_weights({name: tensor for name, tensor in Deep().state_dict().items() if "head" not in name}, tmp_path, 300)
    with pytest.raises(CheckpointError, match=r"do not fit Deep: the checkpoint lacks head\.bias, head\.weight"):
        SavedCheckpoint.open(tmp_path).load_weights(Deep())


# Sizes.


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, 1), ("700", 700), ("5GB", 5 * 10**9), ("1.5 kb", 1500), ("2KiB", 2048), (" 1MiB ", 2**20), ("3mb", 3 * 10**6)],
)
def test_sizes_are_read(size: Any, expected: int):
    assert bytes_in(size) == expected


@pytest.mark.parametrize("size", [0, -1, "", "0.1", "GB", "5 elephants", "5TBs", "1e3", "nan"])
def test_an_invalid_batch_size_is_refused_before_training(size: Any, tmp_path: Path):
    with pytest.raises(
        ArgumentError, match=r"max_shard_size=.* is not a size. Write a number of bytes, or text such as '5GB'"
    ):
        TrainingArguments(str(tmp_path), max_shard_size=size)


def test_one_file_is_written_where_it_is_large_enough(tmp_path: Path):
    regression_trainer(
        tmp_path, Deep(), args={"max_steps": 1, "save_strategy": "steps"}, train_dataset=points(4)
    ).train()
    assert weight_files(SavedCheckpoint.open(tmp_path / "checkpoint-1")) == ["model.safetensors"]
    assert INDEX not in names_in(tmp_path / "checkpoint-1")
