"""Optimizers: which parameters decay, and how an optimizer is built from its name.

What each name means is in `optim_table`.
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
from .galore_apollo import keep_projectors, low_rank_groups
from .registry import OPTIMIZERS, UNAVAILABLE, Reader, Recipe

logger = logging.getLogger(__name__)

# A bias and the scale of a normalization have no direction to shrink; the last four find, by their names, the
# normalizations that are no nn.LayerNorm.
NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")

_MADE_WITH: WeakKeyDictionary[Optimizer, dict[str, Any]] = WeakKeyDictionary()


def made_with(optimizer: Optimizer) -> dict[str, Any] | None:
    """Return the options that an optimizer was made with here; None for one that was made elsewhere."""
    return _MADE_WITH.get(optimizer)


def decay_parameter_names(model: nn.Module) -> set[str]:
    """Return the names, as `model.named_parameters()` gives them, of the parameters that weight decay applies to.

    All decay but those inside an `nn.LayerNorm` and those whose lowercase name matches `NO_DECAY`: the rule of
    transformers 5.23. A model that is itself a LayerNorm decays, as there.
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
    model: nn.Module, weight_decay: float, decaying: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Split the trainable parameters into a group with `weight_decay` and one with 0.0, each in the model's order.

    Those in `decaying`, by name, are in the first; by default those that `decay_parameter_names` returns.

    Both groups are there even if one is empty, so that the numbering in a saved optimizer state is that of
    transformers. Parameters on several device meshes (FSDP2 with some left out, tensor parallelism) get a group per
    mesh, since one fused update cannot span them.

    Raises:
        ArgumentError: the model has no parameter that requires a gradient.
    """
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trainable:
        kind = type(model).__name__
        if next(model.parameters(), None) is None:
            raise ArgumentError(f"{kind} has no parameters, so there is nothing to train")
        raise ArgumentError(
            f"every parameter of {kind} is frozen (requires_grad=False), so there is nothing to train; unfreeze some, "
            "for example with model.requires_grad_(True)"
        )
    if not weight_decay:
        decaying = trainable
    elif decaying is None:
        decaying = decay_parameter_names(model)
    halves = (
        (weight_decay, [parameter for name, parameter in trainable.items() if name in decaying]),
        (0.0, [parameter for name, parameter in trainable.items() if name not in decaying]),
    )
    one_mesh = len({_mesh(parameter) for parameter in trainable.values()}) == 1
    return [
        {"params": members, "weight_decay": decay}
        for decay, half in halves
        for members in ([half] if one_mesh else _by_mesh(half))
    ]


def _mesh(parameter: nn.Parameter) -> Any:
    """The device mesh a DTensor lives on, or None; asking the attribute keeps torch.distributed out of this module."""
    return getattr(parameter, "device_mesh", None)


def _by_mesh(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    members: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        members.setdefault(_mesh(parameter), []).append(parameter)
    return list(members.values())


def parse_optim_args(text: str | None) -> dict[str, str]:
    """Read `"a=1,b=2"` into `{"a": "1", "b": "2"}`; blanks do not count, and None or "" is no argument.

    Raises:
        ArgumentError: a part between commas is not one `name=value`.
    """
    pairs: dict[str, str] = {}
    for part in text.replace(" ", "").split(",") if text else ():
        name, equals, value = part.partition("=")
        if not name or not equals or "=" in value:
            raise ArgumentError(f"optim_args={text!r}: {part!r} is not name=value, as in 'momentum=0.9,nesterov=true'")
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
    """Build the optimizer called `name`.

    Args:
        name: A name of `OPTIMIZERS` (a string enum with such a value will do).
        params_groups: What `parameter_groups` returns; each group brings its own `weight_decay`. The optimizers of low
            rank (GaLore, APOLLO) form their own groups of the model's parameters instead, which bring none.
        lr: Learning rate.
        betas: Decay of the first and second moment, for the Adam and Lion families.
        eps: Added to the root of the second moment, for the Adam family only: rmsprop, adagrad and adafactor keep
            their own unless `optim_args` says otherwise.
        weight_decay: The default of a group that brings none, for schedule_free_* and stable_adamw.
        warmup_steps: Length of the warmup in updates, for schedule_free_adamw and schedule_free_sgd, which do
            without a schedule.
        optim_args: The optimizer's own settings as text, `"momentum=0.9,nesterov=true"`. A `weight_decay` in it, too,
            is only for groups that bring none.
        model: Needed by the 8-bit optimizers of bitsandbytes, which leave the model's embeddings in 32 bits, and by
            those of low rank.
        target_modules: Which linear layers the optimizers of low rank work on, as `low_rank_groups` takes it.

    Raises:
        ArgumentError: an unknown name or setting, a value that cannot be read, no parameter in any group, or an
            optimizer that cannot be built from parameter groups; for those of low rank, no layer to work on.
        MissingExtra: the optimizer's package is not installed.
    """
    name = plain(name)
    groups = [{**group, "params": list(group["params"])} for group in params_groups]
    if not any(group["params"] for group in groups):
        raise ArgumentError(f"optim={name!r} got no parameter to update; is every parameter of the model frozen?")
    recipe = _find(name)
    adam: dict[str, Any] = {"betas": betas, "eps": eps}
    optimizer_class, kwargs = class_and_options(
        name, lr=lr, **adam, weight_decay=weight_decay, warmup_steps=warmup_steps, optim_args=optim_args
    )
    if recipe.low_rank:
        settings = {**recipe.low_rank, **{key: adam[key] for key in recipe.low_rank_takes}}
        settings.update({key: kwargs.pop(key) for key in recipe.low_rank if key in kwargs})
        if model is None:
            raise ArgumentError(f"optim={name!r} needs model=: its linear layers are what it works on")
        if weight_decay:
            logger.warning("optim=%r leaves weight_decay=%s out, here as in transformers.", name, weight_decay)
        optimizer: Optimizer = optimizer_class(low_rank_groups(model, target_modules, settings), **kwargs)
        keep_projectors(optimizer, lambda group: _resolve(name, recipe, recipe.projectors[group.get("proj", "")]))
        _MADE_WITH[optimizer] = kwargs
        return optimizer
    if recipe.package == "bitsandbytes" and kwargs["optim_bits"] == 8 and model is None:
        raise ArgumentError(f"optim={name!r} needs model=: it leaves the embeddings in 32 bits")
    optimizer = optimizer_class(groups, **kwargs)
    _MADE_WITH[optimizer] = kwargs
    if recipe.package == "bitsandbytes" and kwargs["optim_bits"] == 8 and model is not None:
        _keep_embeddings_in_32_bits(model)
    return optimizer


def build_given(
    optimizer_class: Any, options: Mapping[str, Any], model: nn.Module, groups: list[dict[str, Any]]
) -> Any:
    """Build the optimizer that somebody names by its class.

    A class that is no `torch.optim.Optimizer` is a factory, as in transformers: its instance, called with the model and
    the options, returns the optimizer, and forms the groups by itself.
    """
    if isinstance(optimizer_class, type) and not issubclass(optimizer_class, Optimizer):
        factory: Any = optimizer_class()
        return factory(model, **options)
    optimizer = optimizer_class(groups, **options)
    if isinstance(optimizer, Optimizer):
        _MADE_WITH[optimizer] = dict(options)
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
    """Return the class of the optimizer called `name`, and what it is given beside the parameters.

    The arguments and errors are those of `build_optimizer`. For an optimizer of low rank, the options of its
    projection are among them, which belong to the groups of the weights that it projects.
    """
    recipe = _find(name)
    given = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "warmup_steps": warmup_steps}
    options = {"lr": lr, **{key: given[key] for key in recipe.takes}, **recipe.fixed}
    options.update(_read_options(name, recipe.options, parse_optim_args(optim_args)))
    if "beta3" in options:  # AdEMAMix mixes two averages of the gradient, and takes its three decays as one tuple.
        first, second = options.pop("beta1", betas[0]), options.pop("beta2", betas[1])
        options["betas"] = (first, second, options.pop("beta3"))
    return recipe.target if not isinstance(recipe.target, str) else _resolve(name, recipe, recipe.target), options


def plain(name: Any) -> str:
    """Return an optimizer's name, which may come as a member of an enum."""
    return str(getattr(name, "value", name))


