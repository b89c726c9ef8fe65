"""ChunkedCrossEntropy: the results of transformers' loss except for rounding, and no tensor of all logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from support.callbacks import Boom
from support.data import text_samples
from support.models import llama
from support.outcomes import same_weights, weights
from support.trainers import hushed, net_trainer
from trainbus import (
    ChunkedCrossEntropy,
    Compile,
    GradientCheckpointing,
    Log,
    OptimizerInBackward,
    WatchModules,
    WatchNumbers,
    every,
)
from trainbus.events import ArgumentError
from trainbus.events.errors import DataError, ModelError

transformers = pytest.importorskip("transformers")
LlamaForCausalLM: Any = transformers.LlamaForCausalLM
CausalLMOutput: Any = transformers.modeling_outputs.CausalLMOutput
pytestmark = pytest.mark.skipif(not hasattr(nn, "LinearCrossEntropyOptions"), reason="needs torch 2.13")

DATA: dict[str, Any] = {"train_dataset": text_samples(), "eval_dataset": text_samples(8), "learning_rate": 1e-3}


def ended(folder: Path, *callbacks: Any, **options: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train. Return the losses, the gradient norms and an evaluated loss, and the weights."""
    built = net_trainer(folder, Log(every(1)), *callbacks, model=llama(), **{**DATA, **options})
    built.train()
    numbers = [entry[name] for name in ("loss", "grad_norm") for entry in built.state.log_history if name in entry]
    return [*numbers, built.evaluate()["eval_loss"]], weights(built.model)


@pytest.mark.parametrize(
    ("callbacks", "options"),
    [
        ((), {}),
        ((), {"gradient_accumulation_steps": 2, "max_steps": 4}),
        ((GradientCheckpointing(),), {}),
        ((Compile("eager", regions="blocks"),), {}),
        ((OptimizerInBackward(),), {"max_grad_norm": 0}),
    ],
    ids=["alone", "accumulated", "recomputed", "compiled", "updated in backward"],
)
@pytest.mark.parametrize("chunk", [None, 16])
def test_trains_as_without_it_except_for_rounding(
    tmp_path: Path, callbacks: Any, options: Any, chunk: int | None
) -> None:
    plain, chunked = (ended(tmp_path, *more, *callbacks, **options) for more in ((), (ChunkedCrossEntropy(chunk),)))
    torch.testing.assert_close(torch.tensor(chunked[0]), torch.tensor(plain[0]), rtol=1e-5, atol=1e-5)
    for name, weight in plain[1].items():
        torch.testing.assert_close(chunked[1][name], weight, rtol=1e-4, atol=1e-4)


def test_half_precision_rounds_the_loss_no_more_than_without_it(tmp_path: Path) -> None:
    plain, chunked = (ended(tmp_path, *more, bf16=True) for more in ((), (ChunkedCrossEntropy(),)))
    torch.testing.assert_close(torch.tensor(chunked[0]), torch.tensor(plain[0]), rtol=1e-3, atol=1e-3)


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that an operation creates."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        sizes = [tensor.numel() for tensor in tree_leaves(made) if isinstance(tensor, torch.Tensor)]
        self.elements = max(self.elements, *sizes, 0)
        return made


@pytest.mark.parametrize(("callbacks", "share"), [((), 1.0), ((ChunkedCrossEntropy(16),), 0.3)], ids=["all", "chunked"])
def test_no_tensor_of_all_logits_exists(tmp_path: Path, callbacks: Any, share: float) -> None:
    logits = 4 * 32 * 300
    with Largest() as largest:
        built = net_trainer(tmp_path, *callbacks, model=llama(), **{**DATA, "eval_dataset": None, "max_steps": 2})
        built.train()
    assert (largest.elements >= logits) is (share == 1.0)
    assert largest.elements <= logits * share * 1.1


def test_training_outputs_have_no_logits_and_evaluations_have_all(tmp_path: Path) -> None:
    built = net_trainer(tmp_path, ChunkedCrossEntropy(), model=llama(), **DATA, max_steps=1)
    seen = []
    built.on("on_loss", lambda outputs: seen.append((outputs.logits, "logits" in outputs)))
    built.train()
    assert seen == [(None, False)]
    assert built.predict(text_samples(8)).predictions.shape == (8, 32, 300)


