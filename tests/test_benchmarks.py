"""The benchmarks: their rounds, ratios and limits, and the files that one command writes."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import subprocess
import sys
from collections import Counter
from itertools import pairwise, permutations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
CONTENDERS = {"raw torch": "torch", "trainbus": "trainbus", "transformers": "transformers"}
CONTENDERS |= {"Lightning": "lightning", "ignite": "ignite"}
"""Contender -> its package."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")

    def load(name: str) -> ModuleType:
        for known in ("common", "tables"):
            monkeypatch.delitem(sys.modules, known, raising=False)
        found = importlib.import_module(name)
        for known in ("common", "tables"):
            if known in sys.modules:
                monkeypatch.delitem(sys.modules, known)
        return found

    return load


def test_rounds_alternate_the_contenders_and_drop_the_warm_up(module: Any) -> None:
    called: list[str] = []

    def note(name: str) -> int:
        called.append(name)
        return len(called)

    found = module("common").interleave({name: lambda name=name: note(name) for name in "abc"}, 3)
    assert "".join(called) == "bacabcbcacab"
    assert found == {"a": [4, 9, 11], "b": [5, 7, 12], "c": [6, 8, 10]}


@pytest.mark.parametrize("count", range(1, 8))
def test_rounds_balance_the_places_and_the_neighbours_of_each_contender(module: Any, count: int) -> None:
    names = "abcdefg"[:count]
    orders = [module("common").order_of_round(names, turn) for turn in range(2 * count)]
    assert all(sorted(order) == sorted(names) for order in orders)
    places = Counter(place for order in orders for place in enumerate(order))
    assert places == {(place, name): 2 for place in range(count) for name in names}
    neighbours = Counter(pair for order in orders for pair in pairwise(order))
    assert neighbours == dict.fromkeys(permutations(names, 2), 2)


def test_ratios_are_of_one_round_and_need_a_positive_base(module: Any) -> None:
    common = module("common")
    result = common.Result()
    result.add("task", "s", {"raw torch": [1.0, 2.0, 4.0], "trainbus": [2.0, 2.0, 2.0]})
    result.add("cost", "s", {"raw torch": [1.0, -1.0], "trainbus": [2.0, 2.0]})
    assert result.ratios(result.row("task", "trainbus")) == [2.0, 1.0, 0.5]
    assert result.ratio("task", "trainbus") == 1.0
    assert result.ratios(result.row("cost", "trainbus")) == []
    again = common.Result.from_json(json.loads(json.dumps(result.to_json())))
    assert again == result


def test_ratios_of_composer_divide_by_the_plain_loop_of_its_environment(module: Any) -> None:
    common = module("common")
    result = common.Result()
    result.add("task", "s", {"raw torch": [1.0], "raw torch of Composer": [2.0], "Composer": [6.0]})
    result.add("without", "s", {"raw torch": [1.0], "Composer": [6.0]})
    assert [result.ratio(task, "Composer") for task in ("task", "without")] == [3.0, 6.0]
    assert result.ratio("task", "raw torch of Composer") == 2.0


