"""The optimizer registry: one row per name holds every trait, and other modules read it there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.processes import environment
from trainbus.engine.arguments import OptimizerNames
from trainbus.engine.optim.registry import OPTIMIZERS, has_train_eval_modes, is_shape_dependent, name_of

PROGRAM = Path(__file__).parent / "one_row_program.py"
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def one_row(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("rows")
    pytest.importorskip("transformers")  # the compatibility page measures against it
    words = [sys.executable, str(PROGRAM), str(folder)]
    done = subprocess.run(words, env=environment(PYTHONPATH=str(DOCS)), capture_output=True, text=True, timeout=390)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


NAMES = ["plain_row", "averaging_row"]


@pytest.mark.parametrize("name", NAMES)
def test_one_row_makes_an_optimizer_a_valid_argument(name: str, one_row: dict[str, Any]) -> None:
    assert one_row[name]["argument"] == one_row[name]["flag"] == name
    assert "did you mean 'plain_row'?" in one_row["misspelt"]


@pytest.mark.parametrize("name", NAMES)
def test_one_row_documents_an_optimizer(name: str, one_row: dict[str, Any]) -> None:
    assert one_row[name]["in --help"]
    assert one_row[name]["in the docs"]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_with_a_new_row_resumes_bit_for_bit(name: str, one_row: dict[str, Any]) -> None:
    assert one_row[name]["resumes"]


def test_sharding_follows_the_traits_of_the_row(one_row: dict[str, Any]) -> None:
    plain, averaging = (one_row[name] for name in NAMES)
    assert (plain["shape-dependent"], averaging["shape-dependent"]) == (False, True)
    assert plain["sharding refuses"] == ""
    assert "Averaging" in averaging["sharding refuses"]


def test_two_modes_follow_the_trait_of_the_row(one_row: dict[str, Any]) -> None:
    assert [one_row[name]["switches modes"] for name in NAMES] == [False, True]


def test_the_memory_estimate_counts_the_state_bytes_of_the_row(one_row: dict[str, Any]) -> None:
    plain, averaging = (one_row[name]["memory in GB"][0] for name in NAMES)
    assert averaging - plain == pytest.approx(12.0)  # 16 bytes against 4, of 1e9 parameters


def test_every_member_of_the_enum_has_a_row() -> None:
    assert {member.value for member in OptimizerNames} == set(OPTIMIZERS)


def test_importing_the_registry_imports_no_torch() -> None:
    program = "import sys; import trainbus.engine.optim.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("class_name", "expected"),
    [
        *((name, True) for name in ("Adafactor", "GaLoreAdamW8bit", "APOLLOAdamW", "AdaLomo", "StableAdamW")),
        *(
            (name, True)
            for name in ("CAME", "Lamb", "FusedLAMB", "LARS", "Muon", "SingleDeviceMuon", "SOAP", "Shampoo")
        ),
        *((name, False) for name in ("AdamW", "SGD", "Lion", "AdEMAMix", "RMSprop", "AdamWScheduleFree", "GrokAdamW")),
    ],
)
def test_optimizer_classes_are_shape_dependent_by_row_or_family(class_name: str, expected: bool) -> None:
    assert is_shape_dependent(class_name) is expected


def test_schedule_free_optimizers_have_two_modes() -> None:
    assert {name for name in OPTIMIZERS if has_train_eval_modes(name)} == {
        "schedule_free_adamw",
        "schedule_free_radam",
        "schedule_free_sgd",
    }
    assert has_train_eval_modes(OptimizerNames.SCHEDULE_FREE_SGD)
    assert not has_train_eval_modes("no such optimizer")
    assert name_of(OptimizerNames.SGD) == "sgd"
