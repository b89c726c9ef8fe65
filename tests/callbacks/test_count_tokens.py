"""Input tokens: the counts of transformers in the state and in the logs, resumed runs included."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from support.callbacks import stop_at
from support.data import net_samples, sentences, token_samples
from support.models import Words
from support.outcomes import history
from support.trainers import both, net_trainer
from trainbus import Checkpoint, CountTokens, Log, every
from trainbus.callbacks.monitor.count_tokens import tokens_in
from trainbus.events import ArgumentError


def padded(count, seed=0):
    """Rows of which the last few tokens are padding."""
    found = sentences(count, seed)
    for index, row in enumerate(found):
        real = 12 - index % 5
        row["attention_mask"] = [1] * real + [0] * (12 - real)
    return found


@pytest.mark.parametrize("which", ["all", "non_padding"])
def test_counts_as_transformers_does(tmp_path, which):
    args = {
        **{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_train_epochs": 2},
        **{"logging_steps": 1, "save_strategy": "no", "eval_strategy": "epoch", "include_num_input_tokens_seen": which},
    }
    (theirs, their_end), (ours, our_end) = both(
        tmp_path, args, train_dataset=padded(18), eval_dataset=padded(4, seed=1)
    )
    assert ours.state.num_input_tokens_seen == theirs.state.num_input_tokens_seen > 0
    counts = [
        [(entry["step"], entry["num_input_tokens_seen"]) for entry in run.state.log_history] for run in (theirs, ours)
    ]
    assert set(counts[1]) == set(counts[0])
    keys = [
        {tuple(sorted(entry)) for entry in run.state.log_history if "loss" in entry or "eval_loss" in entry}
        for run in (theirs, ours)
    ]
    unlike = {"eval_model_preparation_time"}
    assert {frozenset(key) - unlike for key in keys[0]} == {frozenset(key) - unlike for key in keys[1]}
    assert our_end.metrics["num_input_tokens_seen"] == their_end.metrics["num_input_tokens_seen"]
    assert [entry["loss"] for entry in history(ours) if "loss" in entry]


def test_says_how_fast_the_session_is(tmp_path):
    built = net_trainer(tmp_path, CountTokens(), Log(every(2)), model=Words(), train_dataset=token_samples())
    built.train()
    steps = [entry for entry in built.state.log_history if "loss" in entry]
    assert [entry["num_input_tokens_seen"] for entry in steps] == [40, 80, 120]
    for entry in steps:
        assert within(entry, entry["num_input_tokens_seen"])


def within(entry, tokens):
    """Return whether this many tokens were seen in the time logged, which is rounded to 4 digits."""
    speed = entry["train_tokens_per_second"]
    return speed * entry["train_runtime"] == pytest.approx(tokens, abs=speed * 1e-4)


def test_a_resumed_run_continues_its_counts(tmp_path):
    def build():
        callbacks = (CountTokens(), Log(every(1)), Checkpoint(every(3)))
        return net_trainer(tmp_path, *callbacks, model=Words(), train_dataset=token_samples())

    broken = build()
    broken.on("on_step_end", stop_at(3))
    broken.train()
    resumed = build()
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.num_input_tokens_seen == 6 * 4 * 5
    last = next(entry for entry in reversed(resumed.state.log_history) if "loss" in entry)
    # The speed is that of this session, which saw half of them.
    assert within(last, 3 * 4 * 5)


def test_padding_comes_from_the_mask_or_the_tokenizer():
    tokens = torch.tensor([[5, 6, 0], [7, 0, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    assert tokens_in({"attention_mask": mask}, tokens, 0) == 4
    assert tokens_in({}, tokens, 0) == 3
    assert tokens_in({"attention_mask": None}, tokens, 0) == 3
    assert tokens_in({}, tokens, None) == 6


@pytest.mark.parametrize("shape", [(2, 5, 5), (2, 1, 5, 5)])
def test_a_mask_for_pairs_of_tokens_is_no_count_of_tokens(shape):
    tokens = torch.tensor([[5, 6, 7, 8, 9], [7, 8, 9, 0, 0]])
    assert tokens_in({"attention_mask": torch.ones(shape)}, tokens, None) == 10
    assert tokens_in({"attention_mask": torch.ones(shape)}, tokens, 0) == 8


def test_the_tokenizer_defines_padding_without_a_mask(tmp_path):
    built = net_trainer(tmp_path, CountTokens("non_padding"), model=Words(), train_dataset=token_samples(), max_steps=4)
    built.run.processing_class = SimpleNamespace(pad_token_id=3)
    built.train()
    tokens = torch.stack([row["input_ids"] for row in token_samples()])
    assert built.state.num_input_tokens_seen == (tokens != 3).sum() < tokens.numel()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "Net.main_input_name names no tensor in the batch, so no tokens are counted"),
        (
            {"model": Words(), "train_dataset": token_samples()},
            "neither an attention_mask of the tokens nor a pad_token_id marks the padding, so all",
        ),
    ],
)
def test_missing_counts_warn_once(tmp_path, caplog, options, said):
    built = net_trainer(tmp_path, CountTokens("non_padding"), **options)
    with caplog.at_level(logging.WARNING):
        built.train()
    assert [record.message for record in caplog.records if "CountTokens" in record.message] == [
        record.message for record in caplog.records if said in record.message
    ]
    assert sum(said in record.message for record in caplog.records) == 1


def test_a_model_names_its_main_input(tmp_path):
    model = net_trainer(tmp_path).model
    model.main_input_name = "x"
    built = net_trainer(tmp_path, CountTokens(), model=model, train_dataset=net_samples())
    built.train()
    assert built.state.num_input_tokens_seen == 6 * 4 * 6


def test_an_unknown_choice_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"CountTokens\('some'\)"):
        CountTokens("some")
    with pytest.raises(ArgumentError, match="`include_num_input_tokens_seen` is 'some'"):
        net_trainer(tmp_path, include_num_input_tokens_seen="some")


@pytest.mark.parametrize(
    ("given", "expected"),
    [("no", None), (False, None), (True, CountTokens("all")), ("non_padding", CountTokens("non_padding"))],
)
def test_arguments_build_the_callback(tmp_path, given, expected):
    assert net_trainer(tmp_path, include_num_input_tokens_seen=given).callbacks.get("CountTokens") == expected
