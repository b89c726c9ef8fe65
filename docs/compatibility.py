"""Write docs/compatibility.md: which parts of transformers' and PaddleNLP's trainers work, and what differs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from library_surface import rows
from readers import readers_of

import trainbus
from trainbus.engine.api.accelerator import INSTEAD, Accelerator
from trainbus.engine.api.moments import CALLED
from trainbus.engine.api.removed_names import MISSING, NEVER_CALLED
from trainbus.engine.arguments import ALIASES, TrainingArguments
from trainbus.engine.arguments.script import ScriptArguments
from trainbus.engine.arguments.unsupported import unsupported_arguments, unsupported_values
from trainbus.engine.optim.registry import OPTIMIZERS
from trainbus.engine.optim.schedules import SCHEDULES
from trainbus.events import EVENTS

Table = Callable[[tuple[str, ...], Iterable[tuple[str, ...]]], str]

DIFFERS = {
    "accelerator_config": "trainbus does not use accelerate. Keys about batches need a single process.",
    "auto_find_batch_size": "Each attempt starts from the weights and the seed of the first.",
    "bf16_full_eval": "The float32 weights return after the evaluation.",
    "debug": "Raises an error that names the layer. Does not print frames. `tpu_metrics_debug` is refused.",
    "deepspeed": "Missing sections are filled from the arguments, as in transformers 4. Checkpoints are plain files.",
    "fsdp": "Uses FSDP2 of PyTorch. `bf16` stays autocast; `fsdp_config` selects half precision throughout.",
    "fsdp_config": "Keys work with and without `fsdp_`. Unknown keys are refused.",
    "fp16_full_eval": "The float32 weights return after the evaluation.",
    "fp16_opt_level": "From PaddleNLP. `O3` of apex is [refused](#values-that-are-refused).",
    "logging_first_step": "PaddleNLP also evaluates that step. `eval_on_start` or `Evaluate(at(1))` does so here.",
    "logging_nan_inf_filter": "Off by default, so that a loss that is not finite is visible.",
    "logging_steps": "The last steps of a run are logged too, if the run ends between two logs.",
    "minimum_eval_times": "From PaddleNLP. The interval is not rounded to tens. `eval_strategy='epoch'` is an error.",
    "past_index": "Gradients do not flow from one batch into the memory of the previous batch.",
    "project": "The tracker chooses the default.",
    "report_to": "Name each tracker. Other trackers are plugins.",
    "restore_callback_states_from_checkpoint": "On by default. Restores into the attached callbacks.",
    "sharding": "From PaddleNLP. `stage1` uses ZeroRedundancyOptimizer of PyTorch. The other stages use FSDP2.",
    "sharding_degree": "From PaddleNLP.",
    "train_sampling_strategy": "`batch_rebalance` is [refused](#values-that-are-refused).",
    "sharded_ddp": "From transformers 4. `simple` uses fairscale. Other words use FSDP2, or FSDP of `fairscale`.",
    "scale_loss": "From PaddleNLP, where it is 32768 by default. None is 65536, as in transformers.",
    "torch_empty_cache_steps": "Empties the cache at the end of a step, not inside it.",
    "warmup_ratio": "From transformers 4. In transformers 5 it is `warmup_steps` below 1.",
}
"""Argument -> how it differs from transformers, in short sentences."""

MANY = 6
"""An argument with this many readers or more gets its own list of readers."""


def page(table: Table, notice: str) -> list[str]:
    """Return the parts of the page."""
    import transformers

    theirs = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments)}
    ours = {field.name: field for field in dataclasses.fields(TrainingArguments)}
    readers = _readers(ours)
    return [
        notice,
        "# Compatibility",
        "Look up whether an argument, an optimizer or a method of another trainer works. "
        f"The page compares with transformers {transformers.__version__}, and lists the arguments of PaddleNLP and of "
        "older trainers. The tests check that results are equal, bit for bit: see [parity](parity.md). "
        "[Differences](differences.md) lists the deliberate differences.",
        "## Summary",
        table(("Subject", "Works", "Refused or absent"), _summary(theirs, ours, transformers.Trainer)),
        "## Arguments that behave differently",
        table(("Argument", "Difference"), ((f"`{name}`", text) for name, text in sorted(DIFFERS.items()))),
        "## Arguments that are refused",
        table(("Argument", "What to do instead"), _refused(theirs, ours)),
        "## Values that are refused",
        table(("Value", "What to do instead"), _values()),
        "## All arguments",
        "*Read by* names the classes and modules that use the argument. [Training arguments](arguments.md) has the "
        "defaults.",
        table(("Argument", "From", "What it does", "Read by"), _arguments(theirs, ours, readers)),
        "## Arguments with many readers",
        "\n".join(f"- `{name}`: {_code(who)}." for name, who in sorted(readers.items()) if len(who) >= MANY),
        "## Other names of arguments",
        table(("Name", "From", "Meaning"), _aliases(theirs)),
        "## Optimizers",
        "`optim=` takes these names. A package is imported when its optimizer is used.",
        table(("Name", "Needs"), _optimizers()),
        "## Schedules",
        "`lr_scheduler_type=` takes " + ", ".join(f"`{name}`" for name in SCHEDULES) + ".",
        "## Methods",
        "An override is called at the moment that the table says. The public methods without a moment are called as in "
        "transformers. If an override is never called, a warning says so. The column *Override* then says what to do. "
        "If *Available* is *no*, the method does not exist.",
        table(("Method of transformers' Trainer", "Available", "Override"), _methods(transformers.Trainer)),
        "## Attributes of the Trainer",
        "These attributes of transformers' Trainer do not exist, or exist for another purpose. All others do.",
        table(("Attribute", "What to use instead"), _missing()),
        "## Attributes of the arguments, the state and the control",
        "All public attributes and methods of transformers' `TrainingArguments`, `TrainerState` and `TrainerControl` "
        "exist, except these.",
        table(("Name", "What to do instead"), _absent()),
        "## The accelerator",
        "`trainer.accelerator` has the attributes and methods that training code uses: "
        + ", ".join(f"`{name}`" for name in sorted(_public(Accelerator)))
        + ". It reads `accelerator_config`. Its other names raise an error that says what to use:",
        table(("Name of accelerate's `Accelerator`", "What to use instead"), _instead()),
        "## Names that libraries use",
        "TRL 1.16, sentence-transformers 6.2 and SetFit 1.2 touch these public names of transformers and accelerate. "
        "[Libraries](migration.md#libraries-of-transformers) shows how to use trainbus with them.",
        table(("Name", "Here", "Remark"), rows()),
        "## Events",
        table(("Event", "From", "Meaning"), ((f"`{event.name}`", event.origin, event.doc) for event in EVENTS)),
        "A subclass of `transformers.TrainerCallback` runs unchanged. A handler for any other event logs a warning.",
    ]


def _summary(theirs: dict[str, Any], ours: dict[str, Any], trainer: type) -> Iterator[tuple[str, str, str]]:
    known = [name for name in theirs if name in ours or name in ALIASES]
    more = [name for name in {*ours, *ALIASES} if name not in theirs]
    built = [name for name, needs in _optimizers() if "refused" not in needs]
    methods = [*_methods(trainer)]
    available = [name for name, here, _ in methods if here == "yes"]
    yield "Arguments of transformers", str(len(known)), str(len(theirs) - len(known))
    yield "Arguments and names of trainbus, PaddleNLP and older trainers", str(len(more)), "-"
    yield "Optimizers", str(len(built)), str(len([*_optimizers()]) - len(built))
    yield "Schedules", str(len(SCHEDULES)), "-"
    yield "Methods of `Trainer`, private ones included", str(len(available)), str(len(methods) - len(available))
    yield "Events of transformers", str(sum(event.origin == "transformers" for event in EVENTS)), "-"
    yield "Events of trainbus", str(sum(event.origin != "transformers" for event in EVENTS)), "-"


def _readers(ours: dict[str, Any]) -> dict[str, list[str]]:
    scripts = {field.name for field in dataclasses.fields(ScriptArguments)}
    return {name: ["your script"] if name in scripts else who for name, who in readers_of(set(ours)).items()}


def _arguments(
    theirs: dict[str, Any], ours: dict[str, Any], readers: dict[str, list[str]]
) -> Iterator[tuple[str, str, str, str]]:
    for name in sorted(ours):
        origin = "transformers" if name in theirs else "trainbus, PaddleNLP or older"
        many = len(readers[name]) >= MANY
        who = "[many](#arguments-with-many-readers)" if many else _code(readers[name])
        yield f"`{name}`", origin, ours[name].metadata["help"], who


def _aliases(theirs: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name in sorted(ALIASES):
        new = ALIASES[name].new
        meaning = f"Sets `{new}`." if new else "Accepted if its value is the behavior of trainbus."
        yield f"`{name}`", "transformers" if name in theirs else "older trainers", meaning


def _refused(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name in sorted(theirs):
        if name not in ours and name not in ALIASES:
            yield f"`{name}`", _sentence(unsupported_arguments()[name])


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _values() -> Iterator[tuple[str, str]]:
    for (name, value), remedy in unsupported_values().items():
        yield f'`{name}="{value}"`', _sentence(remedy)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _optimizers() -> Iterator[tuple[str, str]]:
    for name, spec in OPTIMIZERS.items():
        needs = f"`{spec.package}`" if spec.package else "torch"
        yield f"`{name}`", f"{needs}; refused. {spec.unsupported}" if spec.unsupported else needs


def _methods(theirs: type) -> Iterator[tuple[str, str, str]]:
    for name, method in sorted(vars(theirs).items()):
        if name.startswith("__") or not (inspect.isfunction(method) or isinstance(method, staticmethod)):
            continue
        available = "yes" if hasattr(trainbus.Trainer, name) else "no"
        never = f"Never called. {_sentence(NEVER_CALLED[name])}" if name in NEVER_CALLED else ""
        yield f"`{name}`", available, CALLED.get(name, never)


def _public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")} - {"run", "stepper", "seed"}


def _missing() -> Iterator[tuple[str, str]]:
    for name, remedy in sorted(MISSING.items()):
        if name not in NEVER_CALLED:
            yield f"`{name}`", _sentence(remedy)


ABSENT = {
    "TrainingArguments.default_optim": "It is `adamw_torch_fused`.",
    "TrainingArguments.is_torch_greater_or_equal_than_2_8": "Compare `torch.__version__`.",
    "TrainerState.init_training_references": "The Trainer fills in the state.",
    "TrainerControl.from_state": "Pass the flags: `TrainerControl(should_save=True)`.",
}
"""Public name of transformers that does not exist here -> what to do instead."""


def _absent() -> Iterator[tuple[str, str]]:
    for name, remedy in ABSENT.items():
        yield f"`{name}`", remedy


def _instead() -> Iterator[tuple[str, str]]:
    remedies: dict[str, list[str]] = {}
    for name, remedy in INSTEAD.items():
        remedies.setdefault(remedy, []).append(name)
    for remedy, names in remedies.items():
        yield _code(sorted(names)), _sentence(remedy)
