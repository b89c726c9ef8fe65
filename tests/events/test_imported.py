"""Optional libraries that another thread is still importing."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from trainbus.engine.api.console import in_notebook
from trainbus.engine.checkpoint.format.adapters import is_peft_model
from trainbus.engine.data.sources import as_dataset, problem_of
from trainbus.engine.loss.item_counts import loss_shifts_labels
from trainbus.engine.loss.label_smoothing import is_causal
from trainbus.engine.loss.signature import user_model
from trainbus.events.imported import imported

MODULES = ("pandas", "peft", "transformers.models.auto.modeling_auto", "transformers.loss.loss_utils", "IPython")
"""The libraries that the engine looks up."""


def test_a_module_is_seen_when_its_import_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_library.py").write_text("started, finish = EVENTS\nstarted.set()\nfinish.wait(30)\nname = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    started, finish = threading.Event(), threading.Event()
    monkeypatch.setattr("builtins.EVENTS", (started, finish), raising=False)
    thread = threading.Thread(target=__import__, args=("slow_library",))
    thread.start()
    assert started.wait(30)
    assert "slow_library" in sys.modules
    assert imported("slow_library") is None
    finish.set()
    thread.join(30)
    assert imported("slow_library").name == 1


@pytest.fixture
def half_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """All optional libraries are being imported: their modules are empty."""
    for name in MODULES:
        module = ModuleType(name)
        module.__spec__ = type("Spec", (), {"_initializing": True, "name": name})()
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("half_imported")
def test_half_imported_libraries_do_not_disturb_a_training() -> None:
    import torch

    model = torch.nn.Linear(2, 1)
    rows = [{"x": 1.0}]
    assert as_dataset(rows, __import__) is rows
    assert problem_of("train_dataset", iter(rows), lambda rows: rows) == ""
    assert not is_peft_model(model)
    assert user_model(model) is model
    assert not is_causal(model)
    assert not loss_shifts_labels(model)
    assert not in_notebook()


def test_every_look_at_the_imported_modules_is_checked(project_files: list[Path], root: Path) -> None:
    folders = ("engine/", "callbacks/", "events/", "integrations/")
    sources = [path for path in project_files if path.suffix == ".py" and str(path).startswith(folders)]
    looks = {str(path) for path in sources if "sys.modules.get(" in (root / path).read_text()}
    # annotations.py reads one name with a default.
    assert looks == {"events/imported.py", "events/annotations.py"}
