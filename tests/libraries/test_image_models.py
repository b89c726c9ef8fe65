"""ViT trains, loads its best and resumes, although its `save_pretrained` writes the weights under other names."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers
from libraries.sides import Compared, Outcome, train
from libraries.toys import RUN
from safetensors.torch import load_file, save_file
from transformers import ViTConfig, ViTForImageClassification

import trainbus
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.events import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers


def vit() -> ViTForImageClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=3))


def trainer(library: Any, folder: str) -> Any:
    generator = torch.Generator().manual_seed(1)
    rows = [{"pixel_values": torch.randn(3, 8, 8, generator=generator), "labels": row % 3} for row in range(16)]
    options = {**RUN, "learning_rate": 0.05}  # the last model is worse than an earlier one
    return library.Trainer(
        vit(), library.TrainingArguments(folder, **options), train_dataset=rows, eval_dataset=rows[:8]
    )


def build(library: Any) -> Any:
    return lambda folder: trainer(library, folder)


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Compared:
    folder = tmp_path_factory.mktemp("vit")
    theirs, ours = train(build(transformers), folder / "theirs"), train(build(trainbus), folder / "ours")
    resumed: Outcome = train(resuming(folder / "ours" / "checkpoint-4"), folder / "resumed")
    return Compared(theirs, ours, resumed)


def resuming(checkpoint: Any) -> Any:
    def built(folder: str) -> Any:
        made = trainer(trainbus, folder)
        started = made.train
        made.train = lambda resume_from_checkpoint=None: started(resume_from_checkpoint=str(checkpoint))
        return made

    return built


def test_files_of_the_checkpoint_name_the_weights_as_transformers_does(compared):
    saved = load_file(compared.ours.folder / "checkpoint-4" / "model.safetensors")
    assert saved.keys() == load_file(compared.theirs.folder / "checkpoint-4" / "model.safetensors").keys()
    assert saved.keys() != vit().state_dict().keys()


def test_training_and_evaluation_equal_transformers(compared):
    assert [entry for entry in compared.ours.differences(compared.theirs) if isinstance(entry, tuple)] == []


def test_best_model_is_loaded_where_transformers_keeps_the_last(compared):
    best = ViTForImageClassification.from_pretrained(compared.ours.trainer.state.best_model_checkpoint).state_dict()
    assert all(torch.equal(best[name], value) for name, value in compared.ours.weights.items())
    assert compared.ours.best == compared.theirs.best


def test_resumed_training_equals_the_uninterrupted_one(compared):
    assert compared.resumed.differences(compared.ours) == []


def test_config_states_use_cache_as_transformers_writes_it(compared):
    ours, theirs = (
        json.loads((side.folder / "checkpoint-4" / "config.json").read_text())
        for side in (compared.ours, compared.theirs)
    )
    assert ours == theirs
    assert ours["use_cache"] is False


def test_checkpoint_that_lacks_a_weight_is_refused_in_either_layout(compared, tmp_path):
    folder = tmp_path / "checkpoint-4"
    vit().save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    del weights["vit.encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    model = vit()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match="do not fit ViTForImageClassification"):
        SavedCheckpoint.open(folder).load_weights(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
