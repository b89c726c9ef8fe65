"""Parameter groups and checkpoint state for GaLore and APOLLO, optimizers that project gradients to a low rank.

Sources: GaLore is Zhao et al., arXiv:2403.03507. APOLLO is Zhu et al., arXiv:2412.05270.
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
    """Return whether `targets` selects the module with this name, by the rule of transformers 5.23.

    Args:
        name: The module's name in `model.named_modules()`.
        targets: One regular expression for the whole name, or a list. A list selects the module if one item is a part
            of the name, or is a regular expression that matches the whole name.

    Raises:
        ArgumentError: An item is neither a part of the name nor a valid regular expression.
    """
    if isinstance(targets, str):
        return _matches(targets, name)
    return any(target in name for target in targets) or any(_matches(target, name) for target in targets)


def projected_groups(
    model: nn.Module, targets: str | list[str] | None, settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Split all parameters, in the model's order, into a plain group and a group of projected weights.

    Frozen parameters are included, because the position of a parameter is the seed of its random projection in APOLLO.

    Args:
        model: The model. Only weights of `nn.Linear` layers are projected.
        targets: "all-linear", one regular expression for whole layer names, or a list. A list selects a layer if one
            item is a part of the layer's name, or is a regular expression that matches the whole name.
        settings: Options of the group of projected weights.

    Raises:
        ArgumentError: `targets` is empty, or selects no linear layer.
    """
    if not targets:
        raise ArgumentError(
            "GaLore and APOLLO need optim_target_modules, the linear layers to project. Give 'all-linear', parts of "
            "layer names, such as ['attn', 'mlp'], or one regular expression."
        )
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if isinstance(targets, str) and targets.replace("_", "-") == "all-linear":
        chosen = linear
    else:
        chosen = [name for name in linear if is_target(name, targets)]
        _warn_about_other_layers(model, targets)
    if not chosen:
        raise ArgumentError(_no_layer_message(model, targets, linear))
    weights = {f"{name}.weight" for name in chosen}
    return [
        {"params": [parameter for name, parameter in model.named_parameters() if name not in weights]},
        {"params": [parameter for name, parameter in model.named_parameters() if name in weights], **settings},
    ]


def save_projectors_as_values(optimizer: Optimizer, class_of: Callable[[dict[str, Any]], Callable[..., Any]]) -> None:
    """Make `optimizer.state_dict()` contain plain values instead of projectors, so that a checkpoint can store them.

    After `load_state_dict`, the first step builds the projectors from the values.

    Args:
        optimizer: An optimizer whose state has an object `projector` for each projected weight.
        class_of: Returns the projector class for a parameter group.
    """

    def convert(_: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        return {**state_dict, "state": {key: _with_values(state) for key, state in state_dict["state"].items()}}

    def rebuild(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                values = optimizer.state.get(parameter, {}).get("projector")
                if isinstance(values, dict):
                    names = ("update_proj_gap", "scale", "proj_type")
                    projector = class_of(group)(group["rank"], **{name: group[name] for name in names})
                    vars(projector).update({name: _restore_strides(value) for name, value in values.items()})
                    optimizer.state[parameter]["projector"] = projector

    optimizer.register_state_dict_post_hook(convert)
    # A load hook would not do: the `load_state_dict` of bitsandbytes calls no hooks.
    optimizer.register_step_pre_hook(rebuild)


def _with_values(state: dict[str, Any]) -> dict[str, Any]:
    projector = state.get("projector")
    if projector is None or isinstance(projector, dict):
        return state
    # Strings are settings, which the parameter group has too. torch corrupts a string in a state when it loads it.
    values = {name: _save_strides(value) for name, value in vars(projector).items() if not isinstance(value, str)}
    return {**state, "projector": values}


def _save_strides(value: Any) -> Any:
    """Convert a tensor to a dict with the keys `values` (the tensor) and `strides`. For a list, convert each item.

    Any other value is returned unchanged. A load must restore the strides, because the bits of a matrix product depend
    on the memory layout.
    """
    if isinstance(value, list):
        return [_save_strides(item) for item in value]
    return {"values": value, "strides": value.stride()} if isinstance(value, torch.Tensor) else value


def _restore_strides(value: Any) -> Any:
    """Undo `_save_strides`: return tensors with their saved strides, and other values unchanged."""
    if isinstance(value, list):
        return [_restore_strides(item) for item in value]
    if not isinstance(value, dict):
        return value
    tensor = value["values"]
    return torch.empty_strided(tensor.size(), value["strides"], dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error as error:
        raise ArgumentError(
            f"optim_target_modules: {pattern!r} is neither a part of a layer name nor a regular expression ({error}). "
            "Correct the expression, or give 'all-linear'."
        ) from error


def _warn_about_other_layers(model: nn.Module, targets: str | list[str]) -> None:
    """Warn if `targets` names layers that have weights but are not `nn.Linear`. These layers are not projected.

    A regular expression causes no warning, even if it matches layers that are not linear.
    """
    literal = [targets] if isinstance(targets, str) else targets
    others = [
        name
        for name, module in model.named_modules()
        if not isinstance(module, nn.Linear)
        and next(module.parameters(recurse=False), None) is not None
        and (name in literal or (isinstance(targets, list) and any(target in name for target in targets)))
    ]
    if others:
        logger.warning(
            "optim_target_modules=%r names layers that are not nn.Linear and are not projected: %s.",
            targets,
            ", ".join(others),
        )


def _no_layer_message(model: nn.Module, targets: str | list[str], linear: list[str]) -> str:
    problem = f"optim_target_modules={targets!r} selects no linear layer of {type(model).__name__}"
    if not linear:
        return f"{problem}, which has none. Choose an optimizer other than GaLore and APOLLO."
    parts = dict.fromkeys([*linear, *(name.rpartition(".")[2] for name in linear)])
    shown = ", ".join(linear[:8]) + (", ..." if len(linear) > 8 else "")
    first = targets if isinstance(targets, str) else targets[0]
    return f"{problem}{nearest(first, parts)} Its linear layers: {shown}."
