"""Tests of docs/tour.md: every stop exists, every stop runs, and the trips are short."""

from __future__ import annotations

import ast
import re
import sys
import threading
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from test_docs import ROOT
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import Callback, Trainer, TrainingArguments

TEXT = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
STOP = re.compile(r"`([\w/]+\.py):([\w.]+)`")
SECTIONS = {
    heading: STOP.findall(text) for heading, text in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
}
STOPS = [stop for stops in SECTIONS.values() for stop in stops]
FOLDERS = ("engine", "events", "callbacks", "integrations")


def defined_in(path: Path) -> dict[str, bool]:
    """Return the names that a module defines, `Class.method` included, and whether each is a function."""
    found: dict[str, bool] = {}

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[prefix + node.name] = True
            elif isinstance(node, ast.ClassDef):
                found[prefix + node.name] = False
                collect(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update({prefix + target.id: False for target in targets if isinstance(target, ast.Name)})

    collect(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return found


def candidates(name: str) -> list[str]:
    """Return the places that define a name, for the message about a stop that moved."""
    last = name.rpartition(".")[2]
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return [
        f"{path.relative_to(ROOT)}:{known}"
        for path in sorted(paths)
        for known in defined_in(path)
        if known == name or known.rpartition(".")[2] == last
    ]


@pytest.mark.parametrize(("file", "name"), STOPS, ids=[f"{file}:{name}" for file, name in STOPS])
def test_stop_is_defined_in_its_file(file: str, name: str) -> None:
    assert (ROOT / file).is_file(), f"{file} does not exist; {name} is defined in {candidates(name)}"
    assert name in defined_in(ROOT / file), f"{file} does not define {name}; it is defined in {candidates(name)}"


@pytest.mark.parametrize("file", sorted(set(re.findall(r"`([\w/]+\.py)`", TEXT))))
def test_file_that_is_named_without_a_function_exists(file: str) -> None:
    assert (ROOT / file).is_file()


@pytest.mark.parametrize("folder", sorted(set(re.findall(r"^\| `([\w/]+)/`", TEXT, re.M))))
def test_folder_that_is_named_exists(folder: str) -> None:
    assert (ROOT / folder).is_dir()


def test_folders_of_the_engine_are_all_named() -> None:
    rooms = {f"engine/{path.name}/" for path in (ROOT / "engine").iterdir() if (path / "__init__.py").is_file()}
    assert rooms - {"engine/_root/"} <= set(re.findall(r"^\| `([\w/]+)`", TEXT, re.M))


def files_of(section: str) -> list[str]:
    """Return the files of a trip in order; several stops in a row in one file count once."""
    return [file for file, _ in groupby(file for file, _ in SECTIONS[section])]


def test_batch_goes_from_loader_to_update_in_at_most_eight_files_without_returning() -> None:
    files = files_of("One batch")
    assert 1 < len(files) <= 8
    assert len(set(files)) == len(files)


def test_eval_steps_goes_from_argument_to_evaluation_in_at_most_four_files() -> None:
    files = files_of("One argument")
    assert 1 < len(files) <= 4
    assert len(set(files)) == len(files)


class RequestsSave(Callback):
    def on_step_end(self, control: Any) -> None:
        control.request("save", "for the tour")


def trainer(folder: Path, **options: Any) -> Trainer:
    rows = TensorDataset(torch.randn(16, 2), torch.randint(2, (16,)))
    options = {"num_train_epochs": 1, "eval_strategy": "steps", "eval_steps": 2, "save_total_limit": 1, **options}
    return Trainer(
        nn.Linear(2, 2),
        TrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, **options),
        train_dataset=rows,
        eval_dataset=rows,
        criterion=nn.functional.cross_entropy,
        callbacks=[RequestsSave()],
    )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code objects have no qualified name")
def test_every_stop_that_is_a_function_runs_in_a_training_that_is_saved_and_resumed(tmp_path: Path) -> None:
    called: set[tuple[str, str]] = set()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{ROOT}/"):
            called.add((code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname))

    threading.setprofile(profile)  # checkpoints are written on a thread
    sys.setprofile(profile)
    try:
        trainer(tmp_path).train()
        trainer(tmp_path, num_train_epochs=2).train(resume_from_checkpoint=True)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    functions = {(file, name) for file, name in STOPS if defined_in(ROOT / file)[name]}
    assert functions - called == set()
