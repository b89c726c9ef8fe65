"""Tests of docs/migration.md: the programs of three trainers end with the same weights and the same loss."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from test_docs import ROOT, blocks

from trainbus import Trainer

PAGE = ROOT / "docs" / "migration.md"
SETUP, *PROGRAMS = (block.code for block in blocks(PAGE))
HEADINGS = re.findall(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
NAMES = ("trainbus", "Hugging Face", "Lightning", "PaddleNLP", "MindNLP")


def run(name: str) -> dict[str, Any]:
    """Run the shared set-up and the program under a heading. Return its namespace."""
    space: dict[str, Any] = {"__name__": "docs"}
    exec(compile(SETUP, str(PAGE), "exec", dont_inherit=True), space)
    exec(compile(PROGRAMS[NAMES.index(name)], str(PAGE), "exec", dont_inherit=True), space)
    return space


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    return run("trainbus")


def weights(model: Any) -> list[torch.Tensor]:
    return [weight.detach() for weight in model.parameters()]


def test_each_trainer_has_a_program() -> None:
    assert HEADINGS[: len(NAMES)] == [*NAMES]
    of_trainers = PAGE.read_text(encoding="utf-8").partition(f"\n## {HEADINGS[len(NAMES)]}\n")[0]
    assert [block.code for block in blocks(PAGE)][1 : len(NAMES) + 1] == PROGRAMS[: len(NAMES)]
    assert of_trainers.count("```python") == 1 + len(NAMES)


def test_trainbus_learns_and_saves_a_checkpoint_per_epoch(ours: dict[str, Any]) -> None:
    trainer: Trainer = ours["trainer"]
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert losses[2] < losses[0] < 0.69
    assert sorted(path.name for path in Path("outputs/trainbus").glob("checkpoint-*")) == [
        "checkpoint-20",
        "checkpoint-40",
        "checkpoint-60",
    ]


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_ends_with_the_same_weights_and_loss(ours: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    theirs = run("Hugging Face")["trainer"]
    assert all(map(torch.equal, weights(ours["trainer"].model), weights(theirs.model)))
    assert theirs.evaluate()["eval_loss"] == ours["trainer"].evaluate()["eval_loss"]


@pytest.mark.filterwarnings("ignore")
def test_lightning_ends_with_the_same_weights_and_loss(ours: dict[str, Any]) -> None:
    pytest.importorskip("lightning")
    space = run("Lightning")
    for mine, theirs in zip(weights(ours["trainer"].model), weights(space["module"]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)  # Lightning's AdamW is not fused
    loss = space["trainer"].validate(space["module"], space["loader"], verbose=False)[0]["eval_loss"]
    assert loss == pytest.approx(ours["trainer"].evaluate()["eval_loss"], rel=1e-5)
    assert len([*Path("outputs/lightning").glob("*.ckpt")]) == 3
