"""The packages in examples/plugins: each is short, installs with pip, and passes its own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "examples" / "plugins"
PACKAGES = sorted(path.parent for path in ROOT.glob("*/pyproject.toml"))
OPTIONS = ("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "trainbus.testing.fixtures", "--noconftest")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh folder with all packages, installed by pip from copies."""
    import shutil

    target, copies = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("copies")
    for package in PACKAGES:
        shutil.copytree(package, copies / package.name)
    folders = [str(copies / package.name) for package in PACKAGES]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "--target", str(target), *folders], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def run_tests(installed: Path, *options: str) -> None:
    tests = [str(package / "tests") for package in PACKAGES]
    words = [sys.executable, "-m", "pytest", *OPTIONS, f"--rootdir={installed}", *options, *tests]
    variables = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(words, cwd=installed, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_there_are_seven_packages_of_at_most_120_lines() -> None:
    lines = {
        package.name: sum(len(path.read_text().splitlines()) for path in package.glob("src/**/*.py"))
        for package in PACKAGES
    }
    assert len(lines) == 7
    assert {name: count for name, count in lines.items() if count > 120} == {}


@pytest.mark.timeout(300)
def test_installed_packages_do_what_their_tests_say(installed: Path) -> None:
    run_tests(installed, "-k", "not conforms")  # pytest fails if it collects no test


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_installed_packages_pass_all_checks(installed: Path) -> None:
    run_tests(installed, "-k", "conforms")


def test_each_package_offers_its_module_as_an_entry_point(installed: Path) -> None:
    from importlib.metadata import distributions

    offered = {
        entry.name: entry.value
        for found in distributions(path=[str(installed)])
        for entry in found.entry_points
        if entry.group == "trainbus.callbacks"
    }
    assert offered.keys() == {package.name.replace("-", "_") for package in PACKAGES}
    assert all(value.partition(":")[0] == name for name, value in offered.items())
