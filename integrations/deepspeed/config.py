"""Read DeepSpeed's configuration, fill it with values of the arguments, and check it against the arguments."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engine.arguments import TrainingArguments
from ...engine.arguments.unique_keys import DuplicateKey, parse_json
from ...events.errors import ArgumentError
from .config_schema import check_schema, without_nulls

AUTO = "auto"
"""The value in a configuration that the trainer replaces with the value of the arguments."""

PRECISION = ("bf16", "fp16", "bf16_full_eval", "fp16_full_eval")
"""The training arguments that together choose the precision of the model."""

BY_WIDTH: dict[str, Callable[[int], int]] = {
    "zero_optimization.reduce_bucket_size": lambda width: width * width,
    "zero_optimization.stage3_prefetch_bucket_size": lambda width: int(0.9 * width * width),
    "zero_optimization.stage3_param_persistence_threshold": lambda width: 10 * width,
}
"""The keys whose "auto" is computed from the model's hidden size, by the formulas of transformers."""

NEED_TOTAL_STEPS = ("WarmupDecayLR", "WarmupCosineLR")
"""DeepSpeed's schedules that need `total_num_steps`."""

SCHEDULERS = {"linear": "WarmupDecayLR", "constant_with_warmup": "WarmupLR"}
"""`lr_scheduler_type` -> the schedule of DeepSpeed that `deepspeed_fill_sections` selects."""

OWN_AUTO = ("data_types", "autotuning")
"""The sections in which DeepSpeed itself accepts the value "auto"."""


@dataclass(frozen=True)
class RunSizes:
    """Sizes of a run, such as its batch size. `complete_config` uses the sizes to fill a configuration."""

    batch_size: int
    """The number of samples in a training batch of one rank."""
    world_size: int
    """The number of ranks."""
    total_steps: int
    """The number of steps of the whole run."""
    hidden_size: int | None = None
    """The hidden size of the model, from `hidden_size_of`. None: unknown."""


@dataclass(frozen=True)
class Rule:
    """The value that the training arguments require for one key of the configuration."""

    key: str
    """The key, with dots between sections: `optimizer.params.lr`."""
    value: Any
    """The value that the arguments give this key."""
    arguments: tuple[str, ...] = ()
    """The arguments that give the value. If the user set one of them, a different value in the configuration is an
    error."""
    source: str = ""
    """The origin of the value as text, such as "the run has 100 steps". If this text is not empty, a different value in
    the configuration is always an error."""


