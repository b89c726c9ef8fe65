import pytest
import torch
from contrastive import Contrastive, info_nce
from torch import nn

from trainbus.testing import Net, parametrize_with_checks


class Embedder(Net):
    """The tiny model of the testing kit, which also returns the outputs of its blocks as an embedding."""

    def forward(self, x, labels=None):
        embedding = self.blocks(x)
        logits = self.head(embedding).squeeze(-1)
        outputs = {"logits": logits, "embedding": embedding}
        return outputs if labels is None else {"loss": nn.functional.mse_loss(logits, labels), **outputs}


@parametrize_with_checks([Contrastive], arguments={"model_init": Embedder})
def test_conforms(check):
    check()


def test_the_loss():
    views = torch.eye(4)
    assert info_nce(views, views, temperature=0.05) < 1e-6
    assert info_nce(views, views.roll(1, 0), temperature=0.05) > 10


def test_views_agree_more_after_training(tiny_run):
    plain = tiny_run(model_init=Embedder, max_steps=60)
    trained = tiny_run(Contrastive(weight=5.0), model_init=Embedder, max_steps=60)
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))

    def disagreement(run):
        torch.manual_seed(0)
        model = run.trainer.model.train()
        with torch.no_grad():
            return float(info_nce(model.blocks(x), model.blocks(x), 0.05))

    assert disagreement(trained) < disagreement(plain)
    assert trained.logs[0]["contrastive_loss"] > 0


def test_a_model_without_embeddings_is_refused(tiny_run):
    with pytest.raises(KeyError, match="returns no 'embedding', only loss, logits"):
        tiny_run(Contrastive())
