"""The model that the user wrote, the parameters that its `forward` accepts, and the parameters that are labels."""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...events.imported import imported


def user_model(model: nn.Module) -> nn.Module:
    """Return the model that the user wrote, without its wrappers.

    `torch.compile`, PEFT and DDP are wrappers. Another module is a wrapper if it meets three conditions:

    - Its `forward` names no parameter and takes any keyword, such as `forward(*args, **kwargs)`.
    - The program did not replace `forward` on the instance.
    - It has a child with the name `module`, or it has exactly one child, and this child is not a module of `torch.nn`.
    """
    while (inner := _inside(model)) is not None:
        model = inner
    return model


def _inside(model: nn.Module) -> nn.Module | None:
    """Return the model that a wrapper wraps; None if the model is not a wrapper."""
    children = dict(model._modules.items())  # `_modules` of a TorchScript model is not a dict
    if children.get("_orig_mod") is not None:  # torch.compile
        return children["_orig_mod"]
    peft = imported("peft")
    if peft is not None and isinstance(model, (peft.PeftModel, peft.PeftMixedModel)):
        adapted: Any = model
        base = adapted.get_base_model() if hasattr(adapted, "get_base_model") else adapted.base_model.model
        return base if base is not model else None
    if "forward" in vars(model) or not _forward_passes_on(model):
        return None
    if children.get("module") is not None:  # DDP, DataParallel, AveragedModel
        return children["module"]
    only = next(iter(children.values())) if len(children) == 1 else None
    return None if type(only).__module__.startswith("torch.nn.modules") else only


_PASSES_ON: weakref.WeakKeyDictionary[types.FunctionType, bool] = weakref.WeakKeyDictionary()
"""A cache: function `forward` -> whether it only passes its arguments on. Reading a signature takes 50 microseconds."""


def _forward_passes_on(model: nn.Module) -> bool:
    function = getattr(type(model), "forward", None)
    known = _PASSES_ON.get(function) if isinstance(function, types.FunctionType) else None
    if known is None:
        # Read the bound method, because the first parameter of a function may have another name than `self`.
        known = _passes_on(_parameters_of(model.forward))
        if isinstance(function, types.FunctionType):
            _PASSES_ON[function] = known
    return known


def _parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function. If these are only `*args, **kwargs`, look into the decorated function."""
    parameters = dict(inspect.signature(function).parameters)
    while _passes_on(parameters):
        while isinstance(function, functools.partial):
            function = function.func
        plain = getattr(function, "__func__", function)
        cells = [cell.cell_contents for cell in getattr(plain, "__closure__", None) or () if _filled(cell)]
        wrapped = [each for each in cells if isinstance(each, (types.FunctionType, types.MethodType))]
        if len(wrapped) != 1:
            break
        bound = inspect.ismethod(function) and not inspect.ismethod(wrapped[0])
        function = types.MethodType(wrapped[0], function.__self__) if bound else wrapped[0]  # type: ignore[attr-defined]
        parameters = dict(inspect.signature(function).parameters)
    return parameters


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _passes_on(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Return whether a function takes any keyword and names no parameter, as `(**kwargs)` or `(*args, **kwargs)`.

    A parameter `self` does not count.
    """
    kinds = [each.kind for name, each in parameters.items() if name != "self"]
    return kinds[-1:] == [inspect.Parameter.VAR_KEYWORD] and kinds[:-1] in ([], [inspect.Parameter.VAR_POSITIONAL])


@dataclass(frozen=True)
class ForwardSignature:
    """The signature of a model's `forward`."""

    parameters: dict[str, inspect.Parameter]
    """Parameters by name, in order."""

    @classmethod
    def of(cls, model: nn.Module) -> ForwardSignature:
        """Return the signature of the `forward` of the user's model, without wrappers such as DDP.

        If the program replaced `forward` on the instance, return the signature of the new `forward`.
        """
        return cls(_parameters_of(user_model(model).forward))

    @classmethod
    def of_class(cls, model: nn.Module) -> ForwardSignature:
        """Return the signature of `forward` in the class of the user's model, with the parameter `self`.

        Ignore a `forward` that the program set on the instance. For a TorchScript model, read the `forward` of the
        instance, because the class has none.
        """
        inner = user_model(model)
        # The class of a TorchScript model has no `forward`.
        return cls(_parameters_of(getattr(type(inner), "forward", inner.forward)))

    @property
    def is_unknown(self) -> bool:
        """Whether the parameters of `forward` are unknown, because it only has `**kwargs` or `*args, **kwargs`."""
        return _passes_on(self.parameters)

    @property
    def accepts_any_keyword(self) -> bool:
        """Whether the signature contains `**kwargs`."""
        return any(parameter.kind is parameter.VAR_KEYWORD for parameter in self.parameters.values())

    @property
    def last_named(self) -> str | None:
        """The name of the last parameter, often `labels`; None if there is no parameter.

        `self`, `*args` and `**kwargs` do not count.
        """
        named = [name for name, each in self.parameters.items() if each.kind not in _VARIADIC and name != "self"]
        return named[-1] if named else None

    def has_default(self, name: str, default: Any) -> bool:
        """Return whether the parameter `name` exists and its default is the object `default`."""
        return name in self.parameters and self.parameters[name].default is default

    def mismatch(self, inputs: Any) -> str | None:
        """Explain why a batch does not fit the signature; return None if the batch fits.

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
            return f"{error}. The batch has: {described(inputs) or 'no keys'}. Its forward takes: {accepted}."
        return None


def label_names_of(model: nn.Module) -> list[str]:
    """Return the names of the label parameters of the user's `forward`.

    A parameter is a label if its name contains `label`, as in transformers' `find_labels`. In a question answering
    model, `start_positions` and `end_positions` are labels too. The function reads the `forward` of the model's class.
    If the `forward` of the class has no label parameters, the function reads a `forward` that the program set on the
    instance.
    """
    kind = type(user_model(model)).__name__
    also = ("start_positions", "end_positions") if "QuestionAnswering" in kind else ()
    for signature in (ForwardSignature.of_class(model), ForwardSignature.of(model)):
        if found := [name for name in signature.parameters if "label" in name or name in also]:
            return found
    return []


def described(value: Any) -> str:
    """Describe a batch or output for an error: the keys of a mapping, the shape of a tensor, else the type."""
    return ", ".join(map(str, value)) if isinstance(value, Mapping) else _kind(value)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {', '.join(_kind(part) for part in value) or 'nothing'}"
    return f"a {type(value).__name__}"
