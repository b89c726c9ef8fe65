"""Convert the arguments `sharded_ddp`, `sharding`, `fsdp` and `fsdp_config` to one `FSDPOptions`.

`engine/distributed/strategies.py` decides which strategy an argument selects.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...events.errors import nearest
from ..distributed.strategies import Strategy, sharded_ddp_words, words_of
from .unique_keys import parse_json


def _words_of_all(argument: str) -> tuple[str, ...]:
    """Return the words of `sharding` or `sharded_ddp` that select a strategy, such as `stage2`."""
    return tuple(word for strategy in Strategy for word in strategy.row.words.get(argument, ()))


STAGES = _words_of_all("sharding")
"""The stages of `sharding`: stage1 shards the optimizer state, stage2 also gradients, stage3 also weights."""

SHARDED_DDP_OPTIONS = ("offload", "auto_wrap")
"""Words of `sharded_ddp` that change a strategy."""

SHARDED_DDP_WORDS = (*_words_of_all("sharded_ddp"), *SHARDED_DDP_OPTIONS)
"""The words of `sharded_ddp`."""

FSDP_STRATEGIES = ("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2")
"""Words of `fsdp` that exclude each other. `full_shard` and `hybrid_shard` free the gathered weights between forward
and backward. `shard_grad_op` and `hybrid_shard_zero2` do not free the weights until backward is done. The hybrid
strategies shard over the ranks of each machine, not over all ranks."""

FSDP_WORDS = (*FSDP_STRATEGIES, "no_shard", "offload", "auto_wrap")
"""The words of `fsdp`."""

POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
"""Values of `auto_wrap_policy` in `fsdp_config`."""

STATE_DICTS = ("FULL_STATE_DICT", "SHARDED_STATE_DICT")
"""Values of `state_dict_type` in `fsdp_config`."""

HALVES = ("bf16", "fp16", "no")
"""Values of `mixed_precision` in `fsdp_config`."""

SWITCHES = ("cpu_offload", "activation_checkpointing", "cpu_ram_efficient_loading", "sync_module_states")
"""Keys of `fsdp_config` that are true or false."""

OUTDATED = ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params")
"""Keys of FSDP1 that have no effect with FSDP2."""

XLA = ("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt", "xla_fsdp_settings")
"""Keys of `fsdp_config` for TPUs. A true value of such a key is an error."""

OTHER_KEYS = {
    "offload_params": "cpu_offload",
    "sharding_strategy": "reshard_after_forward",
    "transformer_cls_names_to_wrap": "transformer_layer_cls_to_wrap",
    "mixed_precision_policy": "mixed_precision",
}
"""Other names of keys, from accelerate and from earlier versions -> the name that is used here."""

KEYS = (
    "version",
    "transformer_layer_cls_to_wrap",
    "min_num_params",
    "auto_wrap_policy",
    "reshard_after_forward",
    "mixed_precision",
    "state_dict_type",
    *SWITCHES,
    *OUTDATED,
    *XLA,
    *OTHER_KEYS,
)
"""The keys of `fsdp_config`."""


@dataclass
class FSDPOptions:
    """How PyTorch's `fully_shard` shards the weights."""

    wrap: tuple[str, ...] | int | None = None
    """Which modules are gathered as one unit: the class names of the modules, or the smallest number of parameter
    elements in a unit. An empty tuple: the whole model is one unit. None: the classes that the model names in
    `_no_split_modules`. If the model names none: the members of its outermost `nn.ModuleList`s."""
    reshard_after_forward: bool = True
    """Whether gathered weights are freed between forward and backward."""
    offload: bool = False
    """Whether weights, gradients and optimizer state are stored in host memory."""
    within_node: bool = False
    """Whether each machine has a full copy of the weights, sharded over the ranks of the machine."""
    mixed_precision: str | None = None
    """The dtype of gathered weights and of the computation, `bf16` or `fp16`. None keeps the dtype of the weights."""
    activation_checkpointing: bool = False
    """Whether backward recomputes activations."""
    whole_optimizer: bool = False
    """Whether rank 0 gathers the optimizer state and saves it in one file."""
    ignored: tuple[str, ...] = ()
    """Keys of the user's `fsdp_config` that have no effect."""
    problems: list[str] = field(default_factory=list)
    """Problems of the arguments. If there are any, the other fields are not valid."""


