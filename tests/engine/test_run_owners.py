"""Every field of the run's records has one owner: the module that assigns it."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from trainbus.engine.run import EvaluationRecord, Run, SessionRecord, StepRecord

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("engine", "callbacks", "integrations")

RUN, SESSION = "engine/run.py", "engine/session.py"
TRAINING, EVALUATION, OPTIMIZERS = "engine/api/training.py", "engine/api/evaluation.py", "engine/api/optimizers.py"
RESUMPTION, STEPPER = "engine/checkpoint/read/resumption.py", "engine/stepper.py"

OWNERS: dict[str, tuple[str, ...]] = {
    RUN: (
        *("args", "control", "ranks", "services", "bus", "callback_states", "contents", "processing_class", "losses"),
        *("requested_by", "run", "step", "evaluation", "session", "model_wrapped", "seams", "train_batch_size"),
        *("first_step", "began", "summary", "randomness", "grad_norm", "learning_rate", "prefix", "complete"),
    ),
    SESSION: ("mode", "exception"),
    TRAINING: ("state", "model", "data_seed", "train_dataloader", "plan", "position"),
    OPTIMIZERS: ("optimizer", "lr_scheduler"),
    EVALUATION: ("metrics", "dataset_name", "dataloader"),
    STEPPER: ("batch", "loss"),
    "engine/api/loss.py": ("outputs",),
    "engine/api/logging.py": ("logs",),
    RESUMPTION: ("run_id",),
    "callbacks/flow/checkpoint.py": ("checkpoint",),
}
"""Module -> the fields that it assigns, and no other module does. `engine/run.py` defines methods that change a field
for several callers, such as `run.wrap(model)`. Setting a field to None counts for nobody."""

RECORDS = ("run", "_run", "record", "step", "session", "evaluation")
"""The names that a run and its records have in code."""


def assignments(source: str) -> Iterator[tuple[str, int]]:
    """Yield field and line of each assignment to a field of a run or of a record of it; setting None does not count."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            targets, value = [node.target], node.value
        else:
            continue
        if isinstance(value, ast.Constant) and value.value is None:
            continue
        flat = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
        for target in flat:
            if isinstance(target, ast.Attribute) and ast.unparse(target.value).split(".")[-1] in RECORDS:
                yield target.attr, node.lineno


def fields_of_records() -> set[str]:
    return {
        field.name for record in (StepRecord, EvaluationRecord, SessionRecord) for field in dataclasses.fields(record)
    }


def test_assignments_are_found():
    source = "run.batch = 1\nself.run.plan, run.position = a, b\nrecord.loss = x\nother.batch = 2\nrun.loss = None"
    assert [name for name, _ in assignments(source)] == ["batch", "plan", "position", "loss"]


def test_every_field_has_its_owner():
    fields = (fields_of_records() - {"step"}) | set(Run.__annotations__)
    fields -= {"metrics_step", "metric_prefix", "evaluates_all"}  # other names of `step`, `prefix` and `complete`
    assert fields == set(OWNERS)


def test_only_owners_assign_a_field():
    found: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for name, _ in assignments(path.read_text(encoding="utf-8")):
                if name in OWNERS:
                    found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    strangers = {name: places - OWNERS[name] for name, places in found.items() if places - OWNERS[name]}
    assert strangers == {}
