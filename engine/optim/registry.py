"""The optimizers that `optim=` can name: one row per name, with all properties that other modules read.

To add an optimizer, add a row to `OPTIMIZERS`. The argument check, the error messages, the memory estimate, the
callback `ScheduleFree`, the checks of sharding and the compatibility page read the row. The rows import nothing.
Therefore `trainbus plan` works without torch, and a row costs nothing for users who do not have its package.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer

OptionReader = Callable[[str], Any]
"""A function that converts the text of an option to its value, and raises `ValueError` for a wrong text."""


@dataclass(frozen=True)
class Projection:
    """How an optimizer projects gradients to a low rank (GaLore, APOLLO)."""

    defaults: Mapping[str, Any]
    """Option of the parameter group with the projected weights -> its default."""
    projectors: Mapping[str, str]
    """Value of the option `proj` -> projector class as "module:Class". Without this option, the only key is ""."""
    receives: tuple[str, ...] = ()
    """Which of `betas` and `eps` the group with the projected weights also receives."""


@dataclass(frozen=True)
class OptimizerSpec:
    """One row of the registry: how to build an optimizer, and its properties."""

    target: type[Optimizer] | str
    """The optimizer class itself, or "module:Class", which `build_optimizer` imports on first use."""
    package: str = ""
    """The package to install, as `pip install` takes it. Empty if torch or trainbus has the class."""
    receives: tuple[str, ...] = ()
    """Which of `betas`, `eps`, `weight_decay` and `warmup_steps` the class receives, besides the learning rate."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Default keyword arguments of the class. `optim_args` overrides them. The function in `options` converts a default
    that is a string, as it converts the text in `optim_args`."""
    options: Mapping[str, OptionReader] = field(default_factory=dict)
    """Option that `optim_args` may set -> function that converts its text. The value in `optim_args` overrides the
    value of `receives` or `defaults`."""
    beta_options: tuple[str, ...] = ()
    """Names of the options that the class takes as one tuple `betas`. If neither `optim_args` nor `defaults` sets such
    an option, it has the value of the training argument `adam_beta1` or `adam_beta2`."""
    projection: Projection | None = None
    """How the optimizer projects gradients to a low rank. None if it does not project gradients."""
    state_bytes: float | None = None
    """Bytes of optimizer state per weight element, with float32 weights. None if the number depends on the rank of a
    projection, or is not known. The memory estimate then refuses the optimizer."""
    shape_dependent: bool = False
    """Whether the update depends on the shape or the norm of a whole weight. On a flat shard such an optimizer gives
    other results. Ways to shard that flatten weights therefore refuse such an optimizer."""
    train_eval_modes: bool = False
    """Whether the optimizer has the methods `train()` and `eval()`, which switch between the weights for training and
    for evaluation. The callback `ScheduleFree` then calls both methods. Ways to shard the optimizer state refuse such
    an optimizer."""
    embeddings_in_32_bits: bool = False
    """Whether embeddings must keep 32-bit optimizer state. `build_optimizer` then needs the model."""
    unsupported: str = ""
    """Why trainbus does not build this optimizer, and what to do instead. Empty if trainbus builds it."""

    @property
    def class_name(self) -> str:
        """Name of the optimizer class."""
        return self.target.rpartition(":")[2] if isinstance(self.target, str) else self.target.__name__


def _bool(text: str) -> bool:
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise ValueError("write true or false")


def _dtype(text: str) -> Any:
    torch = importlib.import_module("torch")
    dtype = getattr(torch, text, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError("write a torch dtype, such as bfloat16")
    return dtype


def _one_of(*names: str) -> OptionReader:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"write one of {', '.join(names)}")
        return text

    return read


def _with_defaults(spec: OptimizerSpec, **defaults: Any) -> OptimizerSpec:
    return replace(spec, defaults={**spec.defaults, **defaults})


# Reasons why an optimizer cannot be built by name.

_LAYERWISE = (
    "trainbus does not build this kind of optimizer, because it updates each parameter inside the backward pass. The "
    "callback OptimizerInBackward() does the same with other optimizers, such as optim='adamw_torch'."
)
_NO_DEVICE = "This optimizer needs {}, but trainbus runs on CPU and CUDA. Use optim='adamw_torch_fused'."

# Rows that several names share.

_ADAM = ("betas", "eps")
_ADAMW = OptimizerSpec("torch.optim:AdamW", receives=_ADAM, state_bytes=8.0)
_ADAFACTOR = {"scale_parameter": False, "relative_step": False}

_BNB_ADAMW = OptimizerSpec(
    "bitsandbytes.optim:AdamW",
    "bitsandbytes",
    _ADAM,
    {"optim_bits": 32, "is_paged": False},
    state_bytes=8.0,
)
_BNB_LION = replace(_BNB_ADAMW, target="bitsandbytes.optim:Lion", receives=("betas",), state_bytes=4.0)
_BNB_ADEMAMIX = replace(
    _BNB_ADAMW,
    target="bitsandbytes.optim:AdEMAMix",
    defaults={**_BNB_ADAMW.defaults, "alpha": 5.0, "beta3": 0.9999},
    options={
        "beta1": float,
        "beta2": float,
        "beta3": float,
        "alpha": float,
        "eps": float,
        "t_alpha": int,
        "t_beta3": int,
    },
    beta_options=("beta1", "beta2", "beta3"),
    state_bytes=12.0,
)
_BNB_RMSPROP = OptimizerSpec(
    "bitsandbytes.optim:RMSprop",
    "bitsandbytes",
    defaults={"optim_bits": 32},
    options={"alpha": float, "eps": float, "weight_decay": float, "momentum": float, "centered": _bool},
    state_bytes=4.0,
)


def _paged(spec: OptimizerSpec) -> OptimizerSpec:
    """Build the registry row for the paged form of a bitsandbytes optimizer. Paged state can move to host memory."""
    return _with_defaults(spec, is_paged=True)


def _8bit(spec: OptimizerSpec) -> OptimizerSpec:
    """Build the registry row for the 8-bit form of a bitsandbytes optimizer.

    8-bit state has a quarter of the size of 32-bit state.
    """
    assert spec.state_bytes is not None
    eight_bit = _with_defaults(spec, optim_bits=8)
    return replace(eight_bit, state_bytes=spec.state_bytes / 4, embeddings_in_32_bits=True)


_TORCHAO_8BIT = OptimizerSpec(
    "torchao.optim:AdamW8bit",
    "torchao>=0.11",
    _ADAM,
    {"block_size": 256, "bf16_stochastic_round": False},
    {"block_size": int, "bf16_stochastic_round": _bool},
    state_bytes=2.0,
)
_SCHEDULE_FREE = OptimizerSpec(
    "schedulefree:AdamWScheduleFree",
    "schedulefree>=1.4",
    (*_ADAM, "weight_decay", "warmup_steps"),
    {"weight_lr_power": 2.0, "r": 0.0},
    {"weight_lr_power": float, "r": float},
    state_bytes=8.0,
    train_eval_modes=True,
)
_GROKADAMW = {
    "alpha_init": 0.98,
    "lamb": 2.0,
    "gamma": 0.1,
    "grokking_signal_decay_rate": 0.1,
    "gradient_clipping": 1.0,
}
_PROJECTION_OPTIONS: dict[str, OptionReader] = {
    "rank": int,
    "update_proj_gap": int,
    "scale": float,
    "proj_type": _one_of("std", "reverse_std", "right", "left", "full"),
}
_GALORE = OptimizerSpec(
    "galore_torch:GaLoreAdamW",
    "galore-torch",
    options=_PROJECTION_OPTIONS,
    projection=Projection(
        defaults={"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"},
        projectors={"": "galore_torch.galore_projector:GaLoreProjector"},
    ),
    shape_dependent=True,
)
_GALORE_8BIT = replace(_GALORE, target="galore_torch:GaLoreAdamW8bit")
_GALORE_ADAFACTOR = replace(_GALORE, target="galore_torch:GaLoreAdafactor", defaults=_ADAFACTOR)
_APOLLO = OptimizerSpec(
    "apollo_torch:APOLLOAdamW",
    "apollo-torch",
    options={
        **_PROJECTION_OPTIONS,
        "proj": _one_of("random", "svd"),
        "scale_type": _one_of("channel", "tensor"),
        "proj_type": _one_of("std", "reverse_std", "right", "left"),
    },
    projection=Projection(
        defaults={
            "rank": 128,
            "proj": "random",
            "scale_type": "channel",
            "update_proj_gap": 200,
            "scale": 1.0,
            "proj_type": "std",
        },
        projectors={
            "random": "apollo_torch.random_projector:GradientProjector",
            "svd": "apollo_torch.svd_projector:GaLoreProjector",
        },
        receives=_ADAM,
    ),
    shape_dependent=True,
)
_LOMO = OptimizerSpec("lomo_optim:Lomo", "lomo-optim", shape_dependent=True, unsupported=_LAYERWISE)

OPTIMIZERS: dict[str, OptimizerSpec] = {
    "adamw_torch_fused": _with_defaults(_ADAMW, fused=True),
    "adamw_torch": _ADAMW,
    "adamw": _ADAMW,
    "adamw_hf": _ADAMW,
    # Adafactor keeps one number per row and column, which is next to nothing per parameter.
    "adafactor": OptimizerSpec(
        f"{__name__.rpartition('.')[0]}.adafactor:Adafactor", defaults=_ADAFACTOR, state_bytes=0.0, shape_dependent=True
    ),
    "sgd": OptimizerSpec(
        "torch.optim:SGD",
        options={"momentum": float, "dampening": float, "weight_decay": float, "nesterov": _bool},
        state_bytes=0.0,
    ),
    "adagrad": OptimizerSpec(
        "torch.optim:Adagrad", options={"lr_decay": float, "weight_decay": float, "eps": float}, state_bytes=4.0
    ),
    "rmsprop": OptimizerSpec(
        "torch.optim:RMSprop",
        options={"momentum": float, "alpha": float, "eps": float, "weight_decay": float, "centered": _bool},
        state_bytes=4.0,
    ),
    "adamw_bnb_8bit": _8bit(_BNB_ADAMW),
    "adamw_8bit": _8bit(_BNB_ADAMW),
    "paged_adamw_32bit": _paged(_BNB_ADAMW),
    "paged_adamw_8bit": _paged(_8bit(_BNB_ADAMW)),
    "lion_32bit": _BNB_LION,
    "lion_8bit": _8bit(_BNB_LION),
    "paged_lion_32bit": _paged(_BNB_LION),
    "paged_lion_8bit": _paged(_8bit(_BNB_LION)),
    "ademamix": _BNB_ADEMAMIX,
    "ademamix_8bit": _8bit(_BNB_ADEMAMIX),
    "paged_ademamix_32bit": _paged(_BNB_ADEMAMIX),
    "paged_ademamix_8bit": _paged(_8bit(_BNB_ADEMAMIX)),
    "rmsprop_bnb": _BNB_RMSPROP,
    "rmsprop_bnb_32bit": _BNB_RMSPROP,
    "rmsprop_bnb_8bit": _8bit(_BNB_RMSPROP),
    "adamw_torch_8bit": _TORCHAO_8BIT,
    "adamw_torch_4bit": replace(_TORCHAO_8BIT, target="torchao.optim:AdamW4bit", state_bytes=1.0),
    "adamw_anyprecision": OptimizerSpec(
        "torchdistx.optimizers:AnyPrecisionAdamW",
        "git+https://github.com/pytorch/torchdistx",
        _ADAM,
        {
            "use_kahan_summation": False,
            "momentum_dtype": "float32",
            "variance_dtype": "float32",
            "compensation_buffer_dtype": "bfloat16",
        },
        {
            "use_kahan_summation": _bool,
            "momentum_dtype": _dtype,
            "variance_dtype": _dtype,
            "compensation_buffer_dtype": _dtype,
        },
        state_bytes=8.0,
    ),
    "grokadamw": OptimizerSpec(
        "grokadamw:GrokAdamW",
        "grokadamw",
        defaults=_GROKADAMW,
        options=dict.fromkeys(_GROKADAMW, float),
        state_bytes=12.0,
    ),
    "stable_adamw": OptimizerSpec(
        "optimi:StableAdamW",
        "torch-optimi",
        (*_ADAM, "weight_decay"),
        {"decouple_lr": False, "max_lr": None, "kahan_sum": None},
        {"decouple_lr": _bool, "max_lr": float, "kahan_sum": _bool},
        state_bytes=8.0,
        shape_dependent=True,
    ),
    "schedule_free_adamw": _SCHEDULE_FREE,
    "schedule_free_radam": replace(
        _SCHEDULE_FREE, target="schedulefree:RAdamScheduleFree", receives=(*_ADAM, "weight_decay")
    ),
    "schedule_free_sgd": replace(
        _SCHEDULE_FREE,
        target="schedulefree:SGDScheduleFree",
        receives=("weight_decay", "warmup_steps"),
        state_bytes=4.0,
    ),
    # Without this option, the class warns about its own deprecation, which users of the name cannot change.
    "galore_adamw": _with_defaults(_GALORE, no_deprecation_warning=True),
    "galore_adamw_8bit": _GALORE_8BIT,
    "galore_adafactor": _GALORE_ADAFACTOR,
    "galore_adamw_layerwise": replace(_GALORE, unsupported=_LAYERWISE),
    "galore_adamw_8bit_layerwise": replace(_GALORE_8BIT, unsupported=_LAYERWISE),
    "galore_adafactor_layerwise": replace(_GALORE_ADAFACTOR, unsupported=_LAYERWISE),
    "apollo_adamw": _APOLLO,
    "apollo_adamw_layerwise": replace(_APOLLO, unsupported=_LAYERWISE),
    "lomo": _LOMO,
    "adalomo": replace(_LOMO, target="lomo_optim:AdaLomo"),
    "adamw_torch_xla": OptimizerSpec(
        "torch_xla.amp.syncfree:AdamW", "torch_xla", unsupported=_NO_DEVICE.format("an XLA device (TPU)")
    ),
    "adamw_torch_npu_fused": OptimizerSpec(
        "torch_npu.optim:NpuFusedAdamW", "torch_npu", unsupported=_NO_DEVICE.format("an Ascend NPU")
    ),
}
"""Name -> row, in the order in which error messages and docs list the names."""

OTHER_SHAPE_DEPENDENT = ("apollo", "came", "galore", "lamb", "lars", "lomo", "muon", "shampoo", "soap")
"""Words in the lowercase class names of shape-dependent optimizers that have no row, but that users pass as a class."""


def name_of(optim: Any) -> str:
    """Return the name of an optimizer as text. `optim` is a text, or a member of an enum such as `OptimizerNames`."""
    return str(getattr(optim, "value", optim))


def has_train_eval_modes(optim: Any) -> bool:
    """Return whether the optimizer with this name has `train()` and `eval()`. False for an unknown name."""
    spec = OPTIMIZERS.get(name_of(optim))
    return spec is not None and spec.train_eval_modes


def is_shape_dependent(class_name: str) -> bool:
    """Return whether an optimizer class gives different results on a flat shard of a weight than on the whole weight.

    If the class has a row in `OPTIMIZERS`, the row decides. Another class counts as shape-dependent if its name
    contains the name of a shape-dependent class, or a word of `OTHER_SHAPE_DEPENDENT`, such as `muon`. Case and
    underscores do not matter.
    """
    name = _plain(class_name)
    rows = [spec for spec in OPTIMIZERS.values() if _plain(spec.class_name) == name]
    if rows:
        return any(spec.shape_dependent for spec in rows)
    families = {_plain(spec.class_name) for spec in OPTIMIZERS.values() if spec.shape_dependent}
    return any(family in name for family in (*families, *OTHER_SHAPE_DEPENDENT))


def _plain(class_name: str) -> str:
    return class_name.lower().replace("_", "")
