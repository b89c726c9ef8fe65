"""Writes docs/compatibility.md: what of transformers' Trainer and PaddleNLP's is here, who does it, what differs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from readers import readers_of

import trainbus
from trainbus.engine.api.overrides import NEVER_CALLED
from trainbus.engine.arguments import ALIASES, TrainingArguments
from trainbus.engine.arguments.script import ScriptArguments
from trainbus.engine.arguments.unsupported import unsupported_arguments, unsupported_values
from trainbus.engine.optim.registry import OPTIMIZERS
from trainbus.engine.optim.schedules import SCHEDULES
from trainbus.events import EVENTS

Table = Callable[[tuple[str, ...], Iterable[tuple[str, ...]]], str]

DIFFERS = {
    "accelerator_config": "There is no accelerate: keys are accepted where they change nothing, or can be had.",
    "auto_find_batch_size": "Each attempt begins from the weights and the seed of the first.",
    "bf16_full_eval": "The float32 weights come back after the evaluation.",
    "debug": "Raises, naming the layer, and does not print frames. `tpu_metrics_debug` is refused.",
    "deepspeed": "Absent sections are filled from the arguments, as transformers 4 did; checkpoints are plain.",
    "fsdp": "PyTorch's FSDP2. `bf16` stays autocast; half precision throughout is for `fsdp_config`.",
    "fsdp_config": "Keys with or without `fsdp_`; unknown ones are refused.",
    "fp16_full_eval": "The float32 weights come back after the evaluation.",
    "fp16_opt_level": "PaddleNLP's; `O3` of apex is [left out](#values-that-are-left-out).",
    "logging_nan_inf_filter": "Off by default: a loss that is not finite is shown.",
    "logging_steps": "The last window of a run is logged too.",
    "minimum_eval_times": "PaddleNLP's; the interval is not rounded to tens, and `eval_strategy='epoch'` is an error.",
    "past_index": "The memory is detached, so that no graph grows over batches.",
    "project": "Left to the tracker by default.",
    "report_to": "A tracker is asked for by name; others are plugins.",
    "restore_callback_states_from_checkpoint": "On by default, into the callbacks that are attached.",
    "sharding": "PaddleNLP's; `stage1` is PyTorch's ZeroRedundancyOptimizer, the others are its FSDP2.",
    "sharding_degree": "PaddleNLP's.",
    "train_sampling_strategy": "`batch_rebalance` is [left out](#values-that-are-left-out).",
    "sharded_ddp": "Transformers 4's; `simple` is fairscale's, the others PyTorch's FSDP2, with `fairscale` its own.",
    "torch_empty_cache_steps": "At the end of a step rather than inside it.",
    "warmup_ratio": "Transformers 4's; 5 spells it as `warmup_steps` below 1.",
}
"""Where an argument does other than what transformers does, in a sentence."""


def page(table: Table, notice: str) -> list[str]:
    """Return the parts of the page."""
    import transformers

    theirs = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments)}
    ours = {field.name: field for field in dataclasses.fields(TrainingArguments)}
    return [
        notice,
        "# Compatibility",
        f"Measured against transformers {transformers.__version__}: its {len(theirs)} training arguments, optimizers, "
        "schedules, methods and events, and the arguments of PaddleNLP's and of older trainers. The numbers are held "
        "equal bit for bit, see [parity](parity.md); what differs on purpose is in [the differences](differences.md).",
        "## Arguments",
        table(("Argument", "From", "Accepted", "What it does", "Read by", "Differs"), _arguments(theirs, ours)),
        "## Values that are left out",
        table(("Value", "Why, and what to do instead"), _values()),
        "## Optimizers",
        "`optim=` takes these names. A package is imported when its optimizer is asked for.",
        table(("Name", "Needs"), _optimizers()),
        "## Schedules",
        "`lr_scheduler_type=` takes " + ", ".join(f"`{name}`" for name in SCHEDULES) + ".",
        "## Methods",
        table(("Method of transformers' Trainer", "Here"), _methods(transformers.Trainer)),
        "## Events",
        table(("Event", "From", "Meaning"), ((f"`{event.name}`", event.origin, event.doc) for event in EVENTS)),
        "A subclass of `transformers.TrainerCallback` runs as it is; what it hears beyond these only warns.",
    ]


def _arguments(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    readers = readers_of(set(ours))
    scripts = {field.name for field in dataclasses.fields(ScriptArguments)}
    for name in sorted({*theirs, *ours, *ALIASES}):
        origin = "transformers" if name in theirs else "trainbus, PaddleNLP or older" if name in ours else "older names"
        if name in ours:
            who = ["your script"] if name in scripts else readers[name]
            help = ours[name].metadata["help"]
            accepted = "not yet" if DIFFERS.get(name, "").startswith("Refused") else "yes"
            yield (f"`{name}`", origin, accepted, help, ", ".join(f"`{each}`" for each in who), DIFFERS.get(name, ""))
        elif name in ALIASES:
            new = ALIASES[name].new
            meaning = f"Another name of `{new}`." if new else "Nothing is left to choose; accepted where it says so."
            yield (f"`{name}`", origin, "yes", meaning, "", "")
        else:
            yield (f"`{name}`", origin, "no", _sentence(unsupported_arguments()[name]), "", "")


def _values() -> Iterator[tuple[str, str]]:
    for (name, value), remedy in unsupported_values().items():
        yield f'`{name}="{value}"`', _sentence(remedy)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _optimizers() -> Iterator[tuple[str, str]]:
    for name, spec in OPTIMIZERS.items():
        needs = f"`{spec.package}`" if spec.package else "nothing more"
        yield f"`{name}`", f"{needs}; refused. {spec.unsupported}" if spec.unsupported else needs


def _methods(theirs: type) -> Iterator[tuple[str, str]]:
    for name, method in sorted(vars(theirs).items()):
        if not inspect.isfunction(method) and not isinstance(method, staticmethod):
            continue
        if name.startswith("__"):
            continue
        if name in NEVER_CALLED:
            callable_here = "may be called; overridden, " if hasattr(trainbus.Trainer, name) else "no: "
            yield f"`{name}`", f"{callable_here}{NEVER_CALLED[name]}"
        else:
            yield f"`{name}`", "yes" if hasattr(trainbus.Trainer, name) else "no"
