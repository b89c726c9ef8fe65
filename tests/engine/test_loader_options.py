"""Options of data-loading workers: how they start, and whether batches keep their order."""

from __future__ import annotations

import gc
import multiprocessing
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from support.data import Stream, points
from support.models import Regression
from support.outcomes import same_weights, weights
from support.trainers import both, regression_trainer


class WaitingFirst(Dataset):
    """Its first rows wait until `opened` is set, which loading the row `opens` does."""

    def __init__(self, rows, opens=None):
        self.rows, self.opens, self.opened = points(rows), opens, multiprocessing.Event()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if index == self.opens:
            self.opened.set()
        if index < 2:
            self.opened.wait(60)
        return {**self.rows[index], "row": torch.tensor(index)}


def rows_in_order(tmp_path, in_order, dataset):
    built = regression_trainer(
        tmp_path,
        train_dataset=dataset,
        args={
            **{"dataloader_in_order": in_order, "dataloader_num_workers": 2, "per_device_train_batch_size": 2},
            **{"train_sampling_strategy": "sequential", "remove_unused_columns": False},
        },
    )
    for batch in built.get_train_dataloader():
        dataset.opened.set()
        yield batch["row"][0].item()


def test_batches_come_in_order_or_as_they_are_ready(tmp_path):
    # The second worker loads row 6 in its second batch, so its first batch is ready before the one of the first worker.
    assert [*rows_in_order(tmp_path, True, WaitingFirst(12, opens=6))] == [0, 2, 4, 6, 8, 10]
    eager = [*rows_in_order(tmp_path, False, WaitingFirst(12))]
    assert sorted(eager) == [0, 2, 4, 6, 8, 10]
    assert eager[0] != 0


@pytest.mark.parametrize("context", [None, "fork", "forkserver"])
def test_workers_use_the_multiprocessing_context(tmp_path, context):
    args = {"dataloader_multiprocessing_context": context, "dataloader_num_workers": 1}
    loader = regression_trainer(tmp_path, args=args).get_train_dataloader()
    method = None if loader.multiprocessing_context is None else loader.multiprocessing_context.get_start_method()
    assert method == context


def test_spawned_workers_load_the_same_samples(tmp_path):
    def train(folder, **args):
        args = {"max_steps": 3, "save_strategy": "no", **args}
        built = regression_trainer(tmp_path / folder, train_dataset=points(20), args=args)
        built.train()
        return weights(built.model)

    spawned = train("spawned", dataloader_num_workers=1, dataloader_multiprocessing_context="spawn")
    assert same_weights(spawned, train("alone"))


def test_multiprocessing_context_is_ignored_without_workers(tmp_path):
    built = regression_trainer(tmp_path, args={"dataloader_multiprocessing_context": "spawn"})
    assert built.get_train_dataloader().multiprocessing_context is None


@pytest.mark.parametrize("non_blocking", [True, False])
def test_accelerator_config_does_not_change_results(tmp_path, non_blocking):
    args = {
        **{"per_device_train_batch_size": 4, "max_steps": 3, "save_strategy": "no"},
        "accelerator_config": {"non_blocking": non_blocking, "even_batches": True, "use_seedable_sampler": True},
    }
    (theirs, _), (ours, _) = both(tmp_path, args, model=Regression, train_dataset=points(20))
    assert same_weights(weights(ours.model), weights(theirs.model))


@pytest.mark.parametrize("stream", [False, True])
def test_workers_of_an_incomplete_epoch_stop_with_the_training(stream: bool, tmp_path: Path) -> None:
    data = Stream(points(20)) if stream else points(20)
    args = {"max_steps": 2, "per_device_train_batch_size": 2, "dataloader_num_workers": 1}
    trainer = regression_trainer(tmp_path, train_dataset=data, args=args)
    workers = []
    trainer.on("on_step_end", lambda: workers.append(len(multiprocessing.active_children())))
    gc.disable()
    try:
        trainer.train()
        left = multiprocessing.active_children()
    finally:
        gc.enable()
    assert workers == [1, 1]
    assert not left
