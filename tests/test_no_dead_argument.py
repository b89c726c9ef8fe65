"""Every training argument has a reader in the code."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trainbus import TrainingArguments
from trainbus.engine.arguments.script import ScriptArguments
from trainbus.events.errors import ArgumentError
from trainbus.integrations import way_to_shard

FIELDS = {field.name for field in dataclasses.fields(TrainingArguments)}
SCRIPT = {field.name for field in dataclasses.fields(ScriptArguments)}


@pytest.fixture(scope="module")
def readers() -> ModuleType:
    path = Path(__file__).resolve().parent.parent / "docs" / "readers.py"
    spec = importlib.util.spec_from_file_location("readers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_argument_has_a_reader_and_scripts_read_the_rest(readers: ModuleType) -> None:
    found = readers.readers_of(FIELDS)
    assert {name for name, places in found.items() if not places} == SCRIPT


READ_BY = {
    "bf16": "MixedPrecision",
    "early": None,  # no argument at all
    "eval_delay": "Evaluate",
    "warmup_steps": "OptimizerMethods",  # through the method that turns it into steps
    "log_on_each_node": "Trainer",  # through two properties
    "report_to": "integrations",
}


@pytest.fixture(scope="module")
def found(readers: ModuleType) -> dict[str, list[str]]:
    """The readers of some arguments. A search reads all sources, so there is one."""
    return readers.readers_of({*READ_BY, "gradient_accumulation_steps"})


@pytest.mark.parametrize(("argument", "reader"), READ_BY.items())
def test_the_finder_finds_the_right_places(found: dict[str, list[str]], argument: str, reader: str | None) -> None:
    assert (reader in found[argument]) if reader is not None else found[argument] == []


def test_the_finder_does_not_take_a_check_for_a_reader(found: dict[str, list[str]]) -> None:
    # `problems` of the group looks at it, and nothing else of the arguments does.
    assert "engine.arguments.batches" not in found["gradient_accumulation_steps"]


@pytest.mark.parametrize("given", [{"fsdp": True, "fsdp_config": {"version": 2}}, {"sharding": "stage2"}])
def test_a_single_process_shards_no_state(given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="single process: start N of 2 or more ranks with `torchrun --standalone"):
        way_to_shard(TrainingArguments(**given))


def test_deepspeed_may_work_in_a_single_process() -> None:
    assert way_to_shard(TrainingArguments(deepspeed={})) == "deepspeed"
