"""TrainerServices: what callbacks may ask of the Trainer, through `run.services`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Services(Protocol):
    """The work that a run does on request. `TrainerServices` calls the trainer's methods, overridden ones included."""

    def log(self, logs: dict[str, Any]) -> None:
        """Add values to the log history and announce `on_log`."""

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Evaluate and return the metrics. `Trainer.evaluate` lists the options."""

    def floating_point_ops(self, inputs: Any) -> int:
        """Return the floating-point operations of forward and backward for a batch; 0 if unknown."""

    def save_model(self, output_dir: str) -> None:
        """Write the model, its config and its tokenizer."""

    def freeze_model(self, copy: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[str], None] | None:
        """Return a function that writes the present model later, on any thread; None if that is impossible."""

    def init_hf_repo(self) -> None:
        """Create the hub repository if it does not exist."""

    def create_model_card(self) -> None:
        """Write the model card to the output folder."""

    def push_to_hub(self, *args: Any, **options: Any) -> Any:
        """Save the model to the output folder and push the folder. `Trainer.push_to_hub` lists the options."""


@dataclass(frozen=True)
class TrainerServices:
    """Calls the trainer's public methods. An override in a subclass is the method that runs.

    Options are passed as they are given: an override may take fewer parameters.
    """

    trainer: Services

    def log(self, logs: dict[str, Any]) -> None:
        """Add values to the log history and announce `on_log`."""
        self.trainer.log(logs)

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Evaluate and return the metrics."""
        return self.trainer.evaluate(*args, **options)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return the floating-point operations of forward and backward for a batch; 0 if unknown."""
        return self.trainer.floating_point_ops(inputs)

    def save_model(self, output_dir: str) -> None:
        """Write the model, its config and its tokenizer."""
        self.trainer.save_model(output_dir)

    def freeze_model(self, copy: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[str], None] | None:
        """Return a function that writes the present model later, on any thread; None if that is impossible."""
        return self.trainer.freeze_model(copy)

    def init_hf_repo(self) -> None:
        """Create the hub repository if it does not exist."""
        self.trainer.init_hf_repo()

    def create_model_card(self) -> None:
        """Write the model card to the output folder."""
        self.trainer.create_model_card()

    def push_to_hub(self, *args: Any, **options: Any) -> Any:
        """Save the model to the output folder and push the folder."""
        return self.trainer.push_to_hub(*args, **options)
