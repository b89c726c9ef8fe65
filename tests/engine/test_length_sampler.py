"""Length grouping: order compared with transformers, measured lengths, and resuming within an epoch."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import transformers
from accelerate.data_loader import BatchSamplerShard
from length_data import GROUPED, collate, sizes, texts
from torch import nn
from torch.utils.data import BatchSampler, IterableDataset

from support.data import CountedRows
from support.models import bert
from support.outcomes import history, same_weights, timeless, weights
from support.processes import HUGGING_FACE, run_on_two
from support.trainers import both, regression_trainer
from trainbus import Checkpoint, every
from trainbus.engine.checkpoint.format.codec import load_values
from trainbus.engine.data.length_sampler import LengthGroupedSampler, grouped_by_length, lengths_of
from trainbus.engine.data.samplers import BatchedSampler
from trainbus.engine.distributed.ranks import Ranks
from trainbus.events.errors import ArgumentError, DataError

ALONE = Ranks(0, 1, 0)


# The order.


@pytest.mark.parametrize("size", [1, 2, 8, 100])
@pytest.mark.parametrize("rows", [1, 7, 33, 1000])
def test_order_matches_transformers(rows: int, size: int):
    lengths = sizes(rows)
    theirs = transformers.trainer_pt_utils.LengthGroupedSampler(
        size, lengths=lengths, generator=torch.Generator().manual_seed(3)
    )
    ours = LengthGroupedSampler(lengths, size, ALONE, seed=3)
    assert list(ours) == list(theirs)
    assert sorted(ours.order) == list(range(rows))
    torch.manual_seed(9)
    theirs = transformers.trainer_pt_utils.LengthGroupedSampler(size, lengths=lengths)
    expected = [list(theirs), list(theirs), torch.get_rng_state().tolist()]
    torch.manual_seed(9)
    ours = LengthGroupedSampler(lengths, size, ALONE)
    assert [list(ours), list(ours), torch.get_rng_state().tolist()] == expected
    assert len(ours) == len(theirs) == rows


def test_longest_sample_comes_first_and_neighbors_have_similar_length():
    lengths = sizes(1000)
    order = grouped_by_length(lengths, 8, torch.Generator().manual_seed(0))
    assert lengths[order[0]] == max(lengths)
    batches = [[lengths[row] for row in order[start : start + 8]] for start in range(8, 1000, 8)]
    assert np.mean([max(batch) - min(batch) for batch in batches]) < 1
    assert grouped_by_length([], 8, torch.Generator()) == []


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("rows", [32, 37, 45])
def test_ranks_divide_the_order_as_in_transformers(rows: int, drop_last: bool):
    lengths = sizes(rows)
    for rank in range(3):
        torch.manual_seed(4)
        whole = BatchSampler(transformers.trainer_pt_utils.LengthGroupedSampler(8, lengths=lengths), 4, drop_last)
        theirs = list(BatchSamplerShard(whole, 3, rank))
        torch.manual_seed(4)
        sampler = LengthGroupedSampler(lengths, 8, ALONE)
        assert list(BatchedSampler(sampler, 4, drop_last=drop_last, rank=rank, world_size=3)) == theirs


class Two(Ranks):
    """The second of two processes, whose first one's generator is in another state."""

    def gather_objects(self, value: Any) -> list[Any]:
        return [torch.Generator().manual_seed(1).get_state(), value]


def test_all_ranks_use_the_order_of_rank_zero():
    lengths = sizes(40)
    torch.manual_seed(2)
    torch.randn(3)  # a process that has drawn more than the first
    order = list(LengthGroupedSampler(lengths, 4, Two(1, 2, 1)))
    assert order == list(LengthGroupedSampler(lengths, 4, ALONE, seed=1))


def test_order_can_be_repeated():
    sampler = LengthGroupedSampler(sizes(30), 4, ALONE)
    first = list(sampler)
    state = sampler.state
    assert list(sampler) != first
    another = LengthGroupedSampler(sizes(30), 4, ALONE)
    another.state = state
    batches = BatchedSampler(another, 4)
    batches.skip(2)
    before = torch.get_rng_state()
    assert list(batches) == [first[start : start + 4] for start in range(8, 30, 4)]
    assert torch.equal(torch.get_rng_state(), before)
    assert list(another) != first  # once


