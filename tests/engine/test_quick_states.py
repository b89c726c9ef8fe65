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
from trainbus.engine.checkpoint.rng_state import QuickStates, random_states, restore_random_states


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

    def states() -> list[torch.Tensor]:
        return [generator.get_state() for generator in torch.cuda.default_generators]

    monkeypatch.setattr(torch.cuda, "default_generators", (Generator(),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: os.getpid() == process)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: os.getpid() != process)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", states)
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": persistent}
    read = []
    whole = net_trainer(tmp_path, save_steps=2, **workers)
    whole.on("on_step_begin", lambda: read.append(QuickStates.named(QuickStates().read())["cuda"]))
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda states: read.append(states))
    whole.train()
    resumed = net_trainer(tmp_path, save_steps=2, **workers)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same_weights(weights(whole.model), weights(resumed.model))
    assert len(read) > 6