def read_fsdp_options(sharded_ddp: Any, sharding: str, fsdp: Any, fsdp_config: Any) -> FSDPOptions:
    """Return the FSDP options that the four arguments set. The field `problems` lists invalid arguments."""
    options = FSDPOptions()
    sharded_ddp_given, stages, words = sharded_ddp_words(sharded_ddp), words_of(sharding), words_of(fsdp)
    options.problems += _problems_of_sharded_ddp(f"`sharded_ddp` is {sharded_ddp!r}", sharded_ddp_given)
    options.problems += _problems_of_sharding(f"`sharding` is {sharding!r}", stages)
    if fsdp:
        options.problems += _problems_of_fsdp(f"`fsdp` is {fsdp!r}", words)
        options.reshard_after_forward = not {"shard_grad_op", "hybrid_shard_zero2"} & {*words}
        options.within_node = any(word.startswith("hybrid") for word in words)
        _read_config(options, fsdp_config)
    else:
        options.reshard_after_forward = not {"zero_dp_2", "stage2"} & {*sharded_ddp_given, *stages}
    options.offload = options.offload or "offload" in (*sharded_ddp_given, *stages, *words)
    return options


def _problems_of_sharded_ddp(given: str, words: list[str]) -> Iterator[str]:
    yield from _unknown(given, words, SHARDED_DDP_WORDS)
    if "simple" in words and len(words) > 1:
        yield f"{given}; `--sharded_ddp simple` is not compatible with any other option."
    elif {"zero_dp_2", "zero_dp_3"} <= {*words}:
        yield f"{given}; `--sharded_ddp zero_dp_2` is not compatible with `--sharded_ddp zero_dp_3`."
    elif words and {*words} <= {*SHARDED_DDP_OPTIONS, "fairscale"}:
        options = " ".join(words)
        yield (
            f"{given}; `--sharded_ddp {options}` can't work on its own. Add zero_dp_2 or zero_dp_3, as in "
            f"'zero_dp_2 {options}'."
        )


def _problems_of_sharding(given: str, words: list[str]) -> Iterator[str]:
    stages = [word for word in words if word != "offload"]
    yield from _unknown(given, stages, STAGES, also=("offload",))
    if len(stages) > 1:
        yield f"{given}; set one stage only."
    if "offload" in words and (not stages or stages == ["stage1"]):
        yield (
            f"{given}; `--sharding offload` can't work on its own, or with stage1. Use it with stage2 or stage3, as in "
            "'stage2 offload'."
        )


def _problems_of_fsdp(given: str, words: list[str]) -> Iterator[str]:
    yield from _unknown(given, words, FSDP_WORDS)
    strategies = [word for word in words if word in FSDP_STRATEGIES]
    if "no_shard" in words:
        yield f"{given}, which shards nothing; remove `fsdp` to train with DDP."
    elif len(strategies) > 1:
        yield f"{given}; set only one of {' and '.join(map(repr, strategies))}."
    elif "offload" in words and not strategies:
        yield f"{given}; use offload with full_shard or shard_grad_op, as in 'full_shard offload'."


def _unknown(given: str, words: Iterable[str], known: tuple[str, ...], also: tuple[str, ...] = ()) -> Iterator[str]:
    for word in words:
        if word not in known:
            yield f"{given}{nearest(word, known)} Known: {', '.join((*known, *also))}."