def read_config(given: Any) -> dict[str, Any]:
    """Return a copy of a configuration that is a dict, or read a configuration from a JSON file.

    Raises:
        ArgumentError: if `given` is neither a dict nor a path. Also if the file cannot be read, has no JSON object, or
            has a key twice in one section. An error about the file names the file.
    """
    if isinstance(given, dict):
        return copy.deepcopy(given)
    if not isinstance(given, (str, Path)):
        raise ArgumentError(
            f"DeepSpeed's configuration is of type {type(given).__name__}; give a dict, or the path of a JSON file."
        )
    path = Path(given).expanduser()
    try:
        config = parse_json(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ArgumentError(f"DeepSpeed's configuration {path} cannot be read: {error.strerror}.") from error
    except DuplicateKey as error:
        raise ArgumentError(
            f"DeepSpeed's configuration {path} has {error.key!r} twice in one section; remove one."
        ) from error
    except ValueError as error:
        where = f", line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise ArgumentError(f"DeepSpeed's configuration {path}{where} is not valid JSON: {reason}.") from error
    if not isinstance(config, dict):
        raise ArgumentError(
            f"DeepSpeed's configuration {path} holds a {type(config).__name__}; it must be a JSON object."
        )
    return config


def complete_config(config: dict[str, Any], args: TrainingArguments, sizes: RunSizes) -> dict[str, Any]:
    """Return a copy of a configuration, filled from the arguments and checked against them.

    - A key with the value "auto" gets the value of the arguments. A key with the value null counts as absent.
    - A key with another value keeps this value. The value must agree with the arguments that the user set. Batch sizes,
      `gradient_accumulation_steps` and `total_num_steps` must always agree with the run. With `auto_find_batch_size`,
      the batch sizes of the arguments replace the batch sizes of the configuration.
    - If the batch sizes, `gradient_accumulation_steps` or `gradient_clipping` are absent, the function adds them. If
      the arguments set half precision, the function also adds an absent section `bf16` or `fp16`. It adds no `fp16`
      if there is a section `amp`.
    - With `deepspeed_fill_sections=True`, the function adds the sections `optimizer` and `scheduler`, if they are
      absent. If the section `optimizer` stays absent, DeepSpeed uses the optimizer of the run.
    - If the configuration had no section `optimizer`, the function adds `zero_allow_untested_optimizer` and
      `zero_force_ds_cpu_optimizer`, if they are absent.
    - If the schedule in the configuration needs `total_num_steps`, the function adds this key.

    Raises:
        ArgumentError: if keys are unknown, not supported or of a wrong type, if keys contradict the arguments, or if
            the arguments have no value for a key with "auto". The error lists the keys. Also if
            `deepspeed_fill_sections` is True, and DeepSpeed has no schedule for `lr_scheduler_type`.
    """
    config = without_nulls(copy.deepcopy(config))
    check_schema(config)
    _add_absent(config, args)
    lines: list[str] = []
    if conflicts := _fill(config, args, sizes):
        lines += [
            "DeepSpeed's configuration and the arguments contradict each other:",
            *(f"- {each}" for each in conflicts),
        ]
        lines += ["Write 'auto' in the configuration to use the value of the arguments."]
    if unfilled := [f"- {key} is 'auto', and {why}" for key, why in _unfilled(config)]:
        lines += ["DeepSpeed's configuration has 'auto' where the arguments have no value:", *unfilled]
    if lines:
        raise ArgumentError("\n".join(lines))
    return config


def _fill(config: dict[str, Any], args: TrainingArguments, sizes: RunSizes) -> list[str]:
    """Replace "auto" by the values of the arguments and the run, in place.

    Return an error text for each value in `config` that contradicts the arguments or the run.
    """
    conflicts = []
    for rule in rules(args, sizes):
        section, name = _find(config, rule.key)
        if name not in section:
            continue
        if section[name] == AUTO:
            section[name] = rule.value
        elif _must_agree(rule, args) and _as_list(section[name]) != _as_list(rule.value):
            source = rule.source or ", ".join(f"{name}={getattr(args, name)!r}" for name in rule.arguments)
            conflicts.append(f"{rule.key} is {section[name]!r}, but the arguments give {rule.value!r} ({source})")
    return conflicts


def rules(args: TrainingArguments, sizes: RunSizes) -> Iterator[Rule]:
    """Yield a `Rule` for each key of the configuration that has a value in the training arguments."""
    accumulation, batch_size = args.gradient_accumulation_steps, sizes.batch_size
    total = sizes.world_size * batch_size * accumulation
    # `auto_find_batch_size` changes the sizes with each attempt, so the configuration may have others.
    fixed = not args.auto_find_batch_size
    per_rank = f"per_device_train_batch_size={batch_size}"
    product = f"{sizes.world_size} ranks, {per_rank}, gradient_accumulation_steps={accumulation}"
    yield Rule("train_micro_batch_size_per_gpu", batch_size, source=per_rank if fixed else "")
    yield Rule("train_batch_size", total, source=product if fixed else "")
    yield Rule("gradient_accumulation_steps", accumulation, source=f"gradient_accumulation_steps={accumulation}")
    yield Rule("gradient_clipping", float(args.max_grad_norm or 0), ("max_grad_norm",))
    yield Rule("optimizer.params.lr", args.learning_rate, ("learning_rate",))
    yield Rule("optimizer.params.betas", [args.adam_beta1, args.adam_beta2], ("adam_beta1", "adam_beta2"))
    yield Rule("optimizer.params.eps", args.adam_epsilon, ("adam_epsilon",))
    yield Rule("optimizer.params.weight_decay", args.weight_decay, ("weight_decay",))
    yield Rule("scheduler.params.warmup_min_lr", 0)
    yield Rule("scheduler.params.warmup_max_lr", args.learning_rate, ("learning_rate",))
    yield Rule("scheduler.params.total_num_steps", sizes.total_steps, source=f"the run has {sizes.total_steps} steps")
    # DeepSpeed has no schedule without a warmup.
    warmup = max(1, args.get_warmup_steps(sizes.total_steps))
    yield Rule("scheduler.params.warmup_num_steps", warmup, ("warmup_steps", "warmup_ratio"))
    yield Rule("bf16.enabled", args.bf16 or args.bf16_full_eval, PRECISION)
    yield Rule("fp16.enabled", args.fp16 or args.fp16_full_eval, PRECISION)
    if sizes.hidden_size is not None:
        yield from (Rule(key, formula(sizes.hidden_size)) for key, formula in BY_WIDTH.items())


def hidden_size_of(model: Any) -> int | None:
    """Return the `hidden_size` of a model's config; without `hidden_size`, the largest number in `hidden_sizes`.

    If both are missing in the config, read them from `text_config` of the config. If they are missing there too, return
    None.
    """
    config = getattr(model, "config", None)
    for part in (config, getattr(config, "text_config", None)):
        sizes = (getattr(part, "hidden_size", None), *(getattr(part, "hidden_sizes", None) or ()))
        known = [int(size) for size in sizes if isinstance(size, int)]
        if known:
            return known[0] if sizes[0] is not None else max(known)
    return None


def stage_of(config: dict[str, Any]) -> int:
    """Return the ZeRO stage of a configuration, 0 by default.

    Stage 0 shards nothing. Stage 1 shards optimizer states, stage 2 also gradients, and stage 3 also weights.
    """
    return int(config.get("zero_optimization", {}).get("stage", 0))


def precision_of(config: dict[str, Any]) -> str:
    """Return the half precision that the configuration turns on: `bf16` or `fp16`.

    If the configuration turns on neither, return an empty text. The weights then keep the precision of the model.
    """
    return next((name for name in ("bf16", "fp16") if config.get(name, {}).get("enabled") is True), "")


def _add_absent(config: dict[str, Any], args: TrainingArguments) -> None:
    if args.auto_find_batch_size:
        config.update(train_batch_size=AUTO, train_micro_batch_size_per_gpu=AUTO)
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        config.setdefault(name, AUTO)
    config.setdefault("gradient_clipping", AUTO)
    if args.bf16:
        config.setdefault("bf16", {}).setdefault("enabled", True)
    if args.fp16 and "amp" not in config:
        if "fp16" not in config and args.scale_loss is not None:
            config["fp16"] = {"initial_scale_power": round(math.log2(args.scale_loss))}
        config.setdefault("fp16", {}).setdefault("enabled", True)
    if args.deepspeed_fill_sections:
        _add_sections(config, args)
    if "optimizer" not in config:  # DeepSpeed refuses an optimizer that it does not know unless these keys are set
        config.setdefault("zero_allow_untested_optimizer", True)
        config.setdefault("zero_force_ds_cpu_optimizer", False)
    schedule = config.get("scheduler", {})
    if schedule.get("type") in NEED_TOTAL_STEPS:
        schedule.setdefault("params", {}).setdefault("total_num_steps", AUTO)


def _add_sections(config: dict[str, Any], args: TrainingArguments) -> None:
    """Add the sections `optimizer` and `scheduler` if they are absent. `_fill` later replaces their values "auto".

    Raises:
        ArgumentError: if DeepSpeed has no schedule for `lr_scheduler_type`.
    """
    if "optimizer" not in config:
        # torch's AdamW needs no compilation. It is not among the optimizers that DeepSpeed tested with ZeRO.
        names = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), AUTO)
        config["optimizer"] = {"type": "AdamW", "params": {**names, "torch_adam": True}}
        config.setdefault("zero_allow_untested_optimizer", True)
        config.setdefault("zero_force_ds_cpu_optimizer", False)
    if "scheduler" not in config:
        kind = SCHEDULERS.get(str(args.lr_scheduler_type))
        if kind is None:
            raise ArgumentError(
                f"`deepspeed_fill_sections` has no schedule of DeepSpeed for lr_scheduler_type="
                f"{str(args.lr_scheduler_type)!r}. Use {' or '.join(map(repr, SCHEDULERS))}, write a `scheduler` "
                "section, or leave the argument out to use the run's own schedule."
            )
        names = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), AUTO)
        config["scheduler"] = {"type": kind, "params": names}


def _find(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Return the section of a dotted key, and the last part of the key.

    For `optimizer.params.lr`, return the dict `config["optimizer"]["params"]` and `"lr"`. If the section is absent,
    return an empty dict, which does not become part of `config`.
    """
    *path, name = key.split(".")
    for part in path:
        config = config.get(part) or {}
    return config, name


def _must_agree(rule: Rule, args: TrainingArguments) -> bool:
    return bool(rule.source) or bool(args.given.intersection(rule.arguments))


def _as_list(value: Any) -> Any:
    return [*value] if isinstance(value, tuple) else value


def _unfilled(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each dotted key whose value is still "auto", with a text that gives the reason and says how to fix it."""
    for name, value in config.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in OWN_AUTO:
            yield from _unfilled(value, f"{key}.")
        elif value == AUTO and key in BY_WIDTH:
            yield key, "the model's config has no `hidden_size` to compute it from; give a number"
        elif value == AUTO:
            yield key, "no argument sets it; give a value, or leave it out"
