"""A training on two ranks whose generators have other states. Each rank writes its weights."""

import sys

import torch
from torch import nn

from support.trainers import net_trainer


class Half(nn.Module):
    """A model of 8,321 bfloat16 weights."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.Linear(6, 1024), nn.Linear(1024, 1)
        self.bfloat16()

    def forward(self, x, labels=None):
        logits = self.head(torch.tanh(self.layer(x.bfloat16()))).squeeze(-1)
        return {"loss": nn.functional.mse_loss(logits.float(), labels), "logits": logits}


def main(folder):
    torch.compiler.set_stance("force_eager")
    options = {"optim": "adamw_torch_8bit", "optim_args": "bf16_stochastic_round=True", "learning_rate": 1e-4}
    trainer = net_trainer(f"{folder}/run", model=Half(), per_device_train_batch_size=2, **options)
    rank = trainer.run.ranks.rank
    trainer.on("on_step_begin", lambda: torch.rand(rank + 1))
    trainer.train()
    torch.save({**trainer.model.state_dict(), "generator": torch.get_rng_state()}, f"{folder}/{rank}.pt")
    trainer.end()


if __name__ == "__main__":
    main(sys.argv[1])
