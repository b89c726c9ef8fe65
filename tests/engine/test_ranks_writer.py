"""The writers of several ranks agree on the step at which a task counts as finished."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from trainbus.engine.checkpoint.write.ranks_writer import RanksWriter

WORLD = 3
PATIENCE = 30.0


class Exchange:
    """What all ranks share: a gather of values, and an error if a rank is lost."""

    def __init__(self, world_size: int = WORLD) -> None:
        self.barrier = threading.Barrier(world_size)
        self.values: list[Any] = [None] * world_size
        self.closed = 0


class Group:
    """A process group of threads."""

    single_process = False

    def __init__(self, rank: int, shared: Exchange) -> None:
        self.rank, self.shared, self.lost = rank, shared, False

    def thread_group(self, timeout: int) -> Group:
        return self

    def gather_objects(self, value: Any) -> list[Any]:
        try:
            self.shared.barrier.wait(PATIENCE)
            self.shared.values[self.rank] = value
            self.shared.barrier.wait(PATIENCE)
            values = list(self.shared.values)
            self.shared.barrier.wait(PATIENCE)
        except threading.BrokenBarrierError:
            self.lost = True
            raise RuntimeError("gloo/connection closed") from None
        return values

    def close(self) -> None:
        self.shared.closed += 1


def on_all(train: Callable[[int, Group], Any]) -> list[Any]:
    """Run a training on each rank, each on a thread of its own, and return the results or errors by rank."""
    shared = Exchange()
    results: list[Any] = [None] * WORLD

    def run(rank: int) -> None:
        try:
            results[rank] = train(rank, Group(rank, shared))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(WORLD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    assert shared.closed in (0, WORLD)
    return results


@pytest.mark.parametrize("seed", range(6))
def test_all_ranks_see_the_end_of_each_task_after_the_same_step(seed: int):
    """Ranks, threads and tasks have random speeds. Some steps are collectives, as in a training."""
    steps = threading.Barrier(WORLD)
    agreed = random.Random(seed).sample(range(1, 60), 25)

    def train(rank: int, group: Group) -> list[tuple[int, str]]:
        chance, writer, seen = random.Random(f"{seed}-{rank}"), RanksWriter(), []
        waiting = False
        for step in range(1, 61):
            if step in agreed:
                steps.wait(PATIENCE)
            time.sleep(chance.choice([0, 0, 0.0005, 0.002]))
            if writer.finished_at(step):
                writer.wait()
                seen.append((step, "finished"))
                waiting = False
            if step % 7 == 0:
                if waiting:
                    writer.wait()
                    seen.append((step, "waited"))
                writer.ranks(group, 1)
                writer.submit(lambda: time.sleep(chance.choice([0, 0.001, 0.02])), step)
                waiting = True
        writer.close()
        return seen

    of_ranks = on_all(train)
    assert of_ranks[1:] == of_ranks[:-1]
    assert len(of_ranks[0]) in (7, 8)  # the last one may finish after the last step


def test_an_error_of_one_rank_is_raised_after_a_step_that_all_ranks_share():
    def train(rank: int, group: Group) -> tuple[int, str]:
        writer = RanksWriter()
        writer.ranks(group, 1)
        writer.submit(lambda: 1 / (rank - 1), 0)
        for step in range(1, 10_000):
            time.sleep(0.001 * rank)
            if writer.finished_at(step):
                try:
                    writer.wait()
                except ZeroDivisionError:
                    return step, "error"
                else:
                    return step, "no error"
                finally:
                    writer.close()
        raise AssertionError("the task never finished")

    found = on_all(train)
    assert [what for _, what in found] == ["no error", "error", "no error"]
    assert len({step for step, _ in found}) == 1


def test_a_lost_rank_ends_the_wait_of_the_others():
    def train(rank: int, group: Group) -> str:
        writer = RanksWriter()
        writer.ranks(group, 1)

        def work() -> None:
            if rank == 2:
                group.shared.barrier.abort()
            group.gather_objects(rank)

        writer.submit(work, 0)
        for step in range(1, 10_000):
            time.sleep(0.001)
            if writer.finished_at(step):
                break
        try:
            writer.wait()
        except RuntimeError as error:
            return str(error)
        finally:
            writer.close()
        return "no error"

    assert on_all(train) == ["gloo/connection closed"] * WORLD


def test_finish_waits_and_leaves_the_error_for_close():
    shared = Exchange(1)
    writer = RanksWriter()
    assert not writer.finish()
    writer.ranks(Group(0, shared), 1)
    writer.submit(lambda: 1 / 0)
    assert not writer.finish()
    with pytest.raises(ZeroDivisionError):
        writer.close()
    assert shared.closed == 1
    assert not writer.finish()
