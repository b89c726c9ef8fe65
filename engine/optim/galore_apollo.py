"""Optimizers of low rank (GaLore, APOLLO): which weights they project, and how their projections are saved.

Zhao et al., arXiv:2403.03507, and Zhu et al., arXiv:2412.05270, are the methods.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...events.errors import ArgumentError, nearest

logger = logging.getLogger(__name__)


def is_target(name: str, targets: str | list[str]) -> bool:
    """Say whether a module is one of `targets`, by the rule of transformers 5.23.

    Args:
        name: the module's name, as `model.named_modules()` gives it.
        targets: a text is one regular expression, which the whole name matches. Of a list, one item is a part of the
            name, or a regular expression that the whole name matches.

    Raises:
        ArgumentError: for an item that is neither a part of the name nor a regular expression.
    """
    if isinstance(targets, str):
        return _matches(targets, name)
    return any(target in name for target in targets) or any(_matches(target, name) for target in targets)


def low_rank_groups(
    model: nn.Module, targets: str | list[str] | None, settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Split all parameters, in the model's order, into a plain group and one of the targeted weights.

    Frozen parameters are in them too: APOLLO numbers its random projections by place.

    Args:
        model: the model; only the weights of its `nn.Linear` are projected.
        targets: "all-linear", or which of them, as `is_target` takes it.
        settings: what the group of the targeted weights is given.

    Raises:
        ArgumentError: without targets, or if they name no linear layer, with the nearest that there is.
    """
    if not targets:
        raise ArgumentError(
            "Optimizers of low rank work on linear layers that you name: give optim_target_modules='all-linear', parts "
            "of their names, such as ['attn', 'mlp'], or one regular expression."
        )
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if isinstance(targets, str) and targets.replace("_", "-") == "all-linear":
        chosen = linear
    else:
        chosen = [name for name in linear if is_target(name, targets)]
        _warn_of_others(model, targets)
    if not chosen:
        raise ArgumentError(_none_found(model, targets, linear))
    weights = {f"{name}.weight" for name in chosen}
    return [
        {"params": [parameter for name, parameter in model.named_parameters() if name not in weights]},
        {"params": [parameter for name, parameter in model.named_parameters() if name in weights], **settings},
    ]


def keep_projectors(optimizer: Optimizer, class_of: Callable[[dict[str, Any]], Callable[..., Any]]) -> None:
    """Have an optimizer's state hold its projections as plain values, which a checkpoint can hold, and go on from them.

    Args:
        optimizer: one that keeps an object `projector` for each weight that it projects.
        class_of: from a group of parameters to the class of its projectors.
    """

    def plain(_: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        return {**state_dict, "state": {key: _plain(state) for key, state in state_dict["state"].items()}}

    def rebuild(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                values = optimizer.state.get(parameter, {}).get("projector")
                if isinstance(values, dict):
                    names = ("update_proj_gap", "scale", "proj_type")
                    projector = class_of(group)(group["rank"], **{name: group[name] for name in names})
                    vars(projector).update({name: _laid_out(value) for name, value in values.items()})
                    optimizer.state[parameter]["projector"] = projector

    optimizer.register_state_dict_post_hook(plain)
    # Not when a state is loaded: bitsandbytes has a `load_state_dict` of its own, which calls no hooks.
    optimizer.register_step_pre_hook(rebuild)


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    projector = state.get("projector")
    if projector is None or isinstance(projector, dict):
        return state
    # Texts are settings, which the group has too; torch takes a text in a state apart when it is loaded.
    values = {name: _described(value) for name, value in vars(projector).items() if not isinstance(value, str)}
    return {**state, "projector": values}


def _described(value: Any) -> Any:
    """Put its strides beside a tensor: a decomposition has columns in a row, and products depend on that in bits."""
    if isinstance(value, list):
        return [_described(item) for item in value]
    return {"values": value, "strides": value.stride()} if isinstance(value, torch.Tensor) else value


def _laid_out(value: Any) -> Any:
    """Undo `_described`."""
    if isinstance(value, list):
        return [_laid_out(item) for item in value]
    if not isinstance(value, dict):
        return value
    tensor = value["values"]
    return torch.empty_strided(tensor.size(), value["strides"], dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error as error:
        raise ArgumentError(
            f"optim_target_modules has {pattern!r}, which is no part of a name and no regular expression: {error}."
        ) from error


def _warn_of_others(model: nn.Module, targets: str | list[str]) -> None:
    """Warn of layers with weights that are named, rather than matched by an expression, and are not linear."""
    named = [targets] if isinstance(targets, str) else targets
    others = [
        name
        for name, module in model.named_modules()
        if not isinstance(module, nn.Linear)
        and next(module.parameters(recurse=False), None) is not None
        and (name in named or (isinstance(targets, list) and any(target in name for target in targets)))
    ]
    if others:
        logger.warning(
            "optim_target_modules=%r names %s, which are no nn.Linear: they are not projected.",
            *(targets, ", ".join(others)),
        )


def _none_found(model: nn.Module, targets: str | list[str], linear: list[str]) -> str:
    said = f"optim_target_modules={targets!r} names no linear layer of {type(model).__name__}"
    if not linear:
        return f"{said}, which has none; choose an optimizer that is not of low rank."
    parts = dict.fromkeys([*linear, *(name.rpartition(".")[2] for name in linear)])
    shown = ", ".join(linear[:8]) + (", ..." if len(linear) > 8 else "")
    first = targets if isinstance(targets, str) else targets[0]
    return f"{said}{nearest(first, parts)} Its linear layers: {shown}."