def test_the_model_is_given_back_after_an_error(tmp_path: Path) -> None:
    model = llama()
    built = net_trainer(tmp_path, ChunkedCrossEntropy(), model=model, **DATA)

    def fail() -> None:
        raise Boom

    built.on("on_gradients", fail)
    with pytest.raises(Boom):
        built.train()
    assert not any("forward" in vars(module) for module in model.modules())
    assert "_loss_function" not in vars(model)
    assert model(**{name: value[None] for name, value in text_samples(1)[0].items()}).logits.shape == (1, 32, 300)


def gemma() -> nn.Module:
    """Return a model that limits its logits with a soft cap before the loss."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = {"vocab_size": 300, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 8}
    return Gemma2ForCausalLM(Gemma2Config(**sizes, num_attention_heads=2, num_key_value_heads=2))


def test_models_that_it_cannot_serve_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Net has another loss, or wraps such a model"):
        net_trainer(tmp_path, ChunkedCrossEntropy()).train()
    with pytest.raises(ModelError, match="Gemma2ForCausalLM or a hook changes or reads them"):
        net_trainer(tmp_path, ChunkedCrossEntropy(), model=gemma(), **DATA).train()
    with pytest.raises(ModelError, match=r"the output layer is torch.bfloat16"):
        net_trainer(tmp_path, ChunkedCrossEntropy(), model=llama().bfloat16(), **DATA).train()
    built = net_trainer(tmp_path, ChunkedCrossEntropy(), model=llama(), **DATA)
    built.on("on_batch", lambda batch: batch.update(return_dict=False))
    with pytest.raises(ModelError, match="the model returns a tuple"):
        built.train()
    model = llama()
    model.lm_head = nn.Sequential(nn.Linear(16, 300))
    with pytest.raises(ModelError, match=r"The output layer of LlamaForCausalLM is a Sequential"):
        net_trainer(tmp_path, ChunkedCrossEntropy(), model=model, **DATA).train()


class ZLoss(LlamaForCausalLM):
    """Adds a term to the loss that it computes from the logits."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        outputs.loss = outputs.loss + 1e-2 * outputs.logits.logsumexp(-1).pow(2).mean()
        return outputs


class Masked(LlamaForCausalLM):
    """Changes the logits in place, so the loss gets the tensor that the output layer returned."""

    def forward(self, input_ids: Any, labels: Any = None, **kwargs: Any) -> Any:
        logits = self.lm_head(self.model(input_ids)[0])
        logits[:, :, 3] = -1e4
        return CausalLMOutput(loss=self.loss_function(logits, labels, 300), logits=logits)


def made(kind: Any) -> Any:
    return kind(llama().config)


def with_hook() -> Any:
    model = llama()
    model.lm_head.register_forward_hook(lambda module, args, output: output * 0.5)
    return model


def with_scaled_head() -> Any:
    model = llama()
    forward = model.lm_head.forward
    model.lm_head.forward = lambda hidden: forward(hidden) * 0.5
    return model


