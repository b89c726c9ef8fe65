"""What `sharded_ddp`, `sharding`, `fsdp` and `fsdp_config` say, in all their spellings, as one thing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...events.errors import nearest

STAGES = ("stage1", "stage2", "stage3")
"""The stages of `sharding`: optimizer states, gradients with them, weights with both."""

OPTIONS = ("simple", "zero_dp_2", "zero_dp_3", "offload", "auto_wrap", "fairscale")
"""The words of `sharded_ddp`."""

STRATEGIES = ("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2")
"""The words of `fsdp` of which there may be one: whether the weights are split between forward and backward too, over
all processes or over those of each machine."""

WORDS = (*STRATEGIES, "no_shard", "offload", "auto_wrap")
"""The words of `fsdp`."""

POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
"""What `auto_wrap_policy` takes."""

STATE_DICTS = ("FULL_STATE_DICT", "SHARDED_STATE_DICT")
"""What `state_dict_type` takes."""

HALVES = ("bf16", "fp16", "no")
"""What `mixed_precision` takes."""

SWITCHES = ("cpu_offload", "activation_checkpointing", "cpu_ram_efficient_loading", "sync_module_states")
"""The keys of `fsdp_config` that are true or false."""

OUTDATED = ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params")
"""The keys of FSDP1 that change nothing with FSDP2."""

XLA = ("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt", "xla_fsdp_settings")
"""The keys that are about TPUs."""

OTHER_KEYS = {
    "offload_params": "cpu_offload",
    "sharding_strategy": "reshard_after_forward",
    "transformer_cls_names_to_wrap": "transformer_layer_cls_to_wrap",
    "mixed_precision_policy": "mixed_precision",
}
"""Other names of keys: those of accelerate and of earlier versions."""

KEYS = (
    *("version", "transformer_layer_cls_to_wrap", "min_num_params", "auto_wrap_policy", "reshard_after_forward"),
    *("mixed_precision", "state_dict_type", *SWITCHES, *OUTDATED, *XLA, *OTHER_KEYS),
)
"""The keys of `fsdp_config`."""


@dataclass
class Splitting:
    """How the weights are split by PyTorch's `fully_shard`."""

    wrap: tuple[str, ...] | int | None = None
    """Which modules are gathered at once: classes, those of so many weights, or, by default, what the model says."""
    reshard_after_forward: bool = True
    """Whether gathered weights are let go between forward and backward."""
    offload: bool = False
    """Whether weights, gradients and optimizer states wait in the host's memory."""
    within_node: bool = False
    """Whether the weights are split over the processes of each machine, and the same on all machines."""
    mixed_precision: str | None = None
    """`bf16` or `fp16`, in which weights are gathered and computed with; None for as they are."""
    activation_checkpointing: bool = False
    """Whether activations are computed again in backward."""
    whole_optimizer: bool = False
    """Whether the optimizer's state is gathered, and saved by the first process."""
    ignored: tuple[str, ...] = ()
    """Keys that change nothing here."""
    problems: list[str] = field(default_factory=list)
    """What is wrong with what was given."""


def words_of(value: Any) -> list[str]:
    """Return the words of an option: a text of them, or a list of words."""
    if value in (None, False, True):
        return []
    words = value.split() if isinstance(value, str) else [str(getattr(word, "value", word)) for word in value]
    return [word.lower() for word in words]


def sharded_ddp_words(value: Any) -> list[str]:
    """Return the words of `sharded_ddp`; True stands for 'simple'."""
    return ["simple"] if value is True else words_of(value)


def read_splitting(sharded_ddp: Any, sharding: str, fsdp: Any, fsdp_config: Any) -> Splitting:
    """Return how these arguments want the weights to be split.

    What is wrong is in `problems`, and then the rest does not count.
    """
    made = Splitting()
    old, stages, words = sharded_ddp_words(sharded_ddp), words_of(sharding), words_of(fsdp)
    made.problems += _wrong_sharded_ddp(f"`sharded_ddp` is {sharded_ddp!r}", old)
    made.problems += _wrong_sharding(f"`sharding` is {sharding!r}", stages)
    if fsdp:
        made.problems += _wrong_words(f"`fsdp` is {fsdp!r}", words)
        made.reshard_after_forward = not {"shard_grad_op", "hybrid_shard_zero2"} & {*words}
        made.within_node = any(word.startswith("hybrid") for word in words)
        _read_config(made, fsdp_config)
    else:
        made.reshard_after_forward = not {"zero_dp_2", "stage2"} & {*old, *stages}
    made.offload = made.offload or "offload" in (*old, *stages, *words)
    return made


def _wrong_sharded_ddp(said: str, words: list[str]) -> Iterator[str]:
    yield from _unknown(said, words, OPTIONS)
    if "simple" in words and len(words) > 1:
        yield f"{said}; `--sharded_ddp simple` is not compatible with any other option."
    elif {"zero_dp_2", "zero_dp_3"} <= {*words}:
        yield f"{said}; `--sharded_ddp zero_dp_2` is not compatible with `--sharded_ddp zero_dp_3`."
    elif words and {*words} <= {"offload", "auto_wrap", "fairscale"}:
        given = " ".join(words)
        yield (
            f"{said}; `--sharded_ddp {given}` can't work on its own: it goes with zero_dp_2 or zero_dp_3, as in "
            f"'zero_dp_2 {given}'."
        )


