import torch
from average_at_plateau import AverageAtPlateau, is_plateau

from trainbus import Evaluate, every
from trainbus.testing import parametrize_with_checks, tiny_trainer


@parametrize_with_checks([AverageAtPlateau, lambda: AverageAtPlateau(patience=1, least=1e9)])
def test_conforms(check):
    check()


def test_the_decision():
    assert is_plateau([3.0, 2.0, 2.0, 2.0], patience=2, least=0.1)
    assert not is_plateau([3.0, 2.0, 1.0], patience=2, least=0.1)
    assert not is_plateau([3.0, 3.0], patience=2, least=0.1)


def test_the_run_ends_with_the_mean_of_the_weights_after_the_plateau(tmp_path):
    callback = AverageAtPlateau(patience=1, least=1e9)
    trainer, seen = tiny_trainer(tmp_path, Evaluate(every(1)), callback), []
    trainer.on("on_optimizer_step", lambda model: seen.append(model.head.weight.detach().clone()))
    trainer.train()
    assert callback.averaged == 5
    weight = trainer.model.get_parameter("head.weight")
    assert torch.allclose(weight, torch.stack(seen[1:]).mean(0), atol=1e-6)
