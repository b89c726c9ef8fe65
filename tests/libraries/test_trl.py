"""TRL's trainers train, evaluate, load the best model, save and resume as with transformers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="trl is not installed: pip install trl")

from libraries.sides import Sides, compare, train
from libraries.toys import RUN, SAMPLES, llama, saved, scoring_llama, texts, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL and transformers

RESTARTED = ("num_tokens",)
"""Logged values that TRL counts from the start of the process, also with transformers."""


@pytest.fixture(scope="module")
def sides() -> Sides:
    return Sides("trl")


def sft(folder: str, **options: Any) -> Any:
    import trl

    return trl.SFTTrainer(
        model=llama(),
        args=trl.SFTConfig(folder, max_length=16, **RUN),
        train_dataset=texts(text=0),
        eval_dataset=texts(text=3).select(range(8)),
        processing_class=tokenizer(),
        **options,
    )


def sft_with_lora(folder: str) -> Any:
    from peft import LoraConfig

    torch.manual_seed(1)  # the adapter draws its weights
    return sft(folder, peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))


def dpo(folder: str) -> Any:
    import trl

    data = texts(prompt=0, chosen=1, rejected=2)
    return trl.DPOTrainer(
        model=llama(),
        ref_model=llama(),
        args=trl.DPOConfig(folder, **RUN),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=tokenizer(),
    )


def reward(folder: str) -> Any:
    import trl

    data = texts(chosen=1, rejected=2)
    return trl.RewardTrainer(
        model=scoring_llama(),
        args=trl.RewardConfig(folder, **RUN),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=tokenizer(),
    )


def kto(folder: str) -> Any:
    import trl

    data = texts(prompt=0, completion=1).add_column("label", [row % 2 == 0 for row in range(SAMPLES)])
    return trl.KTOTrainer(
        model=llama(),
        ref_model=llama(),
        args=trl.KTOConfig(folder, **RUN),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=tokenizer(),
    )


def grpo(folder: str) -> Any:
    import trl

    def distinct_words(completions: list[str], **others: Any) -> list[float]:
        return [float(len(set(text.split()))) for text in completions]

    data = texts(prompt=0)
    return trl.GRPOTrainer(
        model=saved(llama(), Path(folder).parent / "model"),
        reward_funcs=distinct_words,
        args=trl.GRPOConfig(folder, num_generations=2, max_completion_length=6, beta=0.1, **RUN),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=tokenizer(),
    )


def rloo(folder: str) -> Any:
    import trl

    def distinct_words(completions: list[str], **others: Any) -> list[float]:
        return [float(len(set(text.split()))) for text in completions]

    data = texts(prompt=0)
    return trl.RLOOTrainer(
        model=saved(llama(), Path(folder).parent / "model"),
        reward_funcs=distinct_words,
        args=trl.RLOOConfig(folder, num_generations=2, max_completion_length=6, **RUN),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=tokenizer(),
    )


def distillation(folder: str) -> Any:
    import trl

    data = texts(prompt=0)
    return trl.DistillationTrainer(
        model=saved(llama(), Path(folder).parent / "model"),
        teacher_model=llama(),
        args=trl.DistillationConfig(folder, max_completion_length=6, **RUN),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=tokenizer(),
    )


def cpo(folder: str) -> Any:
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    data = texts(prompt=0, chosen=1, rejected=2)
    return CPOTrainer(  # sets `self.tokenizer` before the constructor of the Trainer
        model=llama(),
        args=CPOConfig(folder, max_length=24, **RUN),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=tokenizer(),
    )


def online_dpo(folder: str) -> Any:
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    options = {**RUN, "gradient_accumulation_steps": 1, "load_best_model_at_end": False, "eval_strategy": "no"}
    return OnlineDPOTrainer(  # overrides `_maybe_log_save_evaluate`
        model=llama(),
        reward_funcs=scoring_llama(),
        reward_processing_classes=tokenizer(),
        args=OnlineDPOConfig(folder, max_new_tokens=6, **options),
        train_dataset=texts(prompt=0),
        processing_class=tokenizer(),
    )


def dpo_with_moving_reference(folder: str) -> Any:
    import trl
    from trl.experimental.bema_for_ref_model import BEMACallback, DPOTrainer

    data = texts(prompt=0, chosen=1, rejected=2)
    return DPOTrainer(  # replaces `callback_handler`
        model=llama(),
        ref_model=llama(),
        args=trl.DPOConfig(folder, **RUN),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=tokenizer(),
        callbacks=[BEMACallback(update_freq=2, update_ref_model=True, ref_model_update_freq=2)],
    )


def dpo_with_synced_reference(folder: str) -> Any:
    import trl

    data = texts(prompt=0, chosen=1, rejected=2)
    return trl.DPOTrainer(  # a callback of TRL moves the reference model and does not save it
        model=llama(),
        ref_model=llama(),
        args=trl.DPOConfig(folder, sync_ref_model=True, ref_model_sync_steps=2, **RUN),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        processing_class=tokenizer(),
    )


@pytest.mark.parametrize(
    "build", [sft, sft_with_lora, dpo, reward, kto, grpo, rloo, cpo], ids=lambda build: build.__name__
)
def test_trainer_of_trl_equals_transformers_and_resumes_exactly(build: Callable[[str], Any], sides, tmp_path):
    compared = compare(sides, build, tmp_path)
    assert compared.ours.differences(compared.theirs) == []
    assert compared.ours.best == compared.theirs.best != ""
    assert compared.resumed.differences(compared.ours, without=RESTARTED) == []
    with sides.of("ours"):
        compared.ours.trainer.save_model(tmp_path / "saved")
    assert any((tmp_path / "saved").glob("*.safetensors"))
    assert (tmp_path / "saved" / "tokenizer.json").is_file()
    assert (tmp_path / "ours" / "README.md").is_file()  # TRL's own override of `_save_checkpoint` writes it


@pytest.mark.parametrize(
    "build", [distillation, online_dpo, dpo_with_moving_reference], ids=lambda build: build.__name__
)
def test_trainer_of_trl_that_replaces_methods_equals_transformers(build: Callable[[str], Any], sides, tmp_path):
    with sides.of("theirs"):
        theirs = train(build, tmp_path / "theirs")
    with sides.of("ours"):
        ours = train(build, tmp_path / "ours")
    assert ours.differences(theirs) == []
    assert ours.best == theirs.best


@pytest.mark.parametrize(
    "build", [dpo_with_moving_reference, dpo_with_synced_reference], ids=lambda build: build.__name__
)
def test_trainer_of_trl_resumes_as_transformers_where_trl_saves_no_reference_model(
    build: Callable[[str], Any], sides, tmp_path
):
    resumed = {}
    for side in ("theirs", "ours"):
        with sides.of(side):
            whole = train(build, tmp_path / side)
            shutil.copytree(whole.folder / "checkpoint-4", tmp_path / f"{side}-resumed" / "checkpoint-4")
            resumed[side] = train(build, tmp_path / f"{side}-resumed", resume=True)
            assert resumed[side].differences(whole) != []  # TRL begins again with the first reference model
    # transformers averages the resumed steps only; the log history of an unbroken run averages all steps.
    assert resumed["ours"].differences(resumed["theirs"], without=("train_loss",)) == []


def test_config_of_trl_reads_its_own_fields_and_ours_from_json_text(sides, tmp_path):
    with sides.of("ours"):
        import trl

        read = trl.SFTConfig(
            str(tmp_path),
            model_init_kwargs='{"dtype": "float32"}',
            lr_scheduler_kwargs='{"num_cycles": 2}',
            bf16=False,
            report_to="none",
        )
    assert read.model_init_kwargs == {"dtype": "float32"}
    assert read.lr_scheduler_kwargs == {"num_cycles": 2}
    assert read.gradient_checkpointing
    assert read.logging_steps == 10
