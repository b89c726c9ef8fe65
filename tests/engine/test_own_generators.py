"""Generators that datasets, collators and samplers hold: which are found, saved and restored."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler

from support.data import points
from support.outcomes import same_weights, weights
from support.trainers import regression_trainer
from trainbus import default_data_collator
from trainbus.engine.checkpoint.format.codec import encode
from trainbus.engine.checkpoint.own_generators import OwnGenerators

GENERATORS: dict[str, Callable[[], Any]] = {
    "random.Random": lambda: random.Random(1),
    "torch.Generator": lambda: torch.Generator().manual_seed(1),
    "RandomState": lambda: np.random.RandomState(1),
    **{
        bits.__name__: lambda bits=bits: np.random.Generator(bits(1))  # type: ignore[misc]
        for bits in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
    },
}


def draw(generator: Any) -> float:
    return float(torch.rand((), generator=generator)) if isinstance(generator, torch.Generator) else generator.random()


class Holder:
    def __init__(self, generator: Any = None) -> None:
        self.rng = generator


@dataclass(slots=True)
class Slotted:
    rng: Any


shared = random.Random(7)


def reads_a_global(features: list[Any]) -> Any:
    return shared.random()


def with_closure(generator: Any) -> Any:
    return lambda features: draw(generator)


def method_of_class(generator: Any) -> Any:
    return type("OfClass", (), {"rng": generator})()


@pytest.mark.parametrize("make", GENERATORS.values(), ids=[*GENERATORS])
def test_a_restored_generator_draws_the_same_values(make: Any) -> None:
    saved, resumed = Holder(make()), Holder(make())
    for _ in range(700):  # more than the words of a Mersenne Twister
        draw(saved.rng)
    states = OwnGenerators({"dataset": saved}).read()
    encode(states, "states")
    assert OwnGenerators({"dataset": resumed}).restore(states) == []
    assert [draw(resumed.rng) for _ in range(5)] == [draw(saved.rng) for _ in range(5)]


@pytest.mark.parametrize("make", GENERATORS.values(), ids=[*GENERATORS])
def test_a_generator_that_is_created_later_gets_the_saved_state(make: Any) -> None:
    saved, resumed = Holder(make()), Holder()
    draw(saved.rng)
    assert OwnGenerators({"collator": resumed}).restore(OwnGenerators({"collator": saved}).read()) == []
    assert draw(resumed.rng) == draw(saved.rng)


@pytest.mark.parametrize(
    "hold",
    [
        *(Holder, Slotted, with_closure, method_of_class),
        lambda each: each.random,
        lambda each: {"a": [each]},
        lambda each: partial(print, each),
        lambda each: partial(print, rng=each),
        lambda each: Holder([Holder(each)]),
    ],
    ids=["attribute", "slot", "closure", "class", "method", "dict", "partial", "keyword", "nested"],
)
def test_generators_are_found_in_every_kind_of_holder(hold: Any) -> None:
    generator = random.Random(1)
    assert [*OwnGenerators({"collator": hold(generator)}).found.values()] == [generator]


def test_a_generator_of_the_module_of_a_function_is_found() -> None:
    assert OwnGenerators({"collator": reads_a_global}).found == {"collator.shared": shared}


def test_a_shared_generator_is_found_once() -> None:
    generator = random.Random(1)
    assert len(OwnGenerators({"dataset": Holder(generator), "collator": Holder(generator)}).found) == 1


def test_global_generators_and_samples_are_left_out() -> None:
    rows = [{"rng": random.Random(row)} for row in range(1000)]
    globals_ = [random, np.random, torch.default_generator, np.random.mtrand._rand]
    assert OwnGenerators({"dataset": rows, "collator": Holder(globals_)}).found == {}


def test_another_kind_of_generator_is_reported() -> None:
    states = OwnGenerators({"dataset": Holder(random.Random(1))}).read()
    assert OwnGenerators({"dataset": Holder(np.random.default_rng(1))}).restore(states) == ["dataset.rng"]
    assert OwnGenerators({"dataset": []}).restore(states) == ["dataset.rng"]


def noisy(generator: Any) -> Any:
    def collate(features: list[Any]) -> Any:
        batch = default_data_collator(features)
        return {**batch, "x": batch["x"] + draw(generator)}

    return collate


def trained(folder: Path, collator: Any, sampler: Any = None, **args: Any) -> Any:
    args = {"max_steps": 9, "save_strategy": "steps", "save_steps": 1, **args}
    trainer = regression_trainer(folder, args=args, train_dataset=points(16), data_collator=collator)
    if sampler is not None:
        trainer._get_train_sampler = lambda dataset=None: sampler
    return trainer


@pytest.mark.parametrize("step", [3, 4, 6])
def test_a_sampler_with_a_generator_resumes_exactly(step: int, tmp_path: Path) -> None:
    """Replacement keeps the sampler from being replaced by the engine's. An epoch has 4 steps."""

    def sampler() -> Any:
        return RandomSampler(points(16), replacement=True, generator=torch.Generator().manual_seed(3))

    whole = trained(tmp_path, noisy(random.Random(1)), sampler())
    whole.train()
    again = trained(tmp_path / "again", noisy(random.Random(1)), sampler())
    again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert same_weights(weights(again.model), weights(whole.model))


def test_a_generator_without_a_state_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path, noisy(random.SystemRandom())).train()
    assert caplog.text.count("have no state that a checkpoint can hold: collator.generator (SystemRandom)") == 1


def test_a_generator_that_the_program_no_longer_has_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(tmp_path, noisy(random.Random(1)), max_steps=2).train()
    with caplog.at_level(logging.WARNING):
        trained(tmp_path, default_data_collator).train(resume_from_checkpoint=True)
    assert caplog.text.count("that dataset, collator and sampler do not have now: collator.generator") == 1


class OfGPU(torch.Generator):
    """Stands for the generator of a GPU, in a forked worker."""

    device = torch.device("cuda", 3)

    def get_state(self) -> torch.Tensor:
        raise RuntimeError("CUDA error: initialization error")


def test_a_forked_worker_does_not_read_the_generator_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    own = OwnGenerators({"collator": {"here": torch.Generator(), "gpu": OfGPU()}})
    assert [*own.read()] == ["collator.here"]


def test_the_generator_of_a_gpu_that_the_machine_lacks_is_reported() -> None:
    class Owner:
        generator: Any = None

    saved = {"kind": "torch", "device": "cuda:3", "state": torch.zeros(16, dtype=torch.uint8)}
    assert OwnGenerators({"collator": Owner()}).restore({"collator.generator": saved}) == ["collator.generator"]
