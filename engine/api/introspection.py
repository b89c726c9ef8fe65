"""The Trainer's methods that count parameters, samples and operations."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..evaluation.prediction import main_input
from ..optim.sizes import count_elements
from .moments import MomentMethods


class IntrospectionMethods(MomentMethods):
    """Methods that count parameters, samples and operations."""

    _counted: tuple[Any, int] = (None, 0)
    """The last model whose parameters were counted, and the number of its parameters without embeddings."""

    def get_num_trainable_parameters(self) -> int:
        """Return the number of elements of all trainable parameters. Lazy parameters count 0 until the first batch."""
        return count_elements(weight for weight in self.run.model.parameters() if weight.requires_grad)

    def get_total_train_batch_size(self, args: Any = None) -> int:
        """Return the number of samples of one optimizer step, over all ranks.

        The number is divided by the results of `get_tp_size`, `get_cp_size` and `get_sp_size`. Each result is 1 unless
        a subclass overrides the method.

        Args:
            args: not used.
        """
        batch = self.run.train_batch_size or self.args.train_batch_size
        samples = batch * self.args.gradient_accumulation_steps * self.run.ranks.world_size
        return samples // (self.get_tp_size() * self.get_cp_size() * self.get_sp_size())

    def floating_point_ops(self, inputs: dict[str, torch.Tensor]) -> int:
        """Return the floating-point operations of forward and backward for a batch; 0 if unknown.

        The estimate is 6 operations per input token and per parameter: 2 in the forward pass, 4 in the backward pass
        (Kaplan et al., arXiv:2001.08361). Embeddings do not count. Override this method for a model that the formula
        does not fit. `CountFlops` adds the operations to `state.total_flos`.
        """
        model: Any = self.run.model
        tokens = main_input(model, inputs) if hasattr(model, "num_parameters") else None
        shape = getattr(tokens, "shape", None)  # a batch that a subclass has not prepared yet may hold no tensors
        return 0 if shape is None else 6 * math.prod(shape) * self._weights_of(model)

    def _weights_of(self, model: Any) -> int:
        counted, weights = self._counted
        if counted is not model:
            weights = int(model.num_parameters(exclude_embeddings=True))
            self._counted = (model, weights)
        return weights
