"""A callback that iterates over the loader of the training changes neither the training nor its checkpoints."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from resume_points import DATA, mismatches, run_of
from torch.utils.data import WeightedRandomSampler

from support.data import points
from support.outcomes import same_weights, weights
from trainbus.engine.data.loader import Loader


def first_batches(loader: Loader) -> list[Any]:
    return [batch["x"] for batch in islice(loader, 2)]


def all_batches(loader: Loader) -> list[Any]:
    return [batch["x"] for batch in loader]


def for_an_evaluation(loader: Loader) -> list[Any]:
    return [batch["x"] for batch in islice(loader.without_resume(), 2)]


WAYS = [first_batches, all_batches, for_an_evaluation]
PLACES = ["on_train_begin", "on_epoch_begin", "on_step_begin", "on_step_end", "on_epoch_end"]


def at(place: str, look: Callable[[Loader], list[Any]], seen: list[Any] | None = None) -> Callable[[Any], None]:
    """Return a function that makes a run look at its loader at an event. `seen` gets what it saw."""
    found = [] if seen is None else seen
    return lambda run: run.on(place, lambda train_dataloader: found.append(look(train_dataloader)))


def taken_batches(run: Any) -> list[Any]:
    """Return a list to which the run adds each batch that it takes."""
    taken: list[Any] = []
    run.on("on_batch", lambda batch: taken.append(batch["x"]))
    return taken


def weighted(run: Any) -> None:
    """Give a run a sampler of the user that draws its order from the global generator."""
    sampler = WeightedRandomSampler([1.0 + row % 3 for row in range(22)], 22)
    run._get_train_sampler = lambda dataset=None: sampler


SAFE = [name for name in DATA if name != "stream with a state"]
"""Without a dataset that keeps one position for all of its iterations: the program must not iterate twice over it."""


@pytest.mark.thorough
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("look", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("data", SAFE)
def test_a_resumed_run_equals_the_whole_run(data: str, look: Any, place: str, tmp_path: Path) -> None:
    assert mismatches(tmp_path, [2, 6, 8], data=data, collator="torch", attach=at(place, look)) == []


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["on_train_begin", "on_epoch_begin", "on_step_end"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("data", ["rows", "datasets"])
def test_with_workers(data: str, persistent: bool, place: str, tmp_path: Path) -> None:
    setting = {"workers": 2, "dataloader_persistent_workers": persistent, "attach": at(place, first_batches)}
    assert mismatches(tmp_path, [3, 7], data=data, collator="numpy", **setting) == []


@pytest.mark.parametrize("strategy", ["sequential", "group_by_length"])
@pytest.mark.parametrize("look", WAYS, ids=lambda way: way.__name__)
def test_with_each_sampler(strategy: str, look: Any, tmp_path: Path) -> None:
    setting = {"train_sampling_strategy": strategy, "length_column_name": "length", "attach": at("on_step_end", look)}
    assert mismatches(tmp_path, [2, 8], data="rows of a length", collator="torch", **setting) == []


@pytest.mark.parametrize("look", WAYS, ids=lambda way: way.__name__)
def test_with_a_sampler_of_the_user(look: Any, tmp_path: Path) -> None:
    def attach(run: Any) -> None:
        weighted(run)
        at("on_step_end", look)(run)

    assert mismatches(tmp_path, [2, 8], data="rows", collator="torch", attach=attach) == []


def test_an_evaluation_of_the_training_data(tmp_path: Path) -> None:
    seen = []

    def attach(run: Any) -> None:
        def evaluate(train_dataloader: Any) -> None:
            output = run.evaluation_loop(train_dataloader, "on the training data")
            seen.append((output.num_samples, set(output.metrics)))

        run.on("on_step_end", evaluate)

    assert mismatches(tmp_path, [3, 8], data="rows", collator="torch", attach=attach) == []
    assert seen == [(22, {"eval_loss"})] * len(seen)
    assert len(seen) == 12 + 9 + 4


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_loader_can_be_copied_and_pickled(copied: Callable[[Loader], Loader], workers: int, tmp_path: Path) -> None:
    seen: list[bool] = []

    def look(train_dataloader: Loader) -> None:
        pairs = zip(all_batches(train_dataloader), all_batches(copied(train_dataloader)), strict=True)
        seen.append(all(one.equal(other) for one, other in pairs))

    run = run_of(tmp_path, "rows", "pure", workers=workers)
    for loader in (run.get_train_dataloader(), run.get_eval_dataloader(points(8))):
        look(loader)
    run.on("on_step_end", look, every=5)
    run.train()
    assert seen == [True] * 4


class Counting:
    """A sampler of the user that draws each order from a count of its own."""

    def __init__(self) -> None:
        self.orders = 0

    def __iter__(self) -> Iterator[int]:
        self.orders += 1
        return iter(torch.randperm(22, generator=torch.Generator().manual_seed(self.orders)).tolist())

    def __len__(self) -> int:
        return 22


def counting(run: Any) -> None:
    sampler = Counting()
    run._get_train_sampler = lambda dataset=None: sampler


@pytest.mark.parametrize("look", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("prepare", [lambda run: None, weighted, counting], ids=["shuffled", "weighted", "counting"])
def test_callbacks_see_the_batches_of_the_epoch(prepare: Any, look: Any, tmp_path: Path) -> None:
    run, seen = run_of(tmp_path, "rows", "pure", max_steps=6), []
    taken = taken_batches(run)
    prepare(run)
    at("on_step_end", look, seen)(run)
    run.train()
    assert len(taken) == len(seen) == 6
    for batches in seen:
        for mine, other in zip(batches, taken):
            assert torch.equal(mine, other)


def concatenated() -> Any:
    """A stream of `datasets` of two sources, each with two shards."""
    import datasets

    parts = [
        datasets.Dataset.from_list([{"x": row["x"].tolist(), "labels": row["labels"]} for row in points(11, seed)])
        for seed in range(2)
    ]
    streams = [part.to_iterable_dataset(num_shards=2) for part in parts]
    return datasets.concatenate_datasets(streams).with_format("torch")


SOURCES: dict[str, Any] = {
    "shuffled": {},
    "weighted": {"attach": weighted},
    "counting": {"attach": counting},
    "grouped": {
        "data": "rows of a length",
        "train_sampling_strategy": "group_by_length",
        "length_column_name": "length",
    },
    "datasets": {"data": "datasets"},
    "concatenated": {"rows": concatenated},
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("source", SOURCES)
def test_the_training_is_the_same_with_and_without_a_look(source: str, place: str, tmp_path: Path) -> None:
    if source == "counting" and place in ("on_train_begin", "on_epoch_begin"):
        return  # before the epoch has an order, a look asks the sampler for one
    batches, ends = [], []
    for look in (None, all_batches):
        setting = {"data": "rows", **SOURCES[source]}
        rows = setting.pop("rows", None)
        run = run_of(tmp_path / str(look), collator="pure", **setting)
        if rows is not None:
            run.train_dataset = rows()
        if look is not None:
            at(place, look)(run)
        batches.append(taken_batches(run))
        run.train()
        ends.append(weights(run.model))
    assert len(batches[0]) == 12
    for mine, other in zip(*batches, strict=True):
        assert torch.equal(mine, other)
    assert same_weights(*ends), "the model has dropout"


@pytest.mark.parametrize("data", ["rows", "datasets", "concatenated"])
def test_an_iterator_that_lives_through_the_training(data: str, tmp_path: Path) -> None:
    def attach(run: Any) -> None:
        kept: list[Any] = []
        if data == "concatenated":
            run.train_dataset = concatenated()
        run.on("on_train_begin", lambda train_dataloader: kept.append(iter(train_dataloader)))
        run.on("on_step_end", lambda: next(kept[-1], None) and None)

    of = "rows" if data == "concatenated" else data
    assert mismatches(tmp_path, [2, 4, 8], data=of, collator="pure", attach=attach) == []


@pytest.mark.parametrize("data", [name for name in SAFE if name != "stream with a random start"])
def test_a_look_after_the_state_is_saved(data: str, tmp_path: Path) -> None:
    assert mismatches(tmp_path, [2, 8], data=data, collator="pure", attach=at("on_save", all_batches)) == []


def test_after_a_resume_a_callback_reads_a_stream_from_its_start(tmp_path: Path) -> None:
    seen: list[Any] = []
    setting = {"data": "datasets", "collator": "pure", "attach": at("on_step_end", all_batches, seen)}
    assert mismatches(tmp_path, [3, 8], **setting) == []
    assert [sum(map(len, batches)) for batches in seen] == [22] * (12 + 9 + 4)


def test_after_the_training_a_loader_starts_at_its_first_batch(tmp_path: Path) -> None:
    run = run_of(tmp_path, "rows", "pure", max_steps=8)
    run.train()
    loader = run.run.train_dataloader
    assert sum(map(len, all_batches(loader))) == sum(map(len, all_batches(loader))) == 22
