"""Types of handlers in mypy, pyright and an editor. `make types` runs these tests, with the slow ones."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from language_server import LanguageServer

import trainbus
from trainbus.engine.run import Run
from trainbus.events import CATALOG, COMMON, EVENTS, FLAGS, Callback, EventName, Flag, TrainerControl, TypedCallback
from trainbus.events.annotations import _expected_classes

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
PYRIGHT = shutil.which("pyright", path=str(Path(sys.executable).parent))
SERVER = shutil.which("pyright-langserver", path=str(Path(sys.executable).parent))
needs_pyright = pytest.mark.skipif(PYRIGHT is None, reason="needs pyright: pip install 'pyright[nodejs]'")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a fresh clone after `make links`: the configuration, the links, and what they lead to."""
    root = tmp_path_factory.mktemp("clone")
    for name in ("engine", "events", "callbacks", "integrations", "examples"):
        (root / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "pyrightconfig.json", root)
    shutil.copytree(HERE, root / "tests" / "typing", ignore=shutil.ignore_patterns("__pycache__"))
    farm = root / ".typing" / "trainbus"
    farm.mkdir(parents=True)
    for path in [*(ROOT / "engine" / "_root").glob("*.py"), ROOT / "engine" / "_root" / "py.typed"]:
        (farm / path.name).symlink_to(path)
    (farm / "testing").symlink_to(ROOT / "engine" / "_root" / "testing")
    for name in ("engine", "events", "callbacks", "integrations"):
        (farm / name).symlink_to(ROOT / name)
    return root


def marked(path: Path, *marks: str) -> set[int]:
    """Return the lines of a file that end with one of these comments."""
    lines = enumerate(path.read_text().splitlines(), start=1)
    return {number for number, line in lines if line.endswith(tuple(f"  # {mark}" for mark in marks))}


def examples_of(page: Path) -> str:
    """Return all code blocks of a page of the documentation, as one program."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE))


def pages_of_examples(clone: Path) -> list[Path]:
    """Write the examples of the pages about callbacks as programs into the clone. Return their paths."""
    programs = {"page.py": "writing_callbacks.md", "advanced_page.py": "plugins/advanced.md"}
    for name, page in programs.items():
        (clone / name).write_text(examples_of(ROOT / "docs" / page))
    return [clone / name for name in programs]


# The generated names.


def test_names_of_flags_are_the_flags() -> None:
    assert get_args(Flag) == tuple(FLAGS)


def test_names_of_events_are_the_catalogue() -> None:
    assert get_args(EventName) == tuple(CATALOG)


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_is_a_typed_property(flag: str) -> None:
    attribute = vars(TrainerControl)[f"should_{flag}"]
    assert isinstance(attribute, property)
    assert attribute.fget.__annotations__["return"] == "bool"
    assert attribute.fset.__annotations__["value"] == "bool"
    assert attribute.__doc__


def test_generated_files_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import event_methods

    for path, text in event_methods.files().items():
        assert path.read_text() == text, f"run `make docs` to rewrite {path.name}"


def test_every_type_of_the_catalogue_is_a_class() -> None:
    assert Run
    assert torch
    params = {param for event in EVENTS for param in event.params} | set(COMMON)
    for param in params:
        assert param.doc.endswith("."), param
        if param.type != "Any":
            parts = [part for part in param.type.split(" | ") if part != "None"]
            assert len(_expected_classes(param.type)) == len(parts), f"{param.type} of {param.name} is not found"


def test_typed_callback_is_a_callback_at_run_time(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Both(TypedCallback):
        def on_step_end(self, *, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append((state.global_step, control.step, sorted(kwargs)))

    assert issubclass(TypedCallback, Callback)
    trainer = trainbus.Trainer(
        torch.nn.Linear(1, 1),
        trainbus.TrainingArguments(str(tmp_path), max_steps=1, save_strategy="no", use_cpu=True, disable_tqdm=True),
        train_dataset=[(torch.ones(1), torch.ones(1))] * 2,
        criterion=torch.nn.functional.mse_loss,
        callbacks=[Both()],
    )
    trainer.train()
    ((step, done, others),) = seen
    assert (step, done) == (1, 1)
    assert {"args", "model", "loss", "run"} <= set(others)


# mypy.


def mypy(clone: Path, *files: Path) -> dict[str, set[int]]:
    """Return the lines at which mypy reports an error, by file."""
    config = ROOT / "setup.cfg"
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(config), *map(str, files)]
    cache = ["--cache-dir", str(ROOT / ".mypy_cache"), "--no-error-summary", "--hide-error-context"]
    done = subprocess.run(
        [*command, *cache],
        cwd=clone,
        env={"MYPYPATH": str(clone / ".typing"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, set[int]] = {}
    for name, line in re.findall(r"^(\S+\.py):(\d+): error", done.stdout, re.MULTILINE):
        found.setdefault(Path(name).name, set()).add(int(line))
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mypy_reports_each_wrong_handler_and_no_right_one(clone: Path) -> None:
    pages = pages_of_examples(clone)
    typing = clone / "tests" / "typing"
    example = clone / "examples" / "compose_callbacks.py"
    found = mypy(clone, typing / "right_handlers.py", typing / "wrong_handlers.py", example, *pages)
    assert found == {"wrong_handlers.py": marked(typing / "wrong_handlers.py", "wrong", "wrong for mypy")}


# pyright.


def pyright(clone: Path, **settings: Any) -> dict[str, set[int]]:
    """Return the lines at which pyright reports an error, by file. Settings replace some of the project's."""
    assert PYRIGHT is not None
    config = json.loads((clone / "pyrightconfig.json").read_text())
    project = clone / "checked.json"
    project.write_text(json.dumps({**config, **settings}))
    command = [PYRIGHT, "--outputjson", "--pythonpath", sys.executable, "--project", str(project)]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, set[int]] = {}
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        if each["severity"] == "error":
            found.setdefault(Path(each["file"]).name, set()).add(each["range"]["start"]["line"] + 1)
    return found


