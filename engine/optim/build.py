"""Build an optimizer from its name, and split the model's parameters into groups with and without weight decay.

The module `registry` has the table of the names.
"""

from __future__ import annotations

import importlib
import logging
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer

from ...events.errors import ArgumentError, MissingExtra, nearest
from ...lazy import without_collections
from .galore_apollo import projected_groups, save_projectors_as_values
from .registry import OPTIMIZERS, OptimizerSpec, OptionReader, Projection, name_of

logger = logging.getLogger(__name__)

# Weight decay must not shrink biases and the scales of normalization layers. `nn.LayerNorm` is found by its class; the
# patterns after "bias" find other normalization layers by their names.
NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Matches the lowercase names of parameters without weight decay."""

_MADE_WITH: WeakKeyDictionary[Optimizer, dict[str, Any]] = WeakKeyDictionary()


def made_with(optimizer: Optimizer) -> dict[str, Any] | None:
    """Return the keyword arguments with which this module built `optimizer`; None for any other optimizer.

    A callback that shards the optimizer state builds the optimizer again with these arguments.
    """
    return _MADE_WITH.get(optimizer)


def decay_parameter_names(model: nn.Module) -> set[str]:
    """Return the names of the parameters with weight decay, as in `model.named_parameters()`.

    All parameters decay, except parameters of an `nn.LayerNorm`, and parameters whose lowercase name contains `bias` or
    the name of a norm (`NO_DECAY`). This is the rule of transformers 5.23. If the model itself is an `nn.LayerNorm`,
    its `weight` decays.
    """
    inside_layer_norm = {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if path and isinstance(module, nn.LayerNorm)
        for name, _ in module.named_parameters()
    }
    return {
        name
        for name, _ in model.named_parameters()
        if name not in inside_layer_norm and not NO_DECAY.search(name.lower())
    }


def parameter_groups(
    model: nn.Module, weight_decay: float, decaying: Collection[str] | None = None, *, always_split: bool = False
) -> list[dict[str, Any]]:
    """Split the trainable parameters into a group with `weight_decay` and one with 0.0, each in the model's order.

    As in transformers, both groups exist even if one is empty. The result differs from transformers in two cases:

    - If `weight_decay` is 0 and `always_split` is False, all parameters are in the first group.
    - With tensor parallelism, or with FSDP2 and ignored parameters, each group is split into one group per device mesh,
      because one fused update cannot span meshes. Empty groups are left out.

    Args:
        model: The model.
        weight_decay: The decay of the first group.
        decaying: Names of the parameters of the first group. Default: `decay_parameter_names(model)`.
        always_split: Whether to split the parameters even if `weight_decay` is 0. One full group is faster, because the
            optimizer makes one pass per group.

    Raises:
        ArgumentError: No parameter of the model requires a gradient.
    """
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trainable:
        kind = type(model).__name__
        if next(model.parameters(), None) is None:
            raise ArgumentError(
                f"{kind} has no parameters, so there is nothing to train. Give a model with parameters."
            )
        raise ArgumentError(
            f"every parameter of {kind} is frozen (requires_grad=False), so there is nothing to train. Unfreeze some, "
            "for example with model.requires_grad_(True)."
        )
    if not weight_decay and not always_split:
        decaying = trainable
    elif decaying is None:
        decaying = decay_parameter_names(model)
    halves = (
        (weight_decay, [parameter for name, parameter in trainable.items() if name in decaying]),
        (0.0, [parameter for name, parameter in trainable.items() if name not in decaying]),
    )
    one_mesh = len({_mesh_of(parameter) for parameter in trainable.values()}) == 1
    return [
        {"params": members, "weight_decay": decay}
        for decay, half in halves
        for members in ([half] if one_mesh else _split_by_mesh(half))
    ]


def _mesh_of(parameter: nn.Parameter) -> Any:
    """Return the device mesh of a DTensor, None for a plain tensor. Does not import torch.distributed."""
    return getattr(parameter, "device_mesh", None)


def _split_by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    members: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        members.setdefault(_mesh_of(parameter), []).append(parameter)
    return list(members.values())


def parse_optim_args(text: str | None) -> dict[str, str]:
    """Parse `"a=1,b=2"` into `{"a": "1", "b": "2"}`. Spaces are ignored. None and "" give no options.

    Raises:
        ArgumentError: A part between commas is not `name=value`.
    """
    pairs: dict[str, str] = {}
    for part in text.replace(" ", "").split(",") if text else ():
        name, equals, value = part.partition("=")
        if not name or not equals or "=" in value:
            raise ArgumentError(
                f"optim_args={text!r}: {part!r} is not name=value. Write it like 'momentum=0.9,nesterov=true'."
            )
        pairs[name] = value
    return pairs


def build_optimizer(
    name: str,
    params_groups: Iterable[dict[str, Any]],
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    warmup_steps: int = 0,
    optim_args: str | None = None,
    model: nn.Module | None = None,
    target_modules: str | list[str] | None = None,
) -> Optimizer:
    """Build the optimizer with this name.

    Args:
        name: A name of `OPTIMIZERS`, such as `adamw_torch`, as text or as a member of a string enum.
        params_groups: Parameter groups, such as the result of `parameter_groups`. For GaLore and APOLLO, the function
            forms groups without weight decay from the parameters of `model` instead.
        lr: Learning rate.
        betas: Decay rates of the first and the second moment. For the Adam and Lion families. grokadamw and GaLore use
            their own default.
        eps: Added to the root of the second moment. For the Adam family only. rmsprop and adagrad use the `eps` of
            `optim_args`, or their own default. adafactor, grokadamw and GaLore use their own default.
        weight_decay: The default weight decay of schedule_free_* and stable_adamw, for groups without the key
            `weight_decay`. Other optimizers do not use it.
        warmup_steps: Length of the warmup in optimizer steps. For schedule_free_adamw and schedule_free_sgd, which run
            without a schedule.
        optim_args: Options of the optimizer as text: `"momentum=0.9,nesterov=true"`. A `weight_decay` in this text
            applies only to groups without the key `weight_decay`.
        model: The model, for GaLore, APOLLO and the 8-bit optimizers of bitsandbytes. These 8-bit optimizers use 32-bit
            state for the embeddings of the model.
        target_modules: The linear layers that GaLore and APOLLO project: `targets` of `projected_groups`.

    Raises:
        ArgumentError: If the name or an option is unknown, or an option cannot be read. If no group has a parameter. If
            trainbus does not build this optimizer, such as `lomo`. If the optimizer needs `model`, and `model` is None.
            If no layer matches `target_modules`.
        MissingExtra: The package of the optimizer is not installed, too old, or lacks a dependency.
    """
    name = name_of(name)
    groups = [{**group, "params": list(group["params"])} for group in params_groups]
    if not any(group["params"] for group in groups):
        raise ArgumentError(
            f"optim={name!r} got no parameter to update. Check that some parameter of the model requires a gradient."
        )
    spec = _spec_of(name)
    optimizer_class, kwargs = class_and_options(
        name,
        lr=lr,
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
        warmup_steps=warmup_steps,
        optim_args=optim_args,
    )
    if spec.embeddings_in_32_bits and model is None:
        raise ArgumentError(f"optim={name!r} needs model=, because it keeps 32-bit state for the embeddings.")
    if spec.projection is None:
        with without_collections():  # the first optimizer of a process imports torch's compiler, with 1,000 modules
            optimizer: Optimizer = optimizer_class(groups, **kwargs)
    else:
        if model is None:
            raise ArgumentError(f"optim={name!r} needs model=, because it projects the model's linear layers.")
        if weight_decay:
            logger.warning("optim=%r ignores weight_decay=%s, as in transformers.", name, weight_decay)
        adam = {"betas": betas, "eps": eps}
        settings = {**spec.projection.defaults, **{key: adam[key] for key in spec.projection.receives}}
        settings.update({key: kwargs.pop(key) for key in spec.projection.defaults if key in kwargs})
        optimizer = optimizer_class(projected_groups(model, target_modules, settings), **kwargs)
        save_projectors_as_values(optimizer, _projector_class_of(name, spec, spec.projection))
    _MADE_WITH[optimizer] = kwargs
    if spec.embeddings_in_32_bits and model is not None:
        _keep_embeddings_in_32_bits(model)
    return optimizer


def build_given(
    optimizer_class: Any, options: Mapping[str, Any], model: nn.Module, groups: list[dict[str, Any]]
) -> Any:
    """Build the optimizer that the user gives as a class with options.

    Any other class than a subclass of `torch.optim.Optimizer` is a factory, as in transformers. `build_given` creates
    an instance of the factory, and calls the instance with the model and the options. This call must return the
    optimizer.

    Args:
        optimizer_class: The optimizer class, or the class of a factory.
        options: Keyword arguments for the class. For an optimizer class, the value of the key `optimizer_dict`,
            `params` or `model` replaces `groups`.
        model: The model, for a factory.
        groups: Parameter groups, for an optimizer class.
    """
    if isinstance(optimizer_class, type) and not issubclass(optimizer_class, Optimizer):
        factory: Any = optimizer_class()
        return factory(model, **options)
    options = dict(options)
    # As in transformers, the options may hold the groups under one of these names.
    for name in ("params", "model", "optimizer_dict"):
        groups = options.pop(name, groups)
    optimizer = optimizer_class(groups, **options)
    if isinstance(optimizer, Optimizer):
        _MADE_WITH[optimizer] = options
    return optimizer


def class_and_options(
    name: str,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    warmup_steps: int,
    optim_args: str | None,
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the class of the optimizer with this name, and its keyword arguments without the model's parameters.

    The arguments have the same meaning as in `build_optimizer`. If `optim_args` sets options of the projection of
    GaLore or APOLLO, the returned keyword arguments have these options too. `build_optimizer` passes these options to
    the group of the projected weights, not to the class.

    Raises:
        ArgumentError: The name or an option is unknown, an option cannot be read, or trainbus does not build this
            optimizer, such as `lomo`.
        MissingExtra: The package of the optimizer is not installed, too old, or lacks a dependency.
    """
    name = name_of(name)
    spec = _spec_of(name)
    received = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "warmup_steps": warmup_steps}
    texts = {key: value for key, value in spec.defaults.items() if isinstance(value, str)}
    options = {"lr": lr, **{key: received[key] for key in spec.receives}, **spec.defaults}
    options.update(_read_options(name, spec.options, {**texts, **parse_optim_args(optim_args)}))
    if spec.beta_options:
        defaults = dict(zip(spec.beta_options, betas))
        options["betas"] = tuple(options.pop(key, defaults.get(key)) for key in spec.beta_options)
    target = spec.target
    return target if not isinstance(target, str) else _import_class(name, spec, target), options


