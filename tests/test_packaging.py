"""The wheel holds every module, under one name."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest

import trainbus

FOLDERS = ("events", "engine", "callbacks", "integrations")


@pytest.fixture(scope="module")
def wheel(root, project_files, tmp_path_factory) -> Path:
    """Build the wheel from a copy of the project, so that no leftover of a build or a run is in it."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for path in project_files:
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, copy / path)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(build, cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def contents(wheel) -> dict[str, bytes]:
    """The files of the wheel, without its metadata, and their contents."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def metadata(wheel) -> dict[str, str]:
    """The metadata files of the wheel, by their names."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" in name]
        return {PurePosixPath(name).name: archive.read(name).decode() for name in names}


def place_of(path: Path) -> str:
    """Return where a file of the repository belongs in the wheel."""
    if path.parts[:2] == ("engine", "_root"):
        return PurePosixPath("trainbus", *path.parts[2:]).as_posix()
    return f"trainbus/{path.as_posix()}"


def test_top_level_is_trainbus_only(contents, metadata):
    assert metadata["top_level.txt"].split() == ["trainbus"]
    assert {PurePosixPath(name).parts[0] for name in contents} == {"trainbus"}


def test_the_wheel_holds_exactly_the_modules_of_the_repository(root, project_files, contents):
    sources = [
        path
        for path in project_files
        if path.parts[0] in FOLDERS and path.suffix in (".py", ".pyi", ".tmpl", ".css", ".js")
    ]
    expected = {place_of(path): (root / path).read_bytes() for path in sources}
    expected["trainbus/py.typed"] = b""
    assert sorted(contents) == sorted(expected)
    assert contents == expected


def test_metadata_is_that_of_the_package(metadata):
    read = Parser().parsestr(metadata["METADATA"])
    assert (read["Name"], read["Version"]) == ("trainbus", trainbus.__version__)
    core = {requirement.split(">")[0] for requirement in read.get_all("Requires-Dist") if "extra ==" not in requirement}
    assert core == {"torch", "blinker", "safetensors", "numpy", "tqdm"}


def test_wheel_can_be_imported(wheel):
    program = "import sys; sys.path.insert(0, sys.argv[1]); import trainbus.events; print(trainbus.events.__file__)"
    done = subprocess.run([sys.executable, "-I", "-c", program, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(wheel))
