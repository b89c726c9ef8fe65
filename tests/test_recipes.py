"""Each script of examples/by_feature runs unchanged, and its output shows that the model learned."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "by_feature"
RECIPES = sorted(FOLDER.glob("*.py"))
RESULT = re.compile(r"^(\w+): ([\d.]+) before, ([\d.]+) after", re.MULTILINE)
WITHOUT_RESULT = ("hyperparameter_search", "source_data")
"""The scripts that print no metric before and after training."""
LOWER_IS_BETTER = {"loss"}
CHANCE_LOSS = 0.69
"""The cross-entropy of a random guess between two classes."""


def named(recipe: Path) -> str:
    return recipe.stem


@pytest.fixture
def printed(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """The output of a recipe, which runs in an empty folder, on one thread, with a fixed seed.

    It runs in this process, because importing torch and transformers takes longer than most recipes.
    """
    recipe: Path = request.param
    for package in re.findall(
        r"^(?:from|import) (transformers|optuna)\b", recipe.read_text(encoding="utf-8"), re.MULTILINE
    ):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])  # Python does this for a script
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        runpy.run_path(str(recipe), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
        sys.modules.pop("source_data", None)
    return capsys.readouterr().out


LEARNING = [each for each in RECIPES if each.stem not in WITHOUT_RESULT]


@pytest.mark.parametrize("printed", LEARNING, indirect=True, ids=named)
def test_a_recipe_learns(printed: str) -> None:
    results = RESULT.findall(printed)
    assert results
    for metric, before, after in results:
        better = float(after) < float(before) if metric in LOWER_IS_BETTER else float(after) > float(before)
        assert better, f"{metric}: {before} -> {after}"


@pytest.mark.parametrize("printed", [FOLDER / "hyperparameter_search.py"], indirect=True, ids=named)
def test_the_search_finds_values_that_learn(printed: str) -> None:
    found = re.search(r"^Best: trial \d, eval_loss ([\d.]+)", printed, re.MULTILINE)
    assert found is not None
    assert float(found[1]) < CHANCE_LOSS


@pytest.mark.parametrize("printed", [FOLDER / "source_data.py"], indirect=True, ids=named)
def test_the_source_data_has_lines(printed: str) -> None:
    assert int(printed.split()[0]) > 100


@pytest.mark.parametrize("printed", [FOLDER / "gradient_accumulation.py"], indirect=True, ids=named)
def test_gradient_accumulation_reaches_the_same_weights(printed: str) -> None:
    assert float(printed.rpartition("at most ")[2].rstrip(".\n")) < 1e-5


@pytest.mark.parametrize("printed", [FOLDER / "mixed_precision.py"], indirect=True, ids=named)
def test_mixed_precision_keeps_float32_weights(printed: str) -> None:
    assert "computed in torch.bfloat16, and its weights are torch.float32." in printed


@pytest.mark.parametrize("printed", [FOLDER / "early_stopping_and_best_model.py"], indirect=True, ids=named)
def test_early_stopping_loads_the_best_checkpoint(printed: str) -> None:
    stopped = re.search(r"Stopped after (\d+) of 50 epochs; the best is (\S+)\.$", printed, re.MULTILINE)
    assert stopped is not None
    assert 4 <= int(stopped[1]) < 50
    assert int(stopped[2].rpartition("-")[2]) == 25 * (int(stopped[1]) - 3)  # the best is three epochs before the last


def test_the_readme_lists_every_recipe_once() -> None:
    listed = re.findall(r"^\| \[(\S+)\]\((\S+)\)", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [(recipe.name, recipe.name) for recipe in RECIPES]


@pytest.mark.parametrize("recipe", RECIPES, ids=named)
def test_a_recipe_is_short_and_has_a_docstring(recipe: Path) -> None:
    text = recipe.read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring is not None
    assert len(text.splitlines()) <= 60
