"""Training on two processes, started by torchrun with gloo on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).with_name("ddp_program.py")

pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(300)]


def torchrun(*runs):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(PROGRAM)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([*command, *runs], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """The ends of runs by DDP and by ShardedDDP: whole with accumulation 1 and 2, and stopped half-way and resumed."""
    folder = tmp_path_factory.mktemp("runs")
    modes = ("simple", "")  # fairscale, imported by a second trainer, would find the group and hold it.
    whole = [f"{folder}/{mode}-{accumulate}:{mode}:{accumulate}:8:" for mode in modes for accumulate in (1, 2)]
    torchrun(*whole, *(f"{folder}/{mode}-resumed:{mode}:1:4:" for mode in modes))
    # In processes of their own: a resumed run has nothing but the checkpoint.
    torchrun(*(f"{folder}/{mode}-resumed:{mode}:1:8:resume" for mode in modes))
    return {path.parent.name: torch.load(path) for path in folder.glob("*/end.pt")}


def same_weights(one, other):
    return all(torch.equal(one["weights"][name], other["weights"][name]) for name in one["weights"])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_sharded_ddp_ends_with_the_weights_of_ddp_bit_for_bit(ends, accumulate):
    plain, sharded = ends[f"-{accumulate}"], ends[f"simple-{accumulate}"]
    assert same_weights(plain, sharded)
    assert plain["losses"] == sharded["losses"]
    assert plain["norms"] == sharded["norms"]


@pytest.mark.parametrize("mode", ["", "simple"])
def test_each_row_is_evaluated_once_and_in_order(ends, mode):
    assert ends[f"{mode}-1"]["labels"] == ends[f"{mode}-1"]["expected"]


def test_clipping_was_at_work(ends):
    assert max(ends["-1"]["norms"]) > 0.5


@pytest.mark.parametrize("mode", ["", "simple"])
def test_a_stopped_run_resumes_to_the_weights_of_an_unbroken_one(ends, mode):
    unbroken, resumed = ends[f"{mode}-1"], ends[f"{mode}-resumed"]
    assert same_weights(unbroken, resumed)
    assert unbroken["losses"] == resumed["losses"]
