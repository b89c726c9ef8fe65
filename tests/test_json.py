"""The JSON of the commands: its keys are those that the pages in docs/json/ list."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_docs import blocks

from support.pages import DOCS, text_of
from support.plugins import Packages
from trainbus.engine import commands
from trainbus.engine.commands import profile
from trainbus.engine.commands.main import main

ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \| (.+) \|$", re.MULTILINE)
OBJECT = re.compile(r"\[\w+\]\((?:\w+\.md)?#(\w+)\)")
RULE = """
from trainbus import Callback


class Rule(Callback):
    def on_evaluate(self, control):
        control.request("save", "planned")
"""
COMMANDS = {
    "trainbus status DIR --json": ("trainbus status outputs/one --json", "trainbus status outputs/two --json"),
    "trainbus checkpoints DIR --json": ("trainbus checkpoints outputs/one --json",),
    "trainbus preview PROGRAM --json": ("trainbus preview --measure --batch --json train.py",),
    "trainbus preview PROGRAM --against FILE --json": ("trainbus preview --against plan.json --json train.py",),
    "trainbus trace DIR --rows --json": ("trainbus trace outputs/one --rows --json",),
    "trainbus diff A B --json": (
        "trainbus diff outputs/one outputs/two --json",
        "trainbus diff outputs/one outputs/one --json",
    ),
    "trainbus replay DIR --callback MODULE:CLASS --json": (
        "trainbus replay outputs/one --callback json_rules:Rule --json",
    ),
    "trainbus report DIR --json": ("trainbus report outputs/one --json", "trainbus report outputs/two --json"),
    "trainbus plugins --json": ("trainbus plugins --json",),
    "trainbus plan --json": ("trainbus plan --params 7e9 --gpus 8 --gpu-memory 80 --json",),
    "trainbus rerun CAPSULE --json": ("trainbus rerun --json outputs/three/capsules/step-3 train.py",),
    "trainbus profile PROGRAM --json": (
        "trainbus profile --rounds 1 --steps 2 --warmup 1 --only batch --json train.py",
    ),
}
"""Heading of a page -> the commands to run. Together they print all fields that are not optional."""


class Tables:
    """The tables of the pages, by heading."""

    def __init__(self) -> None:
        sections = re.split(r"^## ", text_of("json/*.md"), flags=re.MULTILINE)[1:]
        self.rows = {each.partition("\n")[0].strip("`"): ROW.findall(each) for each in sections}

    def paths(self, heading: str) -> dict[str, bool]:
        """Return the path of each field, and whether it may be missing. An object of another table is expanded."""
        found = {}
        for path, kind, meaning in self.rows[heading]:
            found[path] = "may be missing" in meaning
            if link := OBJECT.search(kind):
                items = "[]" if kind.startswith("list") else ""
                inner = self.paths(link[1].capitalize())
                found |= {f"{path}{items}.{name}": found[path] or missing for name, missing in inner.items()}
        return {path: missing for path, missing in found.items() if not path.endswith("[]")}


def paths_of(value: Any, known: Iterable[str], path: str = "") -> Iterator[str]:
    """Yield the path of each key: `a.b`; `a[]` for the items of a list; `a{}` for a dict with any keys.

    An object without a field on the pages, such as a value of type `any`, counts as a value.
    """
    if path and not any(each.startswith((f"{path}.", f"{path}[", f"{path}{{")) for each in known):
        return
    if isinstance(value, dict):
        free = any(each.startswith(f"{path}{{}}") for each in known)
        for name, each in value.items():
            inner = f"{path}{{}}" if free else f"{path}.{name}".lstrip(".")
            yield inner
            yield from paths_of(each, known, inner)
    elif isinstance(value, list):
        for each in value:
            yield from paths_of(each, known, f"{path}[]")


def strict(text: str) -> Any:
    """Read JSON as other parsers do, which know no NaN."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def measured(options: Any, folder: Path, changes: dict[str, Any], describe: bool = False) -> dict[str, Any]:
    """Return what a measurement of `trainbus profile` returns. test_profile.py measures programs."""
    if not describe:
        return {"rows_per_second": 100.0 + 100 * bool(changes)}
    names = ("dataloader_num_workers", "dataloader_pin_memory", "bf16", "fp16", "torch_compile")
    args = dict.fromkeys(names, 0) | {"train_sampling_strategy": "random", "optim": "adamw_torch"}
    args |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
    return {"args": args, "cuda": False, "bf16": False, "processors": 1, "has_lengths": False}


def shown(line: str, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    main(shlex.split(line)[1:])
    return strict(capsys.readouterr().out)


def test_the_keys_of_every_command_are_those_of_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], packages: Packages
) -> None:
    monkeypatch.chdir(tmp_path)
    program = next(blocks(DOCS / "see_the_run" / "preview.md")).code
    Path("train.py").write_text(program)
    Path("json_rules.py").write_text(RULE)
    packages.add(RULE, {"trainbus.callbacks": {"rule": "{pkg}:Rule"}, "trainbus.commands": {"greet": "{pkg}:Rule"}})
    namespace: dict[str, Any] = {"__name__": "docs"}
    exec(program, namespace)
    namespace["make"]("outputs/one").train()
    other = namespace["make"]("outputs/two", learning_rate=4e-5)

    def add_nan(metrics: dict[str, Any]) -> None:
        metrics["eval_broken"] = math.nan

    other.on("on_evaluate_dataset", add_nan)
    other.train()
    failing = namespace["make"]("outputs/three", max_steps=8, capsule=True)
    failing.train_dataset.tensors[0][7] = math.nan
    failing.train()
    main(["preview", "train.py", "--out", "plan.json"])
    monkeypatch.setattr(profile, "_measure", measured)
    tables = Tables()
    for heading, lines in COMMANDS.items():
        fields = tables.paths(heading)
        found = {path for line in lines for path in paths_of(shown(line, capsys), {*fields})}
        assert found - {*fields} == set(), f"{heading}: these fields are in no page of docs/json/"
        required = {path for path, missing in fields.items() if not missing}
        assert required - found == set(), f"{heading}: these fields of docs/json/ were not printed"


def test_the_pages_and_the_test_have_every_command_with_json() -> None:
    tables = Tables()
    assert {heading for heading in tables.rows if heading.startswith("trainbus ")} == {*COMMANDS}
    folder = Path(commands.__file__).parent
    with_json = {name for name, (module, _) in commands.COMMANDS.items() if '"--json"' in _text(folder, module)}
    assert with_json == {heading.split()[1] for heading in COMMANDS}


def _text(folder: Path, module: str) -> str:
    return (folder / f"{module}.py").read_text(encoding="utf-8")


def test_every_view_but_the_rows_has_a_version() -> None:
    tables = Tables()
    for heading in COMMANDS:
        name = heading.split()[1]
        assert name == "trace" or {"version", name} & {*tables.paths(heading)}, heading
