"""A key with two values is refused wherever arguments are read: the last value would win without a word."""

import json
import sys
from dataclasses import dataclass, field

import pytest

from trainbus import ArgumentParser, TrainingArguments
from trainbus.engine.arguments.unique_keys import DuplicateKey, parse_json, parse_yaml
from trainbus.events.errors import ArgumentError

TWICE = '{"seed": 1,\n "seed": 2}'


@dataclass
class Options:
    sizes: dict = field(default_factory=dict)


@pytest.mark.parametrize("name", ["run.json", "run.yaml", "run.yml"])
def test_a_file_with_an_argument_twice_is_refused(tmp_path, name):
    path = tmp_path / name
    path.write_text(TWICE if name.endswith("json") else "seed: 1\nmax_steps: 3\nseed: 2\n")
    message = rf"{name} cannot be parsed \(the key 'seed' appears twice"
    parser = ArgumentParser(TrainingArguments)
    read = parser.parse_json_file if name.endswith("json") else parser.parse_yaml_file
    with pytest.raises(ArgumentError, match=message):
        read(path)


def test_the_command_line_refuses_a_file_with_an_argument_twice(tmp_path, monkeypatch, capsys):
    (tmp_path / "run.yaml").write_text("seed: 1\nseed: 2\n")
    monkeypatch.setattr(sys, "argv", ["train.py", str(tmp_path / "run.yaml")])
    with pytest.raises(SystemExit):
        ArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    assert "the key 'seed' appears twice, in lines 1 and 2; remove one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "as_file"),
    [("lr_scheduler_kwargs", False), ("fsdp_config", False), ("fsdp_config", True)],
)
def test_json_of_an_argument_with_a_key_twice_is_refused(tmp_path, name, as_file):
    path = tmp_path / "value.json"
    path.write_text(TWICE)
    sharded = {"fsdp": "full_shard"} if name == "fsdp_config" else {}
    with pytest.raises(ArgumentError, match=rf"`{name}`.*the key 'seed' appears twice"):
        TrainingArguments(tmp_path, **{name: str(path) if as_file else TWICE}, **sharded)


def test_an_accelerator_config_with_a_key_twice_is_refused(tmp_path):
    path = tmp_path / "accelerator.json"
    path.write_text(TWICE)
    with pytest.raises(ArgumentError, match=r"`accelerator_config`.*the key 'seed' appears twice"):
        TrainingArguments(tmp_path, accelerator_config=str(path))


def test_a_flag_with_json_that_has_a_key_twice_is_refused(capsys):
    with pytest.raises(SystemExit):
        ArgumentParser(Options).parse_args_into_dataclasses(["--sizes", '{"a": 1, "a": 2}'])
    assert "the key 'a' appears twice; remove one" in capsys.readouterr().err


def test_keys_of_other_mappings_may_repeat():
    values = {"a": {"x": 1}, "b": {"x": 2}, "rows": [{"x": 1}, {"x": 2}]}
    assert parse_json(json.dumps(values)) == parse_yaml(json.dumps(values)) == values


def test_a_yaml_merge_key_may_be_overridden():
    """`<<` copies keys of another mapping. A key beside it replaces a copied one, as YAML says."""
    text = "base: &base {x: 1, y: 2}\nmore: &more\n  <<: *base\n  x: 3\nlast:\n  <<: *more\n  y: 4\n"
    assert parse_yaml(text)["last"] == {"x": 3, "y": 4}


def test_a_key_twice_in_one_line_of_yaml_is_refused():
    with pytest.raises(DuplicateKey, match="'x' appears twice, in lines 1 and 1"):
        parse_yaml("{x: 1, x: 2}")
