"""Questions about the optimizer, the batches and the data, under the names that programs of this family use."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ...events.errors import ArgumentError
from ..arguments import TrainingArguments
from ..data.build import length_of
from ..evaluation.loop import main_input
from ..optim.build import class_and_options, decay_parameter_names
from .base import Surface


class Asking(Surface):
    """The part of the Trainer that answers."""

    _counted: tuple[Any, int] = (None, 0)
    """The model whose weights were counted last, since counting takes long, and how many it has."""

    def get_learning_rates(self) -> list[float]:
        """Return the learning rate of each parameter group of the optimizer.

        Raises:
            ArgumentError: before there is an optimizer.
        """
        return [group["lr"] for group in self._groups()]

    def get_optimizer_group(self, param: nn.Parameter | None = None) -> Any:
        """Return the optimizer's group that holds a parameter, None if none does; without one, all groups' parameters.

        Raises:
            ArgumentError: before there is an optimizer.
        """
        if param is None:
            return [group["params"] for group in self._groups()]
        return next((group for group in self._groups() if any(each is param for each in group["params"])), None)

    def _groups(self) -> list[dict[str, Any]]:
        if self.run.optimizer is None:
            raise ArgumentError(
                "There is no optimizer yet: ask during or after training, or after `create_optimizer()`."
            )
        groups: list[dict[str, Any]] = self.run.optimizer.param_groups
        return groups

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: nn.Module | None = None) -> tuple[Any, Any]:
        """Return the class of the optimizer that arguments name, and its options, for one that is made by hand.

        Where it is overridden, the optimizer is made from what it returns.

        Args:
            args: name it.
            model: is not used.

        Raises:
            ArgumentError: for options that it does not take. MissingExtra: if its package is not installed.
        """
        return class_and_options(
            args.optim,
            lr=args.learning_rate,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
            weight_decay=args.weight_decay,
            warmup_steps=args.get_warmup_steps(args.max_steps),
            optim_args=args.optim_args,
        )

    def get_num_trainable_parameters(self) -> int:
        """Return how many numbers training changes."""
        return sum(parameter.numel() for parameter in self.run.model.parameters() if parameter.requires_grad)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters that weight decay applies to. Override it for others."""
        decaying = decay_parameter_names(model)
        return [name for name, _ in model.named_parameters() if name in decaying]

    def get_total_train_batch_size(self, args: Any = None) -> int:
        """Return the rows of one optimizer step, over all processes."""
        rows = self.run.train_batch_size or self.args.train_batch_size
        return rows * self.args.gradient_accumulation_steps * self.run.ranks.world_size

    def num_examples(self, dataloader: Any) -> int:
        """Return the rows of a loader's dataset, or an estimate from its number of batches."""
        rows = length_of(getattr(dataloader, "dataset", None))
        return rows if rows is not None else len(dataloader) * self.args.train_batch_size

    def floating_point_ops(self, inputs: dict[str, torch.Tensor]) -> int:
        """Return the operations of forward and backward of a batch: 6 per weight and input element, or 0 if unknown.

        Two per weight for the forward pass and four for the backward pass, embeddings left out (Kaplan et al.,
        arXiv:2001.08361). `CountFlops` adds them up in `state.total_flos`. Override it for a model that this is not
        true of.
        """
        model: Any = self.run.model
        tokens = main_input(model, inputs) if hasattr(model, "num_parameters") else None
        return 0 if tokens is None else 6 * math.prod(tokens.shape) * self._weights_of(model)

    def _weights_of(self, model: Any) -> int:
        counted, weights = self._counted
        if counted is not model:
            weights = int(model.num_parameters(exclude_embeddings=True))
            self._counted = (model, weights)
        return weights
