"""Annotations whose names a module imports only for type checkers are checked like all others."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.trainers import net_trainer
from trainbus import Callback, at, every
from trainbus.engine.arguments.plugins.options import options_of
from trainbus.events import SubscriptionError
from trainbus.events.checker_imports import checker_imports

SOURCE = """
from __future__ import annotations

import typing as t
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainbus import Callback, every

if TYPE_CHECKING:
    import trainbus.events
    from pathlib import Path

    import trainbus as tb
    from nowhere import Nothing
    from trainbus import TrainerState, Trigger, Wandb

if t.TYPE_CHECKING:
    from .sibling import Sibling
    from trainbus.events import Trigger as When


@dataclass
class Fields(Callback):
    named: Trigger = every(2)
    optional: When | None = None
    dotted: tb.Trigger | Path = every(2)
    full: trainbus.events.Trigger | str = every(2)
    unknown: Nothing | Trigger = every(2)
    count: int = 3

    def on_step_end(self) -> None: ...


class WrongHandler(Callback):
    def on_step_end(self, control: TrainerState) -> None: ...


class UnknownHandler(Callback):
    def on_step_end(self, control: Nothing, state: Wandb) -> None: ...


def build(args: Any, *, when: Trigger = every(2), size: int = 1, other: Nothing | None = None) -> Any: ...
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "code" / "for_checkers").mkdir(parents=True)
    (tmp_path / "code" / "for_checkers" / "__init__.py").write_text(SOURCE)
    (tmp_path / "code" / "for_checkers" / "sibling.py").write_text("class Sibling: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    yield importlib.import_module("for_checkers")
    for name in ("for_checkers", "for_checkers.sibling"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("named", 3, at(3)),
        ("named", "every(3)", every("1min")),
        ("optional", 3, None),
        ("dotted", 3, Path("here")),
        ("full", 3, "a text"),
    ],
)
def test_fields_that_hold_a_trigger_are_checked(
    module: ModuleType, tmp_path: Path, name: str, wrong: Any, right: Any
) -> None:
    with pytest.raises(SubscriptionError, match=rf"Fields\({name}=.*trigger"):
        net_trainer(tmp_path, module.Fields(**{name: wrong}))
    net_trainer(tmp_path, module.Fields(**{name: right}))


def test_handlers_are_checked(module: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SubscriptionError, match="annotates 'control' as TrainerState"):
        net_trainer(tmp_path, module.WrongHandler())


def test_names_of_modules_that_are_not_imported_are_accepted(module: ModuleType, tmp_path: Path) -> None:
    net_trainer(tmp_path, module.UnknownHandler(), module.Fields(unknown=3))
    found = checker_imports(vars(module))
    assert not {"Nothing", "Wandb", "Sibling"} & found.keys()
    assert "for_checkers.sibling" not in sys.modules
    assert found["Trigger"] is found["When"]
    importlib.import_module("for_checkers.sibling")
    assert "Sibling" in checker_imports(vars(module))


def test_options_of_texts_keep_their_types(module: ModuleType) -> None:
    """One name that cannot be resolved does not turn off the check of the other options."""
    fields, parameters = options_of(module.Fields), options_of(module.build)
    assert fields["named"].convert("every(3)") == every(3)
    assert parameters["when"].convert("every(3)") == every(3)
    assert fields["count"].hint is int
    assert parameters["size"].hint is int
    assert parameters["other"].hint is Any


def test_code_without_a_readable_file_has_no_such_names(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("if TYPE_CHECKING:\n")
    for place in (None, str(tmp_path / "missing.py"), str(tmp_path / "broken.py")):
        assert checker_imports({"__file__": place}) == {}


def test_a_default_tells_the_class_of_a_field_that_a_function_declares(tmp_path: Path) -> None:
    from trainbus import Trigger

    @dataclass
    class Local(Callback):
        when: Trigger = field(default_factory=lambda: every(3))
        maybe: Trigger | None = field(default_factory=lambda: at(3))
        either: Trigger | str = field(default_factory=lambda: every(3))
        required: Trigger | None = None  # the default does not tell its class

        def on_step_end(self) -> None: ...

    for wrong in ({"when": 3}, {"maybe": "3"}, {"either": 3}):
        with pytest.raises(SubscriptionError, match=r"Local\(.*trigger"):
            net_trainer(tmp_path, Local(**wrong))  # type: ignore[arg-type]
    net_trainer(tmp_path, Local(maybe=None, either="a text", required=3))  # type: ignore[arg-type]
    assert Trigger is not None
