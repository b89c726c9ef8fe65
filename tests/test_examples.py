"""Each example runs in its own process, and its output matches its docstring."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest

from support.processes import run_program

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(name: str, folder: Path, *options: str, seconds: int = 100) -> str:
    """Run an example in an empty folder, on one thread, and return what it printed."""
    variables = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")}
    return run_program(EXAMPLES / name, *options, folder=folder, timeout=seconds, **variables).stdout


def require_packages_of_classify() -> None:
    for package in ("datasets", "sklearn", "matplotlib"):
        pytest.importorskip(package)


def test_minimal_trains(tmp_path: Path) -> None:
    printed = run("minimal.py", tmp_path)
    assert "Training stopped at step 500 by StopAtMaxSteps" in printed
    assert (tmp_path / "outputs" / "minimal" / "checkpoint-500" / "model.safetensors").is_file()


def test_minimal_has_ten_lines() -> None:
    code = [line for line in (EXAMPLES / "minimal.py").read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(code) - 1 <= 10  # without its docstring


def test_compose_callbacks_prints_the_order_and_the_reasons(tmp_path: Path) -> None:
    printed = run("compose_callbacks.py", tmp_path)
    described, _, requests = printed.partition("All requests")
    assert described.index("Log-2 = Log(trigger=log_spaced(8)") < described.index("SkipSpikes = SkipSpikes(factor=4.0")
    assert "SkipSpikes request skip_update" in requests
    assert "Evaluate-2 request evaluate" in requests
    assert "KeepBest request save" in requests
    assert "run take training_stop" in requests


def test_classify_reads_a_csv_file(tmp_path: Path) -> None:
    require_packages_of_classify()
    draw = random.Random(0)
    with (tmp_path / "mine.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["review", "stars"])
        for index in range(200):
            word = ("dreadful", "wonderful")[index % 2]
            table.writerow([f"a {word} film, {draw.random():.3f} of it {word}", index % 2])
    options = ("--train_file", "mine.csv", "--text_column", "review", "--label_column", "stars", "--epochs", "2")
    printed = run("classify.py", tmp_path, *options)
    assert "150 rows to train on, 50 to test on, 2 labels" in printed
    assert "Accuracy on the test set" in printed
    assert (tmp_path / "outputs" / "classify" / "curves.png").is_file()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_classify_beats_the_simpler_methods(tmp_path: Path) -> None:
    require_packages_of_classify()
    printed = run("classify.py", tmp_path, seconds=900)
    table = printed.partition("Accuracy on the test set\n")[2].partition("\n\n")[0]
    scores = {line[:28].strip(): float(line[28:].strip().rstrip("%")) for line in table.splitlines()}
    assert scores["this model"] == max(scores.values())


def test_wandb_experiment_compares_four_runs_and_prints_what_to_upload(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    printed = run("wandb_experiment.py", tmp_path, "out")
    assert printed.count("eval_loss 0.") >= 4
    scripts = [line.removeprefix("sh ") for line in printed.splitlines() if line.startswith("sh ")]
    assert len(scripts) == 4
    for script in scripts:
        [command] = [line for line in (tmp_path / script).read_text().splitlines() if line.startswith("wandb sync ")]
        assert list(Path(command.removeprefix("wandb sync ")).glob("run-*.wandb"))