def test_functions_run_in_another_python_and_their_errors_come_back(module: Any) -> None:
    contenders, other_python = module("contenders"), module("other_python")
    other = other_python.OtherPython(sys.executable)
    try:
        assert other.call(contenders.missing, "raw torch") == []
        with pytest.raises(RuntimeError, match="KeyError: 'unknown'"):
            other.call(contenders.missing, "unknown")
        assert other.call(contenders.missing, "raw torch") == [], "the process stays alive after an error"
    finally:
        other.close()


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/true"])
def test_a_python_that_does_not_answer_is_an_error_with_its_path(python: str, module: Any) -> None:
    with pytest.raises(RuntimeError, match=python):
        module("other_python").OtherPython(python)


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("", "TRAINBUS_BENCH_COMPOSER names no Python that has it"),
        ("/no/such/python", "/no/such/python does not start"),
    ],
)
def test_composer_is_left_out_with_the_reason(
    python: str, reason: str, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINBUS_BENCH_COMPOSER", python)
    benchmark = module("common").Benchmark("")
    with module("places").Places(benchmark, "raw torch", "Composer") as places:
        assert places.names == ["raw torch"]
        assert places.bind(lambda name, *more: (name, *more), "raw torch", 1)() == ("raw torch", 1)
    assert reason in benchmark.result.left_out["Composer"]


def test_a_limit_fails_for_a_greater_value_and_for_no_value(module: Any) -> None:
    benchmark = module("common").Benchmark("")
    benchmark.limit(0.9, 1.0, "fits")
    benchmark.limit(5.0, None, "has no limit")
    assert benchmark.failures == []
    benchmark.limit(1.1, 1.0, "exceeds")
    benchmark.limit(math.nan, 1.0, "was not measured")
    assert [each.partition(":")[0] for each in benchmark.failures] == ["exceeds", "was not measured"]


def test_the_page_has_a_place_for_each_table(module: Any) -> None:
    tables = module("tables")
    text = tables.PAGE.read_text(encoding="utf-8")
    empty = {"machine": {}, "rows": [], "curves": [], "left_out": {}}
    assert tables.with_tables(text, empty) == text, "without rows, the tables stay"
    with pytest.raises(ValueError, match="<!-- measured: growth -->"):
        tables.with_tables(text.replace("measured: growth", ""), empty)
    rows = [
        {"task": "time to equal loss", "contender": name, "unit": "s", "samples": [value], "base": name}
        for name, value in (("transformers, grouped", 2.0), ("trainbus, Packing", 1.0))
    ]
    written = tables.with_tables(text, {**empty, "rows": rows})
    assert "| trainbus, Packing | 1.0 | 2.00 (2.00 to 2.00) |" in written
    assert tables.with_tables(written, {**empty, "rows": rows}) == written


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_one_command_writes_the_rows_the_chart_and_the_tables(tmp_path: Path) -> None:
    words = [sys.executable, str(FOLDER / "run.py"), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stderr[-3000:]
    page = json.loads((tmp_path / "results.json").read_text())
    assert page["machine"]["versions"]["torch"]
    assert page["machine"]["cores"] > 0
    assert page["failures"] == {}
    measured = {row["contender"] for row in page["rows"]}
    chart = (tmp_path / "benchmarks.svg").read_text()
    text = (tmp_path / "benchmarks.md").read_text()
    for name, package in CONTENDERS.items():
        if importlib.util.find_spec(package) is None:
            assert name in page["left_out"]
            continue
        assert name in measured
        assert name in chart
        assert name in text
    assert "Composer" in measured | page["left_out"].keys()
    tasks = {row["task"] for row in page["rows"]}
    assert {"step of a perceptron", "fine-tuning of a small BERT", "time to equal loss", "resume"} <= tasks
    assert {"start to first step", "cost of a checkpoint", "peak memory of a step"} <= tasks
    assert {curve["size_of"] for curve in page["curves"]} == {"callbacks", "steps", "rows", "ranks"}
    assert "Run `make bench` to" not in text


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_gpu_benchmark_runs_on_a_cpu_and_is_skipped_without_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    words = [sys.executable, str(FOLDER / "gpu.py"), "--quick", "--json", str(file)]
    tiny = ["--device", "cpu", "--steps", "2", "--tiny"]
    done = subprocess.run([*words, *tiny], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads(file.read_text())["rows"]
    assert {row["contender"] for row in rows} == {"raw torch", "trainbus", "transformers"}
    assert len({row["task"] for row in rows}) == 6
    assert all(row["samples"][0] > 0 for row in rows if "synchronizations" not in row["task"])
    import torch

    if not torch.cuda.is_available():
        skipped = subprocess.run(words, capture_output=True, text=True, timeout=100)
        assert skipped.returncode == 0
        assert "gpu is left out: torch finds no CUDA device" in skipped.stdout
