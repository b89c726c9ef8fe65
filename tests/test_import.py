"""Modules that `import trainbus` loads, and names that it gives."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

import trainbus
from trainbus.integrations import INTEGRATIONS, SEARCHES, TABLE, TRACKERS, Kind, options

OPTIONAL = sorted(
    {
        *("transformers", "datasets", "evaluate", "accelerate", "pandas", "sklearn", "matplotlib", "peft"),
        *("lightning", "ignite"),
        *(row.package for row in INTEGRATIONS.values() if row.package not in ("huggingface_hub", "ray")),
    }
)
"""Packages that no core feature may load."""

BLOCK = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL})); "
"""Makes importing any of them fail as it does where they are not installed."""


def run_python(program: str) -> str:
    """Run a program in a fresh interpreter and return what it printed."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(program: str) -> set[str]:
    """Return the top-level packages that a program loads."""
    printed = run_python(f"{program}; import json, sys; print(json.dumps(sorted(sys.modules)))")
    return {name.partition(".")[0] for name in json.loads(printed)}


@pytest.mark.parametrize(
    "program", ["import trainbus", "import trainbus; trainbus.__version__; dir(trainbus)", "import trainbus.events"]
)
def test_importing_the_package_or_its_events_loads_no_torch(program):
    loaded = loaded_by(program)
    assert "trainbus" in loaded
    assert loaded.isdisjoint({*OPTIONAL, "torch", "numpy", "tqdm", "safetensors"})


def test_importing_the_package_loads_none_of_its_modules():
    printed = run_python("import trainbus, sys; print([name for name in sys.modules if name.startswith('trainbus.')])")
    assert printed.strip() == "[]"


def test_using_the_trainer_loads_no_optional_package():
    loaded = loaded_by("from trainbus import Trainer, TrainingArguments")
    assert "torch" in loaded
    assert loaded.isdisjoint(OPTIONAL)


def test_every_public_name_resolves():
    quiet = "import warnings; warnings.simplefilter('ignore'); "  # fairscale is of 2022
    absent = {target.partition(":")[2] for target, package, _ in TABLE.values() if find_spec(package) is None}
    names = [name for name in dir(trainbus) if name not in absent]
    program = f"import trainbus; print(*(f'{{name}}={{getattr(trainbus, name)!r}}' for name in {names}), sep='\\n')"
    printed = run_python(quiet + program)
    assert [line.partition("=")[0] for line in printed.splitlines()] == names


def test_missing_packages_affect_only_integrations_and_give_the_install_command():
    program = """
import json, trainbus
missing = {}
for name in dir(trainbus):
    try:
        getattr(trainbus, name)
    except trainbus.TrainbusError as error:
        missing[name] = [type(error).__name__, str(error)]
print(json.dumps(missing))
"""
    missing = json.loads(run_python(BLOCK + program))
    expected = {}
    for target, package, extra in TABLE.values():
        name = target.partition(":")[2]
        if package in OPTIONAL:
            expected[name] = ["MissingExtra", f"{name} needs {package}: pip install 'trainbus[{extra}]'"]
    assert {"ShardedDDP", "TensorBoard", "Wandb"} <= set(expected)
    assert missing == {name: error for name, error in expected.items() if name in dir(trainbus)}


def test_extras_named_in_errors_exist(root):
    import configparser

    setup = configparser.ConfigParser()
    setup.read(root / "setup.cfg")
    assert {extra for _, _, extra in TABLE.values()} <= set(setup["options.extras_require"])


def test_names_for_type_checkers_are_the_public_names_each_once_and_re_exported(root):
    tree = ast.parse((root / "engine" / "_root" / "__init__.py").read_text(encoding="utf-8"))
    aliases = [
        alias
        for node in tree.body
        if isinstance(node, ast.If)
        for inner in node.body
        if isinstance(inner, ast.ImportFrom)
        for alias in inner.names
    ]
    assert all(alias.name == alias.asname for alias in aliases), "without `as`, mypy does not re-export"
    assert sorted(["__version__", *(alias.name for alias in aliases)]) == dir(trainbus)


def test_public_names_are_listed_once():
    assert len(set(trainbus.__all__)) == len(trainbus.__all__)
    assert set(trainbus.__all__) < set(dir(trainbus))


def test_importing_everything_needs_no_optional_package():
    assert loaded_by("from trainbus import *").isdisjoint(OPTIONAL)


def test_unknown_name_is_an_attribute_error_as_of_any_module():
    with pytest.raises(AttributeError, match="module 'trainbus' has no attribute 'Trianer'"):
        trainbus.Trianer
    assert not hasattr(trainbus, "torch")
    with pytest.raises(ImportError, match="cannot import name 'Trianer' from 'trainbus'"):
        from trainbus import Trianer  # noqa: F401


LAZY = {
    "trainbus": ("Checkpiont", "Checkpoint"),
    "trainbus.callbacks": ("Checkpiont", "Checkpoint"),
    "trainbus.engine": ("Trainr", "Trainer"),
    "trainbus.engine.evaluation": ("EvalPredction", "EvalPrediction"),
    "trainbus.engine.optim": ("get_schedular", "get_scheduler"),
    "trainbus.engine.search": ("BstRun", "BestRun"),
    "trainbus.integrations.deepspeed": ("DepSpeed", "DeepSpeed"),
    "trainbus.integrations.fairscale": ("FairscaleFDSP", "FairscaleFSDP"),
}
"""Packages that import their names at the first use -> a typo, and the name that Python suggests for it."""