@needs_pyright
def test_pyright_reports_each_wrong_handler_and_no_right_one(clone: Path) -> None:
    typing = clone / "tests" / "typing"
    files = ["tests/typing/right_handlers.py", "tests/typing/wrong_handlers.py"]
    found = pyright(clone, include=files, exclude=[])
    assert found == {"wrong_handlers.py": marked(typing / "wrong_handlers.py", "wrong")}


@needs_pyright
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_pyright_accepts_the_project_and_the_documentation_in_a_fresh_clone(clone: Path) -> None:
    pages = pages_of_examples(clone)
    assert pyright(clone) == {}
    assert pyright(clone, include=[page.name for page in pages]) == {}


# An editor.


@pytest.fixture
def server(clone: Path) -> Iterator[LanguageServer]:
    assert SERVER is not None
    server = LanguageServer([SERVER, "--stdio"], clone, {"python": {"pythonPath": sys.executable}})
    yield server
    server.close()


@needs_pyright
@pytest.mark.parametrize("base", ["Callback", "TypedCallback"])
def test_an_editor_completes_every_handler_with_typed_parameters(
    clone: Path, server: LanguageServer, base: str
) -> None:
    file = clone / "tests" / "typing" / f"plugin_{base}.py"
    lines = [f"from trainbus.events import {base}", "", f"class Plugin({base}):", "    def on_"]
    file.write_text("\n".join(lines))
    server.open(file)
    completions = server.complete(file, 3, len(lines[3]))
    assert {*CATALOG} <= set(completions)
    on_log = completions["on_log"]
    for parameter in ("logs: dict[str, Any]", "state: TrainerState", "control: TrainerControl", "run: Run"):
        assert parameter in on_log
    assert "loss: " not in on_log
    assert "loss: torch.Tensor" in completions["on_step_end"].replace("loss: Tensor", "loss: torch.Tensor")
    # What an editor inserts runs as it stands.
    head = on_log.replace("$0", "").partition(" -> ")[0]
    namespace: dict[str, Any] = {}
    exec(f"from __future__ import annotations\nclass Plugin:\n    def {head}: self.seen = logs, state", namespace)
    from support.fakes import FakeRun

    run, plugin = FakeRun(), type("Plugin", (namespace["Plugin"], Callback), {})()
    run.bus.attach(plugin)
    run.bus.announce("on_log")
    assert plugin.seen == (run.logs, run.state)


@needs_pyright
def test_an_editor_shows_the_type_of_a_parameter(clone: Path, server: LanguageServer) -> None:
    file = clone / "tests" / "typing" / "right_handlers.py"
    lines = file.read_text().splitlines()
    line = next(number for number, text in enumerate(lines) if "float(loss) > 10.0" in text)
    server.open(file)
    assert "loss: Tensor" in server.hover(file, line, lines[line].index("loss"))
    line = next(number for number, text in enumerate(lines) if "control.request" in text)
    assert "flag: Flag" in server.hover(file, line, lines[line].index("request"))
