"""A full disk of one megabyte: its checkpoints stay valid, and the run continues or ends with an error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.processes import environment
from trainbus.engine.commands.status import read_status
from trainbus.events import ArgumentError

PROGRAM = """
import logging, sys
from pathlib import Path
from support.checkpoints import names_in
from support.data import points
from support.outcomes import same_weights, weights
from support.trainers import regression_trainer
from torch import nn
from trainbus.engine.checkpoint import space
from trainbus.engine.checkpoint.choosing import choose
from trainbus.engine.checkpoint.listing import survey
from trainbus.engine.checkpoint.verify import problems
from trainbus.events import CheckpointError

disk, policy, kind = Path(sys.argv[1]), *sys.argv[2:]
if kind == "unforeseen":
    space.check_space = lambda needed, folder: None  # the disk fills up after the check
    import trainbus.engine.checkpoint.write.save as save
    save.check_space = space.check_space

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8000), nn.Linear(8000, 1))
    def forward(self, x, labels=None):
        return {"loss": (self.body(x).squeeze(-1) - labels).square().mean()}

def run(folder, **args):
    import torch
    torch.manual_seed(0)
    args = {"max_steps": 5, "save_strategy": "steps", "save_steps": 1, "optim": "sgd", "disable_tqdm": True, **args}
    return regression_trainer(folder, Wide(), args=args, train_dataset=points(40))

uninterrupted = run(disk / "uninterrupted", save_strategy="no")
uninterrupted.train()
full = run(disk, on_save_error=policy)
logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
try:
    full.train()
    print("trained to step", full.state.global_step)
    assert same_weights(weights(full.model), weights(uninterrupted.model))
except CheckpointError as error:
    print("ended at step", full.state.global_step, error)
found = survey(disk)
assert found, "no checkpoint was saved"
assert [problems(checkpoint.path, full=True) for checkpoint in found] == [[]] * len(found)
assert not list(disk.glob(".tmp-*")), names_in(disk)
assert choose(disk, True).path == found[-1].path
print("saved", [checkpoint.step for checkpoint in found])
"""


FILLED = """
import os, sys
from pathlib import Path
from support.checkpoints import saving
from trainbus.events import CheckpointError

disk = Path(sys.argv[1])

def fill():
    with open(disk / "other", "ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                pass

run = saving(disk, 4, async_save=False)
run.on("on_step_begin", fill, once=3)
try:
    run.train()
except CheckpointError as error:
    assert os.statvfs(disk).f_bavail == 0
    print("ended at step", run.state.global_step, error)
"""


FULL_BEFORE = FILLED.replace('run.on("on_step_begin", fill, once=3)', "fill()")
"""The same program, on a disk that is full before the run begins."""


@contextmanager
def disk_of_a_megabyte(folder: Path) -> Iterator[None]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a disk")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_the_status_of_a_run_on_a_disk_without_a_free_block_says_failed(tmp_path: Path):
    disk = tmp_path / "disk"
    with disk_of_a_megabyte(disk):
        words = [sys.executable, "-c", FILLED, str(disk)]
        done = subprocess.run(words, env=environment(), capture_output=True, text=True)
        status = read_status(disk)
    assert "ended at step 3 The checkpoint of step 3 cannot be written" in done.stdout, done.stdout + done.stderr
    assert status["status"] == "failed"
    assert status["reason"].startswith("CheckpointError: The checkpoint of step 3 cannot be written")


@pytest.mark.slow
@pytest.mark.parametrize("second", [False, True])
def test_a_run_that_begins_on_a_full_disk_ends_at_once_and_changes_an_existing_status(second: bool, tmp_path: Path):
    disk = tmp_path / "disk"
    with disk_of_a_megabyte(disk):
        if second:
            (disk / "run_status.json").write_text(" " * 4096)
        words = [sys.executable, "-c", FULL_BEFORE, str(disk)]
        done = subprocess.run(words, env=environment(), capture_output=True, text=True)
        assert f"ended at step 0 output_dir='{disk}' cannot be written to" in done.stdout, done.stdout + done.stderr
        if second:
            assert read_status(disk)["status"] == "failed"
        else:
            assert "The status of the run cannot be written" in done.stderr
            with pytest.raises(ArgumentError, match="on a full disk or without permission, it cannot write this file"):
                read_status(disk)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", ["raise", "warn"])
@pytest.mark.parametrize("kind", ["foreseen", "unforeseen"])
def test_a_full_disk_leaves_only_valid_checkpoints(kind: str, policy: str, tmp_path: Path):
    disk = tmp_path / "disk"
    with disk_of_a_megabyte(disk):
        words = [sys.executable, "-c", PROGRAM, str(disk), policy, kind]
        done = subprocess.run(words, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("ended at step" if policy == "raise" else "trained to step 5") in done.stdout
    assert "cannot be written" in done.stdout
    assert "No space left" in done.stdout or "not enough space left" in done.stdout
    assert "saved [1, 2" in done.stdout
