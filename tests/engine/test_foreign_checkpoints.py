"""Checkpoints of transformers' Trainer resume here as there, ours are read there, and earlier formats are read here."""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import trainbus
from support.data import sentences
from support.models import bert
from support.outcomes import same_weights, weights
from support.processes import HUGGING_FACE, run_on_two
from support.trainers import hushed
from trainbus.engine.checkpoint.read.hf_checkpoint import is_hf_checkpoint
from trainbus.engine.checkpoint.read.optimizer_state import restore_optimizer
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.engine.checkpoint.read.verify import problems, weight_files
from trainbus.events import CheckpointError

ROWS = 26
"""In batches of 4, seven to an epoch; in windows of three, three, the last of which has one batch."""

SETTINGS: dict[str, dict[str, Any]] = {
    "fused adamw": {"optim": "adamw_torch_fused", "weight_decay": 0.0},
    "adamw, decay": {"optim": "adamw_torch", "weight_decay": 0.1, "lr_scheduler_type": "cosine"},
    "sgd, accumulating": {"optim": "sgd", "weight_decay": 0.1, "gradient_accumulation_steps": 3},
    "sgd, momentum": {"optim": "sgd", "optim_args": "momentum=0.9", "lr_scheduler_type": "cosine"},
    "adafactor": {"optim": "adafactor", "weight_decay": 0.1},
    "adafactor, accumulating": {
        **{"optim": "adafactor", "weight_decay": 0.0, "gradient_accumulation_steps": 3},
        **{"lr_scheduler_type": "cosine", "warmup_steps": 2},
    },
    "fused adamw, accumulating": {"weight_decay": 0.1, "gradient_accumulation_steps": 3, "max_grad_norm": 0.0},
}


def run(library: Any, folder: Path, model: Any = None, collator: Any = None, **args: Any) -> Any:
    """A trainer of two epochs of a BERT with dropout, of transformers or ours."""
    said = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.01,
        "save_strategy": "no",
        "logging_steps": 2,
        **args,
    }
    with hushed():
        arguments = library.TrainingArguments(
            str(folder), use_cpu=True, disable_tqdm=True, report_to="none", seed=5, **said
        )
        return library.Trainer(
            *(bert() if model is None else model, arguments),
            data_collator=transformers.default_data_collator if collator is None else collator,
            train_dataset=sentences(ROWS),
            eval_dataset=sentences(6, 1),
        )


def written(folder: Path, **options: Any) -> Any:
    """A run of transformers that is over, and saved every step."""
    theirs = run(transformers, folder, save_strategy="steps", save_steps=1, **options)
    with hushed():
        theirs.train()
    return theirs


