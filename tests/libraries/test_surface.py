"""The table of docs/compatibility.md names everything that the libraries touch, with what is true of it."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest
import torch
from libraries.surface import touched

import trainbus

LIBRARIES = ("trl", "sentence_transformers", "setfit")

pytestmark = pytest.mark.skipif(not all(map(find_spec, LIBRARIES)), reason=f"{LIBRARIES} are not all installed")


@pytest.fixture(scope="module")
def tables(root):
    sys.path.insert(0, str(root / "docs"))
    try:
        import library_surface
    finally:
        sys.path.remove(str(root / "docs"))
    return library_surface


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    arguments = trainbus.TrainingArguments(str(tmp_path_factory.mktemp("out")), report_to="none")
    trainer = trainbus.Trainer(torch.nn.Linear(1, 1), arguments)
    found = (trainer, arguments, trainer.state, trainer.control, trainer.accelerator)
    return {type(each).__name__: each for each in found}


def test_table_names_exactly_what_the_libraries_touch(tables):
    named: dict[str, set[str]] = {"TrainerControl": set()}
    for kind, names in tables.WORKS.items():
        named[kind] = {*names.split(), *tables.DIFFERS.get(kind, ()), *tables.REFUSED.get(kind, ())}
    assert named == touched(*LIBRARIES)


def test_names_that_work_or_differ_exist(tables, objects):
    for kind, names in tables.WORKS.items():
        for name in {*names.split(), *tables.DIFFERS.get(kind, ())}:
            if name != "sync_gradients":  # exists in a step only
                getattr(objects[kind], name)


def test_reading_a_refused_name_says_what_to_do_instead(tables, objects):
    for kind, names in tables.REFUSED.items():
        for name, remedy in names.items():
            with pytest.raises(AttributeError, match=name) as caught:
                getattr(objects[kind], name)
            assert remedy.split("`")[1] in str(caught.value)


def test_override_of_each_touched_method_of_the_trainer_is_called_or_needs_no_call(tables):
    from trainbus.engine.api.removed_names import NEVER_CALLED

    assert set(tables.WORKS["Trainer"].split()) & set(NEVER_CALLED) == set()