def _find(name: str) -> Recipe:
    if name in UNAVAILABLE:
        raise ArgumentError(f"optim={name!r} cannot run: {UNAVAILABLE[name]}; optim='adamw_torch_fused' can")
    if name not in OPTIMIZERS:
        known = [*OPTIMIZERS, *UNAVAILABLE]
        raise ArgumentError(f"optim={name!r} is unknown{nearest(name, known)} Known: {', '.join(known)}.")
    recipe = OPTIMIZERS[name]
    if recipe.refused:
        raise ArgumentError(
            f"optim={name!r} (pip install {recipe.package}) cannot be built by name: {recipe.refused}; "
            "build it yourself and pass optimizers=(optimizer, None)"
        )
    return recipe


def _read_options(name: str, options: Mapping[str, Reader], texts: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for key, text in texts.items():
        if key not in options:
            takes = ", ".join(options) or "nothing"
            raise ArgumentError(f"optim={name!r} takes no optim_args {key!r}{nearest(key, options)} It takes {takes}.")
        try:
            values[key] = options[key](text)
        except ValueError as error:
            raise ArgumentError(f"optim_args of optim={name!r}: {key}={text!r} cannot be read: {error}") from error
    return values


def _resolve(name: str, recipe: Recipe, target: str) -> Callable[..., Any]:
    """Import a class of a recipe's package, which may not be there, or too old, or lack a package of its own."""
    module_name, _, class_name = target.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module_name), class_name)
    except (ModuleNotFoundError, AttributeError) as error:
        absent = (error.name if isinstance(error, ModuleNotFoundError) else module_name) or module_name
        if absent.partition(".")[0] == module_name.partition(".")[0]:
            said = f"{recipe.package}: pip install {shlex.quote(recipe.package)}"
        else:
            said = f"{absent}, which {recipe.package} imports: pip install {absent.partition('.')[0]}"
        raise MissingExtra(f"optim={name!r} needs {said}") from error
    return found


def _keep_embeddings_in_32_bits(model: nn.Module) -> None:
    """Register every embedding of `model` with bitsandbytes, whose 8-bit states are unstable there (2110.02861)."""
    manager = importlib.import_module("bitsandbytes").optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
