"""TF32: the settings of the run, and their restoration."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from support.callbacks import Boom
from support.trainers import net_trainer
from trainbus import TF32
from trainbus.events import ArgumentError


def allowed():
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture
def before(request):
    """Begin with these settings, and end with those there were."""
    there = allowed()
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = request.param
    yield request.param
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = there


@pytest.mark.parametrize("before", [(False, True), (True, False), (True, True)], indirect=True)
@pytest.mark.parametrize("fails", [False, True])
def test_is_set_for_the_run_and_set_back(tmp_path, before, fails):
    built, seen = net_trainer(tmp_path, tf32=False), []

    def look():
        seen.append(allowed())
        if fails:
            raise Boom

    built.on("on_step_begin", look, once=1)
    if fails:
        with pytest.raises(Boom):
            built.train()
    else:
        built.train()
    assert seen == [(False, False)]
    assert allowed() == before


def test_tf32_on_a_cpu_is_refused(tmp_path):
    before = allowed()
    with pytest.raises(ArgumentError, match=r"`tf32` needs a GPU of the Ampere generation or later, .* on cpu"):
        net_trainer(tmp_path, tf32=True).train()
    assert allowed() == before


@pytest.mark.parametrize(("given", "expected"), [(None, None), (True, TF32()), (False, TF32(False))])
def test_arguments_build_the_callback(tmp_path, given, expected):
    assert net_trainer(tmp_path, tf32=given).callbacks.get("TF32") == expected


@pytest.mark.gpu
def test_products_are_rounded_on_a_gpu(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    built, errors = net_trainer(tmp_path, tf32=True, use_cpu=False), []
    one = torch.randn(256, 256, device="cuda")
    exact = one.double() @ one.double()
    built.on("on_step_begin", lambda: errors.append((one @ one - exact).abs().max().item()), once=1)
    built.train()
    assert errors[0] > 10 * (one @ one - exact).abs().max().item()


NEW_NAMES = """
import sys
import torch
from trainbus.testing import tiny_trainer
from trainbus.engine.optim.tf32_settings import matmul_uses_tf32

places = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
torch.backends.fp32_precision = "tf32"  # as transformers does
before = [place.fp32_precision for place in places]
seen = []
trainer = tiny_trainer(sys.argv[1], tf32=False)
look = lambda: seen.append(([place.fp32_precision for place in places], matmul_uses_tf32()))
trainer.on("on_step_begin", look, once=1)
trainer.train()
print(before == [place.fp32_precision for place in places], matmul_uses_tf32(), seen)
"""


def test_a_program_may_use_the_newer_names_of_the_settings(tmp_path):
    """torch then raises an error if code reads the older names."""
    done = subprocess.run([sys.executable, "-c", NEW_NAMES, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True True [(['ieee', 'ieee', 'ieee'], False)]"
