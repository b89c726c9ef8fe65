"""The schema of DeepSpeed's configuration: its keys, their types, and the sections that trainbus does not support."""

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
        [
            "activation_checkpointing",
            "aio",
            "amp",
            "autotuning",
            "checkpoint",
            "comet",
            "comms_logger",
            "compile",
            "compression_training",
            "csv_monitor",
            "curriculum_learning",
            "data_efficiency",
            "data_types",
            "datastates_ckpt",
            "eigenvalue",
            "elasticity",
            "expert_parallel",
            "flops_profiler",
            "hybrid_engine",
            "nebula",
            "pipeline",
            "progressive_layer_drop",
            "quantize_training",
            "sparse_attention",
            "tensor_parallel",
            "tensorboard",
            "timers",
            "torch_autocast",
            "wandb",
            "weight_quantization",
        ],
        '{"enabled": true}',
    ),
}
"""The keys with a section as value, each with an example of the section. Some of these keys were removed from
DeepSpeed. For a removed key, DeepSpeed itself raises an error that explains the removal."""

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
"""The keys with a single value."""

UNSUPPORTED: dict[str, str] = {
    "pipeline": "a pipeline needs a model made of stages and its own training loop",
    "tensor_parallel": "ranks that share a layer need the same samples, but each rank has its own",
    "expert_parallel": "the data loader does not know which ranks share experts",
    "sequence_parallel_size": "ranks that share a sequence need the same samples, but each rank has its own",
    "data_efficiency": "it selects the samples in its own data loader, but the trainer uses a different data loader",
    "hybrid_engine": "it is an engine for reinforcement learning with its own training loop",
    "autotuning": "it starts many runs, but the trainer makes only one",
}
"""The keys of features that the trainer does not support, each with the reason."""


def check_schema(config: dict[str, Any]) -> None:
    """Check the keys and types of a configuration, without comparing its values with the training arguments.

    Raises:
        ArgumentError: if a key is unknown, is not supported or has a value of the wrong type. The error lists all such
            keys.
    """
    problems = [*_key_problems(config), *_section_problems(config)]
    if problems:
        raise ArgumentError("DeepSpeed's configuration is invalid:\n- " + "\n- ".join(problems))


def without_nulls(config: Any) -> Any:
    """Return a configuration without the keys whose value is None, in its sections too."""
    if not isinstance(config, dict):
        return config
    return {key: without_nulls(value) for key, value in config.items() if value is not None}


def unknown_keys(section: str, given: Any, known: Any) -> Iterator[str]:
    """Yield an error text for each key in `given` that is not in `known`.

    `section` is the name of the section that has the keys `given`. For the top level, `section` is empty.
    """
    prefix = f"{section}." if section else ""
    yield from (f"{prefix}{key} is unknown{nearest(key, known)}" for key in given if key not in known)


def _key_problems(config: dict[str, Any]) -> Iterator[str]:
    yield from unknown_keys("", config, [*SECTIONS, *VALUES])
    for key, value in config.items():
        if key in SECTIONS and not isinstance(value, dict):
            yield f"{key} is {value!r}; give a section, such as {SECTIONS[key]}"
        elif key in VALUES and isinstance(value, (dict, list)):
            yield f"{key} is {value!r}; give a single value"
        elif key in UNSUPPORTED and _is_on(value):
            yield f"{key} is not supported: {UNSUPPORTED[key]}; leave it out"


def _is_on(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("enabled", True) is not False and value.get("autotp_size") not in (0, 1)
    return value not in (0, 1)


def _section_problems(config: dict[str, Any]) -> Iterator[str]:
    sections = {key: value if isinstance(value, dict) else {} for key, value in config.items()}
    for name in ("optimizer", "scheduler"):
        if not isinstance(config.get(name), dict):
            continue
        section, known = sections[name], ("type", "params", *(["legacy_fusion"] if name == "optimizer" else []))
        yield from unknown_keys(name, section, known)
        if not isinstance(section.get("type"), str):
            yield f"{name}.type is {section.get('type')!r}; give a name, as in {SECTIONS[name]}"
        if not isinstance(section.get("params", {}), dict):
            yield f"{name}.params is {section['params']!r}; give a section, as in {SECTIONS[name]}"
    for name in ("bf16", "fp16"):
        enabled = sections.get(name, {}).get("enabled", False)
        if enabled != "auto" and not isinstance(enabled, bool):
            yield f'{name}.enabled is {enabled!r}; give true, false or "auto"'
    stage = sections.get("zero_optimization", {}).get("stage", 0)
    if isinstance(stage, (bool, str, dict, list)) or stage not in (0, 1, 2, 3):
        yield f"zero_optimization.stage is {stage!r}; give 0, 1, 2 or 3"
