"""Build the config of a wandb run: the settings in effect, nested by subject."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ...callbacks.base.row_tracker import RowTracker
from ...callbacks.base.tracker import Tracker
from ...callbacks.defaults import DEFAULTS
from ...engine.arguments import TrainingArguments
from ...engine.optim.sizes import count_elements
from ...engine.run import Run
from ...events.callback import Callback

PLACES = (
    *("output_dir", "logging_dir", "run_name", "report_to", "project", "resume_from_checkpoint", "disable_tqdm"),
    *("log_level", "log_level_replica", "save_total_limit", "dataloader_num_workers", "overwrite_output_dir"),
)
"""The arguments that have no effect on the rows of a run."""


def run_config(run: Run) -> dict[str, Any]:
    """Build the config of a run: arguments, model, data, environment, distributed and callbacks."""
    attached = [callback for callback in run.bus.subscribers.values() if isinstance(callback, Callback)]
    return {
        "arguments": arguments_in_effect(run.args, attached),
        "model": _model(run.model),
        "data": _data(run),
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": str(run.args.device),
            "gpu": torch.cuda.get_device_name(run.args.device) if run.args.device.type == "cuda" else None,
        },
        "distributed": {
            "world_size": run.ranks.world_size,
            "strategy": [type(callback).__name__ for callback in attached if _shards(callback)],
        },
        "callbacks": {owner_id: _description(callback) for owner_id, callback in run.bus.subscribers.items()},
    }


def arguments_in_effect(args: TrainingArguments, attached: Iterable[Callback]) -> dict[str, Any]:
    """Return the arguments that have an effect on the run.

    If the user passes a callback of their own, such as `Checkpoint(...)`, this callback replaces the default callback.
    The arguments that configure the default callback, such as `save_steps`, then have no effect. The result leaves
    out these arguments. The function `run_config` lists the user's callback under `callbacks`.
    """
    values = {name: _short(value) for name, value in args.to_dict().items()}
    attached = list(attached)
    for cls in DEFAULTS:
        if not cls.arguments:
            continue
        built = cls.from_arguments(args)
        found = next((one for one in attached if not one.variant and _stands_for(one, cls)), None)
        if found is not None and (built is None or found != built):
            for name in cls.arguments:
                values.pop(name, None)
    return values


def changes_between(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the config `now` that differ from the config `before`, nested as in the configs.

    A value that exists only in `before` becomes None.
    """
    changed: dict[str, Any] = {}
    for name in [*before, *(name for name in now if name not in before)]:
        was, value = before.get(name), now.get(name)
        if isinstance(was, Mapping) and isinstance(value, Mapping):
            if inner := changes_between(was, value):
                changed[name] = inner
        elif was != value:
            changed[name] = value
    return changed


def changed_arguments(changes: Mapping[str, Any]) -> list[str]:
    """Return the names of the changed arguments, without arguments in `PLACES`, such as `output_dir`.

    Args:
        changes: the result of `changes_between` for two configs of a run.
    """
    return [name for name in changes.get("arguments", {}) if name not in PLACES]


def _stands_for(callback: Callback, cls: type[Callback]) -> bool:
    return isinstance(callback, cls) or cls in callback.instead_of


def _model(model: Any) -> dict[str, Any]:
    weights = list(model.parameters())
    config = getattr(model, "config", None)
    described = {
        "class": type(model).__name__,
        "num_parameters": count_elements(weights),
        "num_trainable": count_elements(weight for weight in weights if weight.requires_grad),
        "dtype": str(weights[0].dtype).removeprefix("torch.") if weights else None,
    }
    if config is not None:
        values = config if isinstance(config, Mapping) else config.to_dict() if hasattr(config, "to_dict") else None
        if values is not None:
            described["config"] = {str(name): _short(value) for name, value in values.items()}
    adapters = getattr(model, "peft_config", None)
    if isinstance(adapters, Mapping):
        described["peft_config"] = {
            name: {key: _short(item) for key, item in (one.to_dict() if hasattr(one, "to_dict") else vars(one)).items()}
            for name, one in adapters.items()
        }
    return described


def _data(run: Run) -> dict[str, Any]:
    plan = run.plan
    described: dict[str, Any] = {"train": _dataset(getattr(run.train_dataloader, "dataset", None))}
    if plan is not None:
        described |= {"max_steps": plan.max_steps, "epochs": plan.epochs, "batch_size": run.sizes.rows_per_batch}
    return described


def _dataset(dataset: Any) -> dict[str, Any] | None:
    if dataset is None:
        return None
    described: dict[str, Any] = {"class": type(dataset).__name__}
    try:
        described["rows"] = len(dataset)
    except TypeError:
        described["rows"] = None  # a stream has no length
    fingerprint = getattr(dataset, "_fingerprint", None)
    if isinstance(fingerprint, str):
        described["fingerprint"] = fingerprint
    return described


def _shards(callback: Callback) -> bool:
    module = type(callback).__module__
    return ".parallel." in module or ".deepspeed." in module or ".fairscale." in module


def _description(callback: Any) -> str:
    text = repr(callback)
    # The settings of a tracker may hold a secret, and the default text of an object differs in every process.
    shown = not isinstance(callback, (Tracker, RowTracker)) and " at 0x" not in text
    return text[:1000] if shown else type(callback).__name__


def _short(value: Any) -> Any:
    """Convert a value to the types of JSON, so that a resumed run can compare the result with the stored value.

    For example, a tuple becomes a list, and a `Path` becomes a text.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(name): _short(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(item) for item in value]
    return str(value)
