"""Labels and input ids out of range: the error names batch, samples, range and number of classes."""

from __future__ import annotations

import re
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from support.data import Stream
from support.trainers import regression_trainer
from trainbus import Callback
from trainbus.engine.loss.index_errors import dataset_indices
from trainbus.events import DataError


class Words(nn.Module):
    """Classifies tokens or texts, with a loss of its own."""

    def __init__(self, tokens: bool = False) -> None:
        super().__init__()
        self.embeddings, self.scores, self.tokens = nn.Embedding(10, 4), nn.Linear(4, 3), tokens

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        embedded = self.embeddings(input_ids)
        logits = self.scores(embedded if self.tokens else embedded.mean(1))
        outputs = {"logits": logits}
        if labels is not None:
            outputs["loss"] = nn.functional.cross_entropy(logits.view(-1, 3), labels.view(-1))
        return outputs


def rows(wrong: dict[int, Any], *, tokens: bool = False, ids: dict[int, int] | None = None) -> list[dict[str, Any]]:
    """Return 20 samples. `wrong` and `ids` change labels and first input ids, by dataset index."""
    made = []
    for number in range(20):
        label: Any = wrong.get(number, number % 3)
        words = [(ids or {}).get(number, 1), 2]
        made.append({"input_ids": torch.tensor(words), "labels": torch.tensor([1, label]) if tokens else label})
    return made


def sequential(folder: Any, data: Any, model: nn.Module | None = None, **options: Any) -> Any:
    args = {"train_sampling_strategy": "sequential", **options.pop("args", {})}
    return regression_trainer(folder, model or Words(), train_dataset=data, args=args, **options)


@pytest.mark.parametrize("tokens", [False, True])
def test_the_error_names_step_samples_range_and_classes(tokens, tmp_path):
    run = sequential(tmp_path, rows({9: 3, 11: -1}, tokens=tokens), Words(tokens))
    with pytest.raises(DataError) as caught:
        run.train()
    assert str(caught.value) == (
        "The labels -1, 3 are out of range in a batch of step 3: samples 1, 3 of the batch, counted from 0, which are "
        "the samples 9, 11 of the training dataset. The model has 3 classes, so labels go from 0 to 2; those of this "
        "batch go from -1 to 3. Set the number of classes of the model to 4 or more, or count labels from 0; -100 is "
        "ignored."
    )
    assert isinstance(caught.value.__cause__, IndexError)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("wrong", [0, 7, 19])
def test_the_error_names_the_dataset_index_of_a_shuffled_sample(wrong, accumulate, tmp_path):
    args = {"gradient_accumulation_steps": accumulate}
    run = regression_trainer(tmp_path, Words(), train_dataset=rows({wrong: 7}), args=args)
    with pytest.raises(DataError, match=rf"The labels 7 are out of range .* samples {wrong} of the training dataset"):
        run.train()


def test_the_error_names_the_dataset_index_after_a_resume(tmp_path):
    args = {"save_strategy": "steps", "save_steps": 2, "max_steps": 8}
    run = regression_trainer(tmp_path, Words(), train_dataset=rows({}), args={**args, "max_steps": 2})
    run.train()
    run = regression_trainer(tmp_path, Words(), train_dataset=rows({13: 5}), args=args)
    with pytest.raises(DataError, match=r"The labels 5 .* a batch of step [3-8]: .* samples 13 of the training"):
        run.train(resume_from_checkpoint=True)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("rank", "world_size", "even"), [(0, 1, True), (0, 2, True), (1, 2, True), (1, 2, False)])
def test_the_indices_of_each_batch_are_those_of_the_loader(rank, world_size, even, drop_last, tmp_path):
    args = {"per_device_train_batch_size": 8, "max_steps": 1, "dataloader_drop_last": drop_last}
    seen = []

    def look(run, train_dataloader):
        batches = train_dataloader.batch_sampler
        with mock.patch.multiple(batches, rank=rank, world_size=world_size, even=even):
            made = [*batches.from_start()]
            seen.append((made, dataset_indices(run, range(len(made)))))

    trainer = regression_trainer(tmp_path, Words(), train_dataset=rows({}), args=args)
    trainer.on("on_train_begin", look, id="look")
    trainer.train()
    [(made, found)] = seen
    assert found == made
    assert made[0] != [*range(8)]


def test_ignored_labels_are_in_range(tmp_path):
    sequential(tmp_path, rows({9: -100}, tokens=True), Words(tokens=True)).train()


def test_the_error_of_a_criterion_is_the_same(tmp_path):
    class Logits(Words):
        def forward(self, input_ids: torch.Tensor) -> Any:
            return super().forward(input_ids)["logits"]

    run = sequential(tmp_path, rows({2: 4}), Logits(), criterion=nn.CrossEntropyLoss())
    with pytest.raises(DataError, match="labels 4 are out of range in a batch of step 1: samples 2 of the batch"):
        run.train()


def test_the_error_of_an_evaluation_names_the_evaluation(tmp_path):
    run = sequential(tmp_path, rows({}), eval_dataset=rows({2: 4}))
    with pytest.raises(DataError, match="labels 4 are out of range in a batch of an evaluation: samples 2 of"):
        run.evaluate()
    with pytest.raises(DataError, match="in a batch of a prediction"):
        run.predict(rows({2: 4}))


