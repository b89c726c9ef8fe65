"""The engine inspects the `forward` of the user through every wrapper of a model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import nn

import trainbus
from support.models import Regression
from support.trainers import hushed, regression_trainer
from trainbus.engine.loss.label_smoothing import LabelSmoother
from trainbus.engine.loss.signature import ForwardSignature, label_names_of, user_model


class PassesOn(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


def hide(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class Hidden(Regression):
    forward = hide(Regression.forward)


class Wrapped(Regression):
    forward = functools.wraps(Regression.forward)(hide(Regression.forward))


def replaced(change: Callable[[Any], Any]) -> nn.Module:
    model: Any = Regression()
    model.forward = change(model.forward)
    return model


def lora(**options: Any) -> nn.Module:
    torch.manual_seed(1)
    model: Any = peft.get_peft_model(Regression(), peft.LoraConfig(target_modules=["linear"], r=2, **options))
    return model


WAYS: dict[str, Callable[[], Any]] = {
    "plain": Regression,
    "compiled": lambda: torch.compile(Regression(), backend="eager"),
    "peft": lora,
    "compiled peft": lambda: torch.compile(lora(), backend="eager"),
    "averaged": lambda: torch.optim.swa_utils.AveragedModel(Regression()),
    "data parallel": lambda: nn.DataParallel(Regression()),
    "passed on": lambda: PassesOn(Regression()),
    "passed on twice": lambda: PassesOn(PassesOn(Regression())),
    "decorated with wraps": Wrapped,
    "decorated without wraps": Hidden,
    "decorated on the instance": lambda: replaced(hide),
    "partial": lambda: replaced(functools.partial),
    "partial of a decorated": lambda: replaced(lambda forward: functools.partial(hide(forward))),
}


def points(rows: int = 16) -> list[dict[str, Any]]:
    """Rows with a column that the model does not take."""
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
    return [{"x": row, "note": index, "labels": row.sum()} for index, row in enumerate(x)]


@pytest.mark.parametrize("way", WAYS)
def test_columns_labels_and_the_item_count_come_from_the_forward_of_the_user(way: str):
    model = WAYS[way]()
    signature = ForwardSignature.of(model)
    assert [name for name in signature.parameters if name != "self"] == ["x", "labels"]
    assert label_names_of(model) == ["labels"]
    assert not signature.accepts_any_keyword
    if way != "decorated without wraps":
        assert isinstance(user_model(model), Regression)


@pytest.mark.parametrize("way", WAYS)
def test_a_wrapped_model_trains_on_dict_rows_with_accumulation(way: str, tmp_path: Path):
    losses = []
    for accumulate in (1, 2):
        args = {"gradient_accumulation_steps": accumulate, "learning_rate": 0.0, "num_train_epochs": 1}
        run = regression_trainer(tmp_path, WAYS[way](), train_dataset=points(), eval_dataset=points(), args=args)
        losses.append(run.train().training_loss)
        assert run.evaluate()["eval_loss"] == pytest.approx(losses[0], rel=1e-5)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_forward_that_hides_its_parameters_keeps_all_columns(tmp_path: Path):
    seen: list[set[str]] = []

    class Opaque(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([Regression(), Regression()])

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            seen.append({*kwargs} - {"num_items_in_batch"})
            return self.parts[0](kwargs["x"], kwargs["labels"])

    regression_trainer(tmp_path, Opaque(), train_dataset=points(), args={"max_steps": 1}).train()
    assert seen == [{"x", "note", "labels"}]


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2))


def causal_lora(task: str | None) -> nn.Module:
    base: Any = gpt2()
    torch.manual_seed(1)
    model: Any = peft.get_peft_model(base, peft.LoraConfig(task_type=task, r=2, target_modules=["c_attn"]))
    return model


def texts(rows: int = 8) -> list[dict[str, list[int]]]:
    tokens = torch.randint(0, 20, (rows, 8), generator=torch.Generator().manual_seed(0)).tolist()
    return [{"input_ids": row, "labels": row} for row in tokens]


@pytest.mark.parametrize("task", ["CAUSAL_LM", None])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_peft_causal_model_trains_as_under_transformers(task: str, smoothing: float, accumulate: int, tmp_path: Path):
    import transformers

    trained = []
    for library in (transformers, trainbus):
        with hushed():
            args = library.TrainingArguments(
                str(tmp_path),
                per_device_train_batch_size=2,
                gradient_accumulation_steps=accumulate,
                max_steps=2,
                label_smoothing_factor=smoothing,
                learning_rate=0.05,
                use_cpu=True,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
            )
            run = library.Trainer(causal_lora(task), args, train_dataset=texts(), eval_dataset=texts())
            run.train()
            trained.append((run.evaluate()["eval_loss"], dict(run.model.state_dict())))
    (their_loss, theirs), (our_loss, ours) = trained
    assert our_loss == pytest.approx(their_loss, rel=1e-6)
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


class OddlyNamed(nn.Module):
    """Only passes on, and names its first parameter `s`."""

    def __init__(s, module: nn.Module) -> None:
        super().__init__()
        s.module = module

    def forward(s, *a: Any, **k: Any) -> Any:
        return s.module(*a, **k)


def test_a_wrapper_may_name_its_first_parameter_freely() -> None:
    inner = nn.Linear(2, 2)
    assert user_model(OddlyNamed(OddlyNamed(inner))) is inner
    assert list(ForwardSignature.of(OddlyNamed(inner)).parameters) == ["input"]


def test_label_smoothing_predicts_the_first_label_from_the_last_virtual_token_as_peft_does() -> None:
    logits, labels = torch.randn(2, 7, 5), torch.randint(0, 5, (2, 4))
    smoother = LabelSmoother(0.2)
    expected = nn.functional.cross_entropy(logits[:, 2:-1].flatten(0, 1), labels.flatten(), label_smoothing=0.2)
    torch.testing.assert_close(smoother(logits, labels, shift=True, items=None), expected)


class Forwards(nn.Module):
    """Names no parameter and takes any keyword."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, **batch: Any) -> Any:
        return self.inner(**batch)


