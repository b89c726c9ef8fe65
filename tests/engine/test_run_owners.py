"""Every field of the run's records has one owner: the module that assigns it."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from trainbus.engine.api.records import SessionRecord, StepRecord
from trainbus.engine.run import EvaluationRecord, Run

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("engine", "callbacks", "integrations")

RUN, SESSION = "engine/run.py", "engine/session.py"
TRAINING, EVALUATION, OPTIMIZERS = "engine/api/training.py", "engine/api/evaluation.py", "engine/api/optimizers.py"
RESUMPTION, STEPPER = "engine/checkpoint/read/resumption.py", "engine/stepper.py"

OWNERS: dict[str, tuple[str, ...]] = {
    RUN: (
        *(
            "args",
            "control",
            "ranks",
            "services",
            "plugins",
            "bus",
            "callback_states",
            "storage",
            "saved_step",
            "activity",
            "processing_class",
            "losses",
            "eval_loaders",
        ),
        *("requested_by", "prediction", "run", "evaluation", "session", "model_wrapped", "train_batch_size"),
        *("first_step", "began", "summary", "randomness", "prefix", "complete", "checkpoint"),
        *("decides", "repeats", "prefixes", "overridden"),
    ),
    SESSION: ("mode", "exception", "seams"),
    TRAINING: ("state", "model", "data_seed", "train_dataloader", "plan", "position", "resume_requested"),
    OPTIMIZERS: ("optimizer", "lr_scheduler"),
    EVALUATION: ("metrics", "dataset_name", "step", "heard"),
    "engine/evaluation/evaluation_record.py": ("rows",),
    "engine/evaluation/loop.py": ("dataloader", "batch_number", "empty"),
    STEPPER: ("batch", "batch_index", "loss", "grad_norm", "learning_rate"),
    "engine/api/loss.py": ("outputs",),
    "engine/api/logging.py": ("logs",),
    RESUMPTION: ("run_id",),
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


ALIASES = {
    "metrics_step": "step",
    "metric_prefix": "prefix",
    "evaluates_all": "complete",
    "evaluation_decides": "decides",
    "eval_dataloader": "dataloader",
}
"""Name of a field on the run -> its name in its record."""


REPLACED = {("engine/commands/rerun.py", "batch"), ("engine/api/dry_batch/stepper.py", "loss")}
"""Allowed assignments: a handler of `on_batch` may replace the batch, and a dry batch has a stepper of its own."""


def all_fields() -> set[str]:
    records = (StepRecord, EvaluationRecord, SessionRecord)
    fields = {field.name for record in records for field in dataclasses.fields(record)}
    return fields | {ALIASES.get(name, name) for name in Run.__annotations__}


def test_assignments_are_found():
    source = "run.batch = 1\nself.run.plan, run.position = a, b\nrecord.loss = x\nother.batch = 2\nrun.loss = None"
    assert [name for name, _ in assignments(source)] == ["batch", "plan", "position", "loss"]


def test_every_field_has_one_owner():
    owned = [name for names in OWNERS.values() for name in names]
    assert len(owned) == len(set(owned))
    assert set(owned) == all_fields()


def test_only_the_owner_assigns_a_field():
    owner_of = {name: owner for owner, names in OWNERS.items() for name in names}
    strangers = {
        f"{path.relative_to(ROOT)}:{line} assigns {name}, which {owner_of[field]} owns"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, line in assignments(path.read_text(encoding="utf-8"))
        if (field := ALIASES.get(name, name)) in owner_of
        if str(path.relative_to(ROOT)) not in (owner_of[field], RUN)
        if (str(path.relative_to(ROOT)), name) not in REPLACED
    }
    assert strangers == set()