@pytest.mark.parametrize("args", [{}, {"batch_eval_metrics": True}, {"train_sampling_strategy": "group_by_length"}])
def test_the_error_of_an_evaluation_names_dataset_and_samples(args, tmp_path):
    metrics = (lambda prediction, compute_result: {"one": 1.0}) if "batch_eval_metrics" in args else None
    datasets = {"clean": rows({}), "dirty": rows({9: 4, 17: 5})}
    run = sequential(tmp_path, rows({}), eval_dataset=datasets, args=args, compute_metrics=metrics)
    with pytest.raises(DataError) as caught:
        run.evaluate()
    assert "out of range in a batch of an evaluation of the dataset 'dirty': samples " in str(caught.value)
    first, place = ("9", "1") if "train_sampling_strategy" not in args else ("17|9", r"\d")
    assert re.search(
        rf"samples {place} of the batch, .* the samples ({first}) of the dataset 'dirty'", str(caught.value)
    )


def test_handlers_of_an_evaluation_see_the_name_of_its_dataset(tmp_path):
    seen = []

    class Names(Callback):
        def on_prediction_step(self, run: Any) -> None:
            seen.append(run.dataset_name)

    run = sequential(tmp_path, rows({}), eval_dataset={"a": rows({})[:4], "b": rows({})[:4]}, callbacks=[Names()])
    run.evaluate()
    assert seen == ["a", "b"]


def test_the_error_of_a_stream_names_the_batch(tmp_path):
    run = regression_trainer(tmp_path, Words(), train_dataset=Stream(rows({5: 4})), args={"max_steps": 4})
    with pytest.raises(DataError, match=r"a batch of step 2: samples 1 of the batch, counted from 0\. The model has 3"):
        run.train()


def stacked(dimension: int) -> Any:
    """Return a collator that stacks samples along a dimension."""
    return lambda features: {name: torch.stack([row[name] for row in features], dimension) for name in features[0]}


def words_of(label: int, word: int) -> list[dict[str, Any]]:
    """Return 12 samples of 3 words. The middle label and word of sample 6 are given."""
    made = [{"input_ids": torch.ones(3, dtype=torch.long), "labels": torch.ones(3).long()} for _ in range(12)]
    made[6]["labels"][1], made[6]["input_ids"][1] = label, word
    return made


@pytest.mark.parametrize(("label", "word"), [(7, 1), (1, 70)], ids=["labels", "input ids"])
@pytest.mark.parametrize("evaluates", [False, True], ids=["train", "evaluate"])
@pytest.mark.parametrize("batch", [1, 4, 5])
@pytest.mark.parametrize("dimension", [0, 1], ids=["samples first", "time first"])
def test_the_samples_of_flattened_and_time_major_tokens_are_named(dimension, batch, evaluates, label, word, tmp_path):
    data = words_of(label, word)
    sizes = {"per_device_train_batch_size": batch, "per_device_eval_batch_size": batch}
    run = sequential(
        tmp_path, data, Words(tokens=True), eval_dataset=data, data_collator=stacked(dimension), args=sizes
    )
    place = rf"samples {6 % batch} of the batch, counted from 0, which are the samples 6 of the "
    with pytest.raises(DataError, match=place):
        run.evaluate() if evaluates else run.train()


def test_the_dry_batch_names_the_sample_of_time_major_tokens(tmp_path):
    args = {"dry_batch": True, "per_device_train_batch_size": 12}
    run = sequential(tmp_path, words_of(7, 1), Words(tokens=True), data_collator=stacked(1), args=args)
    with pytest.raises(DataError, match=r"the dry batch, before the first step: samples 6 of the training dataset"):
        run.train()


@pytest.mark.parametrize("evaluates", [False, True], ids=["train", "evaluate"])
def test_the_samples_of_a_packed_batch_are_named_together(evaluates, tmp_path):
    data = words_of(7, 1)

    def pack(features: list[Any]) -> Any:
        return {name: torch.cat([row[name] for row in features])[None] for name in features[0]}

    run = sequential(tmp_path, data, Words(tokens=True), eval_dataset=data[4:8], data_collator=pack)
    dataset, named = ("the dataset", "0, 1, 2, 3") if evaluates else ("the training dataset", "4, 5, 6, 7")
    with pytest.raises(DataError, match=rf": one or more of the samples {named} of {dataset}\."):
        run.evaluate() if evaluates else run.train()


def test_input_ids_without_an_embedding_are_named(tmp_path):
    run = sequential(tmp_path, rows({}, ids={6: 12}))
    with pytest.raises(DataError, match=r"The input ids 12 .* samples 6 of the training .* 10 embeddings.*13"):
        run.train()


class Fails(Words):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        raise self.error


def test_other_index_errors_stay_as_they_are(tmp_path):
    with pytest.raises(IndexError, match=r"^list index out of range$"):
        sequential(tmp_path, rows({}), Fails(IndexError("list index out of range"))).train()


def test_an_error_of_the_device_says_how_to_find_the_sample(tmp_path):
    with pytest.raises(RuntimeError) as caught:
        sequential(tmp_path, rows({}), Fails(RuntimeError("CUDA error: device-side assert triggered"))).train()
    assert "use_cpu=True" in caught.value.__notes__[0]
