"""The recipes: each runs as it is, and what it prints says that something was learned."""

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
OTHERWISE = ("hyperparameter_search", "source_data")
"""Those that print something else."""
LOWER_IS_BETTER = {"loss"}
GUESSING = 0.69
"""The loss of guessing between two classes."""


def named(recipe: Path) -> str:
    return recipe.stem


@pytest.fixture
def printed(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """What the recipe printed, run in an empty folder, on one thread and from a known seed.

    In this process, since importing torch and transformers again for each takes longer than what most of them do.
    """
    recipe: Path = request.param
    for package in re.findall(
        r"^(?:from|import) (transformers|optuna)\b", recipe.read_text(encoding="utf-8"), re.MULTILINE
    ):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])  # as Python does for a script
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        runpy.run_path(str(recipe), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
        sys.modules.pop("source_data", None)
    return capsys.readouterr().out


LEARNING = [each for each in RECIPES if each.stem not in OTHERWISE]


@pytest.mark.parametrize("printed", LEARNING, indirect=True, ids=named)
def test_a_recipe_learns(printed: str) -> None:
    results = RESULT.findall(printed)
    assert results
    for metric, before, after in results:
        better = float(after) < float(before) if metric in LOWER_IS_BETTER else float(after) > float(before)
        assert better, f"{metric}: {before} -> {after}"


@pytest.mark.parametrize("printed", [FOLDER / "hyperparameter_search.py"], indirect=True, ids=named)
def test_the_search_finds_what_learns(printed: str) -> None:
    found = re.search(r"^Best: trial \d, eval_loss ([\d.]+)", printed, re.MULTILINE)
    assert found is not None
    assert float(found[1]) < GUESSING


@pytest.mark.parametrize("printed", [FOLDER / "source_data.py"], indirect=True, ids=named)
def test_the_data_is_there(printed: str) -> None:
    assert int(printed.split()[0]) > 100


@pytest.mark.parametrize("printed", [FOLDER / "gradient_accumulation.py"], indirect=True, ids=named)
def test_accumulated_gradients_lead_to_the_same_weights(printed: str) -> None:
    assert float(printed.rpartition("at most ")[2].rstrip(".\n")) < 1e-5


@pytest.mark.parametrize("printed", [FOLDER / "mixed_precision.py"], indirect=True, ids=named)
def test_half_precision_is_that_of_the_activations(printed: str) -> None:
    assert "computed in torch.bfloat16, and its weights are torch.float32." in printed


@pytest.mark.parametrize("printed", [FOLDER / "early_stopping_and_best_model.py"], indirect=True, ids=named)
def test_it_stops_early(printed: str) -> None:
    stopped = re.search(r"Stopped after (\d+) of 50 epochs; the best is (\S+)\.$", printed, re.MULTILINE)
    assert stopped is not None
    assert 4 <= int(stopped[1]) < 50
    assert int(stopped[2].rpartition("-")[2]) == 25 * (int(stopped[1]) - 3)  # the best is three epochs back


def test_the_readme_lists_every_recipe_once() -> None:
    listed = re.findall(r"^\| \[(\S+)\]\((\S+)\)", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [(recipe.name, recipe.name) for recipe in RECIPES]


@pytest.mark.parametrize("recipe", RECIPES, ids=named)
def test_a_recipe_is_short_and_says_what_it_shows(recipe: Path) -> None:
    text = recipe.read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring is not None
    assert len(text.splitlines()) <= 60
