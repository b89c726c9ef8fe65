"""A loss module with parameters trains on two ranks as on one."""

from pathlib import Path

import pytest
import torch

from support.processes import run, run_on_two

PROGRAM = Path(__file__).with_name("loss_module_program.py")

pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """What one process ends with."""
    folder = tmp_path_factory.mktemp("single")
    run(PROGRAM, folder, "single", 8, timeout=100)
    return torch.load(folder / "single0.pt")


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def ends(request, single, tmp_path_factory):
    """What the two ranks end with, whole and resumed, and what one process ends with."""
    folder, way = tmp_path_factory.mktemp("runs"), request.param
    run_on_two(PROGRAM, folder, way, 4, timeout=100)
    run_on_two(PROGRAM, folder, way, 4, "resumed", timeout=100)
    names = {"first": f"{way}0", "second": f"{way}1"}
    names |= {"resumed first": f"{way}resumed0", "resumed second": f"{way}resumed1"}
    return {name: torch.load(folder / f"{file}.pt") for name, file in names.items()} | {"single": single}


def test_the_ranks_end_with_the_same_loss_module(ends):
    assert ends["first"]["loss"] == ends["second"]["loss"]


def test_two_ranks_train_the_weights_of_one_process(ends):
    two, one = ends["first"], ends["single"]
    torch.testing.assert_close(two["loss"]["temperature"], one["loss"]["temperature"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(two["model"], one["model"], rtol=1e-4, atol=1e-5)


def test_a_resumed_run_ends_with_the_same_loss_module(ends):
    assert ends["resumed first"]["loss"] == ends["first"]["loss"]
    assert ends["resumed second"]["loss"] == ends["first"]["loss"]
