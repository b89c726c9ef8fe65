"""DeepSpeed's configuration, completed from the arguments: the gaps are filled, what is said twice must agree."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...engine.arguments import TrainingArguments
from ...events.errors import ArgumentError
from .config_schema import check_form, without_nulls

AUTO = "auto"
"""The value that stands for what the arguments say."""

PRECISION = ("bf16", "fp16", "bf16_full_eval", "fp16_full_eval")
"""Arguments that together choose the numbers that the model computes with."""

BY_WIDTH: dict[str, Callable[[int], int]] = {
    "zero_optimization.reduce_bucket_size": lambda width: width * width,
    "zero_optimization.stage3_prefetch_bucket_size": lambda width: int(0.9 * width * width),
    "zero_optimization.stage3_param_persistence_threshold": lambda width: 10 * width,
}
"""Keys that "auto" fills from the width of the model."""


ENDING = ("WarmupDecayLR", "WarmupCosineLR")
"""The schedules of DeepSpeed's that want to know the steps of the run."""

KNOW_AUTO = ("data_types", "autotuning")
"""The sections in which "auto" is a value of DeepSpeed's own."""


class Shape(NamedTuple):
    """What a configuration is completed from, beside the arguments."""

    batch_size: int
    """Rows in a training batch of one process."""
    world_size: int
    """Processes."""
    total_steps: int
    """Steps of the whole run."""
    hidden_size: int | None = None
    """Width of the model, where it says one; see `hidden_size_of`."""


class Rule(NamedTuple):
    """What the arguments say of one key."""

    key: str
    """The key, with dots: `optimizer.params.lr`."""
    value: Any
    """What the arguments make it."""
    arguments: tuple[str, ...] = ()
    """The arguments that say so. Another value in the configuration is refused where one of these is given."""
    said: str = ""
    """How the value came about, where it is no argument's own: it is then compared in any case."""


def read_config(given: Any) -> dict[str, Any]:
    """Return a configuration that was given as a dict, as a copy, or as the path of a JSON file.

    Raises:
        ArgumentError: if it is neither, or the file is no JSON object, naming file and line.
    """
    if isinstance(given, dict):
        return copy.deepcopy(given)
    if not isinstance(given, (str, Path)):
        raise ArgumentError(
            f"DeepSpeed's configuration is a {type(given).__name__}; give a dict, or a JSON file's path."
        )
    path = Path(given).expanduser()
    try:
        config = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=lambda pairs: _once(pairs, path))
    except OSError as error:
        raise ArgumentError(f"DeepSpeed's configuration {path} cannot be read: {error.strerror}.") from error
    except ArgumentError:
        raise
    except ValueError as error:
        where = f", line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        what = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise ArgumentError(f"DeepSpeed's configuration {path}{where} is no JSON: {what}.") from error
    if not isinstance(config, dict):
        raise ArgumentError(f"DeepSpeed's configuration {path} holds a {type(config).__name__}; it is a JSON object.")
    return config


