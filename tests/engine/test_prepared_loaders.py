"""`accelerator.prepare(DataLoader)` divides the batches among ranks as accelerate does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from typing import Any

import pytest
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader

from trainbus.engine.data.prepared import PreparedLoader
from trainbus.engine.distributed.ranks import Ranks


class Growing:
    """A batch sampler without a batch size."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[list[int]]:
        first, size = 0, 1
        while first < self.rows:
            yield [*range(first, min(self.rows, first + size))]
            first, size = first + size, size + 1

    def __len__(self) -> int:
        return len([*iter(self)])


def both(make: Any, world_size: int, rank: int) -> tuple[Any, PreparedLoader]:
    theirs = prepare_data_loader(make(), num_processes=world_size, process_index=rank, put_on_device=False)
    return theirs, PreparedLoader(make(), Ranks(rank, world_size), seed=0)


def batches(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("world_size", [2, 3])
def test_each_rank_gets_the_batches_of_accelerate(world_size: int) -> None:
    for rows, size, drop_last, rank in product(range(1, 14), (1, 2, 3), (False, True), range(world_size)):

        def make(rows: int = rows, size: int = size, drop_last: bool = drop_last) -> Any:
            return DataLoader(list(range(rows)), batch_size=size, drop_last=drop_last)

        theirs, ours = both(make, world_size, rank)
        assert (batches(ours), len(ours)) == (batches(theirs), len(theirs)), (rows, size, drop_last, rank)


@pytest.mark.parametrize("rows", [1, 3, 6, 7, 11])
def test_batches_of_a_sampler_without_a_size_are_divided_too(rows: int) -> None:
    for rank in range(2):
        theirs, ours = both(lambda: DataLoader(list(range(rows)), batch_sampler=Growing(rows)), 2, rank)
        assert (batches(ours), len(ours)) == (batches(theirs), len(theirs))


def test_workers_load_the_batches_of_this_rank_only() -> None:
    theirs, ours = both(lambda: DataLoader(list(range(11)), batch_size=2, num_workers=2), 2, 1)
    assert batches(ours) == batches(theirs)


def test_each_epoch_of_a_shuffled_loader_has_every_sample() -> None:
    loader = DataLoader(list(range(10)), batch_size=2, shuffle=True)
    parts = [PreparedLoader(loader, Ranks(rank, 2), seed=3) for rank in range(2)]
    orders = []
    for epoch in range(2):
        for part in parts:
            part.set_epoch(epoch)
        orders.append([batches(part) for part in parts])
        assert {row for rows in orders[-1] for batch in rows for row in batch} == set(range(10))
    assert orders[0] != orders[1]


@pytest.mark.parametrize("rows", [1, 5, 8, 9])
def test_padding_is_counted_so_that_an_evaluation_has_each_sample_once(rows: int) -> None:
    found: list[int] = []
    for rank in range(3):
        part = PreparedLoader(DataLoader(list(range(rows)), batch_size=2), Ranks(rank, 3), seed=0)
        for batch in part:
            found += batch.tolist()[: len(batch) - part.padding_rows]
    assert sorted(found) == list(range(rows))


@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (1, 2), (2, 0)])
def test_loader_knows_the_samples_of_each_batch_of_an_own_sampler(world_size: int, workers: int) -> None:
    for rank in range(world_size):
        loader = DataLoader(list(range(11)), batch_sampler=Growing(11), num_workers=workers)
        ours = PreparedLoader(loader, Ranks(rank, world_size), seed=0)
        for _ in range(2):
            seen = [(ours.batch_rows, len(batch)) for batch in ours]
            assert seen
            assert all(known == rows for known, rows in seen)
        for _ in ours:
            break  # the next iteration counts from its start
        assert [(ours.batch_rows, len(batch)) for batch in ours] == seen
        assert isinstance(loader.batch_sampler, Growing)
        assert (ours.batch_sampler is loader.batch_sampler) == (world_size == 1)


@pytest.mark.parametrize("nested", [1, 9])
@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (1, 2), (2, 0), (3, 0)])
@pytest.mark.parametrize("own_sampler", [False, True])
def test_an_iteration_in_an_iteration_changes_no_counts(
    own_sampler: bool, world_size: int, workers: int, nested: int
) -> None:
    order: dict[str, Any] = {"batch_sampler": Growing(11)} if own_sampler else {"batch_size": 2}
    for rank in range(world_size):
        loader = DataLoader(list(range(11)), num_workers=workers, **order)
        ours = PreparedLoader(loader, Ranks(rank, world_size), seed=0)
        alone = [(batch.tolist(), ours.batch_rows, ours.padding_rows) for batch in ours]
        both = []
        for batch in ours:
            both.append((batch.tolist(), ours.batch_rows, ours.padding_rows))
            for _ in islice(ours, nested):
                pass
        assert both == alone != []


def test_each_iteration_passes_the_next_epoch_to_the_sampler_as_in_accelerate() -> None:
    class Epochs(Growing):
        def __init__(self, rows: int) -> None:
            super().__init__(rows)
            self.epochs: list[int] = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    seen = []
    for prepare in (lambda loader: prepare_data_loader(loader, put_on_device=False), _prepared):
        sampler = Epochs(4)
        loader = prepare(DataLoader(list(range(4)), batch_sampler=sampler))
        for _ in range(2):
            batches(loader)
        next(iter(loader))
        loader.set_epoch(7)
        batches(loader)
        batches(loader)
        seen.append(sampler.epochs)
    assert seen[0] == seen[1] != []


def _prepared(loader: Any) -> PreparedLoader:
    return PreparedLoader(loader, Ranks(0, 1), seed=0)
