"""Trainings with adapters and optimizers of peft equal those with transformers, and resume exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

pytest.importorskip("peft", reason="peft is not installed: pip install peft")

import peft
from libraries.sides import Sides, compare
from libraries.toys import RUN, llama, texts, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")  # of peft and transformers

BASE: dict[str, Any] = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}


class Allocate(transformers.TrainerCallback):
    """Lets AdaLoRA prune the ranks, as its documentation says."""

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        model.base_model.update_and_allocate(state.global_step)


def trainer(folder: str, config: Any, optimizer: Callable[[Any], Any] | None = None, **options: Any) -> Any:
    torch.manual_seed(1)  # the adapter draws its weights
    model, words = peft.get_peft_model(llama(), config), tokenizer()
    data = texts(text=0).map(
        lambda row: words(row["text"], padding="max_length", max_length=8, truncation=True), remove_columns="text"
    )
    given = {} if optimizer is None else {"optimizers": (optimizer(model), None)}
    return transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(folder, **RUN),
        train_dataset=data,
        eval_dataset=data.select(range(8)),
        data_collator=transformers.DataCollatorForLanguageModeling(words, mlm=False),
        **given,
        **options,
    )


def adalora(folder: str) -> Any:
    ranks = {"init_r": 4, "target_r": 2, "total_step": 8, "tinit": 1, "tfinal": 2, "deltaT": 1}
    return trainer(folder, peft.AdaLoraConfig(**ranks, **BASE), callbacks=[Allocate()])


def ia3(folder: str) -> Any:
    return trainer(folder, peft.IA3Config(feedforward_modules=[], **BASE))


def lora_plus(folder: str) -> Any:
    from peft.optimizers import create_loraplus_optimizer

    options = {"lr": 1e-2, "loraplus_lr_ratio": 4}
    return trainer(
        folder,
        peft.LoraConfig(r=2, **BASE),
        lambda model: create_loraplus_optimizer(model, torch.optim.AdamW, **options),
    )


def lora_fa(folder: str) -> Any:
    from peft.optimizers import create_lorafa_optimizer

    options = {"r": 2, "lora_alpha": 8, "lr": 1e-2}
    return trainer(folder, peft.LoraConfig(r=2, **BASE), lambda model: create_lorafa_optimizer(model, **options))


@pytest.mark.parametrize("build", [ia3, lora_plus, lora_fa], ids=lambda build: build.__name__)
def test_training_with_peft_equals_transformers_and_resumes_exactly(build: Callable[[str], Any], tmp_path):
    compared = compare(Sides(), build, tmp_path)
    assert compared.ours.differences(compared.theirs) == []
    assert compared.ours.best == compared.theirs.best != ""
    assert compared.resumed.differences(compared.ours) == []


def test_best_model_with_pruned_ranks_has_the_metrics_of_its_evaluation(tmp_path):
    compared = compare(Sides(), adalora, tmp_path)
    # transformers loads tensors of the pruned ranks, and peft scales these otherwise than in the training.
    assert compared.ours.weights.keys() == compared.theirs.weights.keys()
    assert [entry.get("loss") for entry in compared.ours.logs] == [entry.get("loss") for entry in compared.theirs.logs]
    losses = [entry["eval_loss"] for entry in compared.ours.logs if "eval_loss" in entry]
    assert losses == [entry["eval_loss"] for entry in compared.theirs.logs if "eval_loss" in entry]
    assert compared.ours.trainer.evaluate()["eval_loss"] == min(losses)
    assert compared.resumed.differences(compared.ours) == []
