"""`run.full_gradients()` gives every rank the gradients of DDP, whatever shards them."""

from pathlib import Path

import pytest
import torch

from support.models import Net
from support.outcomes import same_weights
from support.processes import run_on_two
from support.trainers import net_trainer

PROGRAM = Path(__file__).with_name("gradients_program.py")
WAYS = ("simple", "stage1", "stage3", "deepspeed-0", "deepspeed-1", "deepspeed-2", "deepspeed-3")


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    pytest.importorskip("deepspeed")
    pytest.importorskip("fairscale")
    top = tmp_path_factory.mktemp("gradients")
    run_on_two(PROGRAM, top, timeout=170, DS_ACCELERATOR="cpu")
    return {path.stem: torch.load(path) for path in top.glob("*.pt")}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("way", WAYS)
def test_every_rank_sees_the_gradients_of_ddp(gradients, way, rank):
    for found, expected in zip(gradients[f"{way}-{rank}"], gradients[f"ddp-{rank}"], strict=True):
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            assert found[name].shape == gradient.shape
            assert torch.allclose(found[name].float(), gradient, atol=2e-5), name


def test_a_single_process_sees_its_own_gradients(tmp_path):
    trainer = net_trainer(tmp_path, model=Net(), max_steps=1)
    seen = []
    trainer.on("on_gradients", lambda run, model: seen.append((run.full_gradients(), dict(model.named_parameters()))))
    trainer.on("on_optimizer_step", lambda model: seen.append({n: p.grad for n, p in model.named_parameters()}))
    trainer.train()
    assert same_weights(seen[0][0], seen[1])
