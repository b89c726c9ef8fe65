"""Train a GAN: each step updates the discriminator with an optimizer of its own, and then the generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trainbus import Callback, Run, Stage


class Gan(nn.Module):
    """A generator and a discriminator. The forward returns the loss of the generator, which the trainer minimizes."""

    def __init__(self, generator: nn.Module, discriminator: nn.Module, noise: int) -> None:
        """Wrap both networks. The generator takes noise of shape (samples, noise)."""
        super().__init__()
        self.generator, self.discriminator, self.noise = generator, discriminator, noise

    def fake(self, count: int) -> torch.Tensor:
        """Return generated samples."""
        weight = next(self.generator.parameters())
        result: torch.Tensor = self.generator(torch.randn(count, self.noise, device=weight.device))
        return result

    def judge(self, samples: torch.Tensor, real: bool) -> torch.Tensor:
        """Return the binary cross entropy of the discriminator. The label of all samples is `real`."""
        logits = self.discriminator(samples)
        return nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the loss of the generator for generated samples. Their number is the number of samples in `x`."""
        fake = self.fake(len(x))
        return {"loss": self.judge(fake, real=True), "logits": fake}


@dataclass
class TrainGan(Callback):
    """Updates the discriminator of a `Gan` on each batch, before the step of the generator."""

    stage = Stage.PREPARE

    learning_rate: float = 2e-4
    """The rate of the discriminator. The training arguments set the rate of the generator."""
    key: str = "x"
    """The name of the real samples in a batch."""
    _optimizer: torch.optim.Optimizer | None = field(default=None, init=False, repr=False, compare=False)
    _loss: float = field(default=0.0, init=False, repr=False, compare=False)

    def on_setup(self, run: Run) -> None:
        if run.mode == "train" and isinstance(run.model, Gan):
            weights = run.model.discriminator.parameters()
            self._optimizer = torch.optim.Adam(weights, self.learning_rate, betas=(0.5, 0.999))
            run.seams.fill("TrainGan", train_batch=self.around, make_optimizer=lambda make: self.of_generator(make))

    @staticmethod
    def of_generator(make: Callable[[], torch.optim.Optimizer]) -> torch.optim.Optimizer:
        """Build the optimizer of the trainer.

        This optimizer does not change the discriminator, which has no gradients when the optimizer steps.
        """
        return make()

    def around(self, training_step: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """Return a function that updates the discriminator, and then runs the step of the generator."""

        def both(model: Gan, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
            self._update_discriminator(model, inputs[self.key])
            model.discriminator.requires_grad_(False)  # the generator's gradients pass through it
            try:
                return training_step(model, inputs, num_items_in_batch)
            finally:
                model.discriminator.requires_grad_(True)

        return both

    def _update_discriminator(self, model: Gan, real: torch.Tensor) -> None:
        assert self._optimizer is not None
        loss = model.judge(real, real=True) + model.judge(model.fake(len(real)).detach(), real=False)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._loss = float(loss.detach())

    def on_log(self, logs: dict[str, Any]) -> None:
        if "loss" in logs and self._optimizer is not None:
            logs["discriminator_loss"] = self._loss

    def state_dict(self) -> dict[str, Any]:
        return {} if self._optimizer is None else {"optimizer": self._optimizer.state_dict(), "loss": self._loss}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._optimizer is not None and state:
            self._optimizer.load_state_dict(state["optimizer"])
            self._loss = state["loss"]

    def on_close(self, run: Run) -> None:
        if run.mode != "train" or run.exception is not None:
            self._optimizer = None
