"""Fixtures that all tests share. pytest puts this folder on the path, so that tests import `support`."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.environment import enter, leave, restored_process
from support.plugins import packages as packages

FOLDER = enter()  # before torch and others are imported

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("trainbus", deadline=None)  # a busy machine is not a failure
settings.load_profile("trainbus")


THOROUGH = (
    "callbacks/test_intervals_in_state.py",
    "callbacks/test_saves_once.py",
    "callbacks/test_signals_in_evaluations.py",
    "callbacks/test_vanished_console.py",
    "engine/test_disk_faults.py",
    "engine/test_interrupted_epochs.py",
    "engine/test_interrupted_runs.py",
    "engine/test_new_plugin.py",
    "engine/test_other_batches.py",
    "engine/test_own_schedules.py",
    "engine/test_positions.py",
    "engine/test_profile.py",
    "engine/test_report_of_last_run.py",
    "engine/test_see_the_run.py",
    "engine/test_worker_epochs.py",
    "integrations/test_accelerator_on_two.py",
    "integrations/test_changed_groups_on_two.py",
    "integrations/test_consensus.py",
    "integrations/test_deepspeed.py",
    "integrations/test_fairscale_fsdp.py",
    "integrations/test_hf_on_two.py",
    "integrations/test_rank_faults.py",
    "integrations/test_sharding.py",
    "integrations/test_shares_of_two.py",
    "integrations/test_wandb_finished_early.py",
    "integrations/test_wandb_online.py",
    "libraries/",
    "parity/test_random_programs.py",
    "test_example_plugins.py",
    "test_first_hour.py",
    "test_json.py",
    "test_own_callbacks_conform.py",
    "test_programs.py",
    "test_recipes.py",
    "test_seed_programs.py",
    "testing_kit/test_faults.py",
    "testing_kit/test_good_callbacks.py",
)
"""Files and folders of tests that take long. `make check` runs them, and `make test` leaves them out.

They repeat one property for many cases, or compare whole programs. `make test` tests each property with fewer cases.
A single test of another file has the marker `thorough` itself.
"""


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests in the files and folders of `THOROUGH` as thorough."""
    tests = Path(__file__).parent
    missing = [name for name in THOROUGH if not (tests / name).exists()]
    if missing:
        raise pytest.UsageError(f"THOROUGH in {__file__} names files that do not exist: {', '.join(missing)}.")
    for item in items:
        if item.path.is_relative_to(tests) and item.path.relative_to(tests).as_posix().startswith(THOROUGH):
            item.add_marker(pytest.mark.thorough)


def pytest_unconfigure() -> None:
    leave(FOLDER)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let `--dist loadfile` begin with the longest files."""
    if config.getoption("dist") != "loadfile":
        return None
    from support.scheduling import LongestFirst

    return LongestFirst(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Let `-n auto` start three workers for two cores, because many tests wait for processes that they started."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + cores // 2


FROZEN = {"modules": 0}


@pytest.fixture(autouse=True)
def frozen_modules() -> None:
    """Exclude imported modules from garbage collection.

    transformers' Trainer, the memory metrics and others collect often, and most of what they would visit is modules.
    """
    if len(sys.modules) > FROZEN["modules"] + 200:
        FROZEN["modules"] = len(sys.modules)
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    """Restore variables, working folder and module path after each test, so that no change reaches the next test."""
    with restored_process():
        yield


@pytest.fixture(scope="module", autouse=True)
def process_of_the_module() -> Iterator[None]:
    """Do the same after each module of tests, for changes by its fixtures, which begin before `process`."""
    with restored_process():
        yield


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the repository."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def project_files(root: Path) -> list[Path]:
    """The files of the project, relative to its folder: tracked files, and new files that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return sorted({Path(name) for name in listed.stdout.split("\0") if name and (root / name).is_file()})