def test_order_can_be_repeated_in_batches_of_another_size():
    sampler = LengthGroupedSampler(sizes(90), 4, ALONE)
    first = list(sampler)
    other = LengthGroupedSampler(sizes(90), 7, ALONE)
    other.state = sampler.state
    other.repeat()
    assert list(other) == first
    assert list(other) != first


def test_order_of_an_earlier_checkpoint_uses_the_present_group_size():
    sampler = LengthGroupedSampler(sizes(30), 4, ALONE)
    first = list(sampler)
    other = LengthGroupedSampler(sizes(30), 4, ALONE)
    other.state = sampler.state["generator"]
    other.repeat()
    assert list(other) == first


# What is measured.


def test_lengths_are_measured_without_a_length_column():
    rows = texts(9)
    measured = [len(row["input_ids"]) for row in rows]
    assert lengths_of(rows, "length", "input_ids") == measured
    assert lengths_of(CountedRows(rows), "length", "input_ids") == measured
    assert lengths_of(datasets.Dataset.from_list(rows), "length", "input_ids") == measured
    assert lengths_of([{"x": torch.zeros(3)}, {"x": np.zeros(2)}], "length", "x") == [3, 2]
    assert lengths_of([], "length", "input_ids") == []


def test_length_column_wins_over_measuring():
    rows = [{"input_ids": [1, 2], "length": 7}, {"input_ids": [1], "length": np.int64(9)}]
    assert lengths_of(rows, "length", "input_ids") == [7, 9]
    assert lengths_of(datasets.Dataset.from_dict({"size": [4, 5]}), "size", "input_ids") == [4, 5]
    tensors = datasets.Dataset.from_dict({"length": [4, 5]}).with_format("torch")
    assert lengths_of(tensors, "length", "input_ids") == [4, 5]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"x": 1.0, "y": 2}], r"neither 'length' nor 'input_ids', but x, y.*length_column_name"),
        ([(1, 2)], "but no keys"),
        ([{"input_ids": [1]}, {"input_ids": 5}], r"Sample 1 .* its 'input_ids' is 5"),
        ([{"length": 1}, {"length": None}], r"Sample 1 .* its 'length' is None"),
        (datasets.Dataset.from_dict({"text": ["a"]}), "but text"),
    ],
)
def test_samples_without_a_length_raise(rows: Any, message: str):
    with pytest.raises(DataError, match=message):
        lengths_of(rows, "length", "input_ids")


# In a run.


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"gradient_accumulation_steps": 3},
        {"dataloader_drop_last": True, "data_seed": 5},
        {"seed": 3, "dataloader_num_workers": 1},
        {"train_sampling_strategy": "sequential"},
    ],
    ids=str,
)
def test_run_matches_transformers(tmp_path: Path, args: dict[str, Any]):
    def do(run: Any) -> Any:
        run.train()
        return run.evaluate(), run.predict(test)

    test = texts(11, 2)
    said = {
        "num_train_epochs": 2,
        "logging_steps": 1,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        **GROUPED,
        **args,
    }
    made = {"train_dataset": texts(30), "eval_dataset": texts(18, 1), "data_collator": collate}
    (theirs, expected), (ours, got) = both(tmp_path, {"per_device_eval_batch_size": 4, **said}, do, **made)
    assert same_weights(weights(ours.model), weights(theirs.model))
    assert timeless(got[0]) == timeless(expected[0])
    # transformers leaves predictions in the order of the sampler; here they are in that of the dataset.
    assert got[1].metrics["test_loss"] == expected[1].metrics["test_loss"]
    labels = [row["labels"] for row in test]
    kept = 8 if said.get("dataloader_drop_last") else 11
    if args.get("train_sampling_strategy") == "sequential":
        assert np.array_equal(got[1].predictions, expected[1].predictions)
    elif kept == 11:
        assert got[1].label_ids.tolist() == labels
        assert sorted(got[1].predictions.tolist()) == sorted(expected[1].predictions.tolist())


def test_length_column_is_read_before_unused_columns_are_removed(tmp_path: Path):
    rows = [{**row, "size": 20 - len(row["input_ids"])} for row in texts(24)]
    run = regression_trainer(
        tmp_path,
        bert(),
        args={**GROUPED, "length_column_name": "size"},
        train_dataset=datasets.Dataset.from_list(rows),
        data_collator=collate,
    )
    order = next(iter(run.get_train_dataloader()))["attention_mask"].sum(1)
    assert order[0] == min(len(row["input_ids"]) for row in rows)


