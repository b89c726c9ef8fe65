"""Programs drawn at random from a grammar do the same in both trainers, bit for bit.

The number of a test is the seed of its program. `TRAINBUS_PROGRAMS=4711` runs another seed, `4000-4999` several.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from parity_grammar import FLAGS, OPTIMIZERS, SCHEDULES, program
from parity_random import ROWS, differences, run_both
from parity_tasks import FORMS, TASKS

from support.pages import differences_text


def _chosen(default: Sequence[int]) -> Sequence[int]:
    first, _, last = os.environ.get("TRAINBUS_PROGRAMS", "").partition("-")
    return range(int(first), int(last or first) + 1) if first else default


SEEDS = _chosen(range(120))
BLOCKS = [range(120, 300), *(range(first, first + 100) for first in range(300, 3300, 100))]
"""What `make torture` runs."""


@pytest.mark.parametrize("seed", SEEDS)
def test_both_trainers_run_a_program_alike(seed: int, tmp_path: Path):
    drawn = program(seed)
    found = differences(drawn, *run_both(drawn, tmp_path))
    assert not found, "\n".join([f"TRAINBUS_PROGRAMS={seed}: {drawn}", *found])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", BLOCKS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_both_trainers_run_a_hundred_programs_alike(seeds: Sequence[int]):
    failed = []
    for seed in seeds:
        drawn = program(seed)
        with tempfile.TemporaryDirectory() as folder:
            found = differences(drawn, *run_both(drawn, Path(folder)))
        failed += ["\n".join([f"TRAINBUS_PROGRAMS={seed}: {drawn}", *found])] if found else []
    assert not failed, "\n\n".join(failed)


# The comparison and the grammar.


def test_the_comparison_finds_a_change_of_any_part(tmp_path: Path):
    from dataclasses import replace

    drawn = program(0)
    theirs, ours = run_both(drawn, tmp_path)
    assert not differences(drawn, theirs, ours)
    name = next(iter(ours.weights))
    changed = {
        "weights": {**ours.weights, name: torch.nextafter(ours.weights[name], torch.tensor(torch.inf))},
        "steps": {**ours.steps, "loss": ours.steps["loss"] + 1e-9},
        "history": [{**ours.history[0], "learning_rate": 1.0}, *ours.history[1:]],
        "best": (0.0, *ours.best[1:]),
        "checkpoints": [*ours.checkpoints, "checkpoint-99"],
        "evaluated": {**ours.evaluated, "eval_loss": 0.0},
        "predicted": [None, *ours.predicted[1:]],
        "calls": ours.calls[:-1],
    }
    for part, value in changed.items():
        (found,) = differences(drawn, theirs, replace(ours, **{part: value}))
        assert found.startswith(part)


def test_a_seed_always_draws_the_same_program():
    first, second = (repr(program(7)).split(" at 0x")[0] for _ in range(2))
    assert first == second


def test_the_programs_use_the_whole_grammar():
    drawn = [program(seed) for seed in range(300)]
    assert {each.task for each in drawn} == set(TASKS)
    assert {each.form for each in drawn} == set(FORMS)
    assert {each.args["optim"] for each in drawn} == set(OPTIMIZERS)
    assert {each.args["lr_scheduler_type"] for each in drawn} == {*SCHEDULES, "reduce_lr_on_plateau"}
    assert {request.flag for each in drawn for request in each.requests} == set(FLAGS)
    used = Counter(name for each in drawn for name, value in each.args.items() if value)
    used.update({"resume": sum(each.resumed_at is not None for each in drawn)})
    used.update({"early stopping": sum(each.patience is not None for each in drawn)})
    rare = {name for name, count in used.items() if count < 8}
    assert not rare


def test_every_excluded_difference_has_a_row_in_the_docs():
    page = differences_text()
    first_cells = [line.removeprefix("| ").split(" | ")[0] for line in page.splitlines() if line.startswith("| ")]
    assert {name: first_cells.count(name) for name in ROWS} == dict.fromkeys(ROWS, 1)
