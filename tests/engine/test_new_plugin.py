"""The command `trainbus new-plugin`: what it writes builds, passes its tests and mypy, and bad names are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from trainbus.engine.arguments.plugins.manifest import described
from trainbus.engine.commands.main import main
from trainbus.engine.commands.new_plugin import KINDS, checked_module, class_name
from trainbus.events.contract import CONTRACT
from trainbus.events.installed import MANIFEST, Plugin

FILES = {
    *("pyproject.toml", "README.md", "LICENSE", ".gitignore", ".github/workflows/tests.yml", "tests/conftest.py"),
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one package of each kind."""
    folder = tmp_path_factory.mktemp("plugins")
    for kind in KINDS:
        words = ["new-plugin", str(folder / f"house-{kind}"), *([f"--{kind}"] if kind != "callback" else [])]
        assert main(words) == 0
    return folder


def run(*words: object, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def paths(packages: Path, below: str) -> str:
    return os.pathsep.join(str(packages / f"house-{kind}" / below) for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_has_all_files_and_no_placeholder(packages: Path, kind: str) -> None:
    folder = packages / f"house-{kind}"
    own = {f"src/house_{kind}/{name}" for name in ("__init__.py", "py.typed", f"{kind}.py", MANIFEST)}
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert found.keys() == {*FILES, *own, f"tests/test_house_{kind}.py"}
    for name, path in found.items():
        text = path.read_text(encoding="utf-8")
        assert "$" not in text.replace("${{", "") or name == "LICENSE", name
        if path.suffix == ".py":
            compile(text, name, "exec")


def test_the_packages_pass_their_own_tests(packages: Path) -> None:
    """All in one process, because an import of torch takes seconds. `make torture` adds the check on two processes."""
    tests = [packages / f"house-{kind}" / "tests" / f"test_house_{kind}.py" for kind in KINDS]
    options = ("-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "trainbus.testing.fixtures")
    chosen = "not conforms or (constructs or attaches or describes or trains_alone or prints_nothing)"
    out = run(
        *("-m", "pytest", *options, "--noconftest", "--rootdir", packages, "-k", chosen, *tests),
        cwd=packages,
        PYTHONPATH=paths(packages, "src"),
    )
    assert " passed" in out


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifest_is_the_one_that_the_command_writes(
    packages: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"house_{kind}"
    monkeypatch.syspath_prepend(str(packages / f"house-{kind}" / "src"))
    manifest = json.loads((packages / f"house-{kind}" / "src" / module / MANIFEST).read_text(encoding="utf-8"))
    offered = Plugin(EntryPoint(module, f"{module}:House{kind.capitalize()}", "trainbus.callbacks"))
    try:
        described_now = json.loads(json.dumps(described(offered)))
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == module]:
            del sys.modules[name]
    expected = {"schema": 1, "package": f"house-{kind}", "contract": CONTRACT, "plugins": {module: described_now}}
    assert manifest == expected, "update engine/commands/templates/*/manifest.json.tmpl"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_package_builds_passes_its_tests_and_mypy(packages: Path, kind: str, tmp_path: Path) -> None:
    folder = packages / f"house-{kind}"
    run("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, folder, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
        entry = next(archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert f"house_{kind} = house_{kind}:House{kind.capitalize()}" in entry
    assert {f"house_{kind}/py.typed", f"house_{kind}/{MANIFEST}"} <= {*names}
    installed = str(tmp_path / "installed")
    assert " passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=folder, PYTHONPATH=installed)
    root = Path(__file__).resolve().parents[2]
    if (root / ".typing").is_dir():
        mypy = ("-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", tmp_path / "cache")
        run(*mypy, cwd=folder, MYPYPATH=os.pathsep.join(["src", str(root / ".typing")]))


@pytest.mark.parametrize(
    ("name", "module"), [("damp-spikes", "damp_spikes"), ("Damp_Spikes", "damp_spikes"), ("a.b", "a_b")]
)
def test_a_plugin_name_gives_the_module_name(name: str, module: str) -> None:
    assert checked_module(name) == module


def test_a_plugin_name_gives_the_class_name() -> None:
    assert class_name("skip_spikes") == "SkipSpikes"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("9lives", "'9lives' is not a Python package name.*begin with a letter"),
        ("a b", "'a b' is not a Python package name"),
        ("schön", "'schön' is not a Python package name"),
        ("class", "'class' is a keyword of Python. Add a word, such as `class-plugin`"),
        ("torch", "A module 'torch' is installed already.*`torch-plugin`"),
        ("json", "A module 'json' is installed already"),
        ("skip-spikes", "trainbus has a callback with the name 'skip_spikes'"),
        ("early-stopping", "trainbus has a callback with the name 'early_stopping'.*Add a word"),
        ("all", "'all' has a special meaning"),
        ("there", "there exists. Give another name"),
    ],
)
def test_bad_names_are_refused(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert main(["new-plugin", name]) == 2
    shown = capsys.readouterr().err
    assert __import__("re").search(said, shown), shown
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