def resumed(folder: Path, checkpoint: Path, library: Any = trainbus, **options: Any) -> Any:
    """A run that goes on from a checkpoint, with nothing else to begin from: its model has other weights."""
    model = bert()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.1)
    again = run(library, folder, model, **options)
    with hushed():
        again.train(resume_from_checkpoint=str(checkpoint))
    return again


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of transformers with decay that saved every step: what most tests need. It is not to be changed."""
    return written(tmp_path_factory.mktemp("theirs"), weight_decay=0.1, max_steps=4)


def copy(saved: Any, folder: Path, step: int = 3) -> Path:
    """A checkpoint of it to be damaged."""
    return Path(shutil.copytree(Path(saved.args.output_dir) / f"checkpoint-{step}", folder / f"checkpoint-{step}"))


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_a_run_of_transformers_resumes_here_to_the_same_weights(setting: dict[str, Any], tmp_path: Path):
    theirs = written(tmp_path / "theirs", **setting)
    last = theirs.state.global_step
    assert last == (6 if "gradient_accumulation_steps" in setting else 14)
    for step in (1, 3, 5) if last == 6 else (1, 7, 12):  # the middle of an epoch, the end of one, the next one
        ours = resumed(tmp_path / "ours", tmp_path / "theirs" / f"checkpoint-{step}", **setting)
        assert ours.state.global_step == last
        assert same_weights(weights(ours.model), weights(theirs.model)), step


@pytest.mark.parametrize("step", [2, 7])
def test_a_random_collator_equals_transformers(step: int, tmp_path: Path):
    """Which is not what the unbroken run does in the middle of an epoch: its next batch is in no file."""

    def noisy(features: list[Any]) -> Any:
        batch = transformers.default_data_collator(features)
        batch["input_ids"] = torch.where(torch.rand(batch["input_ids"].shape) < 0.2, 0, batch["input_ids"])
        return batch

    written(tmp_path / "theirs", collator=noisy)
    checkpoint = tmp_path / "theirs" / f"checkpoint-{step}"
    theirs = resumed(tmp_path / "again", checkpoint, transformers, collator=noisy)
    ours = resumed(tmp_path / "ours", checkpoint, collator=noisy)
    assert same_weights(weights(ours.model), weights(theirs.model))


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
def test_each_of_two_processes_restores_its_own_random_states(tmp_path: Path):
    run_on_two(Path(__file__).with_name("foreign_program.py"), tmp_path, timeout=150, imported=HUGGING_FACE)
    assert json.loads((tmp_path / "found.json").read_text()) == {"2": True, "4": True, "7": True}


def test_a_run_without_decay_takes_over_the_division_of_the_parameters(tmp_path: Path):
    """What the file says of an optimizer wins over the arguments, there and here, also in our own next checkpoint."""
    theirs = written(tmp_path / "theirs", weight_decay=0.1)
    checkpoint = tmp_path / "theirs" / "checkpoint-4"
    ours = resumed(tmp_path / "ours", checkpoint, weight_decay=0.0, save_strategy="steps", save_steps=7)
    assert same_weights(weights(ours.model), weights(theirs.model))
    assert [group["weight_decay"] for group in ours.optimizer.param_groups] == [0.1, 0.0]
    for decay in (0.0, 0.1):
        again = resumed(tmp_path / "again", tmp_path / "ours" / "checkpoint-7", weight_decay=decay)
        assert same_weights(weights(again.model), weights(theirs.model))


def test_the_checkpoint_named_by_the_state_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    options = {
        **{"eval_strategy": "steps", "eval_steps": 2, "include_num_input_tokens_seen": "all"},
        **{"metric_for_best_model": "loss", "load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 2},
    }
    theirs = run(transformers, tmp_path / "theirs", max_steps=6, **options)
    theirs.add_callback(transformers.EarlyStoppingCallback(9))
    with hushed():
        theirs.train()
    ours = run(trainbus, tmp_path / "ours", max_steps=6, **options)
    at_begin: list[Any] = []
    ours.on("on_train_begin", lambda state: at_begin.append(state.to_dict()))
    caplog.set_level(logging.INFO, "trainbus")
    with hushed():
        ours.train(resume_from_checkpoint=str(tmp_path / "theirs" / "checkpoint-4"))
    told = [record.getMessage() for record in caplog.records if "callbacks" in record.getMessage()]
    assert len(told) == 1
    assert "The states of its callbacks are not restored: EarlyStoppingCallback." in told[0]
    read = transformers.TrainerState.load_from_json(str(tmp_path / "theirs" / "checkpoint-4" / "trainer_state.json"))
    for name in ("log_history", "best_metric", "best_global_step", "epoch", "global_step", "num_input_tokens_seen"):
        assert at_begin[0][name] == getattr(read, name), name
    assert read.best_metric is not None
    assert read.num_input_tokens_seen > 0
    assert ours.state.num_input_tokens_seen == theirs.state.num_input_tokens_seen
    mine, other = ([e for e in r.state.log_history if "eval_loss" in e] for r in (ours, theirs))
    assert [entry["eval_loss"] for entry in mine] == [entry["eval_loss"] for entry in other]


def test_pickled_weights_are_read(saved: Any, tmp_path: Path):
    for index in (False, True):
        folder = copy(saved, tmp_path / str(index))
        tensors = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        names = sorted(tensors)
        parts = {"pytorch_model.bin": names}
        if index:
            parts = {"pytorch_model-1-of-2.bin": names[:9], "pytorch_model-2-of-2.bin": names[9:]}
            where = {name: file for file, part in parts.items() for name in part}
            (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
        for file, part in parts.items():
            torch.save({name: tensors[name] for name in part}, folder / file)
        ours = resumed(tmp_path / "ours", folder, weight_decay=0.1, max_steps=4)
        assert same_weights(weights(ours.model), weights(saved.model))


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors"])
def test_a_missing_file_is_an_error_unless_resume_is_partial(
    name: str, saved: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    folder = copy(saved, tmp_path)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        resumed(tmp_path / "ours", folder, weight_decay=0.1, max_steps=4)
    if name != "model.safetensors":
        ours = resumed(tmp_path / "ours", folder, weight_decay=0.1, max_steps=4, resume_partial=True)
        assert ours.state.global_step == 4
        assert caplog.text.count("these start fresh: ") == 1


def test_rng_states_of_another_world_size_are_skipped(saved: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = copy(saved, tmp_path)
    (folder / "rng_state.pth").rename(folder / "rng_state_0.pth")
    assert resumed(tmp_path / "ours", folder, max_steps=4).state.global_step == 4
    assert "was not written with world size 1: it has no rng_state.pth" in caplog.text


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


DAMAGES = [(shorten, name) for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth")]
DAMAGES += [(flip, name) for name in ("optimizer.pt", "rng_state.pth")]


@pytest.mark.parametrize(("damage", "name"), DAMAGES)
def test_damaged_checkpoints_are_skipped(
    damage: Any, name: str, saved: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    for step in (1, 2, 3):
        copy(saved, tmp_path, step)
    damage(tmp_path / "checkpoint-3" / name)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged: .*\. Resume from .*checkpoint-2, which is good"):
        resumed(tmp_path, tmp_path / "checkpoint-3", max_steps=4)
    ours = run(trainbus, tmp_path, weight_decay=0.1, max_steps=4)
    ours.train(resume_from_checkpoint=True)
    assert f"checkpoint-3: {name} is damaged" in caplog.text
    assert same_weights(weights(ours.model), weights(saved.model))


def test_the_scale_of_the_loss_is_read(tmp_path: Path):
    saved = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=7)
    torch.save({**saved.state_dict(), "_enabled": False}, tmp_path / "scaler.pt")
    torch.save({}, tmp_path / "optimizer.pt")
    scaler = torch.amp.GradScaler("cpu")
    owner = SimpleNamespace(optimizer=None, lr_scheduler=None, seams=SimpleNamespace(scaler=scaler))
    restore_optimizer(owner, SavedCheckpoint.open(tmp_path))
    assert scaler.state_dict() == saved.state_dict()
    assert scaler.is_enabled()
    torch.save({"another": 1}, tmp_path / "scaler.pt")
    with pytest.raises(CheckpointError, match=r"scaler\.pt does not fit the GradScaler of this run"):
        restore_optimizer(owner, SavedCheckpoint.open(tmp_path))


def frozen(model: Any) -> Any:
    for parameter in model.bert.embeddings.parameters():
        parameter.requires_grad_(False)
    return model


def test_an_optimizer_that_does_not_fit_is_refused(saved: Any, tmp_path: Path):
    checkpoint = Path(saved.args.output_dir) / "checkpoint-3"
    with pytest.raises(CheckpointError, match=r"optimizer\.pt has groups of \d+ and \d+ parameters, and the optimizer"):
        run(trainbus, tmp_path, frozen(bert()), max_steps=4).train(resume_from_checkpoint=str(checkpoint))
    with pytest.raises(
        CheckpointError, match=r"optimizer\.pt is not a state of the optimizer SGD: it has no 'momentum'"
    ):
        run(trainbus, tmp_path, optim="sgd", max_steps=4).train(resume_from_checkpoint=str(checkpoint))
    folder = copy(saved, tmp_path)
    state = torch.load(folder / "optimizer.pt", weights_only=True)
    state["state"][0]["exp_avg"] = torch.zeros(2, 3)
    torch.save(state, folder / "optimizer.pt")
    with pytest.raises(CheckpointError, match=r"optimizer\.pt has a 'exp_avg' of shape \[2, 3\] for a parameter of"):
        run(trainbus, tmp_path, max_steps=4).train(resume_from_checkpoint=str(folder))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("optimizer.pt", [1, 2]),
        ("optimizer.pt", {"param_groups": [{"params": 3}], "state": {}}),
        ("scheduler.pt", {"optimizer": 1}),
        ("scheduler.pt", torch.ones(2)),
        ("rng_state.pth", {"python": (1,), "numpy": 2, "cpu": torch.ones(1)}),
        ("rng_state.pth", {}),
        ("rng_state.pth", "a"),
    ],
)
def test_values_of_another_kind_are_refused(name: str, value: Any, saved: Any, tmp_path: Path):
    folder = copy(saved, tmp_path)
    torch.save(value, folder / name)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        resumed(tmp_path / "ours", folder, max_steps=4)


def test_a_schedule_refuses_unknown_options(saved: Any, tmp_path: Path):
    folder = copy(saved, tmp_path)
    state = torch.load(folder / "scheduler.pt", weights_only=True)
    torch.save({**state, "step": 3, "lr_lambdas": [{"func": 1}] * 2}, folder / "scheduler.pt")
    ours = resumed(tmp_path / "ours", folder, weight_decay=0.1, max_steps=4)
    assert same_weights(weights(ours.model), weights(saved.model))


def test_weights_of_another_model_are_refused_with_their_names(saved: Any, tmp_path: Path):
    folder = copy(saved, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({"more": tensors.pop("classifier.bias"), **tensors}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"the checkpoint lacks classifier\.bias; the model lacks more"):
        resumed(tmp_path / "ours", folder, max_steps=4)


def test_which_checkpoints_are_foreign(saved: Any, tmp_path: Path):
    theirs = copy(saved, tmp_path)
    assert is_hf_checkpoint(theirs)
    (theirs / "training_args.json").write_text("{}")  # which somebody wrote beside it
    assert problems(theirs, full=True) == []
    (theirs / "optimizer.safetensors").write_text("{}")
    assert problems(theirs, full=True)[0].startswith("manifest.json is missing, but optimizer.safetensors exists")
    run(trainbus, tmp_path, max_steps=1, save_strategy="steps", save_steps=1).train()
    assert not is_hf_checkpoint(tmp_path / "checkpoint-1")


# Ours, read by transformers.


def test_transformers_reads_the_state_and_the_model_of_ours(tmp_path: Path):
    ours = run(trainbus, tmp_path, max_steps=3, save_strategy="steps", save_steps=3)
    with hushed():
        ours.train()
    ours.save_state()
    for folder in (tmp_path / "checkpoint-3", tmp_path):
        read = transformers.TrainerState.load_from_json(str(folder / "trainer_state.json"))
        assert (read.global_step, read.epoch, read.max_steps) == (3, 3 / 7, 3)
        assert read.log_history == ours.state.log_history[: len(read.log_history)] != []
        assert trainbus.TrainerState.load_from_json(folder / "trainer_state.json").samples_seen == 12
    position = SavedCheckpoint.open(tmp_path / "checkpoint-3").state["position"]
    assert [position[name] for name in ("epoch", "batches", "rows", "rows_per_batch")] == [0, 3, 12, 4]
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-3")
    inputs = transformers.default_data_collator(sentences(5, 2))
    ours.model.eval()
    assert torch.equal(loaded(**inputs).logits, ours.model(**inputs).logits)


def test_transformers_trains_on_from_a_checkpoint_of_ours_and_saves(tmp_path: Path):
    options = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6, "eval_strategy": "steps", "eval_steps": 3}
    options |= {"metric_for_best_model": "eval_loss", "load_best_model_at_end": True}
    for library in (trainbus, transformers):
        trainer = run(library, tmp_path, **options)
        trainer.add_callback(library.EarlyStoppingCallback(5))
        with hushed():
            trainer.train(resume_from_checkpoint=library is transformers and str(tmp_path / "checkpoint-3"))
        assert trainer.state.global_step == 6
    state = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())
    assert {"EarlyStoppingCallback", "TrainerControl"} <= state["stateful_callbacks"].keys()


def test_both_read_weights_in_several_files(tmp_path: Path):
    ours = run(trainbus, tmp_path, max_steps=3, save_strategy="steps", save_steps=3)
    save = ours.model.save_pretrained
    ours.model.save_pretrained = lambda folder: save(folder, max_shard_size=4000)
    with hushed():
        ours.train()
    folder = tmp_path / "checkpoint-3"
    assert len(weight_files(SavedCheckpoint.open(folder))) > 2
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert same_weights(weights(loaded), weights(ours.model))
    again = bert()
    SavedCheckpoint.open(folder).load_weights(again)
    assert same_weights(weights(again), weights(ours.model))


# Ours, of every format so far.


FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "checkpoints"


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_a_checkpoint_of_an_earlier_format_resumes(version: int, tmp_path: Path):
    module = importlib.util.spec_from_file_location("write", FIXTURES / "write.py")
    write = importlib.util.module_from_spec(module)
    module.loader.exec_module(write)
    checkpoint = FIXTURES / f"format-{version}"
    assert json.loads((checkpoint / "manifest.json").read_text())["format_version"] == version
    assert sum(path.stat().st_size for path in checkpoint.iterdir()) <= 50_000
    again = write.run(tmp_path, 1)
    again.train(resume_from_checkpoint=str(checkpoint))
    found, recorded = write.outcome(again), json.loads((FIXTURES / f"format-{version}.json").read_text())
    # To a few of the last bits: processors differ in those.
    for name, values in recorded["weights"].items():
        torch.testing.assert_close(torch.tensor(found["weights"][name]), torch.tensor(values), rtol=2e-6, atol=1e-7)
    for number, (loss, was) in enumerate(zip(found["losses"], recorded["losses"], strict=True)):
        if (version, number) != (1, 1):  # the first format did not keep the sum of a log's losses half-way
            assert loss == pytest.approx(was, rel=2e-6)
