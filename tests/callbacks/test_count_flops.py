"""Counting operations: as transformers counts them, and at no cost for models that cannot."""

from __future__ import annotations

import pytest
import torch

from support.callbacks import Boom
from support.trainers import net_trainer
from trainbus import Checkpoint, Trainer, TrainingArguments, every
from trainbus.engine.checkpoint.store import read_state

TOKENS = [{"input_ids": torch.arange(row, row + 6) % 20, "labels": row % 2} for row in range(18)]


def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        **{"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"intermediate_size": 8, "max_position_embeddings": 8, "num_labels": 2},
    )
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config)


def test_counts_equal_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    options = {"max_steps": 7, "gradient_accumulation_steps": 2}
    ours = net_trainer(tmp_path / "ours", model=bert(), train_dataset=TOKENS, eval_dataset=None, **options)
    ours.train()
    theirs = transformers.Trainer(
        bert(),
        transformers.TrainingArguments(
            str(tmp_path / "theirs"),
            **{**options, "per_device_train_batch_size": 4, "learning_rate": 0.05, "use_cpu": True},
            **{"report_to": "none", "disable_tqdm": True, "save_strategy": "no"},
        ),
        train_dataset=TOKENS,
    )
    theirs.train()
    assert ours.state.total_flos == theirs.state.total_flos > 0


def test_a_step_counts_six_operations_per_weight_and_token(tmp_path):
    """Six operations per weight outside the embeddings and per token: 4 rows of 6 tokens in each step."""
    model = bert()
    built = net_trainer(tmp_path, model=model, train_dataset=TOKENS[:16], eval_dataset=None, max_steps=4)
    built.train()
    embeddings = sum(weight.numel() for name, weight in model.named_parameters() if "_embeddings.weight" in name)
    weights = sum(weight.numel() for weight in model.parameters()) - embeddings
    assert built.state.total_flos == 6 * weights * 4 * 4 * 6


def test_continues_counting_after_a_resume(tmp_path):
    def build():
        return net_trainer(tmp_path, Checkpoint(every(3)), model=bert(), train_dataset=TOKENS, eval_dataset=None)

    whole = build()
    whole.train()
    assert read_state(tmp_path / "checkpoint-3")["total_flos"] < whole.state.total_flos
    resumed = build()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.state.total_flos == whole.state.total_flos


def test_a_model_without_flop_counts_adds_no_cost(tmp_path):
    built = net_trainer(tmp_path, capsule=False)  # a capsule listens too
    heard = []
    built.on("on_step_begin", lambda run: heard.append(run.bus.hears("on_batch")), once=2)
    built.train()
    assert heard == [False]
    assert built.state.total_flos == 0.0


def test_listens_only_while_training(tmp_path):
    built = net_trainer(tmp_path, model=bert(), train_dataset=TOKENS, eval_dataset=None, capsule=False)
    heard = []

    def fail(run, state):
        heard.append(run.bus.hears("on_batch"))
        if state.global_step == 2:
            raise Boom

    built.on("on_step_begin", fail)
    with pytest.raises(Boom):
        built.train()
    assert heard == [True, True, True]
    assert not built.bus.hears("on_batch")
    assert "CountFlops.count" not in built.callbacks


def test_samples_without_tokens_count_zero(tmp_path):
    model = bert()
    embed = [
        {"inputs_embeds": torch.randn(6, 8, generator=torch.Generator().manual_seed(row)), "labels": row % 2}
        for row in range(8)
    ]
    built = net_trainer(tmp_path, model=model, train_dataset=embed, eval_dataset=None, max_steps=2)
    built.train()
    assert built.state.total_flos == 0.0


def test_uses_the_overridable_method_of_the_trainer(tmp_path):
    class Counting(Trainer):
        def floating_point_ops(self, inputs):
            return 10 * len(inputs["labels"])

    args = TrainingArguments(tmp_path, per_device_train_batch_size=4, max_steps=4, use_cpu=True, disable_tqdm=True)
    built = Counting(bert(), args, train_dataset=TOKENS[:16])
    built.train()
    assert built.state.total_flos == 10 * 16