class Scripted(nn.Module):
    """A model that TorchScript compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.linear(x).squeeze(-1)
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


@pytest.mark.parametrize("make", [lambda: Forwards(Regression()), lambda: torch.jit.script(Scripted())])
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_columns_and_labels_are_found_in_keyword_wrappers_and_torchscript(make: Any, tmp_path: Path) -> None:
    width = 3 if not isinstance(make(), Forwards) else None
    data = [{**row, "x": row["x"][:width], "extra": torch.ones(1), "text": "a"} for row in points(8)]
    run = regression_trainer(tmp_path, make(), train_dataset=data, eval_dataset=data, args={"max_steps": 1})
    run.train()
    assert "eval_loss" in run.evaluate()
    assert user_model(Forwards(model := Regression())) is model


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft reads the former name
@pytest.mark.parametrize("kind", ["prompt", "prefix", "p-tuning", "lora"])
def test_smoothing_by_nothing_gives_the_loss_of_an_adapter(kind: str, tmp_path: Path) -> None:
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32, **sizes))
    task: dict[str, Any] = {"task_type": "CAUSAL_LM"}
    adapters = {
        "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=3, **task),
        "prefix": lambda: peft.PrefixTuningConfig(num_virtual_tokens=3, **task),
        "p-tuning": lambda: peft.PromptEncoderConfig(num_virtual_tokens=3, encoder_hidden_size=8, **task),
        "lora": lambda: peft.LoraConfig(target_modules=["q_proj"], **task),
    }
    model = peft.get_peft_model(base, adapters[kind]())
    ids = [(torch.arange(5) * number) % 20 for number in range(1, 9)]
    data = [{"input_ids": each, "labels": each} for each in ids]
    losses = []
    for factor in (0.0, 1e-9):
        args = {"label_smoothing_factor": factor, "remove_unused_columns": False, "label_names": ["labels"]}
        run = regression_trainer(tmp_path, model, eval_dataset=data, args=args)
        losses.append(run.evaluate()["eval_loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