def _wrong_sharding(said: str, words: list[str]) -> Iterator[str]:
    stages = [word for word in words if word != "offload"]
    yield from _unknown(said, stages, STAGES, also=("offload",))
    if len(stages) > 1:
        yield f"{said}; it has one stage."
    if "offload" in words and (not stages or stages == ["stage1"]):
        yield (
            f"{said}; `--sharding offload` can't work on its own, nor with stage1: it goes with stage2 or stage3, "
            "as in 'stage2 offload'."
        )


def _wrong_words(said: str, words: list[str]) -> Iterator[str]:
    yield from _unknown(said, words, WORDS)
    strategies = [word for word in words if word in STRATEGIES]
    if "no_shard" in words:
        yield f"{said}, which splits nothing: leave `fsdp` out, and DDP trains."
    elif len(strategies) > 1:
        yield f"{said}; give one of {' and '.join(map(repr, strategies))}."
    elif "offload" in words and not strategies:
        yield f"{said}; offload goes with full_shard or shard_grad_op, as in 'full_shard offload'."


def _unknown(said: str, words: Iterable[str], known: tuple[str, ...], also: tuple[str, ...] = ()) -> Iterator[str]:
    for word in words:
        if word not in known:
            yield f"{said}{nearest(word, known)} Known: {', '.join((*known, *also))}."


def _read_config(made: Splitting, given: Any) -> None:
    try:
        config = _config_of(given)
    except (OSError, ValueError) as error:
        made.problems.append(f"`fsdp_config` is {given!r}, which cannot be read: {error}")
        return
    for key, value in config.items():
        if problem := _wrong_value(key, value):
            made.problems.append(f"`fsdp_config` has {key!r}{problem}")
    if made.problems:
        return
    made.ignored = tuple(key for key in config if key in OUTDATED)
    strategy = str(config.get("reshard_after_forward", "")).lower()
    if strategy in STRATEGIES:
        made.within_node = strategy.startswith("hybrid")
        made.reshard_after_forward = strategy in ("full_shard", "hybrid_shard")
    elif strategy:
        made.reshard_after_forward = _truth(config["reshard_after_forward"])
    made.offload = _truth(config.get("cpu_offload", False))
    made.activation_checkpointing = _truth(config.get("activation_checkpointing", False))
    made.whole_optimizer = str(config.get("state_dict_type", "")).upper() == "FULL_STATE_DICT"
    half = str(config.get("mixed_precision") or "no")
    made.mixed_precision = None if half == "no" else half
    made.wrap = _wrap_of(made, config)


def _wrap_of(made: Splitting, config: Mapping[str, Any]) -> tuple[str, ...] | int | None:
    names = config.get("transformer_layer_cls_to_wrap") or ()
    names = tuple(name.strip() for name in (names.split(",") if isinstance(names, str) else names))
    size = int(config.get("min_num_params", 0))
    policy = str(config.get("auto_wrap_policy", "")).upper()
    if names and size:
        made.problems.append(
            "`fsdp_config` has 'transformer_layer_cls_to_wrap' and 'min_num_params', which are two ways to say what is "
            "gathered at once: give one."
        )
    if policy == "SIZE_BASED_WRAP" and not size:
        made.problems.append("`fsdp_config` has 'auto_wrap_policy' by size, and no 'min_num_params': give that.")
    if policy == "NO_WRAP":
        return ()
    return names or size or None


def _config_of(given: Any) -> dict[str, Any]:
    if isinstance(given, str) and given:
        with open(os.path.expanduser(given), encoding="utf-8") as file:
            given = json.load(file)
        if not isinstance(given, dict):
            raise ValueError("it holds no JSON object")
    plain = {key.removeprefix("fsdp_"): value for key, value in (given or {}).items()}
    return {OTHER_KEYS.get(key, key): value for key, value in plain.items()}


def _wrong_value(key: str, value: Any) -> str:
    """Return what is wrong with a value of `fsdp_config`, to go on after its key; an empty string if nothing is."""
    if key not in KEYS:
        return f"{nearest(key, KEYS)} Known: {', '.join(KEYS)}."
    if key in XLA and value:
        return f"={value!r}, and there is no XLA here: leave it out."
    if key == "version" and str(value) != "2":
        return f"={value!r}; the weights are split by `fully_shard`, which is version 2: leave it out."
    if key == "min_num_params" and not (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return f"={value!r}; give a number of weights."
    if key in SWITCHES and _truth(value) is None:
        return f"={value!r}; give true or false."
    if key == "sync_module_states" and not _truth(value):
        return f"={value!r}; all processes begin with the weights of the first: leave it out."
    closed = {"auto_wrap_policy": POLICIES, "state_dict_type": STATE_DICTS}
    if key in closed and str(value).upper() not in closed[key]:
        return f"={value!r}{nearest(str(value).upper(), closed[key])} Known: {', '.join(closed[key])}."
    if key == "mixed_precision" and value is not None and value not in HALVES:
        return f"={value!r}{nearest(str(value), HALVES)} Known: {', '.join(HALVES)}."
    if key == "reshard_after_forward" and _truth(value) is None and str(value).lower() not in STRATEGIES:
        return f"={value!r}{nearest(str(value).lower(), STRATEGIES)} Known: true, false, {', '.join(STRATEGIES)}."
    return ""


def _truth(value: Any) -> Any:
    """Return a value, or the word for it, as true or false; None if it is neither."""
    return {"true": True, "false": False}.get(str(value).lower())
