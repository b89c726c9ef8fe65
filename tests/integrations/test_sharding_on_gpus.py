"""Sharding optimizer states, gradients and weights over two GPUs, with every argument for it, against DDP."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.processes import TORCHRUN, run
from support.sharding import IN_OTHER_WORDS, WAYS, data, farthest

pytestmark = [pytest.mark.gpu, pytest.mark.world_size(2), pytest.mark.timeout(900)]

SHARDED = [name for name in WAYS if name != "ddp"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder with the runs of every way to shard."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    top = tmp_path_factory.mktemp("runs")
    run(*TORCHRUN, Path(__file__).with_name("sharding_program.py"), top, timeout=580, TRAINBUS_TESTS_ON="gpus")
    return top


@pytest.mark.parametrize(
    ("way", "suffix"), [*((way, "") for way in SHARDED), *((way, "-2") for way in SHARDED if way not in IN_OTHER_WORDS)]
)
def test_every_way_reaches_ddps_weights_with_less_memory(runs, way, suffix):
    mine, theirs = (load_file(runs / (name + suffix) / "final" / "model.safetensors") for name in (way, "ddp"))
    assert farthest(mine, theirs) <= 2e-5
    own, whole = (torch.load(runs / (name + suffix) / "end.pt", map_location="cpu") for name in (way, "ddp"))
    assert own["memory"][0] < 0.9 * whole["memory"][0]
    assert own["labels"] == [data().labels] * 2


@pytest.mark.parametrize("way", ["ddp", "simple", "stage1", "stage2", "stage3", "stage3-offload"])
def test_a_resumed_run_equals_an_uninterrupted_one(runs, way):
    mine, whole = (load_file(runs / name / "final" / "model.safetensors") for name in (f"{way}-resumed", way))
    assert farthest(mine, whole) <= 1e-6
