"""Adapters of peft are weights: they are saved, verified, resumed, loaded as the best model, and exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from resume_points import equal

from support.adapters import KINDS, LORA, Base, adapted, first_of, run_of
from support.outcomes import same_weights, weights
from support.trainers import regression_trainer
from trainbus.engine.checkpoint.read.saved import SavedCheckpoint
from trainbus.engine.commands.main import main
from trainbus.events.errors import CheckpointError

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),  # peft reads the former name
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_adapters_resumes_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    whole = run_of(tmp_path, adapted(kind))
    whole.train()
    for step in (2, 6):
        checkpoint = tmp_path / f"checkpoint-{step}"
        assert SavedCheckpoint.open(checkpoint).problems() == []
        again = run_of(tmp_path / "again", adapted(kind, seed=5), save_strategy="no")
        again.train(resume_from_checkpoint=str(checkpoint))
        assert same_weights(weights(again.model), weights(whole.model))
        assert equal(again.optimizer.state_dict(), whole.optimizer.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_peft_loads_the_adapters_of_a_checkpoint(kind: str, tmp_path: Path) -> None:
    whole = run_of(tmp_path, adapted(kind))
    whole.train()
    first = first_of(kind)
    folder = tmp_path / "checkpoint-8" / ("" if first == "default" else first)
    loaded: Any = peft.PeftModel.from_pretrained(Base(), str(folder), adapter_name=first)
    if kind == "several":
        loaded.load_adapter(str(folder / "second"), "second")
    names = [name for name, weight in whole.model.named_parameters() if "lora" in name or "ia3" in name]
    state = loaded.state_dict()
    assert names
    assert all(state[name].equal(whole.model.state_dict()[name]) for name in names)


@pytest.mark.parametrize("kind", ["lora", "several", "a weight besides"])
def test_the_best_adapters_are_loaded_at_the_end(kind: str, tmp_path: Path) -> None:
    values = iter([3.0, 1.0, 2.0, 4.0])
    run = run_of(
        tmp_path, adapted(kind), load_best_model_at_end=True, metric_for_best_model="own", greater_is_better=False,
        eval_strategy="steps", eval_steps=2,
    )  # fmt: skip
    run.compute_metrics = lambda prediction: {"own": next(values)}
    seen: dict[str, Any] = {}
    run.on("on_step_end", lambda state, model: seen.update(weights(model)), once=4)
    run.train()
    assert run.state.best_global_step == 4
    assert same_weights(weights(run.model), seen)


def test_the_command_line_verifies_and_exports_adapters(tmp_path: Path, capsys: Any) -> None:
    run_of(tmp_path, adapted("several"), save_steps=4).train()
    assert main(["checkpoints", "verify", str(tmp_path)]) == 0
    assert main(["checkpoints", "export", str(tmp_path / "checkpoint-8"), str(tmp_path / "out")]) == 0
    assert "second/adapter_model.safetensors" in capsys.readouterr().out
    assert (tmp_path / "out" / "adapter_config.json").is_file()
    assert not (tmp_path / "out" / "optimizer.safetensors").exists()
    (tmp_path / "checkpoint-8" / "second" / "adapter_model.safetensors").write_bytes(b"")
    assert main(["checkpoints", "verify", str(tmp_path)]) == 1


def test_a_checkpoint_of_transformers_with_adapters_resumes(tmp_path: Path) -> None:
    import transformers

    args = {"max_steps": 8, "save_steps": 4, "learning_rate": 0.05, "use_cpu": True, "report_to": "none"}
    args |= {"per_device_train_batch_size": 4, "disable_tqdm": True, "remove_unused_columns": False}
    rows = run_of(tmp_path, adapted("a module besides")).train_dataset
    model = adapted("a module besides")
    model.base_model.model.norm.track_running_stats = False  # transformers does not save the running mean
    model.base_model.model.norm.running_mean = model.base_model.model.norm.running_var = None
    theirs = transformers.Trainer(model, transformers.TrainingArguments(str(tmp_path), **args), train_dataset=rows)
    theirs.train()
    assert SavedCheckpoint.open(tmp_path / "checkpoint-4").problems() == []
    mine = adapted("a module besides", seed=5)
    mine.base_model.model.norm.track_running_stats = False
    mine.base_model.model.norm.running_mean = mine.base_model.model.norm.running_var = None
    again = run_of(tmp_path / "again", mine, weight_decay=0.0)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    ours, other = weights(again.model), weights(theirs.model)
    assert same_weights(
        {name: weight for name, weight in ours.items() if "num_batches" not in name},
        {name: weight for name, weight in other.items() if "num_batches" not in name},
    )


def test_adapters_of_a_transformers_model_resume(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    def build(seed: int) -> Any:
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes))
        torch.manual_seed(seed)
        model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj"]))
        return model

    rows = [{"input_ids": torch.arange(5) + row, "labels": torch.arange(5) + row} for row in range(16)]
    args = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "use_cpu": True}
    whole = regression_trainer(tmp_path, build(1), args=args, train_dataset=rows)
    whole.train()
    again = regression_trainer(tmp_path / "again", build(2), args=args, train_dataset=rows)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert (tmp_path / "checkpoint-3" / "adapter_model.safetensors").is_file()
    assert same_weights(weights(again.model), weights(whole.model))


@pytest.mark.parametrize("kind", ["prompt", "prefix with a projection", "causal lora"])
def test_prompts_and_causal_adapters_resume(kind: str, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    configs = {
        "prompt": peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
        "prefix with a projection": peft.PrefixTuningConfig(
            task_type="CAUSAL_LM", num_virtual_tokens=3, prefix_projection=True, encoder_hidden_size=8
        ),
        "causal lora": peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"], init_lora_weights=False),
    }

    def build(seed: int) -> Any:
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        base = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes))
        torch.manual_seed(seed)
        return peft.get_peft_model(base, configs[kind])

    rows = [{"input_ids": torch.arange(5) + row, "labels": torch.arange(5) + row} for row in range(16)]
    args = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3, "use_cpu": True}
    args |= {"remove_unused_columns": False, "label_names": ["labels"]}
    whole = regression_trainer(tmp_path, build(1), args=args, train_dataset=rows)
    whole.train()
    again = regression_trainer(tmp_path / "again", build(2), args=args, train_dataset=rows)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert same_weights(weights(again.model), weights(whole.model))
    if kind == "prompt":  # as transformers writes it
        (tmp_path / "checkpoint-6" / "other_weights.safetensors").unlink()
        (tmp_path / "checkpoint-6" / "manifest.json").unlink()
        other = build(2)
        SavedCheckpoint.open(tmp_path / "checkpoint-6").load_weights(other)
        assert same_weights(weights(other), weights(whole.model))


def test_adapters_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    run_of(tmp_path, adapted("lora"), max_steps=2).train()
    checkpoint = SavedCheckpoint.open(tmp_path / "checkpoint-2")
    wider: Any = peft.get_peft_model(Base(), peft.LoraConfig(**{**LORA, "r": 4}))
    more: Any = peft.get_peft_model(Base(), peft.LoraConfig(**{**LORA, "target_modules": ["first", "last", "middle"]}))
    fewer: Any = peft.get_peft_model(Base(), peft.LoraConfig(**{**LORA, "target_modules": ["first"]}))
    for model, message in (
        (Base(), "has no adapter.*get_peft_model"),
        (adapted("several"), "has the adapters default, but the model has default, second"),
        (wider, "size mismatch"),
        (more, "the checkpoint lacks .*middle"),
        (fewer, "the model lacks .*last"),
    ):
        with pytest.raises(CheckpointError, match=message):
            checkpoint.load_weights(model)


def test_the_weights_of_a_checkpoint_of_adapters_can_be_read(tmp_path: Path) -> None:
    run_of(tmp_path, adapted("several"), max_steps=2).train()
    found = SavedCheckpoint.open(tmp_path / "checkpoint-2").weights()
    assert "base_model.model.first.lora_A.weight" in found
    assert "second/base_model.model.middle.lora_A.weight" in found


class Silent(Base):
    """A model whose `save_pretrained` writes a format of its own."""

    def save_pretrained(self, folder: Any, **options: Any) -> None:
        (Path(folder) / "own.json").write_text(json.dumps("own"))


def test_a_checkpoint_has_weights_if_save_pretrained_writes_none(tmp_path: Path) -> None:
    whole = run_of(tmp_path, Silent())
    whole.train()
    again = run_of(tmp_path / "again", Silent())
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert (tmp_path / "checkpoint-4" / "own.json").is_file()
    assert same_weights(weights(again.model), weights(whole.model))
