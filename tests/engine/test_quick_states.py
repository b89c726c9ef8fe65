"""The states that a loader reads before each batch equal those that the generators return."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus.engine.checkpoint import rng_state
from trainbus.engine.checkpoint.rng_state import (
    QuickStates,
    moved_to_device,
    random_states,
    restore_random_states,
)


def actions() -> dict[str, Callable[[], object]]:
    """Return draws of all generators, and writes of their states."""
    random.seed(1)
    random.gauss(0, 1)  # leaves a second value
    left = random.getstate()
    random.gauss(0, 1)
    taken = random.getstate()
    assert left[1] == taken[1]
    assert left[2] != taken[2]
    return {
        "nothing": lambda: None,
        "number": random.random,
        "bits": lambda: random.getrandbits(64),
        "normal": lambda: random.gauss(0, 1),
        "seed": lambda: random.seed(3),
        "with a second value": lambda: random.setstate(left),
        "without it": lambda: random.setstate(taken),
        "numpy": np.random.rand,
        "torch": lambda: torch.rand(1),
    }


def same(one: object, other: object) -> bool:
    return rng_state._same(one, other)


def test_states_equal_those_of_the_generators():
    before = random_states()
    try:
        quick, draw, made = QuickStates(), random.Random(7), actions()
        for name in [*made, *made, *draw.choices([*made], k=400)]:
            made[name]()
            found = quick.named(quick.read())
            assert same(found, {key: random_states()[key] for key in found}), name
    finally:
        restore_random_states(before)


def test_state_is_not_read_again_without_a_draw(monkeypatch):
    quick, reads = QuickStates(), []
    quick.read()
    real = random.getstate
    monkeypatch.setattr(random, "getstate", lambda: reads.append(1) or real())
    for _ in range(5):
        quick.read()
    assert len(reads) <= 5 * (random._inst.gauss_next is not None)
    random.random()
    quick.read()
    assert reads


def test_unknown_memory_reads_the_generator(monkeypatch):
    monkeypatch.setattr(rng_state.platform, "python_implementation", lambda: "PyPy")
    quick = QuickStates()
    assert len(quick._python_memory) == 0
    quick.read()
    random.random()
    assert quick.named(quick.read())["python"] == random.getstate()


@pytest.mark.parametrize("persistent", [False, True])
def test_forked_workers_do_not_read_the_generators_of_a_gpu(
    persistent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that uses CUDA forks workers. They inherit its CUDA generators, and CUDA raises an error if used."""
    process = os.getpid()

    class Generator(torch.Generator):
        """Stands for the generator of a GPU."""

        def get_state(self) -> torch.Tensor:
            assert os.getpid() == process, "CUDA error: initialization error"
            return super().get_state()

    monkeypatch.setattr(torch.cuda, "default_generators", (Generator(),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: os.getpid() == process)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: os.getpid() != process)
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": persistent}
    read = []
    whole = net_trainer(tmp_path, save_steps=2, **workers)
    whole.on("on_step_begin", lambda: read.append(QuickStates.named(QuickStates().read())["cuda"]))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, index: read.append(state))
    whole.train()
    resumed = net_trainer(tmp_path, save_steps=2, **workers)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same_weights(weights(whole.model), weights(resumed.model))
    assert len(read) > 6


def see_gpus(monkeypatch: pytest.MonkeyPatch, count: int, *, initialized: bool = True) -> tuple[torch.Generator, ...]:
    """Let this process see GPUs, with generators of the CPU."""
    generators = tuple(torch.Generator().manual_seed(index) for index in range(count))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "default_generators", generators if initialized else ())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, index: generators[index].set_state(state))
    return generators


@pytest.mark.parametrize(("before", "now"), [(8, 1), (1, 8), (2, 2)])
def test_a_run_may_resume_with_another_number_of_gpus(before: int, now: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each GPU that was seen at the save and is seen now gets its state."""
    see_gpus(monkeypatch, before)
    saved = random_states()
    generators = see_gpus(monkeypatch, now)
    for generator in generators:
        generator.manual_seed(99)
    restore_random_states(saved)
    seeds = [generator.initial_seed() for generator in generators]
    assert seeds == [index if index < before else 99 for index in range(now)]


def test_the_state_of_the_used_gpu_follows_to_another_gpu() -> None:
    states = {"torch": "cpu", "cuda": ["a", "b", "c"]}
    assert moved_to_device(states, 2, 0)["cuda"] == ["c", "b", "a"]
    assert moved_to_device(states, 1, 4)["cuda"][4] == "b"
    assert moved_to_device(states, 1, 1) is states
    assert moved_to_device({"torch": "cpu"}, 1, 0) == {"torch": "cpu"}


def test_a_run_resumes_on_a_gpu_of_another_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher may start the rank as another process of its machine."""
    run = net_trainer(tmp_path).run
    generators = see_gpus(monkeypatch, 4)
    monkeypatch.setattr(type(run), "device", property(lambda self: torch.device("cuda", 3)))
    states = run.rng_states()
    monkeypatch.setattr(type(run), "device", property(lambda self: torch.device("cuda", 1)))
    run.restore_rng(states)
    assert generators[1].initial_seed() == 3


def test_a_run_on_the_cpu_does_not_start_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the run nor its workers read states of a GPU, because that starts CUDA in each of these processes."""

    def start() -> None:
        raise AssertionError("CUDA is started")

    see_gpus(monkeypatch, 1, initialized=False)
    monkeypatch.setattr(torch.cuda, "_lazy_init", start)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", start)
    net_trainer(tmp_path, save_steps=2, dataloader_num_workers=1, skip_memory_metrics=False).train()
