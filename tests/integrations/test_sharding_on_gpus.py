"""Splitting optimizer states, gradients and weights over two GPUs, in every spelling, against DDP."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sharding_toys import WAYS, data

pytestmark = [pytest.mark.gpu, pytest.mark.world_size(2), pytest.mark.timeout(600)]

SPLIT = [name for name in WAYS if name != "ddp"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What the trainings of every way left."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    top = tmp_path_factory.mktemp("runs")
    program = Path(__file__).with_name("sharding_program.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(program)]
    environment = {**os.environ, "TRAINBUS_TESTS_ON": "gpus", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([*command, str(top)], env=environment, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr[-4000:]
    return top


@pytest.mark.parametrize("suffix", ["", "-2"], ids=["whole", "accumulated"])
@pytest.mark.parametrize("way", SPLIT)
def test_every_way_ends_near_ddp_and_holds_less(runs, way, suffix):
    mine, theirs = (load_file(runs / (name + suffix) / "final" / "model.safetensors") for name in (way, "ddp"))
    assert max((mine[name] - theirs[name]).abs().max().item() for name in theirs) <= 2e-5
    own, whole = (torch.load(runs / (name + suffix) / "end.pt", map_location="cpu") for name in (way, "ddp"))
    assert own["memory"][0] < 0.9 * whole["memory"][0]
    assert own["labels"] == [data().labels] * 2


@pytest.mark.parametrize("way", ["ddp", "simple", "stage1", "stage2", "stage3", "stage3-offload"])
def test_a_resumed_run_ends_like_an_unbroken_one(runs, way):
    mine, whole = (load_file(runs / name / "final" / "model.safetensors") for name in (f"{way}-resumed", way))
    assert max((mine[name] - whole[name]).abs().max().item() for name in whole) <= 1e-6
