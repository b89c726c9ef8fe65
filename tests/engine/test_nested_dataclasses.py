"""Fields that are dataclasses become instances, from words, files and dicts."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from typing import Any

import pytest

from trainbus import ArgumentParser
from trainbus.events import ArgumentError


@dataclass
class Lora:
    rank: int
    alpha: float = 16.0
    modules: list[str] = field(default_factory=list)


@dataclass
class Model:
    name: str = "small"
    lora: Lora | None = None
    more: list[Lora] = field(default_factory=list)
    base: Lora = field(default_factory=lambda: Lora(1))


def test_a_word_with_json_becomes_an_instance() -> None:
    (model,) = ArgumentParser(Model).parse_args_into_dataclasses(["--lora", '{"rank": 8, "modules": ["q"]}'])
    assert model.lora == Lora(8, modules=["q"])
    assert model.base == Lora(1)


def test_a_dict_becomes_an_instance_with_converted_values() -> None:
    values = {"base": {"rank": "4", "alpha": "1e-1"}, "more": [{"rank": 2}, {"rank": 3}]}
    (model,) = ArgumentParser(Model).parse_dict(values)
    assert model.base == Lora(4, 0.1)
    assert model.more == [Lora(2), Lora(3)]


def test_an_instance_stays() -> None:
    lora = Lora(3)
    assert ArgumentParser(Model).parse_dict({"lora": lora})[0].lora is lora


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"rnk": 1}, "Lora has no field 'rnk'; did you mean 'rank'"),
        ({"alpha": 1}, "Lora needs the field 'rank'"),
        ({"rank": "many"}, "its field 'rank' is 'many'; it takes an int"),
        ("text", "a JSON object with the fields rank, alpha, modules"),
        ('{"rank": }', "a JSON object"),
    ],
)
def test_mistakes_are_named(value: object, message: str) -> None:
    with pytest.raises(ArgumentError, match="`base` is .*" + message):
        ArgumentParser(Model).parse_dict({"base": value})


@pytest.mark.parametrize("annotation", ["Absent", "pytest.Absent", "int | 'Absent'"])
@pytest.mark.parametrize("makes_hint", [lambda cls: cls, lambda cls: list[str] | cls | None])
def test_an_annotation_that_cannot_be_resolved_is_named(annotation: str, makes_hint: Any) -> None:
    broken = make_dataclass("Broken", [("size", annotation, field(default=1))], namespace={"__module__": __name__})
    holder = make_dataclass("Holder", [("inner", makes_hint(broken), field(default=None))])
    said = "Broken has an annotation that cannot be resolved"
    for value in ({"size": 2}, '{"size": 2}'):
        with pytest.raises(ArgumentError, match=said):
            ArgumentParser(holder).parse_dict({"inner": value})
    with pytest.raises(ArgumentError, match=said):
        ArgumentParser(broken)
