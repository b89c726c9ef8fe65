"""Former module paths and former names. Each old name imports its replacement, so older programs keep working.

The import hook of `trainbus/__init__.py` asks this module for every `trainbus.*` import. A test imports every name of
`tests/public_names.txt`. The test fails if a renamed module has no entry in `FORMER`, or if a renamed name has no entry
in `FORMER_NAMES`.
"""

from __future__ import annotations

import importlib
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from .former_names import FORMER_NAMES

FORMER = {
    "callbacks.align_tokens": "callbacks.model.align_tokens",
    "callbacks.blocks": "callbacks.model.blocks",
    "callbacks.cadence": "callbacks.base.cadence",
    "callbacks.carry_past": "callbacks.model.recurrent_memory",
    "callbacks.checkpoint": "callbacks.flow.checkpoint",
    "callbacks.compile_model": "callbacks.model.compile_model",
    "callbacks.control_file": "callbacks.flow.control_file",
    "callbacks.count_flops": "callbacks.monitor.count_flops",
    "callbacks.count_tokens": "callbacks.monitor.count_tokens",
    "callbacks.data_parallel": "callbacks.parallel.data_parallel",
    "callbacks.ddp": "callbacks.parallel.ddp",
    "callbacks.early_stopping": "callbacks.stopping.early_stopping",
    "callbacks.ema": "callbacks.model.ema",
    "callbacks.empty_cache": "callbacks.monitor.empty_cache",
    "callbacks.evaluate": "callbacks.flow.evaluate",
    "callbacks.find_learning_rate": "callbacks.optimizer.find_learning_rate",
    "callbacks.forwards": "callbacks.model.forwards",
    "callbacks.freeze": "callbacks.model.freeze",
    "callbacks.fsdp": "callbacks.parallel.fsdp",
    "callbacks.fully_shard": "callbacks.parallel.fully_shard",
    "callbacks.gradient_checkpointing": "callbacks.model.gradient_checkpointing",
    "callbacks.half_evaluation": "callbacks.precision.half_evaluation",
    "callbacks.half_weights": "callbacks.precision.half_weights",
    "callbacks.keep_best": "callbacks.flow.keep_best",
    "callbacks.log": "callbacks.flow.log",
    "callbacks.memory_metrics": "callbacks.monitor.memory_metrics",
    "callbacks.metric_names": "callbacks.base.metric_names",
    "callbacks.metric_schedule": "callbacks.optimizer.metric_schedule",
    "callbacks.mixed_precision": "callbacks.precision.mixed_precision",
    "callbacks.nan_guard": "callbacks.stopping.nan_guard",
    "callbacks.neftune": "callbacks.model.neftune",
    "callbacks.progress": "callbacks.monitor.progress",
    "callbacks.report_to_trial": "callbacks.flow.report_to_trial",
    "callbacks.round_as_wholes": "callbacks.precision.exact_fused_update",
    "callbacks.schedule_free": "callbacks.optimizer.schedule_free",
    "callbacks.sharded_model": "callbacks.parallel.sharded_model",
    "callbacks.sharded_optimizer": "callbacks.parallel.sharded_optimizer",
    "callbacks.split_weights": "callbacks.parallel.split_weights",
    "callbacks.status_file": "callbacks.monitor.status_file",
    "callbacks.stop_at_max_steps": "callbacks.stopping.stop_at_max_steps",
    "callbacks.stop_at_time": "callbacks.stopping.stop_at_time",
    "callbacks.stop_on_signal": "callbacks.stopping.stop_on_signal",
    "callbacks.tf32": "callbacks.precision.tf32",
    "callbacks.tracker": "callbacks.base.tracker",
    "callbacks.watch_numbers": "callbacks.monitor.watch_numbers",
    "callbacks.wrapping": "callbacks.parallel.wrapping",
    "engine.adafactor": "engine.optim.adafactor",
    "engine.alike": "engine.distributed.consistency",
    "engine.arguments._splitting": "engine.arguments._sharding",
    "engine.arguments.familiar": "engine.arguments.hf_compat",
    "engine.arguments.left_out": "engine.arguments.unsupported",
    "engine.arguments.own": "engine.arguments.rank_local",
    "engine.arguments.record": "engine.arguments.serialization",
    "engine.arguments.spelling": "engine.arguments.keywords",
    "engine.batch_size": "engine.search.batch_size",
    "engine.checkpoint.choosing": "engine.checkpoint.read.choosing",
    "engine.checkpoint.codec": "engine.checkpoint.format.codec",
    "engine.checkpoint.commit": "engine.checkpoint.write.commit",
    "engine.checkpoint.contents": "engine.checkpoint.format.tensor_cache",
    "engine.checkpoint.files": "engine.checkpoint.format.files",
    "engine.checkpoint.foreign": "engine.checkpoint.read.hf_checkpoint",
    "engine.checkpoint.groups": "engine.checkpoint.read.optimizer_state",
    "engine.checkpoint.hashing": "engine.checkpoint.format.hashing",
    "engine.checkpoint.host_copies": "engine.checkpoint.write.host_copies",
    "engine.checkpoint.listing": "engine.checkpoint.read.listing",
    "engine.checkpoint.manifest": "engine.checkpoint.format.manifest",
    "engine.checkpoint.model_files": "engine.checkpoint.write.model_files",
    "engine.checkpoint.other_ranks": "engine.checkpoint.read.world_size",
    "engine.checkpoint.partial": "engine.checkpoint.read.missing_state",
    "engine.checkpoint.resumption": "engine.checkpoint.read.resumption",
    "engine.checkpoint.retention": "engine.checkpoint.write.retention",
    "engine.checkpoint.sharded": "engine.checkpoint.format.sharded",
    "engine.checkpoint.space": "engine.checkpoint.write.disk_space",
    "engine.checkpoint.store": "engine.checkpoint._former_store",
    "engine.checkpoint.tensor_file": "engine.checkpoint.format.tensor_file",
    "engine.checkpoint.verify": "engine.checkpoint.read.verify",
    "engine.checkpoint.writer": "engine.checkpoint.write.background_writer",
    "engine.command_line": "engine.commands.main",
    "engine.consensus": "engine.distributed.consensus",
    "engine.data.collate": "engine.data.collators.default",
    "engine.data.collators_lm": "engine.data.collators.language_modeling",
    "engine.data.forking": "engine.data.workers.forking",
    "engine.data.loaders": "engine.data.build",
    "engine.data.shares": "engine.data.streaming_shards",
    "engine.data.worker_signals": "engine.data.workers.signals",
    "engine.faults": "engine.distributed.failures",
    "engine.given": "engine.api.inputs",
    "engine.greedy": "engine.optim.greedy_lr",
    "engine.losses": "engine.loss.loss_window",
    "engine.low_rank": "engine.optim.galore_apollo",
    "engine.meeting": "engine.distributed.rendezvous",
    "engine.memory_plan": "engine.distributed.memory_estimate",
    "engine.memory_ways": "engine.distributed.strategies",
    "engine.model_card": "engine.api.model_card",
    "engine.objective": "engine.loss.objective",
    "engine.optim_table": "engine.optim.registry",
    "engine.overrides": "engine.api.overrides",
    "engine.parser": "engine.arguments.cli.parser",
    "engine.parser_fields": "engine.arguments.cli.fields",
    "engine.parser_values": "engine.arguments.cli.values",
    "engine.plan": "engine.data.plan",
    "engine.plan_command": "engine.commands.plan",
    "engine.position": "engine.data.position",
    "engine.randomness": "engine.checkpoint.rng_state",
    "engine.ranks": "engine.distributed.ranks",
    "engine.schedule_functions": "engine.optim.schedule_functions",
    "engine.schedules": "engine.optim.schedules",
    "engine.seq2seq": "engine.evaluation.seq2seq",
    "engine.summary": "engine.evaluation.outputs",
    "engine.utils": "engine.api.utils",
    "integrations.deepspeed_check": "integrations.deepspeed.checks",
    "integrations.deepspeed_config": "integrations.deepspeed.config",
    "integrations.deepspeed_form": "integrations.deepspeed.config_schema",
    "integrations.deepspeed_process": "integrations.deepspeed.process",
    "integrations.deepspeed_schedule": "integrations.deepspeed.schedules",
    "integrations.deepspeed_state": "integrations.deepspeed.optimizer_state",
    "integrations.deepspeed_weights": "integrations.deepspeed.weights",
    "integrations.fairscale_fsdp": "integrations.fairscale.fsdp",
    "integrations.fairscale_fsdp_units": "integrations.fairscale.fsdp_units",
    "integrations.wandb_sweep": "integrations.wandb.sweep",
    "trainer": "engine.trainer",
    "engine.surface": "engine.api",
    "engine.surface.accelerator": "engine.api.accelerator",
    "engine.surface.asking": "engine.api.introspection",
    "engine.surface.base": "engine.api.base",
    "engine.surface.evaluating": "engine.api.evaluation",
    "engine.surface.familiar": "engine.api.hf_compat",
    "engine.surface.loading": "engine.api.dataloaders",
    "engine.surface.publishing": "engine.api.publishing",
    "engine.surface.recording": "engine.api.saving",
    "engine.surface.searching": "engine.api.search",
    "engine.surface.subscribing": "engine.api.callbacks",
}
"""Former path -> present path, both relative to the package."""