def with_another_loss() -> Any:
    def ForCausalLMLoss(logits: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
        return logits.float().mean()

    model = llama()
    model.loss_function = ForCausalLMLoss
    return model


def with_adapter() -> Any:
    peft = pytest.importorskip("peft")
    with hushed():  # peft reads an attribute of transformers that is deprecated
        return peft.get_peft_model(llama(), peft.LoraConfig(task_type="CAUSAL_LM", r=2))


def with_adapter_inside() -> Any:
    peft = pytest.importorskip("peft")
    model = llama()
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["lm_head"]))
    return model


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: made(ZLoss), "ZLoss or a hook changes or reads them"),
        (lambda: made(Masked), "Masked or a hook changes or reads them"),
        (with_hook, "LlamaForCausalLM or a hook changes or reads them"),
        (with_scaled_head, "the forward of the output layer of LlamaForCausalLM was replaced"),
        (with_another_loss, "LlamaForCausalLM has another loss"),
        (with_adapter, "PeftModelForCausalLM has another loss, or wraps such a model"),
        (with_adapter_inside, r"output layer of LlamaForCausalLM is a peft\.tuners\.lora\.layer\.Linear"),
        (lambda: torch.compile(llama(), backend="eager"), "OptimizedModule has another loss, or wraps such a model"),
    ],
    ids=["reads", "in place", "hook", "head replaced", "loss replaced", "adapter", "head adapted", "compiled"],
)
def test_code_that_changes_or_reads_logits_is_refused(tmp_path: Path, make: Any, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        net_trainer(tmp_path, ChunkedCrossEntropy(), model=make(), **DATA).train()


@pytest.mark.parametrize("rows", [slice(4, 12), slice(0, 16)], ids=["some batches", "all batches"])
def test_batches_without_labels_change_the_weights_as_without_it(tmp_path: Path, rows: slice) -> None:
    data = text_samples()
    for row in data[rows]:
        row["labels"] = torch.full_like(row["labels"], -100)
    plain, chunked = (
        ended(tmp_path, *more, **{**DATA, "train_dataset": data}) for more in ((), (ChunkedCrossEntropy(),))
    )
    torch.testing.assert_close(torch.tensor(chunked[0]), torch.tensor(plain[0]), rtol=1e-5, atol=1e-5, equal_nan=True)
    for name, weight in plain[1].items():
        assert weight.isfinite().all()
        torch.testing.assert_close(chunked[1][name], weight, rtol=1e-4, atol=1e-4)


def test_a_batch_that_has_no_labels_and_no_count_has_gradients_of_zero(tmp_path: Path) -> None:
    model = llama()
    built = net_trainer(tmp_path, ChunkedCrossEntropy(), model=model, **DATA, max_steps=1, weight_decay=0.0)
    before = weights(model)
    built.on("on_batch", lambda batch: batch.update(labels=torch.full_like(batch["labels"], -100)))
    built.train()
    assert same_weights(before, weights(model))


@pytest.mark.parametrize("kind", ["Phi", "Mixtral", "Qwen2"])
@pytest.mark.parametrize("tied", [False, True])
def test_other_models_train_as_without_it(tmp_path: Path, kind: str, tied: bool) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = getattr(transformers, f"{kind}Config")(
        **sizes, vocab_size=300, num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied
    )
    config.output_router_logits = True  # the loss of Mixtral then has a second term
    ends = []
    for more in ((), (ChunkedCrossEntropy(16),)):
        torch.manual_seed(0)
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
        built = net_trainer(tmp_path, Log(every(1)), *more, model=model, **DATA)
        built.train()
        ends.append([entry["loss"] for entry in built.state.log_history if "loss" in entry])
    assert ends[1] == pytest.approx(ends[0], rel=1e-5)


def test_callbacks_that_measure_outputs_leave_the_logits_out(tmp_path: Path) -> None:
    callbacks = ChunkedCrossEntropy(), WatchModules(every(1)), WatchNumbers()
    built = net_trainer(tmp_path, *callbacks, model=llama(), **DATA, max_steps=1)
    built.train()
    logged = {name for entry in built.state.log_history for name in entry}
    assert "activations/model.norm/mean" in logged
    assert "gradients/lm_head" in logged
    assert "activations/lm_head/mean" not in logged


def test_labels_out_of_range_are_named(tmp_path: Path) -> None:
    data = text_samples()
    data[1]["labels"][5] = 300
    with pytest.raises(DataError, match=r"The labels 300 are out of range in a batch of step"):
        net_trainer(tmp_path, ChunkedCrossEntropy(), model=llama(), **{**DATA, "train_dataset": data}).train()


def test_an_ignored_label_of_the_batch_is_that_of_the_loss(tmp_path: Path) -> None:
    ends = []
    data = text_samples()
    for row in data:
        row["labels"] = row["labels"].clamp(min=7)
    for more in ((), (ChunkedCrossEntropy(),)):
        built = net_trainer(tmp_path, *more, model=llama(), **{**DATA, "train_dataset": data}, max_steps=2)
        built.on("on_batch", lambda batch: batch.update(ignore_index=7))
        built.train()
        ends.append(weights(built.model))
    for name, weight in ends[0].items():
        torch.testing.assert_close(ends[1][name], weight, rtol=1e-4, atol=1e-4)


def test_arguments_that_it_cannot_serve_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="`label_smoothing_factor`"):
        net_trainer(tmp_path, ChunkedCrossEntropy(), model=llama(), label_smoothing_factor=0.1, **DATA).train()
    with pytest.raises(ArgumentError, match=r"ChunkedCrossEntropy\(chunk=0\): set 1 or more"):
        ChunkedCrossEntropy(0)
    with pytest.raises(ArgumentError, match="torch does not compile its loss in chunks"):
        net_trainer(tmp_path, ChunkedCrossEntropy(), Compile("eager"))


def test_a_loss_of_the_user_makes_it_warn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def own(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs.transpose(1, 2), labels)

    rows = [(row["input_ids"], row["labels"]) for row in text_samples()]
    more = {"train_dataset": rows, "eval_dataset": None, "criterion": own, "max_steps": 2}
    net_trainer(tmp_path, ChunkedCrossEntropy(), model=llama(), **{**DATA, **more}).train()
    assert caplog.text.count("ChunkedCrossEntropy has no effect") == 1
