"""Optimizers by name: which parameters decay, and how each of the names of `optim=` is built.

`OPTIMIZERS` is one table: a recipe says which class a name means, where it lives, and which arguments it gets. A class
from another package is imported when it is asked for, so that the table costs nothing and names what to install.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer, RMSprop

from ..events.errors import ArgumentError, MissingExtra, nearest
from .adafactor import Adafactor

# A bias and the scale of a normalization have no direction to shrink; the last four find, by their names, the
# normalizations that are no nn.LayerNorm.
NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


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


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split the trainable parameters into a group with `weight_decay` and one with 0.0, each in the model's order.

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
    decaying = decay_parameter_names(model)
    if not weight_decay:
        decaying = set(trainable)
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


def _flag(text: str) -> bool:
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise ValueError("neither true nor false")


def _dtype(text: str) -> torch.dtype:
    dtype = getattr(torch, text, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError("no dtype of torch")
    return dtype


Reader = Callable[[str], Any]


@dataclass(frozen=True)
class Recipe:
    """How one name of `optim=` becomes an optimizer: pure data, read by `build_optimizer`."""

    target: type[Optimizer] | str
    """The class, or "module:Class" to import when it is asked for."""
    package: str = ""
    """What to `pip install` for it."""
    takes: tuple[str, ...] = ()
    """Which of betas, eps, weight_decay and warmup_steps it is given, besides the learning rate."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """What it is always given."""
    options: Mapping[str, Reader] = field(default_factory=dict)
    """What `optim_args` may set, with how the text is read; an option overrules all of the above."""
    refused: str = ""
    """Why parameter groups alone are not enough to build it, if so."""


_ADAM = ("betas", "eps")
_TORCH_ADAMW = Recipe(AdamW, takes=_ADAM)

_BNB = Recipe("bitsandbytes.optim:AdamW", "bitsandbytes", _ADAM, {"optim_bits": 32, "is_paged": False})
_BNB_LION = replace(_BNB, target="bitsandbytes.optim:Lion", takes=("betas",))
_BNB_ADEMAMIX = replace(
    _BNB,
    target="bitsandbytes.optim:AdEMAMix",
    fixed={**_BNB.fixed, "alpha": 5.0, "beta3": 0.9999},
    options={
        "beta1": float,
        "beta2": float,
        "beta3": float,
        "alpha": float,
        "eps": float,
        "t_alpha": int,
        "t_beta3": int,
    },
)
_BNB_RMSPROP = Recipe(
    "bitsandbytes.optim:RMSprop",
    "bitsandbytes",
    fixed={"optim_bits": 32},
    options={"alpha": float, "eps": float, "weight_decay": float, "momentum": float, "centered": _flag},
)


def _with(recipe: Recipe, **fixed: Any) -> Recipe:
    return replace(recipe, fixed={**recipe.fixed, **fixed})


_TORCHAO = Recipe(
    "torchao.optim:AdamW8bit",
    "torchao>=0.11",
    _ADAM,
    {"block_size": 256, "bf16_stochastic_round": False},
    {"block_size": int, "bf16_stochastic_round": _flag},
)
_SCHEDULE_FREE = Recipe(
    "schedulefree:AdamWScheduleFree",
    "schedulefree>=1.4",
    (*_ADAM, "weight_decay", "warmup_steps"),
    {"weight_lr_power": 2.0, "r": 0.0},
    {"weight_lr_power": float, "r": float},
)
_GROKADAMW = {
    "alpha_init": 0.98,
    "lamb": 2.0,
    "gamma": 0.1,
    "grokking_signal_decay_rate": 0.1,
    "gradient_clipping": 1.0,
}
_PROJECTS = "it projects the linear layers named by optim_target_modules, and groups of parameters do not tell those"
_LAYERWISE = "it updates each parameter inside the backward pass, which the training step does not do"
_GALORE = Recipe("galore_torch:GaLoreAdamW", "galore-torch", refused=_PROJECTS)
_APOLLO = Recipe("apollo_torch:APOLLOAdamW", "apollo-torch", refused=_PROJECTS)
_LOMO = Recipe("lomo_optim:Lomo", "lomo-optim", refused=_LAYERWISE)

OPTIMIZERS: dict[str, Recipe] = {
    "adamw_torch_fused": _with(_TORCH_ADAMW, fused=True),
    "adamw_torch": _TORCH_ADAMW,
    "adamw": _TORCH_ADAMW,
    "adafactor": Recipe(Adafactor, fixed={"scale_parameter": False, "relative_step": False}),
    "sgd": Recipe(SGD, options={"momentum": float, "dampening": float, "weight_decay": float, "nesterov": _flag}),
    "adagrad": Recipe(Adagrad, options={"lr_decay": float, "weight_decay": float, "eps": float}),
    "rmsprop": Recipe(
        RMSprop,
        options={"momentum": float, "alpha": float, "eps": float, "weight_decay": float, "centered": _flag},
    ),
    "adamw_bnb_8bit": _with(_BNB, optim_bits=8),
    "adamw_8bit": _with(_BNB, optim_bits=8),
    "paged_adamw_32bit": _with(_BNB, is_paged=True),
    "paged_adamw_8bit": _with(_BNB, optim_bits=8, is_paged=True),
    "lion_32bit": _BNB_LION,
    "lion_8bit": _with(_BNB_LION, optim_bits=8),
    "paged_lion_32bit": _with(_BNB_LION, is_paged=True),
    "paged_lion_8bit": _with(_BNB_LION, optim_bits=8, is_paged=True),
    "ademamix": _BNB_ADEMAMIX,
    "ademamix_8bit": _with(_BNB_ADEMAMIX, optim_bits=8),
    "paged_ademamix_32bit": _with(_BNB_ADEMAMIX, is_paged=True),
    "paged_ademamix_8bit": _with(_BNB_ADEMAMIX, optim_bits=8, is_paged=True),
    "rmsprop_bnb": _BNB_RMSPROP,
    "rmsprop_bnb_32bit": _BNB_RMSPROP,
    "rmsprop_bnb_8bit": _with(_BNB_RMSPROP, optim_bits=8),
    "adamw_torch_8bit": _TORCHAO,
    "adamw_torch_4bit": replace(_TORCHAO, target="torchao.optim:AdamW4bit"),
    "adamw_anyprecision": Recipe(
        "torchdistx.optimizers:AnyPrecisionAdamW",
        "git+https://github.com/pytorch/torchdistx",
        _ADAM,
        {
            "use_kahan_summation": False,
            "momentum_dtype": torch.float32,
            "variance_dtype": torch.float32,
            "compensation_buffer_dtype": torch.bfloat16,
        },
        {
            "use_kahan_summation": _flag,
            "momentum_dtype": _dtype,
            "variance_dtype": _dtype,
            "compensation_buffer_dtype": _dtype,
        },
    ),
    "grokadamw": Recipe("grokadamw:GrokAdamW", "grokadamw", fixed=_GROKADAMW, options=dict.fromkeys(_GROKADAMW, float)),
    "stable_adamw": Recipe(
        "optimi:StableAdamW",
        "torch-optimi",
        (*_ADAM, "weight_decay"),
        {"decouple_lr": False, "max_lr": None, "kahan_sum": None},
        {"decouple_lr": _flag, "max_lr": float, "kahan_sum": _flag},
    ),
    "schedule_free_adamw": _SCHEDULE_FREE,
    "schedule_free_radam": replace(
        _SCHEDULE_FREE, target="schedulefree:RAdamScheduleFree", takes=(*_ADAM, "weight_decay")
    ),
    "schedule_free_sgd": replace(
        _SCHEDULE_FREE, target="schedulefree:SGDScheduleFree", takes=("weight_decay", "warmup_steps")
    ),
    "galore_adamw": _GALORE,
    "galore_adamw_8bit": replace(_GALORE, target="galore_torch:GaLoreAdamW8bit"),
    "galore_adafactor": replace(_GALORE, target="galore_torch:GaLoreAdafactor"),
    "galore_adamw_layerwise": replace(_GALORE, refused=_LAYERWISE),
    "galore_adamw_8bit_layerwise": replace(_GALORE, target="galore_torch:GaLoreAdamW8bit", refused=_LAYERWISE),
    "galore_adafactor_layerwise": replace(_GALORE, target="galore_torch:GaLoreAdafactor", refused=_LAYERWISE),
    "apollo_adamw": _APOLLO,
    "apollo_adamw_layerwise": replace(_APOLLO, refused=_LAYERWISE),
    "lomo": _LOMO,
    "adalomo": replace(_LOMO, target="lomo_optim:AdaLomo"),
}
"""Every name of `optim=` that some package can build."""

UNAVAILABLE: dict[str, str] = {
    "adamw_torch_xla": "it is torch_xla's and needs an XLA device (TPU); trainbus drives CPU and CUDA",
    "adamw_torch_npu_fused": "it is torch_npu's and needs an Ascend NPU; trainbus drives CPU and CUDA",
}
"""Names that are known but cannot run here, with the reason."""


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
) -> Optimizer:
    """Build the optimizer called `name`.

    Args:
        name: A name of `OPTIMIZERS` (a string enum with such a value will do).
        params_groups: What `parameter_groups` returns; each group brings its own `weight_decay`.
        lr: Learning rate.
        betas: Decay of the first and second moment, for the Adam and Lion families.
        eps: Added to the root of the second moment, for the Adam family only: rmsprop, adagrad and adafactor keep
            their own unless `optim_args` says otherwise.
        weight_decay: The default of a group that brings none, for schedule_free_* and stable_adamw.
        warmup_steps: Length of the warmup in updates, for schedule_free_adamw and schedule_free_sgd, which do
            without a schedule.
        optim_args: The optimizer's own settings as text, `"momentum=0.9,nesterov=true"`. A `weight_decay` in it, too,
            is only for groups that bring none.
        model: Needed by the 8-bit optimizers of bitsandbytes, which leave the model's embeddings in 32 bits.

    Raises:
        ArgumentError: an unknown name or setting, a value that cannot be read, no parameter in any group, or an
            optimizer that cannot be built from parameter groups.
        MissingExtra: the optimizer's package is not installed.
    """
    name = str(getattr(name, "value", name))
    groups = [{**group, "params": list(group["params"])} for group in params_groups]
    if not any(group["params"] for group in groups):
        raise ArgumentError(f"optim={name!r} got no parameter to update; is every parameter of the model frozen?")
    recipe = _find(name)
    given = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "warmup_steps": warmup_steps}
    kwargs = {"lr": lr, **{key: given[key] for key in recipe.takes}, **recipe.fixed}
    kwargs.update(_read_options(name, recipe.options, parse_optim_args(optim_args)))
    if "beta3" in kwargs:  # AdEMAMix mixes two averages of the gradient, and takes its three decays as one tuple.
        first, second = kwargs.pop("beta1", betas[0]), kwargs.pop("beta2", betas[1])
        kwargs["betas"] = (first, second, kwargs.pop("beta3"))
    optimizer_class = _resolve(name, recipe)
    if recipe.package == "bitsandbytes" and kwargs["optim_bits"] == 8 and model is None:
        raise ArgumentError(f"optim={name!r} needs model=: it leaves the embeddings in 32 bits")
    optimizer = optimizer_class(groups, **kwargs)
    if recipe.package == "bitsandbytes" and kwargs["optim_bits"] == 8 and model is not None:
        _keep_embeddings_in_32_bits(model)
    return optimizer


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


def _resolve(name: str, recipe: Recipe) -> Callable[..., Optimizer]:
    """Import the class of a recipe; only a package that is not there, or too old, is a missing extra."""
    if not isinstance(recipe.target, str):
        return recipe.target
    module_name, _, class_name = recipe.target.partition(":")
    try:
        found: Callable[..., Optimizer] = getattr(importlib.import_module(module_name), class_name)
    except (ModuleNotFoundError, AttributeError) as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else module_name
        if (absent or "").partition(".")[0] != module_name.partition(".")[0]:
            raise
        raise MissingExtra(
            f"optim={name!r} needs {recipe.package}: pip install {shlex.quote(recipe.package)}"
        ) from error
    return found


def _keep_embeddings_in_32_bits(model: nn.Module) -> None:
    """Register every embedding of `model` with bitsandbytes, whose 8-bit states are unstable there (2110.02861)."""
    manager = importlib.import_module("bitsandbytes").optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