def _once(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    twice = {key for key, _ in pairs if [name for name, _ in pairs].count(key) > 1}
    if twice:
        raise ArgumentError(f"DeepSpeed's configuration {path} has {sorted(twice)[0]!r} twice in one section.")
    return dict(pairs)


def complete(config: dict[str, Any], args: TrainingArguments, shape: Shape) -> dict[str, Any]:
    """Return a configuration with everything in it that the arguments say.

    A key that is "auto" gets the value of the arguments, and one that is null is as if left out. One that has a value
    keeps it, and must agree with the arguments that are given; the sizes of the batches and the length of the run must
    agree in any case. Absent are filled in: the sizes of the batches, `gradient_clipping`, `bf16` or `fp16` where the
    arguments ask for it, and what allows the run's own optimizer where there is no `optimizer`. Every other key is
    DeepSpeed's business.

    Raises:
        ArgumentError: for all keys at once that are none; or else for all that say something else than the arguments,
            or are "auto" and cannot be filled.
    """
    config = without_nulls(copy.deepcopy(config))
    check_form(config)
    _add_absent(config, args)
    problems = []
    for rule in rules(args, shape):
        section, name = _find(config, rule.key)
        if name not in section:
            continue
        if section[name] == AUTO:
            section[name] = rule.value
        elif _compared(rule, args) and _plain(section[name]) != _plain(rule.value):
            said = rule.said or ", ".join(f"{name}={getattr(args, name)!r}" for name in rule.arguments)
            problems.append(f"{rule.key} is {section[name]!r}, and the arguments say {rule.value!r} ({said})")
    lines: list[str] = []
    if problems:
        lines += ["DeepSpeed's configuration and the arguments do not agree:", *(f"- {each}" for each in problems)]
        lines += ["Write 'auto' in the configuration for what the arguments say."]
    if still_open := [f"- {key} is 'auto', and {why}" for key, why in _left_open(config)]:
        lines += ["DeepSpeed's configuration leaves open what nothing here tells:", *still_open]
    if lines:
        raise ArgumentError("\n".join(lines))
    return config


def rules(args: TrainingArguments, shape: Shape) -> Iterator[Rule]:
    """Give what the arguments say of each key."""
    accumulate, rows = args.gradient_accumulation_steps, shape.batch_size
    total = shape.world_size * rows * accumulate
    # Sizes that are found by trying are those of the attempt, whatever the configuration began with.
    sizes = not args.auto_find_batch_size
    made_of = f"{shape.world_size} processes, per_device_train_batch_size={rows}, {accumulate} batches accumulated"
    yield Rule("train_micro_batch_size_per_gpu", rows, said=f"per_device_train_batch_size={rows}" if sizes else "")
    yield Rule("train_batch_size", total, said=made_of if sizes else "")
    yield Rule("gradient_accumulation_steps", accumulate, said=f"gradient_accumulation_steps={accumulate}")
    yield Rule("gradient_clipping", float(args.max_grad_norm or 0), ("max_grad_norm",))
    yield Rule("optimizer.params.lr", args.learning_rate, ("learning_rate",))
    yield Rule("optimizer.params.betas", [args.adam_beta1, args.adam_beta2], ("adam_beta1", "adam_beta2"))
    yield Rule("optimizer.params.eps", args.adam_epsilon, ("adam_epsilon",))
    yield Rule("optimizer.params.weight_decay", args.weight_decay, ("weight_decay",))
    yield Rule("scheduler.params.warmup_min_lr", 0)
    yield Rule("scheduler.params.warmup_max_lr", args.learning_rate, ("learning_rate",))
    yield Rule("scheduler.params.total_num_steps", shape.total_steps, said=f"the run has {shape.total_steps} steps")
    # DeepSpeed knows no schedule without a warmup.
    warmup = max(1, args.get_warmup_steps(shape.total_steps))
    yield Rule("scheduler.params.warmup_num_steps", warmup, ("warmup_steps", "warmup_ratio"))
    yield Rule("bf16.enabled", args.bf16 or args.bf16_full_eval, PRECISION)
    yield Rule("fp16.enabled", args.fp16 or args.fp16_full_eval, PRECISION)
    if shape.hidden_size is not None:
        yield from (Rule(key, value(shape.hidden_size)) for key, value in BY_WIDTH.items())


def hidden_size_of(model: Any) -> int | None:
    """Return the width of a model: its config's `hidden_size`, or the largest of `hidden_sizes`; None without one."""
    config = getattr(model, "config", None)
    for part in (config, getattr(config, "text_config", None)):
        sizes = (getattr(part, "hidden_size", None), *(getattr(part, "hidden_sizes", None) or ()))
        known = [int(size) for size in sizes if isinstance(size, int)]
        if known:
            return known[0] if sizes[0] is not None else max(known)
    return None


def stage_of(config: dict[str, Any]) -> int:
    """Return the stage of ZeRO: 0 for none, else what is split: 1 optimizer states, 2 gradients too, 3 weights too."""
    return int(config.get("zero_optimization", {}).get("stage", 0))


def precision_of(config: dict[str, Any]) -> str:
    """Return the numbers that weights are kept in: `bf16`, `fp16`, or empty for what the model has."""
    return next((name for name in ("bf16", "fp16") if config.get(name, {}).get("enabled") is True), "")


def _add_absent(config: dict[str, Any], args: TrainingArguments) -> None:
    if args.auto_find_batch_size:
        config.update(train_batch_size=AUTO, train_micro_batch_size_per_gpu=AUTO)
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        config.setdefault(name, AUTO)
    config.setdefault("gradient_clipping", AUTO)
    if args.bf16 and "bf16" not in config:
        config["bf16"] = {"enabled": True}
    if args.fp16 and "fp16" not in config and "amp" not in config:
        config["fp16"] = {"enabled": True}
        if args.scale_loss is not None:
            config["fp16"]["initial_scale_power"] = round(math.log2(args.scale_loss))
    if "optimizer" not in config:  # the run's own is used, which DeepSpeed has not been tested with, it says
        config.setdefault("zero_allow_untested_optimizer", True)
        config.setdefault("zero_force_ds_cpu_optimizer", False)
    schedule = config.get("scheduler", {})
    if schedule.get("type") in ENDING:
        schedule.setdefault("params", {}).setdefault("total_num_steps", AUTO)


def _find(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Return the section that a key is in, empty where there is none, and its name in there."""
    *path, name = key.split(".")
    for part in path:
        config = config.get(part) or {}
    return config, name


def _compared(rule: Rule, args: TrainingArguments) -> bool:
    return bool(rule.said) or bool(args.given.intersection(rule.arguments))


def _plain(value: Any) -> Any:
    return [*value] if isinstance(value, tuple) else value


def _left_open(config: dict[str, Any], place: str = "") -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        key = f"{place}{name}"
        if isinstance(value, dict) and key not in KNOW_AUTO:
            yield from _left_open(value, f"{key}.")
        elif value == AUTO and key in BY_WIDTH:
            yield key, "the model's config has no `hidden_size` to tell it from; give a number"
        elif value == AUTO:
            yield key, "no argument says it; give a value, or leave it out"
