"""A loss module with parameters trains on two ranks as on one."""

import shutil
from pathlib import Path

import pytest
import torch

from support.processes import run, run_on_two

PROGRAM = Path(__file__).with_name("loss_module_program.py")

pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of a run of one process."""
    folder = tmp_path_factory.mktemp("single")
    run(PROGRAM, folder, "single", 8, timeout=100)
    return folder


@pytest.fixture(scope="module")
def single(alone):
    """What one process ends with."""
    return torch.load(alone / "single0.pt")


@pytest.fixture(scope="module", params=["ddp", "fsdp", "stage1"])
def ends(request, single, tmp_path_factory):
    """What the two ranks end with, whole and resumed, and what one process ends with."""
    folder, way = tmp_path_factory.mktemp("runs"), request.param
    run_on_two(PROGRAM, folder, way, 4, timeout=100)
    run_on_two(PROGRAM, folder, way, 4, "resumed", timeout=100)
    names = {"first": f"{way}0", "second": f"{way}1"}
    names |= {"resumed first": f"{way}resumed0", "resumed second": f"{way}resumed1"}
    return {name: torch.load(folder / f"{file}.pt") for name, file in names.items()} | {"single": single}


def assert_equal(one, other):
    torch.testing.assert_close(one["loss"], other["loss"], rtol=0, atol=0)


def test_the_ranks_end_with_the_same_loss_module(ends):
    assert_equal(ends["first"], ends["second"])


def test_two_ranks_train_the_weights_of_one_process(ends):
    two, one = ends["first"], ends["single"]
    torch.testing.assert_close(two["loss"]["temperature"], one["loss"]["temperature"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(two["model"], one["model"], rtol=1e-4, atol=1e-5)


def test_a_resumed_run_ends_with_the_same_loss_module(ends):
    assert_equal(ends["resumed first"], ends["first"])
    assert_equal(ends["resumed second"], ends["first"])


def test_stage_1_resumes_a_loss_module_of_one_process(alone, single, tmp_path):
    shutil.copytree(alone / "run", tmp_path / "run")
    run_on_two(PROGRAM, tmp_path, "stage1", 4, "resumed", timeout=100)
    end = torch.load(tmp_path / "stage1resumed0.pt")
    torch.testing.assert_close(end["loss"]["temperature"], single["loss"]["temperature"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(end["model"], single["model"], rtol=1e-4, atol=1e-5)