_IN_PRESENT_PACKAGES = {
    f"{FORMER[parent]}.{child}": FORMER[f"{parent}.{child}"]
    for parent, _, child in (path.rpartition(".") for path in FORMER) if parent in FORMER
}  # fmt: skip
"""Former module name in its present package -> present path. `from former.package import former_module` needs these
entries."""


class _Alias(Loader):
    """Loader for a former module path: it imports the module at the present path.

    Both paths give the same module object, so a class is the same object under both paths.
    """

    def __init__(self, present: str) -> None:
        self.present = present

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.present)
        self.own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.own_spec  # the import system replaced it with the alias's spec


class _WithFormerNames(Loader):
    """Loads a module as usual, and adds a `__getattr__` that finds former names of its classes and functions."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def __getattr__(self, name: str) -> Any:
        if name == "own":  # not set yet, for example while the object is copied
            raise AttributeError(name)
        return getattr(self.own, name)  # such as `get_source` and `get_resource_reader`

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.own.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self.own.exec_module(module)
        package, _, path = module.__name__.partition(".")
        own = vars(module).get("__getattr__")

        def __getattr__(name: str) -> Any:
            if name in FORMER_NAMES[path]:
                place, _, present = FORMER_NAMES[path][name].rpartition(":")
                home = importlib.import_module(f"{package}.{place}") if place else module
                return getattr(home, present)
            if own is not None:
                return own(name)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        vars(module)["__getattr__"] = __getattr__


def spec_of(name: str, search: Any) -> ModuleSpec | None:
    """Return the import spec of a module that is a key in one of three tables; None for any other module.

    - `FORMER` and `_IN_PRESENT_PACKAGES`: the former paths of modules, such as `callbacks.ema`.
    - `FORMER_NAMES`: the modules from which programs import former names of classes and functions.

    Args:
        name: the full name of the module, such as `trainbus.callbacks.ema`.
        search: the `__path__` of the parent package of the module.
    """
    package, _, path = name.partition(".")
    if path in FORMER:
        return ModuleSpec(name, _Alias(f"{package}.{FORMER[path]}"))
    spec = PathFinder.find_spec(name, search) if path in FORMER_NAMES or path in _IN_PRESENT_PACKAGES else None
    if spec is None and path in _IN_PRESENT_PACKAGES:
        return ModuleSpec(name, _Alias(f"{package}.{_IN_PRESENT_PACKAGES[path]}"))
    if spec is not None and path in FORMER_NAMES:
        spec.loader = _WithFormerNames(spec.loader)
    return spec