def _read_config(options: FSDPOptions, given: Any) -> None:
    try:
        config = _config_of(given)
    except (OSError, ValueError) as error:
        options.problems.append(f"`fsdp_config` is {given!r}, which cannot be read: {error}")
        return
    for key, value in config.items():
        if problem := _problem_of_key(key, value):
            options.problems.append(f"`fsdp_config` has {key!r}{problem}")
    if options.problems:
        return
    options.ignored = tuple(key for key in config if key in OUTDATED)
    strategy = str(config.get("reshard_after_forward", "")).lower()
    if strategy in FSDP_STRATEGIES:
        options.within_node = strategy.startswith("hybrid")
        options.reshard_after_forward = strategy in ("full_shard", "hybrid_shard")
    elif strategy:
        options.reshard_after_forward = bool(_as_bool(config["reshard_after_forward"]))
    options.offload = bool(_as_bool(config.get("cpu_offload", False)))
    options.activation_checkpointing = bool(_as_bool(config.get("activation_checkpointing", False)))
    options.whole_optimizer = str(config.get("state_dict_type", "")).upper() == "FULL_STATE_DICT"
    half = str(config.get("mixed_precision") or "no")
    options.mixed_precision = None if half == "no" else half
    options.wrap = _read_wrap(options, config)


def _read_wrap(options: FSDPOptions, config: Mapping[str, Any]) -> tuple[str, ...] | int | None:
    names = config.get("transformer_layer_cls_to_wrap") or ()
    names = tuple(name.strip() for name in (names.split(",") if isinstance(names, str) else names))
    size = int(config.get("min_num_params", 0))
    policy = str(config.get("auto_wrap_policy", "")).upper()
    if names and size:
        options.problems.append(
            "`fsdp_config` has 'transformer_layer_cls_to_wrap' and 'min_num_params', two ways to select the units that "
            "are gathered; remove one."
        )
    if policy == "SIZE_BASED_WRAP" and not size:
        options.problems.append("`fsdp_config` has 'auto_wrap_policy' by size, but no 'min_num_params'; set it.")
    if policy == "NO_WRAP":
        return ()
    return names or size or None


def _config_of(given: Any) -> dict[str, Any]:
    if isinstance(given, str) and given:
        with open(os.path.expanduser(given), encoding="utf-8-sig") as file:
            given = parse_json(file.read())
        if not isinstance(given, dict):
            raise ValueError("the file must contain a JSON object")
    plain = {key.removeprefix("fsdp_"): value for key, value in (given or {}).items()}
    return {OTHER_KEYS.get(key, key): value for key, value in plain.items()}


def _problem_of_key(key: str, value: Any) -> str:
    """Return the problem of a key of `fsdp_config` or of its value; an empty string if both are valid.

    In an error message, the returned text follows the key.
    """
    if key not in KEYS:
        return f"{nearest(key, KEYS)} Known: {', '.join(KEYS)}."
    if key in XLA and value:
        return f"={value!r}, and XLA is not supported; remove it."
    if key == "version" and str(value) != "2":
        return f"={value!r}; `fully_shard` is version 2. Remove the key."
    if key == "min_num_params" and not (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return f"={value!r}; set it to a number of weights."
    if key in SWITCHES and _as_bool(value) is None:
        return f"={value!r}; set it to true or false."
    if key == "sync_module_states" and not _as_bool(value):
        return f"={value!r}; all ranks start with the weights of rank 0. Remove the key."
    closed = {"auto_wrap_policy": POLICIES, "state_dict_type": STATE_DICTS}
    if key in closed and str(value).upper() not in closed[key]:
        return f"={value!r}{nearest(str(value).upper(), closed[key])} Known: {', '.join(closed[key])}."
    if key == "mixed_precision" and value is not None and value not in HALVES:
        return f"={value!r}{nearest(str(value), HALVES)} Known: {', '.join(HALVES)}."
    if key == "reshard_after_forward" and _as_bool(value) is None and str(value).lower() not in FSDP_STRATEGIES:
        known = ", ".join(FSDP_STRATEGIES)
        return f"={value!r}{nearest(str(value).lower(), FSDP_STRATEGIES)} Known: true, false, {known}."
    return ""


def _as_bool(value: Any) -> bool | None:
    """Return a bool, or the text 'true' or 'false', as a bool; None for any other value."""
    return {"true": True, "false": False}.get(str(value).lower())
