"""Packing: rows of samples, equality with padded batches, resuming, counting, and models that it refuses.

Models of transformers compute parts of float64 models in float32, which bounds the tolerances.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packing_cases import LENGTHS, model_of, padded, samples, trainer_of
from torch.utils.data import DataLoader

from support.data import Stream
from support.models import Words
from support.models import bert as classifier
from support.outcomes import same_weights, weights
from support.parity_models import bart, of_bert
from support.processes import HUGGING_FACE, run_on_two
from trainbus import Packing, Trainer, TrainingArguments
from trainbus.engine.data.packing.rows import STRATEGIES, packed_rows, width_of
from trainbus.events.errors import ArgumentError, DataError, ModelError

# The rows.


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_hold_each_sample_once_within_the_length(strategy: str):
    draw = random.Random(5)
    for _ in range(200):
        lengths = [draw.randint(1, 20) for _ in range(draw.randint(1, 40))]
        rows = packed_rows(lengths, 20, strategy)
        assert sorted(sample for row in rows for sample in row) == [*range(len(lengths))]
        assert all(row == sorted(row) for row in rows)
        if strategy == "flatten":
            assert len(rows) == 1
        else:
            assert width_of(lengths, rows) <= 20
            assert len(rows) <= 2 * -(-sum(lengths) // 20)  # both fits fill more than half of all rows but one


def test_best_fit_evens_out_rows():
    assert packed_rows([10, 1, 2, 3, 4], 100, "best_fit") == [[0, 1, 2, 3, 4]]
    assert packed_rows([6, 6, 4, 4, 1], 12, "best_fit") == [[0, 2, 4], [1, 3]]  # 11 and 10 tokens, not 12 and 9
    assert packed_rows([3, 5, 2, 5], 8, "first_fit") == [[0, 1], [2, 3]]


# Equality with padded batches.


@pytest.mark.parametrize(
    ("kind", "attention", "packing"),
    [
        ("llama", "sdpa", {}),
        ("llama", "eager", {"max_length": 20, "strategy": "first_fit"}),
        ("gpt2", "sdpa", {"strategy": "flatten"}),
        ("bert", "sdpa", {"max_length": 16}),
        ("bert", "eager", {"pad_to_multiple_of": 8}),
    ],
)
def test_training_equals_padded_batches(tmp_path: Path, kind: str, attention: str, packing: dict[str, Any]):
    runs, gradients = [], []
    for collator in (padded, Packing(**packing)):
        run = trainer_of(tmp_path, kind, collator, attention=attention, eval_strategy="epoch")
        run.on("on_gradients", lambda model: gradients.append([each.grad.clone() for each in model.parameters()]))
        run.train()
        runs.append(run)
    one, other = runs
    half = len(gradients) // 2
    assert half == 4
    for exact, found in zip(gradients[:half], gradients[half:]):
        torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close([*other.model.parameters()], [*one.model.parameters()], rtol=1e-5, atol=1e-7)
    for key in ("loss", "eval_loss", "grad_norm"):
        exact = [row[key] for row in one.state.log_history if key in row]
        assert len(exact) == (2 if key == "eval_loss" else 4)
        assert [row[key] for row in other.state.log_history if key in row] == pytest.approx(exact, rel=1e-6)
    assert other.state.samples_seen == one.state.samples_seen == 32
    tokens = 2 * sum(LENGTHS)
    most = one.state.num_input_tokens_seen if "pad_to_multiple_of" not in packing else 2 * tokens
    assert tokens <= other.state.num_input_tokens_seen < most
    if packing.get("strategy") == "flatten":
        assert other.state.num_input_tokens_seen == tokens


def test_predictions_keep_one_row_for_each_sample(tmp_path: Path):
    rows = samples("bert", 7)
    one, other = (trainer_of(tmp_path, "bert", collator).predict(rows) for collator in (padded, Packing()))
    assert one.predictions.shape[0] == 7
    assert torch.equal(torch.tensor(one.predictions), torch.tensor(other.predictions))
    assert one.label_ids.tolist() == other.label_ids.tolist()


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
def test_two_ranks_equal_padded_batches(tmp_path: Path):
    run_on_two(Path(__file__).with_name("packing_program.py"), tmp_path, timeout=150, imported=HUGGING_FACE)
    found = json.loads((tmp_path / "found.json").read_text())
    for case in found.values():
        assert case["farthest"] < 1e-12
        assert case["moved"]  # the runs train
        assert case["losses"][1] == pytest.approx(case["losses"][0], rel=1e-6)
        assert case["evaluated"][1] == pytest.approx(case["evaluated"][0], rel=1e-12)
        assert case["samples"] == [32, 32]
    assert found["True"]["losses"] != found["False"]["losses"]


# Position, workers and counts.


def test_resume_within_an_epoch_is_exact(tmp_path: Path):
    args = {"save_strategy": "steps", "save_steps": 1, "gradient_accumulation_steps": 1}
    whole = trainer_of(tmp_path / "whole", "llama", Packing(), **args)
    whole.train()
    resumed = trainer_of(tmp_path / "resumed", "llama", Packing(), **args)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert same_weights(weights(whole.model), weights(resumed.model))
    assert resumed.state.samples_seen == whole.state.samples_seen
    assert resumed.state.num_input_tokens_seen == whole.state.num_input_tokens_seen


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_make_the_same_batches(tmp_path: Path, method: str):
    collator = Packing(max_length=16).for_model(model_of("bert"), training=True)
    options = {"batch_size": 4, "collate_fn": collator}
    alone = [*DataLoader(samples("bert"), **options)]
    shared = [*DataLoader(samples("bert"), num_workers=1, multiprocessing_context=method, **options)]
    assert len(alone) == 4
    for one, other in zip(alone, shared, strict=True):
        assert one.keys() == other.keys() == {"input_ids", "labels", "position_ids", "attention_mask"}
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_padding_of_packed_rows_is_not_counted(tmp_path: Path):
    args = {"include_num_input_tokens_seen": "non_padding", "num_train_epochs": 1}
    run = trainer_of(tmp_path, "bert", Packing(pad_to_multiple_of=8), **args)
    run.run.processing_class = SimpleNamespace(pad_token_id=0)
    run.train()
    assert run.state.num_input_tokens_seen == sum(LENGTHS)


def test_samples_of_a_stream_are_counted(tmp_path: Path):
    run = trainer_of(tmp_path, "llama", Packing(), max_steps=2)
    run.train_dataset = Stream(samples("llama"))
    run.train()
    assert run.state.samples_seen == 16


# Samples and models that do not fit.


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"input_ids": [3, 4], "labels": 1}, r"'labels' of sample 0 .* one value for 2 tokens.*group_by_length"),
        ({"input_ids": [3, 4], "labels": [1, 2, 3]}, r"'labels' of sample 0 .* 3 values for 2 tokens"),
        ({"labels": [1]}, r"Sample 0 of the batch has no `input_ids`"),
        ({"input_ids": []}, r"Sample 0 of the batch has no `input_ids`"),
        ({"input_ids": [*range(12)]}, r"Sample 0 of the batch has 12 tokens, and Packing\(max_length=10\) allows 10"),
        ({"input_ids": [0, 5], "attention_mask": [0, 1]}, "padded at its start"),
    ],
)
def test_sample_that_cannot_be_packed_raises(row: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        Packing(max_length=10).for_model(model_of("llama"), training=True)([row, {"input_ids": [1, 2]}])


def recurrent() -> Any:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    return Lfm2ForCausalLM(
        Lfm2Config(**sizes, num_attention_heads=2, num_key_value_heads=2, full_attn_idxs=[1], use_cache=False)
    )


class Careless(torch.nn.Module):
    """Takes position ids, and mixes all tokens of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(40, 4)

    def forward(self, input_ids: Any, position_ids: Any = None, attention_mask: Any = None, labels: Any = None) -> Any:
        hidden = self.tokens(input_ids)
        return {"logits": hidden + hidden.mean(1, keepdim=True)}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Words, "no parameter 'position_ids'"),
        (classifier, "no logits for each token"),
        (of_bert("QuestionAnswering"), "no logits for each token"),
        (bart, "encoder-decoder"),
        (recurrent, "a sample changes the logits of its neighbor|other logits"),
        (Careless, "other logits"),
    ],
)
def test_unfit_model_is_refused_when_the_trainer_is_built(tmp_path: Path, make: Any, reason: str):
    with pytest.raises(ModelError, match=f"(?s)({reason}).*train_sampling_strategy='group_by_length'"):
        Trainer(make(), TrainingArguments(str(tmp_path)), data_collator=Packing())


def test_proof_changes_neither_modes_nor_random_states(tmp_path: Path):
    model = model_of("bert")
    model.bert.eval()
    before = torch.get_rng_state()
    Packing().for_model(model, training=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.bert.training
    assert model.classifier.training


def test_wrong_settings_raise():
    with pytest.raises(ArgumentError, match="'best_fit', 'first_fit', 'flatten'"):
        Packing(strategy="best")
    with pytest.raises(ArgumentError, match=r"max_length=0\) is not positive"):
        Packing(max_length=0)
    with pytest.raises(DataError, match="Pass it as `data_collator`"):
        Packing()([{"input_ids": [1]}])
