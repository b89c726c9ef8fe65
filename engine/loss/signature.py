"""The parameters that a model's `forward` accepts, and which of them are labels."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class ForwardSignature:
    """The signature of a model's `forward`."""

    parameters: dict[str, inspect.Parameter]
    """Parameters by name, in order."""

    @classmethod
    def of(cls, model: nn.Module) -> ForwardSignature:
        """Return the signature of `model.forward`. A `forward` that was replaced on the instance counts."""
        return cls(dict(inspect.signature(model.forward).parameters))

    @classmethod
    def of_class(cls, model: nn.Module) -> ForwardSignature:
        """Return the signature of `forward` as the model's class defines it. The first parameter is `self`."""
        return cls(dict(inspect.signature(type(model).forward).parameters))

    @property
    def accepts_any_keyword(self) -> bool:
        """Whether the signature contains `**kwargs`."""
        return any(parameter.kind is parameter.VAR_KEYWORD for parameter in self.parameters.values())

    def has_default(self, name: str, default: Any) -> bool:
        """Whether a parameter exists and has exactly this default."""
        return name in self.parameters and self.parameters[name].default is default

    def mismatch(self, inputs: Any) -> str | None:
        """Explain why a batch does not fit the signature; None if it fits.

        Args:
            inputs: a mapping (passed by name), a tuple or list (passed by position), or a single argument.
        """
        signature = inspect.Signature(list(self.parameters.values()))
        try:
            if isinstance(inputs, Mapping):
                signature.bind(**inputs)
            elif isinstance(inputs, (tuple, list)):
                signature.bind(*inputs)
            else:
                signature.bind(inputs)
        except TypeError as error:
            accepted = ", ".join(str(parameter).split(":")[0].split("=")[0] for parameter in self.parameters.values())
            return f"{error}. The batch has: {described(inputs)}. Its forward takes: {accepted}."
        return None


def label_names_of(model: nn.Module) -> list[str]:
    """Return the parameters of the class's `forward` that are labels, judged by name.

    A name is a label if it contains `label`. Question answering models also have `start_positions` and
    `end_positions`. The rule is the one of transformers' `find_labels`.
    """
    also = ("start_positions", "end_positions") if "QuestionAnswering" in type(model).__name__ else ()
    return [name for name in ForwardSignature.of_class(model).parameters if "label" in name or name in also]


def described(value: Any) -> str:
    """Describe a batch or output for an error: the keys of a mapping, the shape of a tensor, else the type."""
    return ", ".join(map(str, value)) if isinstance(value, Mapping) else _kind(value)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {', '.join(_kind(part) for part in value) or 'nothing'}"
    return f"a {type(value).__name__}"
