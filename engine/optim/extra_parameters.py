"""A callback for parameters of the user's optimizer that are not part of the model: checkpoints store their values."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ...events.callback import Callback

logger = logging.getLogger(__name__)


class ExtraParameters(Callback):
    """Saves and restores the parameters in the user's optimizer that belong neither to the model nor to a loss module.

    The trainer attaches this callback if there are such parameters.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        """Store the parameters to save and restore. Checkpoints number the parameters in this order."""
        self.parameters = list(parameters)

    def __repr__(self) -> str:
        return f"ExtraParameters({len(self.parameters)})"

    def state_dict(self) -> dict[str, Any]:
        return {str(number): parameter.detach() for number, parameter in enumerate(self.parameters)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved = [state[str(number)] for number in range(len(state))]
        if [each.shape for each in saved] != [each.shape for each in self.parameters]:
            logger.warning(
                "The extra parameters in the checkpoint do not fit the parameters in the optimizer that are not part "
                "of the model. These parameters are not restored."
            )
            return
        with torch.no_grad():
            for parameter, value in zip(self.parameters, saved):
                parameter.copy_(value)