def test_predictions_losses_and_inputs_have_dataset_order(tmp_path: Path):
    seen: dict[str, Any] = {}

    def note(prediction: Any) -> dict[str, Any]:
        seen.update(vars(prediction))
        return {}

    rows = texts(21)
    args = {**GROUPED, "per_device_eval_batch_size": 1, "include_for_metrics": ["inputs", "loss"]}
    run = regression_trainer(
        tmp_path, bert(), args=args, data_collator=collate, compute_metrics=note, eval_dataset=rows
    )
    run.evaluate()
    grouped = dict(seen)
    assert run.run.eval_dataloader.grouping.order != list(range(21))
    run.args.train_sampling_strategy = "random"
    run.evaluate()
    assert np.array_equal(grouped["losses"], seen["losses"])
    assert np.array_equal(grouped["inputs"], seen["inputs"])
    assert np.allclose(grouped["predictions"], seen["predictions"])
    assert grouped["label_ids"].tolist() == [row["labels"] for row in rows]


def test_stopped_run_resumes_within_its_epoch(tmp_path: Path):
    # It ends with the weights of the unbroken one, and reads no row that was read before.
    def run(folder: str, rows: Any) -> Any:
        args = {
            **GROUPED,
            "num_train_epochs": 3,
            "logging_strategy": "steps",
            "logging_steps": 1,
            "save_strategy": "steps",
        }
        return regression_trainer(
            *(tmp_path / folder, bert()),
            args=args,
            train_dataset=rows,
            data_collator=collate,
            callbacks=[Checkpoint(every(1))] if folder == "whole" else [Checkpoint(every(100))],
        )

    rows = texts(30)  # 8 steps an epoch
    whole = run("whole", rows)
    whole.train()
    for step in (3, 8, 13, 23):
        counted = CountedRows(rows)
        resumed = run("resumed", counted)
        measured = len(lengths_of(counted, "length", "input_ids"))
        counted.read.clear()
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert same_weights(weights(resumed.model), weights(whole.model)), step
        assert history(resumed)[step:-1] == history(whole)[step:-1]  # the last is the session's own summary
        epochs_left, rest = 3 - step // 8, step % 8
        assert len(counted.read) == 1 + measured + epochs_left * 30 - rest * 4
    state = load_values(tmp_path / "whole" / "checkpoint-3" / "rng_state_0.safetensors")["place"]["order"]
    assert (state["generator"].dtype, state["group_size"]) == (torch.uint8, 4)


def test_checkpoint_without_the_order_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    sampler = LengthGroupedSampler(sizes(10), 2, ALONE)
    with caplog.at_level(logging.WARNING):
        sampler.repeat()
    assert "so a new order is drawn" in caplog.text
    assert sorted(sampler) == list(range(10))


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(texts(8))


def test_stream_keeps_its_order_and_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    run = regression_trainer(
        tmp_path, bert(), args={**GROUPED, "max_steps": 2}, train_dataset=Stream(), data_collator=collate
    )
    with caplog.at_level(logging.WARNING):
        batch = next(iter(run.get_train_dataloader()))
    assert "cannot order the samples of a stream" in caplog.text
    assert batch["labels"].tolist() == [row["labels"] for row in texts(8)[:4]]


def test_unknown_sampling_strategy_raises(tmp_path: Path):
    with pytest.raises(ArgumentError, match=r"did you mean 'group_by_length'.*'random', 'sequential'"):
        regression_trainer(tmp_path, nn.Linear(1, 1), args={"train_sampling_strategy": "group_by_lengths"})


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
def test_two_ranks_divide_each_epoch_and_resume_within_it(tmp_path: Path):
    run_on_two(Path(__file__).with_name("grouped_program.py"), tmp_path, timeout=150, imported=HUGGING_FACE)
    found = json.loads((tmp_path / "found.json").read_text())
    assert not found["in_step"]  # rows of different lengths cost dropout different numbers of draws
    assert [len(epoch) for epoch in found["epochs"]] == [32, 32]  # the last batches are filled up
    assert [set(epoch) for epoch in found["epochs"]] == [set(range(30))] * 2
    assert found["labels"] == [row["labels"] for row in texts(30)]
    assert found["same"]
    assert found["read_again"] == 24  # the last two of 4 batches of one epoch, and one epoch