def _spec_of(name: str) -> OptimizerSpec:
    if name not in OPTIMIZERS:
        raise ArgumentError(f"optim={name!r} is unknown{nearest(name, OPTIMIZERS)} Known: {', '.join(OPTIMIZERS)}.")
    spec = OPTIMIZERS[name]
    if spec.unsupported:
        raise ArgumentError(f"optim={name!r} (package {spec.package}) cannot be built by name. {spec.unsupported}")
    return spec


def _read_options(name: str, readers: Mapping[str, OptionReader], texts: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for key, text in texts.items():
        if key not in readers:
            known = ", ".join(readers) or "none"
            raise ArgumentError(
                f"optim_args: optim={name!r} has no option {key!r}{nearest(key, readers)} Its options: {known}."
            )
        try:
            values[key] = readers[key](text)
        except ValueError as error:
            raise ArgumentError(
                f"optim_args: optim={name!r} cannot read {key}={text!r} ({error}). Correct the value."
            ) from error
    return values


def _projector_class_of(
    name: str, spec: OptimizerSpec, projection: Projection
) -> Callable[[dict[str, Any]], Callable[..., Any]]:
    def class_of(group: dict[str, Any]) -> Callable[..., Any]:
        return _import_class(name, spec, projection.projectors[group.get("proj", "")])

    return class_of


def _import_class(name: str, spec: OptimizerSpec, target: str) -> Callable[..., Any]:
    """Import the class `target`, such as `bitsandbytes.optim:AdamW`.

    Args:
        name: the value of `optim`, for the error.
        spec: the row of the registry, for the error.
        target: the module and the name of the class.

    Raises:
        MissingExtra: A package is missing or too old. The error names the package.
    """
    module_name, _, class_name = target.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module_name), class_name)
    except (ModuleNotFoundError, AttributeError) as error:
        absent = (error.name if isinstance(error, ModuleNotFoundError) else module_name) or module_name
        if absent.partition(".")[0] == module_name.partition(".")[0]:
            needed = f"{spec.package}: pip install {shlex.quote(spec.package)}"
        else:
            needed = f"{absent}, which {spec.package} imports: pip install {absent.partition('.')[0]}"
        raise MissingExtra(f"optim={name!r} needs {needed}") from error
    return found


def _keep_embeddings_in_32_bits(model: nn.Module) -> None:
    """Register every embedding with bitsandbytes for 32-bit state.

    For embeddings, training with 8-bit state is unstable (arXiv:2110.02861).
    """
    manager = importlib.import_module("bitsandbytes").optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
