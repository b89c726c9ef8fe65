"""Constructors refuse a value of a wrong simple type, such as a text for a number, and say what to write."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainbus
from trainbus import Callback, EarlyStopping, Evaluate, Keep, KeepBest, Packing, every
from trainbus.events.argument_types import simple_types
from trainbus.events.errors import ArgumentError
from trainbus.events.keywords import CheckedKeywords

WRONG: dict[str, list[Any]] = {
    "int": ["3", 1.5, True, [3], torch.ones(2), object()],
    "float": ["0.5", True, [0.5], torch.ones(2), object()],
    "bool": ["yes", 1, 0.0, object()],
    "str": [3, 0.5, True, ["eval_loss"], b"eval_loss", object()],
}
RIGHT: dict[str, list[Any]] = {
    "int": [3, np.int64(3), torch.tensor(3), 1e6],
    "float": [0.5, 1, np.float32(0.5), torch.tensor(0.5)],
    "bool": [True, np.bool_(False)],
    "str": ["eval_loss", Path("runs")],
}


def classes() -> Iterator[type[Any]]:
    """Return the checked classes of the library that can be imported here."""
    for name in ("callbacks", "engine", "integrations", "events"):
        package = importlib.import_module(f"trainbus.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"trainbus.{name}."):
            try:
                importlib.import_module(module.name)
            except ImportError:  # of a library that is not installed
                continue
    waiting, seen = [CheckedKeywords], set()
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls not in seen and cls.checks_types and cls.__module__.startswith("trainbus."):
            seen.add(cls)
            yield cls


def test_each_simple_parameter_of_each_class_is_checked() -> None:
    checked = set()
    for cls in classes():
        for name, allowed in simple_types(cls).items():
            for kind in allowed:
                for value in RIGHT.get(kind, [None]):
                    cls.__new__(cls, **{name: value})
            for value in [value for kind in allowed for value in WRONG.get(kind, [])]:
                if any(type(value) in map(type, RIGHT.get(kind, [])) for kind in allowed):
                    continue  # right for another member of the union
                with pytest.raises(ArgumentError, match=rf"^{cls.__name__}\({name}=.*\): {name} takes "):
                    cls.__new__(cls, **{name: value})
            checked.add((cls.__name__, name))
    assert {
        ("EarlyStopping", "patience"),
        ("Keep", "last"),
        ("KeepBest", "metric"),
        ("Packing", "max_length"),
    } <= checked
    assert len(checked) > 150


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: EarlyStopping(patience="3"),
            "EarlyStopping(patience='3'): patience takes a whole number. Write patience=3.",
        ),
        (
            lambda: EarlyStopping("eval_loss", 2.5),
            "EarlyStopping(patience=2.5): patience takes a whole number.",
        ),
        (lambda: Keep(last="2"), "Keep(last='2'): last takes a whole number or None. Write last=2."),
        (lambda: KeepBest(3), "KeepBest(metric=3): metric takes a text."),
        (lambda: Packing(max_length="long"), "Packing(max_length='long'): max_length takes a whole number or None."),
        (lambda: Evaluate(every(5), rows=True), "Evaluate(rows=True): rows takes a whole number or None."),
        (lambda: trainbus.EMA(decay="0.99"), "EMA(decay='0.99'): decay takes a number. Write decay=0.99."),
    ],
)
def test_the_error_names_the_argument_and_the_remedy(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        make()
    assert str(error.value) == message


def test_a_program_may_use_looser_annotations() -> None:
    @dataclass
    class Loose(Callback):
        limit: int = 3
        name: str = None  # type: ignore[assignment]

    assert Loose(limit=0.5, name=4).limit == 0.5  # type: ignore[arg-type]


def test_fields_of_the_library_are_checked_in_a_subclass_of_a_program() -> None:
    @dataclass
    class Patient(EarlyStopping):
        extra: int = 0

    assert Patient(extra="text").extra == "text"  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="patience takes a whole number"):
        Patient(patience="3")  # type: ignore[arg-type]
