"""The table of optimizers: what each name of `optim=` means.

A recipe is pure data: which class a name stands for, where it lives, and which arguments it gets. A class from another
package is named as text and imported when it is asked for, so that the table costs nothing and says what to install.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.optim import SGD, Adagrad, AdamW, Optimizer, RMSprop

from .adafactor import Adafactor


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


def _one_of(*names: str) -> Reader:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"it is one of {', '.join(names)}")
        return text

    return read


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
    low_rank: Mapping[str, Any] = field(default_factory=dict)
    """What the weights get whose gradients it projects to a low rank, with the defaults; empty if it projects none."""
    low_rank_takes: tuple[str, ...] = ()
    """Which of betas and eps those weights are given."""
    projectors: Mapping[str, str] = field(default_factory=dict)
    """The classes that project, as "module:Class", by the setting `proj` where it chooses, else under ""."""
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
_LAYERWISE = "it updates each parameter inside the backward pass, which the training step does not do"
_PROJECTION: dict[str, Reader] = {
    "rank": int,
    "update_proj_gap": int,
    "scale": float,
    "proj_type": _one_of("std", "reverse_std", "right", "left", "full"),
}
_GALORE = Recipe(
    "galore_torch:GaLoreAdamW",
    "galore-torch",
    options=_PROJECTION,
    low_rank={"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"},
    projectors={"": "galore_torch.galore_projector:GaLoreProjector"},
)
_GALORE_ADAFACTOR = replace(
    _GALORE, target="galore_torch:GaLoreAdafactor", fixed={"scale_parameter": False, "relative_step": False}
)
_APOLLO = Recipe(
    "apollo_torch:APOLLOAdamW",
    "apollo-torch",
    options={
        **_PROJECTION,
        "proj": _one_of("random", "svd"),
        "scale_type": _one_of("channel", "tensor"),
        "proj_type": _one_of("std", "reverse_std", "right", "left"),
    },
    low_rank={
        "rank": 128,
        "proj": "random",
        "scale_type": "channel",
        "update_proj_gap": 200,
        "scale": 1.0,
        "proj_type": "std",
    },
    low_rank_takes=_ADAM,
    projectors={
        "random": "apollo_torch.random_projector:GradientProjector",
        "svd": "apollo_torch.svd_projector:GaLoreProjector",
    },
)
_LOMO = Recipe("lomo_optim:Lomo", "lomo-optim", refused=_LAYERWISE)

OPTIMIZERS: dict[str, Recipe] = {
    "adamw_torch_fused": _with(_TORCH_ADAMW, fused=True),
    "adamw_torch": _TORCH_ADAMW,
    "adamw": _TORCH_ADAMW,
    "adamw_hf": _TORCH_ADAMW,
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
    # Its class warns of its own age; nobody who asks for it by name can do anything about that.
    "galore_adamw": _with(_GALORE, no_deprecation_warning=True),
    "galore_adamw_8bit": replace(_GALORE, target="galore_torch:GaLoreAdamW8bit"),
    "galore_adafactor": _GALORE_ADAFACTOR,
    "galore_adamw_layerwise": replace(_GALORE, refused=_LAYERWISE),
    "galore_adamw_8bit_layerwise": replace(_GALORE, target="galore_torch:GaLoreAdamW8bit", refused=_LAYERWISE),
    "galore_adafactor_layerwise": replace(_GALORE_ADAFACTOR, refused=_LAYERWISE),
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
