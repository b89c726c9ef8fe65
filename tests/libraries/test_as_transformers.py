"""`as_transformers`: which names are replaced, where, for how long, and which modules are refused."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from types import ModuleType

import pytest
import transformers

import trainbus
from trainbus import as_transformers
from trainbus.engine.api.transformers_names import NAMES
from trainbus.events import ImportOrderError

EVERY = [(module, name) for module, names in NAMES.items() for name in names]


@pytest.fixture
def replaced():
    with as_transformers(strict=False) as replacement:
        yield replacement


def shown(module: str, name: str):
    return getattr(importlib.import_module(f"transformers.{module}"), name)


@pytest.mark.parametrize(("module", "name"), EVERY)
def test_name_of_transformers_is_ours_inside_and_theirs_outside(module, name):
    theirs = shown(module, name)
    assert theirs.__module__.startswith("transformers.")
    with as_transformers(strict=False) as replacement:
        assert shown(module, name) is getattr(trainbus, name)
        assert replacement.names[f"transformers.{module}.{name}"] is getattr(trainbus, name)
    assert shown(module, name) is theirs


def test_top_of_transformers_and_modules_that_import_the_names_show_ours(replaced):
    assert transformers.Trainer is trainbus.Trainer
    assert transformers.trainer_seq2seq.Trainer is trainbus.Trainer
    assert transformers.trainer.TrainingArguments is trainbus.TrainingArguments
    assert "transformers.Trainer -> trainbus.engine.trainer.Trainer" in str(replaced)


def test_subclass_made_inside_stays_ours_and_later_ones_are_theirs():
    with as_transformers(strict=False):
        inside = type("Inside", (transformers.Trainer,), {})
    outside = type("Outside", (transformers.Trainer,), {})
    assert issubclass(inside, trainbus.Trainer)
    assert not issubclass(outside, trainbus.Trainer)


def test_inner_context_leaves_the_names_to_the_outer_one(replaced):
    with as_transformers(strict=False) as inner:
        assert inner.names == {}
    assert transformers.Trainer is trainbus.Trainer


def test_names_are_restored_after_an_error():
    theirs = transformers.Trainer
    with pytest.raises(KeyError), as_transformers(strict=False):
        raise KeyError
    assert transformers.Trainer is theirs


def test_undo_restores_modules_of_transformers_that_were_imported_meanwhile():
    late = ModuleType("transformers.late")
    with as_transformers(strict=False):
        sys.modules[late.__name__] = late
        late.Trainer = transformers.Trainer
    del sys.modules[late.__name__]
    assert late.Trainer is transformers.Trainer is not trainbus.Trainer


@pytest.mark.parametrize("what", ["holds the Trainer", "defines a subclass of the arguments"])
def test_module_imported_before_is_refused_with_the_remedy(what, monkeypatch, caplog):
    library = ModuleType("early_library")
    if what == "holds the Trainer":
        library.Trainer = transformers.Trainer
    else:
        library.Config = type("Config", (transformers.TrainingArguments,), {})
    monkeypatch.setitem(sys.modules, "early_library", library)
    theirs = transformers.Trainer
    with pytest.raises(ImportOrderError, match=r"early_library.*Call `trainbus\.as_transformers\(\)` before these"):
        as_transformers()
    assert transformers.Trainer is theirs
    with as_transformers(strict=False) as replacement:
        assert "early_library" in replacement.held
    assert "early_library" in caplog.text


def test_module_that_holds_only_a_callback_of_transformers_is_accepted(monkeypatch):
    library = ModuleType("callback_library")
    library.Base = transformers.TrainerCallback
    monkeypatch.setitem(sys.modules, "callback_library", library)
    with as_transformers(strict=False) as replacement:
        assert "callback_library" not in replacement.held


PROGRAM = """
import sys
from transformers import HfArgumentParser, Trainer, TrainingArguments
import atexit, torch

class Row(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def forward(self, x, labels=None):
        return {"loss": (self.layer(x) - labels).square().mean()}

(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
rows = [{"x": torch.ones(2), "labels": torch.zeros(1)}] * 4
Trainer(Row(), arguments, train_dataset=rows).train()
atexit.register(lambda: print(__name__, Trainer.__module__, Row.__module__, sys.argv[1]))
sys.exit(3)
"""


def run(*words: str, cwd) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainbus.engine.commands.main", "run", *words],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def test_run_command_runs_a_program_unchanged(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run("program.py", "--output_dir=out", "--max_steps=1", "--report_to=none", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "__main__ trainbus.engine.trainer __main__ --output_dir=out" in done.stdout
    assert (tmp_path / "out").is_dir()


def test_run_command_runs_a_module_and_shows_its_error(tmp_path):
    (tmp_path / "program.py").write_text("def fail():\n    raise FileNotFoundError('data')\n\nfail()\n")
    done = run("-m", "program", cwd=tmp_path)
    assert done.returncode == 1
    assert 'program.py", line 2, in fail' in done.stderr
    assert done.stderr.strip().endswith("FileNotFoundError: data")


def test_run_command_names_a_program_that_does_not_exist(tmp_path):
    done = run("progam.py", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip().endswith(
        "trainbus: There is no program 'progam.py'. Name a Python file, or a module after -m."
    )


SEEDED = """
import random, sys
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import gather_object, set_seed
from transformers import Trainer, TrainingArguments

PartialState()  # on CPUs, it does not know the other ranks

class Seeded(Trainer):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        set_seed(3, device_specific=True)  # as trainers of TRL do
        self.drawn = random.random()

for precision in (False, True):
    args = TrainingArguments("out", use_cpu=True, bf16=precision, report_to="none")
    trainer = Seeded(torch.nn.Linear(2, 1), args)
state = AcceleratorState()
for rank, drawn, processes in gather_object([(state.process_index, trainer.drawn, state.num_processes)]):
    if trainer.is_world_process_zero():
        print(rank, drawn == random.Random(3 + rank).random(), processes, state.device.type, Trainer.__module__)
trainer.accelerator.wait_for_everyone()
"""


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.world_size(2))])
def test_functions_of_accelerate_work_after_the_construction_of_a_trainer(ranks, tmp_path):
    (tmp_path / "program.py").write_text(SEEDED)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"] if ranks > 1 else []
    line = [sys.executable, *launcher, "-m", "trainbus.engine.commands.main", "run", "program.py"]
    done = subprocess.run(
        line, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    shown = [line for line in done.stdout.splitlines() if line.endswith("trainbus.engine.trainer")]
    assert shown == [f"{rank} True {ranks} cpu trainbus.engine.trainer" for rank in range(ranks)]


def test_an_accelerator_of_the_program_is_kept(tmp_path):
    text = "PartialState._reset_state()\nAccelerator(cpu=True, mixed_precision='bf16')\nfor precision in (False"
    (tmp_path / "program.py").write_text(
        SEEDED.replace("for precision in (False", text).replace("state.device.type,", "state.mixed_precision,")
    )
    done = run("program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "0 True 1 bf16 trainbus.engine.trainer" in done.stdout
