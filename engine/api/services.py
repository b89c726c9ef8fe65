"""TrainerServices: the methods of the Trainer that callbacks may call, as `run.services`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from ..checkpoint.own_generators import OwnGenerators
from .dry_batch.report import DryBatchReport
from .overrides import save_internally


class Services(Protocol):
    """The methods of `run.services`, with which a callback can evaluate, log or save at any time.

    `TrainerServices` implements this protocol with the trainer's methods.
    """

    def log(self, logs: dict[str, Any]) -> None:
        """Add values to the log history and announce `on_log`."""

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Evaluate and return the metrics. `Trainer.evaluate` lists the options."""

    def check_evaluation(self, eval_dataset: Any = None) -> None:
        """Raise an error if `evaluate(eval_dataset)` cannot begin, as `Trainer.check_evaluation` describes."""

    def rehearse_evaluation(self) -> tuple[str, ...] | None:
        """Return the names of the metrics that an evaluation will measure; None if unknown.

        Callbacks use the names before the first step, to find a wrong metric name in the settings.
        """

    def dry_batch(self, forward: bool, metrics: list[str]) -> DryBatchReport:
        """Check the training before its first step.

        Args:
            forward: also read the largest batch and run the model on it.
            metrics: the full names of the metrics that callbacks read, such as `eval_loss`. The report has a finding
                for each metric that no evaluation measures.
        """

    def floating_point_ops(self, inputs: Any) -> int:
        """Return the floating-point operations of forward and backward for a batch; 0 if unknown."""

    def compute_loss(self, model: Any, inputs: Any) -> Any:
        """Return the loss of a batch. `Trainer.compute_loss` lists further options."""

    def save_model(self, output_dir: str) -> None:
        """Write the model, its config and its tokenizer."""

    def export_model(self, output_dir: str | None = None) -> Any:
        """Write the model as an exported program for inference, `model.pt2`, and return the path.

        The default folder is `export` in the output folder. Return None on a rank that does not write.
        """

    def at(self, moment: str, work: Callable[[], Any], *arguments: Any) -> Any:
        """Call the override of the Trainer method `moment`. Without an override, call `work`, the default.

        Args:
            moment: the name of the method. The table `CALLED` in `engine/api/moments.py` lists all names.
            work: a function, the default of the method. An override that calls `super()` calls this function.
            *arguments: the arguments of the method.
        """

    def freeze_model(self, copy: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[str], None] | None:
        """Copy the weights now. Return a function that writes the copy to a folder later, on any thread.

        Return None if only `save_model` can write the model. `Trainer.freeze_model` lists the cases. The argument
        `copy` receives the name of a weight and the weight, and returns a copy of the weight.
        """

    def data_generators(self) -> OwnGenerators:
        """Return the random generators in datasets, collator and sampler. Checkpoints store their states."""

    def plugins(self) -> list[str]:
        """Return one line for each attached plugin, and for each plugin that a setting such as `no:NAME` leaves out."""

    def parameter_groups(
        self, model: nn.Module, weight_decay: float, always_split: bool = False
    ) -> list[dict[str, Any]]:
        """Build the parameter groups of the trainer's own optimizer, and those of a loss module.

        Raises:
            ArgumentError: if no parameter of the model requires a gradient.
        """

    def replace_schedule(self, schedule: Any) -> None:
        """Use another learning-rate schedule from now on."""

    def init_hf_repo(self) -> None:
        """Create the hub repository if it does not exist."""

    def create_model_card(self) -> None:
        """Write the model card to the output folder."""

    def push_to_hub(self, *args: Any, **options: Any) -> Any:
        """Save the model to the output folder and push the folder. `Trainer.push_to_hub` lists the options."""


