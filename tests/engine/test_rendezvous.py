"""The rendezvous of ranks, here threads, in a store that holds keys of an earlier attempt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from trainbus.engine.distributed import ranks
from trainbus.engine.distributed.ranks import Ranks, connection_lost
from trainbus.engine.distributed.rendezvous import all_succeeded, join_attempt
from trainbus.events.errors import RankFailure


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Do something once per rank, all at the same time; return what each gave, or raised."""
    results: list[Any] = [None] * count

    def do(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=do, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_all_ranks_get_one_name_that_is_new_in_each_attempt() -> None:
    store = dist.HashStore()
    names = [at_once(3, lambda rank: join_attempt(store, rank, 3, 30.0)) for _ in range(4)]
    assert all(len(set(attempt)) == 1 for attempt in names)
    assert len({attempt[0] for attempt in names}) == 4


def test_keys_of_an_earlier_attempt_do_not_replace_a_late_rank() -> None:
    store = dist.HashStore()
    first = at_once(3, lambda rank: join_attempt(store, rank, 3, 30.0))

    def late(rank: int) -> str:
        time.sleep(0.3 * (rank == 2))
        return join_attempt(store, rank, 3, 30.0)

    second = at_once(3, late)
    assert len(set(second)) == 1
    assert second[0] != first[0]


def test_another_world_size_can_use_the_same_store() -> None:
    store = dist.HashStore()
    at_once(3, lambda rank: join_attempt(store, rank, 3, 30.0))
    assert len(set(at_once(2, lambda rank: join_attempt(store, rank, 2, 30.0)))) == 1


@pytest.mark.parametrize("before", [False, True], ids=["first attempt", "second attempt"])
def test_rendezvous_error_names_missing_ranks(before: bool) -> None:
    store = dist.HashStore()
    if before:
        at_once(3, lambda rank: join_attempt(store, rank, 3, 30.0))
    errors = at_once(2, lambda rank: join_attempt(store, rank, 3, 0.5))
    assert all(isinstance(error, RankFailure) for error in errors)
    assert all(f"Rank {rank} waits for rank 2." in str(error) for rank, error in enumerate(errors))
    assert all("0.5 seconds (`ddp_timeout`)" in str(error) for error in errors)


def test_all_ranks_know_whether_all_succeeded() -> None:
    store = dist.HashStore()
    assert at_once(2, lambda rank: all_succeeded(store, "a", rank, 2, 30.0, success=True)) == [True, True]
    assert at_once(2, lambda rank: all_succeeded(store, "b", rank, 2, 30.0, success=rank == 0)) == [False, False]
    assert not all_succeeded(store, "c", 0, 2, 0.1, success=True)


class Groups:
    """Stands in for torch.distributed: the group of the second process cannot connect in the first attempts."""

    DistError = dist.DistError
    distributed_c10d = dist.distributed_c10d

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.names: list[str] = []
        self.left = 0

    def init_process_group(self, backend: str, **options: Any) -> None:
        self.names.append(backend)
        if options["rank"] == 1 and self.names.count(backend) <= 2 * self.failures:
            raise RuntimeError("Gloo connectFullMesh failed")

    def is_initialized(self) -> bool:
        return True

    def destroy_process_group(self) -> None:
        self.left += 1


@pytest.mark.parametrize(("failures", "well"), [(0, True), (2, True), (3, False)])
def test_ranks_that_cannot_connect_retry_together(failures: int, well: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, store = Groups(failures), dist.HashStore()
    monkeypatch.setattr(ranks, "dist", groups)
    ended = at_once(2, lambda rank: Ranks(rank, 2, rank)._join(store, "gloo", 30))
    assert [error is None for error in ended] == [well, well]
    assert groups.left == 2 * failures
    assert well or all("could not connect, 3 times" in str(error) for error in ended)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"), True),
        (RuntimeError("Application timeout caused pair closure"), True),
        (dist.DistBackendError("NCCL error"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (ValueError("gloo/"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_connection_lost_recognises_only_errors_of_the_connection(error: BaseException, lost: bool) -> None:
    assert connection_lost(error) is lost
    wrapped = ValueError("wrapped")
    wrapped.__cause__ = error
    assert connection_lost(wrapped) is lost
