"""Fixtures that all tests share. pytest puts this folder on the path, so that tests import `support`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("trainbus", deadline=None)  # a busy machine is no failure
settings.load_profile("trainbus")


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the repository."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def project_files(root: Path) -> list[Path]:
    """Every file of the project, relative to its folder: what git tracks, and what it would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return sorted({Path(name) for name in listed.stdout.split("\0") if name and (root / name).is_file()})