@dataclass(frozen=True)
class TrainerServices:
    """The implementation of `Services`: it calls the trainer's methods, or the overrides of a subclass.

    It passes only the options that the caller gives, because an override may have fewer parameters.
    """

    trainer: Any
    """The Trainer."""

    def log(self, logs: dict[str, Any]) -> None:
        """Add values to the log history and announce `on_log`."""
        self.trainer.log(logs)

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Call `Trainer.evaluate` with the same arguments, and return the metrics."""
        metrics: dict[str, float] = self.trainer._evaluate_for_callback(args, options)
        return metrics

    def check_evaluation(self, eval_dataset: Any = None) -> None:
        """Raise an error if `evaluate(eval_dataset)` cannot begin, as `Trainer.check_evaluation` describes."""
        self.trainer.check_evaluation(eval_dataset)

    def rehearse_evaluation(self) -> tuple[str, ...] | None:
        """Return the names of the metrics that an evaluation will measure; None if unknown."""
        names: tuple[str, ...] | None = self.trainer.rehearse_evaluation()
        return names

    def dry_batch(self, forward: bool, metrics: list[str]) -> DryBatchReport:
        """Check the training before its first step. `Services.dry_batch` describes the parameters."""
        report: DryBatchReport = self.trainer._dry_batch(forward, metrics)
        return report

    def floating_point_ops(self, inputs: Any) -> int:
        """Return the floating-point operations of forward and backward for a batch; 0 if unknown."""
        operations: int = self.trainer.floating_point_ops(inputs)
        return operations

    def compute_loss(self, model: Any, inputs: Any) -> Any:
        """Return the loss of a batch."""
        return self.trainer.compute_loss(model, inputs)

    def save_model(self, output_dir: str) -> None:
        """Write the model, its config and its tokenizer."""
        save_internally(self.trainer, output_dir)

    def export_model(self, output_dir: str | None = None) -> Any:
        """Write the model as an exported program for inference, `model.pt2`, and return the path.

        The default folder is `export` in the output folder. Return None on a rank that does not write.
        """
        return self.trainer.export_model(output_dir)

    def at(self, moment: str, work: Callable[[], Any], *arguments: Any) -> Any:
        """Call the override of the Trainer method `moment`. Without an override, call `work`, the default."""
        return self.trainer._at(moment, work, *arguments)

    def freeze_model(self, copy: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[str], None] | None:
        """Copy the weights now. Return a function that writes the copy to a folder later, on any thread.

        Return None if only `save_model` can write the model. The argument `copy` receives the name of a weight and the
        weight, and returns a copy of the weight.
        """
        frozen: Callable[[str], None] | None = self.trainer.freeze_model(copy)
        return frozen

    def data_generators(self) -> OwnGenerators:
        """Return the random generators in datasets, collator and sampler. Checkpoints store their states."""
        trainer = self.trainer
        loader = trainer.run.train_dataloader
        return OwnGenerators(
            {
                "dataset": getattr(loader, "dataset", None),
                "collator": trainer.data_collator,
                "loader_collator": getattr(loader, "collate_fn", None),
                "sampler": getattr(getattr(loader, "batch_sampler", None), "sampler", None),
                "eval_dataset": trainer.eval_dataset,
            }
        )

    def plugins(self) -> list[str]:
        """Return one line for each attached plugin, and for each plugin that a setting such as `no:NAME` leaves out."""
        return list(self.trainer.plugins)

    def parameter_groups(
        self, model: nn.Module, weight_decay: float, always_split: bool = False
    ) -> list[dict[str, Any]]:
        """Build the parameter groups of the trainer's own optimizer, and those of a loss module.

        Raises:
            ArgumentError: if no parameter of the model requires a gradient.
        """
        trainer = self.trainer
        groups: list[dict[str, Any]] = trainer._make_groups(model, weight_decay, always_split=always_split)
        return [*groups, *trainer._loss_groups(weight_decay)]

    def replace_schedule(self, schedule: Any) -> None:
        """Use another learning-rate schedule from now on."""
        self.trainer._replace_schedule(schedule)

    def init_hf_repo(self) -> None:
        """Create the hub repository if it does not exist."""
        self.trainer.init_hf_repo()

    def create_model_card(self) -> None:
        """Write the model card to the output folder."""
        self.trainer.create_model_card()

    def push_to_hub(self, *args: Any, **options: Any) -> Any:
        """Save the model to the output folder and push the folder."""
        return self.trainer.push_to_hub(*args, **options)
