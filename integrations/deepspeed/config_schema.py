"""The form of DeepSpeed's configuration: which keys it knows, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...events.errors import ArgumentError, nearest

SECTIONS: dict[str, str] = {
    "optimizer": '{"type": "AdamW", "params": {"lr": "auto"}}',
    "scheduler": '{"type": "WarmupDecayLR", "params": {"warmup_num_steps": "auto"}}',
    "zero_optimization": '{"stage": 2}',
    "bf16": '{"enabled": true}',
    "fp16": '{"enabled": true}',
    **dict.fromkeys(
        (
            *("activation_checkpointing", "aio", "amp", "autotuning", "checkpoint", "comet", "comms_logger", "compile"),
            *("csv_monitor", "data_efficiency", "data_types", "datastates_ckpt", "expert_parallel", "flops_profiler"),
            *("hybrid_engine", "pipeline", "tensor_parallel", "tensorboard", "timers", "torch_autocast", "wandb"),
            *("weight_quantization", "elasticity", "compression_training", "curriculum_learning"),
            *("eigenvalue", "nebula", "progressive_layer_drop", "quantize_training", "sparse_attention"),
        ),
        '{"enabled": true}',
    ),
}
"""Keys of sections, each with an example. Those that DeepSpeed no longer has, it refuses itself, and says why."""

VALUES = frozenset(
    [
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "steps_per_print",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "communication_data_type",
        "prescale_gradients",
        "seq_parallel_communication_data_type",
        "gradient_predivide_factor",
        "gradient_allreduce_op",
        "disable_allgather",
        "dump_state",
        "disable_python_gc",
        "wall_clock_breakdown",
        "memory_breakdown",
        "dataloader_drop_last",
        "log_level",
        "managed_gradient_accumulation",
        "use_data_before_expert_parallelism",
        "sequence_parallel_size",
        "sparse_gradients",
        "graph_harvesting",
        "vocabulary_size",
        "check_overflow",
    ]
)
"""Keys of single values."""

OTHER_ENGINES: dict[str, str] = {
    "pipeline": "a pipeline wants a model that is made of stages, and a loop of its own",
    "tensor_parallel": "processes that share a layer want the same rows, and get different ones here",
    "expert_parallel": "processes that share experts are not told apart here",
    "sequence_parallel_size": "processes that share a sequence want the same rows, and get different ones here",
    "data_efficiency": "it chooses the rows in a loader of its own, and the run has another",
    "hybrid_engine": "it is an engine for training by feedback, with a loop of its own",
    "autotuning": "it begins many runs, through the launcher `deepspeed` only",
}
"""Keys of ways to train that the run does not know, each with why."""


def check_form(config: dict[str, Any]) -> None:
    """Refuse what no configuration can be, whatever the arguments say.

    Raises:
        ArgumentError: for all keys at once that are unknown, or hold something else than they may.
    """
    problems = [*_of_keys(config), *_of_sections(config)]
    if problems:
        raise ArgumentError("DeepSpeed's configuration cannot be used:\n- " + "\n- ".join(problems))


def without_nulls(config: Any) -> Any:
    """Return a configuration without the keys that are null, which is as if they were left out."""
    if not isinstance(config, dict):
        return config
    return {key: without_nulls(value) for key, value in config.items() if value is not None}


def unknown(section: str, given: Any, known: Any) -> Iterator[str]:
    """Give a sentence for each key of a section that is not known, with the nearest."""
    place = f"{section}." if section else ""
    yield from (f"{place}{key} is unknown{nearest(key, known)}" for key in given if key not in known)


def _of_keys(config: dict[str, Any]) -> Iterator[str]:
    yield from unknown("", config, [*SECTIONS, *VALUES])
    for key, value in config.items():
        if key in SECTIONS and not isinstance(value, dict):
            yield f"{key} is {value!r}, and is a section, as {SECTIONS[key]}"
        elif key in VALUES and isinstance(value, (dict, list)):
            yield f"{key} is {value!r}, and is a single value"
        elif key in OTHER_ENGINES and _is_on(value):
            yield f"{key} does not go with this run: {OTHER_ENGINES[key]}; leave it out"


def _is_on(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("enabled", True) is not False and value.get("autotp_size") not in (0, 1)
    return value not in (0, 1)


def _of_sections(config: dict[str, Any]) -> Iterator[str]:
    sections = {key: value if isinstance(value, dict) else {} for key, value in config.items()}
    for name in ("optimizer", "scheduler"):
        if not isinstance(config.get(name), dict):
            continue
        section, known = sections[name], ("type", "params", *(["legacy_fusion"] if name == "optimizer" else []))
        yield from unknown(name, section, known)
        if not isinstance(section.get("type"), str):
            yield f"{name}.type is {section.get('type')!r}; give a name, as {SECTIONS[name]}"
        if not isinstance(section.get("params", {}), dict):
            yield f"{name}.params is {section['params']!r}, and is a section, as {SECTIONS[name]}"
    for name in ("bf16", "fp16"):
        enabled = sections.get(name, {}).get("enabled", False)
        if enabled != "auto" and not isinstance(enabled, bool):
            yield f'{name}.enabled is {enabled!r}; give true, false or "auto"'
    stage = sections.get("zero_optimization", {}).get("stage", 0)
    if isinstance(stage, (bool, str, dict, list)) or stage not in (0, 1, 2, 3):
        yield f"zero_optimization.stage is {stage!r}; give 0, 1, 2 or 3"
