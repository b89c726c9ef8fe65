"""CollectGarbage: collections at chosen steps only, and the former state of the collector after the session."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

from support.callbacks import Boom
from support.data import net_samples
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import Callback, CollectGarbage, every


class Node:
    """An object that refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.own = self


class Watch(Callback):
    """Notes the state of the collector in each step, and makes garbage that only the collector frees."""

    def __init__(self) -> None:
        self.seen: list[tuple[bool, bool]] = []
        self.alive: list[int] = []
        self.made: list[weakref.ref[Node]] = []

    def on_step_begin(self) -> None:
        self.alive.append(sum(each() is not None for each in self.made))
        self.made.append(weakref.ref(Node()))
        self.seen.append((gc.isenabled(), gc.get_freeze_count() > 0))


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Begin as a program does, without frozen objects. Fail if a test leaves another state of the collector."""
    gc.unfreeze()  # the tests freeze the imported modules
    assert gc.isenabled()
    yield
    left = gc.isenabled(), gc.get_freeze_count()
    gc.enable()
    gc.freeze()
    assert left == (True, 0)


def test_collects_at_the_steps_of_its_trigger_only(tmp_path: Path) -> None:
    watch = Watch()
    built = net_trainer(tmp_path, CollectGarbage(every(2)), watch)
    built.train()
    assert watch.seen == [(False, True)] * 6
    assert watch.alive == [0, 1, 0, 1, 0, 1], "garbage of step 1 and 2 is freed at the end of step 2"


def test_collects_at_the_end_of_epochs(tmp_path: Path) -> None:
    watch = Watch()
    net_trainer(tmp_path, CollectGarbage(every(1, "epoch")), watch).train()
    assert watch.alive == [0, 1, 2, 3, 0, 1], "an epoch has 4 steps"


def test_trains_to_the_same_weights(tmp_path: Path) -> None:
    ends = []
    for callbacks in ((), (CollectGarbage(every(2)),)):
        built = net_trainer(tmp_path, *callbacks)
        built.train()
        ends.append(weights(built.model))
    assert same_weights(*ends)


def test_objects_from_before_the_training_are_frozen_only_in_the_session(tmp_path: Path) -> None:
    early = weakref.ref(node := Node())
    alive = []
    built = net_trainer(tmp_path, CollectGarbage(every(1)))

    def drop(state: Any) -> None:
        nonlocal node
        node = None  # type: ignore[assignment]
        alive.append(early() is not None)

    built.on("on_step_begin", drop)
    built.train()
    assert alive == [True] * 6, "a frozen object is not collected, although nothing refers to it"
    gc.collect()
    assert early() is None


def test_without_freeze_older_objects_are_collected(tmp_path: Path) -> None:
    watch = Watch()
    net_trainer(tmp_path, CollectGarbage(every(2), freeze=False), watch).train()
    assert watch.seen == [(False, False)] * 6
    assert watch.alive == [0, 1, 0, 1, 0, 1]


def test_the_collector_is_restored_after_an_error(tmp_path: Path) -> None:
    built = net_trainer(tmp_path, CollectGarbage())

    def fail() -> None:
        assert not gc.isenabled()
        raise Boom

    built.on("on_loss", fail)
    with pytest.raises(Boom):
        built.train()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("inner", [(), (CollectGarbage(every(1)),)], ids=["without", "with"])
def test_a_nested_training_leaves_the_state_of_the_outer_one(tmp_path: Path, inner: tuple[Any, ...]) -> None:
    states = []
    built = net_trainer(tmp_path, CollectGarbage(every(3)))

    def nest() -> None:
        net_trainer(tmp_path / "inner", *inner, max_steps=2).train()
        states.append((gc.isenabled(), gc.get_freeze_count() > 0))

    built.on("on_step_end", nest, once=2)
    built.train()
    assert states == [(False, True)]


def test_a_program_that_turned_the_collector_off_and_froze_objects_keeps_both(tmp_path: Path) -> None:
    gc.disable()
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        net_trainer(tmp_path, CollectGarbage(every(2))).train()
        assert not gc.isenabled()
        assert gc.get_freeze_count() >= frozen * 0.99  # a frozen object may be freed by its reference count
    finally:
        gc.enable()
        gc.unfreeze()


class Asking(Dataset[Any]):
    """Samples with the state of the collector in the process that reads them."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        sample = net_samples()[index]
        return {**sample, "labels": sample["labels"] * 0 + gc.isenabled()}


def test_data_workers_collect_automatically(tmp_path: Path) -> None:
    labels = []
    options = {"train_dataset": Asking(), "dataloader_num_workers": 1, "max_steps": 2}
    built = net_trainer(tmp_path, CollectGarbage(), **options)
    built.on("on_batch", lambda batch: labels.append(batch["labels"].tolist()))
    built.train()
    assert labels == [[1.0] * 4] * 2
