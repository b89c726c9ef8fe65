import torch
from torch import nn
from train_gan import Gan, TrainGan

from trainbus.testing import parametrize_with_checks


def gan():
    torch.manual_seed(0)
    return Gan(nn.Linear(2, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)), noise=2)


WITH_A_GAN = {"model_init": gan}


@parametrize_with_checks([lambda: TrainGan(1e-2)], arguments=WITH_A_GAN)
def test_conforms(check):
    check()


def test_both_networks_learn_and_are_logged(tiny_run):
    run = tiny_run(TrainGan(1e-2), model_init=gan, max_steps=12)
    before = gan().state_dict()
    assert all(not torch.equal(run.weights[name], before[name]) for name in before)
    assert all(row["discriminator_loss"] > 0 for row in run.logs if "loss" in row)


def test_the_trainer_updates_the_generator_only(tiny_run):
    run = tiny_run(TrainGan(0.0), model_init=gan)
    before = gan().state_dict()
    moved = {name for name in before if not torch.equal(run.weights[name], before[name])}
    assert moved == {"generator.weight", "generator.bias"}
