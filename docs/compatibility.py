"""Write docs/compatibility.md: which parts of the trainers of transformers and PaddleNLP work here, and what
differs."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from library_surface import WORKS, rows
from readers import readers_of

import trainbus
from trainbus.engine.api.accelerator import INSTEAD, Accelerator
from trainbus.engine.api.moments import CALLED
from trainbus.engine.api.removed_names import MISSING, NEVER_CALLED
from trainbus.engine.arguments import ALIASES, TrainingArguments
from trainbus.engine.arguments.aliases import Alias
from trainbus.engine.arguments.script import ScriptArguments
from trainbus.engine.arguments.unsupported import unsupported_arguments, unsupported_values
from trainbus.engine.optim.registry import OPTIMIZERS
from trainbus.engine.optim.schedules import SCHEDULES
from trainbus.events import EVENTS

Table = Callable[[tuple[str, ...], Iterable[tuple[str, ...]]], str]

DIFFERS = {
    "accelerator_config": (
        "With several ranks, `split_batches=True`, `dispatch_batches=True` and `even_batches=False` are refused."
    ),
    "auto_find_batch_size": "Each attempt starts from the weights and RNG states that the first attempt started from.",
    "bf16_full_eval": "After the evaluation, the model has its float32 weights again.",
    "debug": (
        "With `underflow_overflow`, overflow raises an error that names the layer. Nothing is printed. "
        "`tpu_metrics_debug` is refused."
    ),
    "deepspeed": (
        "The arguments fill some missing keys of the configuration. Checkpoints have the same files as without "
        "DeepSpeed."
    ),
    "fsdp": (
        "FSDP2 of PyTorch shards the model. With `bf16`, the model computes in autocast. With "
        "`fsdp_config={'mixed_precision': 'bf16'}`, ranks gather the weights in half precision."
    ),
    "fsdp_config": "Keys work with and without the prefix `fsdp_`. Unknown keys are refused.",
    "fp16_full_eval": "After the evaluation, the model has its float32 weights again.",
    "fp16_opt_level": "An argument of PaddleNLP. The value `O3` is [refused](#values-that-are-refused).",
    "logging_first_step": (
        "The argument works as in transformers. PaddleNLP also evaluates after the first step. To do the same, add "
        "`Evaluate(at(1))`."
    ),
    "logging_nan_inf_filter": "The argument is False by default, so that the log shows NaN and infinite losses.",
    "logging_steps": "If the planned end of the run is between two logs, the last steps are also logged.",
    "minimum_eval_times": (
        "An argument of PaddleNLP. trainbus does not round the evaluation interval to a multiple of 10. With "
        "`eval_strategy='epoch'`, it refuses the argument."
    ),
    "past_index": (
        "An argument of transformers 4. Gradients do not flow from one batch into the memory of the previous batch."
    ),
    "project": "By default, each tracker chooses the project. In transformers, the default is `huggingface`.",
    "report_to": (
        "`all` selects every installed tracker that trainbus supports. Names of other trackers are refused, unless a "
        "plugin adds the tracker."
    ),
    "restore_callback_states_from_checkpoint": (
        "The argument is True by default. The attached callbacks receive the states. transformers replaces the "
        "attached "
        "callbacks."
    ),
    "sharding": (
        "An argument of PaddleNLP. `stage1` uses `ZeroRedundancyOptimizer` of PyTorch. The other stages use FSDP2."
    ),
    "sharding_degree": "An argument of PaddleNLP. It has the same meaning as in PaddleNLP.",
    "train_sampling_strategy": "`batch_rebalance` is [refused](#values-that-are-refused).",
    "sharded_ddp": (
        "An argument of transformers 4. `simple` uses fairscale. Values that contain `fairscale` use the FSDP of "
        "fairscale. Other values use FSDP2."
    ),
    "scale_loss": (
        "An argument of PaddleNLP. The default is 65536, as in transformers. In PaddleNLP, the default is 32768."
    ),
    "torch_empty_cache_steps": "The cache is emptied at the end of a step. transformers empties it inside the step.",
    "warmup_ratio": (
        "An argument of transformers 4. In transformers 5, a value of `warmup_steps` below 1 replaces this argument. "
        "trainbus takes both."
    ),
}
"""Argument -> how it differs from transformers, in short sentences."""

LONG = 20
"""A table shows the first sentence of a help text in full if it has at most this number of words."""
SAME, NEVER = "as in transformers", "never"


def page(table: Table, notice: str) -> list[str]:
    """Return the parts of the page."""
    import transformers

    theirs = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments)}
    ours = {field.name: field for field in dataclasses.fields(TrainingArguments)}
    return [
        notice,
        "# Compatibility",
        "Look up whether an argument, an optimizer or a method of another trainer works. "
        f"The page compares trainbus with transformers {transformers.__version__}, and lists the arguments of "
        "PaddleNLP and of older trainers. Tests check that both trainers give results that are equal bit for bit. "
        "[Parity](parity.md) lists "
        "these tests. "
        "[Differences](differences.md) lists the deliberate differences.",
        "For example, you want to know whether `logging_nan_inf_filter` behaves as in transformers. Search this page "
        "for "
        "the name. The table [Arguments that behave differently](#arguments-that-behave-differently) has a row for "
        "this argument. If an argument of transformers is only in the table [All arguments](#all-arguments), the "
        "argument behaves as in transformers.",
        "*Refused* means that trainbus raises an error. The error says what to use instead.",
        "## Summary",
        table(("Subject", "Works", "Refused or absent"), _summary(theirs, ours, transformers.Trainer)),
        "## Arguments that behave differently",
        table(("Argument", "Difference"), ((f"`{name}`", text) for name, text in sorted(DIFFERS.items()))),
        "## Arguments that are refused",
        table(("Argument", "What to do instead"), _refused(theirs, ours)),
        "## Values that are refused",
        table(("Value", "What to do instead"), _values()),
        "## All arguments",
        "Each name is a link to its full description and its default. The column *From* names the trainer that has the "
        "argument.",
        table(("Argument", "From", "What it does"), _arguments(theirs, ours)),
        "## Other names of arguments",
        "Programs for older versions of transformers and for other trainers may use these names. The names still work. "
        "Most "
        "of these names emit a `FutureWarning`.",
        table(("Name", "From", "Meaning"), _aliases(theirs)),
        "## Optimizers",
        "`optim=` takes these names. trainbus imports a package only if the run uses an optimizer of this package.",
        table(("Name", "Package"), ((f"`{name}`", needs) for name, needs, why in _optimizers() if not why)),
        "### Optimizers that are refused",
        "\n".join(_refused_optimizers()),
        "## Schedules",
        "`lr_scheduler_type=` takes " + ", ".join(f"`{name}`" for name in SCHEDULES) + ".",
        "## Methods",
        "Look here if your program overrides or calls a method of transformers' Trainer.",
        "### Methods that work as in transformers",
        _code(name for name, moment in _methods(transformers.Trainer) if moment == SAME) + ".",
        "### Methods whose override is called at a stated moment",
        "If a subclass overrides one of these methods, trainbus calls the override at the moment in the table. Without "
        "an override, the engine does the work itself. Your program can also call these methods itself. A call does "
        "the same as in transformers, or raises an error with the remedy.",
        table(("Method", "When an override is called, and what it returns"), _called(transformers.Trainer)),
        "### Methods that are never called",
        "If a subclass overrides one of these methods, a warning says what to use instead. "
        f"Of these methods, your code can still call {_code(_uncalled_but_present(transformers.Trainer))}. trainbus "
        "does not have the other methods.",
        table(("Method", "What to use instead"), _never(transformers.Trainer)),
        "## Attributes of the Trainer",
        "These attributes of transformers' Trainer do not exist, or have another meaning. All other attributes exist.",
        table(("Attribute", "What to use instead"), _missing()),
        "## Attributes of the arguments, the state and the control",
        "All public attributes and methods of transformers' `TrainingArguments`, `TrainerState` and `TrainerControl` "
        "exist, except these.",
        table(("Name", "What to do instead"), _absent()),
        "## The accelerator",
        "`trainer.accelerator` is an object of trainbus, not of accelerate. It has the attributes and methods that "
        "training code uses: " + _code(sorted(_public(Accelerator))) + ".",
        "The other names of accelerate's `Accelerator` raise an error that says what to use:",
        table(("Name of accelerate's `Accelerator`", "What to use instead"), _instead()),
        "## Names that libraries use",
        "TRL 1.16, sentence-transformers 6.2 and SetFit 1.2 use public names of transformers and accelerate. "
        "[Libraries](migration.md#libraries-of-transformers) shows how to use trainbus with these libraries.",
        "Of these names, the following work as in transformers and accelerate:",
        "\n".join(f"- `{kind}`: {_code(names.split())}." for kind, names in WORKS.items()),
        "The table lists the other names that these libraries use. A name that *differs* exists, but has another "
        "meaning "
        "or effect. A program that reads a *refused* name gets an error.",
        table(("Name", "In trainbus", "Remark"), rows()),
        "## Events",
        table(("Event", "From", "Meaning"), ((f"`{event.name}`", event.origin, event.doc) for event in EVENTS)),
        "A subclass of `transformers.TrainerCallback` runs unchanged. If the subclass has a handler for an event that "
        "is "
        "not in the table, trainbus logs a warning.",
        "## Code that reads each argument",
        "This list is for developers of trainbus. The list names the classes and modules that read each argument.",
        "\n".join(f"- `{name}`: {_code(who)}." for name, who in sorted(_readers(ours).items())),
    ]


def _summary(theirs: dict[str, Any], ours: dict[str, Any], trainer: type) -> Iterator[tuple[str, str, str]]:
    known = [name for name in theirs if name in ours or name in ALIASES]
    more = [name for name in {*ours, *ALIASES} if name not in theirs]
    built = [name for name, _, why in _optimizers() if not why]
    methods = [name for name, _ in _methods(trainer)]
    available = [name for name in methods if hasattr(trainbus.Trainer, name)]
    yield "Arguments of transformers", str(len(known)), str(len(theirs) - len(known))
    yield "Arguments and names of trainbus, PaddleNLP and older trainers", str(len(more)), "-"
    yield "Optimizers", str(len(built)), str(len([*_optimizers()]) - len(built))
    yield "Schedules", str(len(SCHEDULES)), "-"
    yield (
        "Methods of transformers' `Trainer`, including private methods",
        str(len(available)),
        str(len(methods) - len(available)),
    )
    yield "Events of transformers", str(sum(event.origin == "transformers" for event in EVENTS)), "-"
    yield "Events of trainbus", str(sum(event.origin != "transformers" for event in EVENTS)), "-"


def _readers(ours: dict[str, Any]) -> dict[str, list[str]]:
    scripts = {field.name for field in dataclasses.fields(ScriptArguments)}
    return {name: ["your script"] if name in scripts else who for name, who in readers_of(set(ours)).items()}


def _arguments(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    groups = {name: group for group in TrainingArguments.__bases__ for name in vars(group).get("__annotations__", {})}
    for name in sorted(ours):
        origin = "transformers" if name in theirs else "trainbus, PaddleNLP or older trainers"
        heading = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", groups[name].__name__.removesuffix("Arguments")).lower()
        yield f"[`{name}`](arguments.md#{heading})", origin, _beginning(ours[name].metadata["help"])


def _beginning(help: str) -> str:
    """Return the first sentence of a help text. Of a long sentence, return the part before the first colon or
    semicolon."""
    first = re.split(r"(?<=\.)\s", help)[0]
    return re.split(r"[:;] ", first)[0].rstrip(".") + "." if len(first.split()) > LONG else first


def _aliases(theirs: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name in sorted(ALIASES):
        new, values = ALIASES[name].new, ALIASES[name].values
        meaning = _effect(ALIASES[name]) if new else f"No effect. Accepted values: {_code(map(repr, values))}."
        yield f"`{name}`", "transformers" if name in theirs else "older trainers", meaning


def _effect(alias: Alias) -> str:
    """Return what an alias does: the values that it sets, or that it takes the same values as the argument."""
    if not alias.values:
        return f"Another name of `{alias.new}`."
    pairs = ((value, alias.translate(value)) for value in alias.values)
    return " ".join(f"`{value!r}` sets `{alias.new}={new!r}`." for value, new in pairs if new is not None)


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


def _optimizers() -> Iterator[tuple[str, str, str]]:
    """Yield name, package and the reason to refuse it. The reason is empty for most."""
    for name, spec in OPTIMIZERS.items():
        yield name, f"`{spec.package}`" if spec.package else "torch", spec.unsupported


def _refused_optimizers() -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for name, _, why in _optimizers():
        if why:
            reasons.setdefault(why, []).append(name)
    for why, names in reasons.items():
        yield f"- {_code(names)}: {why}"


def _methods(theirs: type) -> Iterator[tuple[str, str]]:
    """Yield each method, with the moment at which an override is called, `SAME` or `NEVER`."""
    for name, method in sorted(vars(theirs).items()):
        if name.startswith("__") or not (inspect.isfunction(method) or isinstance(method, staticmethod)):
            continue
        yield name, CALLED.get(name, NEVER if name in NEVER_CALLED else SAME)


def _called(theirs: type) -> Iterator[tuple[str, str]]:
    for name, moment in _methods(theirs):
        if moment not in (SAME, NEVER):
            yield f"`{name}`", moment


def _never(theirs: type) -> Iterator[tuple[str, str]]:
    for name, moment in _methods(theirs):
        if moment == NEVER:
            yield f"`{name}`", _sentence(NEVER_CALLED[name])


def _uncalled_but_present(theirs: type) -> Iterator[str]:
    for name, moment in _methods(theirs):
        if moment == NEVER and hasattr(trainbus.Trainer, name):
            yield name


def _public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")} - {"run", "stepper", "seed"}


def _missing() -> Iterator[tuple[str, str]]:
    for name, remedy in sorted(MISSING.items()):
        if name not in NEVER_CALLED:
            yield f"`{name}`", _sentence(remedy)


ABSENT = {
    "TrainingArguments.default_optim": "The default optimizer is `adamw_torch_fused`.",
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