@pytest.mark.parametrize("package", LAZY)
def test_python_suggests_the_nearest_name_of_a_package(package):
    wrong, meant = LAZY[package]
    read = f"import {package}; {package}.{wrong}"
    imported = f"from {package} import {wrong}"
    for program in (read, imported) if sys.version_info >= (3, 12) else (read,):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.endswith(f"Did you mean: {meant!r}?\n")


@pytest.mark.parametrize("package", LAZY)
def test_dir_of_a_package_lists_its_names_and_its_modules(package):
    module = importlib.import_module(package)
    assert {*module.__all__, "__version__" if package == "trainbus" else "__doc__"} <= {*dir(module)}


CALLBACKS = [row for row in INTEGRATIONS.values() if row.package and row.kind not in (Kind.SEARCH, Kind.DATA)]
"""The rows whose classes are callbacks that need a package."""


def test_every_integration_row_has_its_extra_in_the_setup(root):
    """One row per integration: its extra holds exactly its requirement, and other extras repeat it unchanged."""
    import configparser

    setup = configparser.ConfigParser()
    setup.read(root / "setup.cfg")
    extras = {name: text.strip().splitlines() for name, text in setup["options.extras_require"].items()}
    requirements = {row.package: row.requirement for row in INTEGRATIONS.values() if row.package}
    for row in INTEGRATIONS.values():
        if not row.package:  # it needs no other package, and so no extra
            assert (row.extra, row.requirement) == ("", "")
            continue
        assert extras[row.extra] == [row.requirement], row
    distributions = {requirement.split()[0].partition("[")[0]: requirement for requirement in requirements.values()}
    for name in ("all", "dev"):
        for requirement in extras[name]:
            assert distributions.get(requirement.split()[0], requirement) == requirement, f"extra {name!r}"


def test_every_integration_package_is_known_to_the_type_checker(root):
    text = (root / "setup.cfg").read_text(encoding="utf-8")
    [ignored] = [line for line in text.splitlines() if line.startswith("[mypy-fairscale.*")]
    assert {row.package for row in INTEGRATIONS.values()} - {"tensorboard", ""} <= set(
        ignored[6:-1].replace(".*", "").split(",")
    )


def test_every_integration_callback_is_a_public_name_and_a_row():
    rows = {row.class_name: name for name, row in INTEGRATIONS.items() if row in CALLBACKS}
    assert rows == trainbus._EXTRAS
    assert all(row.class_name in trainbus.__all__ for row in INTEGRATIONS.values() if not row.package)


def test_every_integration_is_in_the_type_checkers_list_at_its_place(root):
    tree = ast.parse((root / "engine" / "_root" / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    places = {alias.name: node.module for node in imports for alias in node.names}
    for row in INTEGRATIONS.values():
        if row in CALLBACKS:
            assert places[row.class_name] == f"trainbus.integrations.{row.target.partition(':')[0]}"


@pytest.mark.parametrize("row", CALLBACKS, ids=str)
def test_every_integration_callback_is_in_the_docs_with_its_extra(root, row):
    page = (root / "docs" / "callbacks.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {row.class_name}\n")[2].partition("\n## ")[0]
    assert f"pip install 'trainbus[{row.extra}]'" in section


def test_the_registry_gives_the_words_of_the_arguments():
    services = ("comet_ml", "neptune", "clearml", "swanlab")
    assert ("wandb", "tensorboard", "trackio", "mlflow", "jsonl", "csv", *services) == TRACKERS
    assert SEARCHES == {"optuna": "optuna_search", "ray": "ray_search", "wandb": "wandb_search"}
    assert options(Kind.STRATEGY) == {
        "deepspeed": "deepspeed",
        "fairscale": "sharded_ddp",
        "fairscale_fsdp": "fairscale_fsdp",
    }


def test_using_the_trainer_makes_no_full_garbage_collection_and_leaves_the_collector_as_it_was():
    printed = run_python(
        "import gc, json, torch; full = lambda: gc.get_stats()[2]['collections']; before = full()\n"
        "import trainbus; trainbus.Trainer, trainbus.TrainingArguments\n"
        "found = [full() - before, gc.isenabled()]\n"
        "gc.disable(); trainbus.EMA\n"
        "print(json.dumps([*found, gc.isenabled()]))"
    )
    assert json.loads(printed) == [0, True, False]


def test_building_the_first_optimizer_makes_no_full_garbage_collection():
    program = (
        "import gc, json, sys, torch; from trainbus.engine.optim.build import build_optimizer\n"
        "groups = [{'params': [torch.nn.Parameter(torch.ones(2))]}]\n"
        "full = lambda: gc.get_stats()[2]['collections']; before = full(), 'torch._dynamo' in sys.modules\n"
        "build_optimizer('adamw_torch', groups, lr=1e-3)\n"
        "print(json.dumps([before[1], 'torch._dynamo' in sys.modules, full() - before[0], gc.isenabled()]))"
    )
    assert json.loads(run_python(program)) == [False, True, 0, True]
