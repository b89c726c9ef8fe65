"""Integrations: one outside package per file, imported only when it is asked for."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from ..engine.arguments.unsupported import reason_against
from ..engine.distributed.strategies import Strategy
from ..events.callback import Callback
from ..events.errors import ArgumentError, MissingExtra, TrainbusError, nearest

logger = logging.getLogger(__name__)

TABLE: dict[str, tuple[str, str, str]] = {
    "wandb": ("wandb.tracker:Wandb", "wandb", "wandb"),
    "tensorboard": ("tensorboard:TensorBoard", "tensorboard", "tensorboard"),
    "trackio": ("trackio:Trackio", "trackio", "trackio"),
    "mlflow": ("mlflow:MLflow", "mlflow", "mlflow"),
    "liger": ("liger:Liger", "liger_kernel", "liger"),
    "hub": ("hub:PushToHub", "huggingface_hub", "hub"),
    "deepspeed": ("deepspeed.callback:DeepSpeed", "deepspeed", "deepspeed"),
    "sharded_ddp": ("fairscale.sharded_ddp:ShardedDDP", "fairscale", "sharded"),
    "fairscale_fsdp": ("fairscale.fsdp:FairscaleFSDP", "fairscale", "sharded"),
    "optuna_search": ("optuna:OptunaSearch", "optuna", "optuna"),
    "ray_search": ("ray:RaySearch", "ray", "ray"),
    "wandb_search": ("wandb.sweep:WandbSweep", "wandb", "wandb"),
}
"""Name -> what to import here, the package it needs, and the extra that installs it."""

TRACKERS = ("wandb", "tensorboard", "trackio", "mlflow")
"""The names that `report_to` takes."""

SEARCHES = {"optuna": "optuna_search", "ray": "ray_search", "wandb": "wandb_search"}
"""The names that `hyperparameter_search(backend=...)` takes, in the order in which they are tried."""

GROUP = "trainbus.callbacks"
"""The entry-point group under which an installed package offers callbacks."""


def load(name: str) -> Any:
    """Return the class of an integration.

    Raises:
        ArgumentError: for an unknown name, with the nearest.
        MissingExtra: if its package is not installed, naming the extra that installs it.
    """
    if name not in TABLE:
        raise ArgumentError(f"There is no integration {name!r}{nearest(name, TABLE)} There are: {', '.join(TABLE)}.")
    target, package, extra = TABLE[name]
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(f".{module}", __name__), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise MissingExtra(f"{attribute} needs {package}: pip install 'trainbus[{extra}]'") from error


def search_backend(name: str | None) -> Any:
    """Return what runs a hyperparameter search, by name; without a name, the first that is installed.

    Raises:
        ArgumentError: for an unknown name, with the nearest.
        MissingExtra: if its package, or every one of them, is not installed.
    """
    if name is None:
        name = next((known for known, entry in SEARCHES.items() if find_spec(TABLE[entry][1]) is not None), None)
        if name is None:
            extras = ", ".join(f"pip install 'trainbus[{TABLE[entry][2]}]'" for entry in SEARCHES.values())
            raise MissingExtra(f"A hyperparameter search needs a package that chooses the values; any of: {extras}")
    plain = getattr(name, "value", name)  # transformers has an enum of them
    if plain not in SEARCHES:
        raise ArgumentError(f"backend={plain!r} is unknown{nearest(plain, SEARCHES)} Known: {', '.join(SEARCHES)}.")
    return load(SEARCHES[plain])()


def found_callbacks(args: Any) -> list[Any]:
    """Return the callbacks that arguments ask for by name, and those that installed packages offer.

    An entry point of the group `trainbus.callbacks` is a callback class, whose `from_arguments(args)` builds it, or a
    function from the arguments to a callback, a list of callbacks, or None. `TRAINBUS_DISABLE_PLUGINS` in the
    environment, a list of their names or `all`, leaves them out.

    Raises:
        TrainbusError: if a plugin cannot be loaded, naming it and how to leave it out.
    """
    found = [load(name).from_arguments(args) for name in _trackers(args)]
    if way := way_to_shard(args):
        found.append(load(way).from_arguments(args))
    if args.push_to_hub:
        found.append(load("hub").from_arguments(args))
    if args.use_liger_kernel:
        found.append(load("liger").from_arguments(args))
    for plugin in _enabled(entry_points(group=GROUP)):
        found += _build(plugin, args)
    return found


def way_to_shard(args: Any) -> str:
    """Return the integration that shards as the arguments say; empty if they shard nothing, or torch does the work.

    Raises:
        ArgumentError: in a single process, with the remedy. DeepSpeed works there too, to offload.
    """
    row = Strategy.selected_by(args).row
    if not row.single_process and args.world_size == 1:
        name = next(name for name in row.selecting_arguments if getattr(args, name) not in (None, "", False))
        raise ArgumentError(
            f"`{name}={getattr(args, name)!r}` only works in distributed training, and this is a single process: start "
            f"N of 2 or more ranks with `{row.launch}`, or remove `{name}`. Checkpoints resume on any number of ranks."
        )
    return row.integration


def _trackers(args: Any) -> Iterator[str]:
    for name in args.trackers:
        if name == "all":
            yield from (tracker for tracker in TRACKERS if find_spec(TABLE[tracker][1]) is not None)
        elif name in TRACKERS:
            yield name
        else:
            known = f"Known: {', '.join(TRACKERS)}, all, none.{reason_against('report_to', name)}"
            raise ArgumentError(f"report_to={name!r} is unknown{nearest(name, TRACKERS)} {known}")


def _enabled(plugins: Any) -> list[EntryPoint]:
    disabled = {name.strip() for name in os.environ.get("TRAINBUS_DISABLE_PLUGINS", "").split(",")}
    return [plugin for plugin in sorted(plugins, key=lambda plugin: plugin.name) if not {plugin.name, "all"} & disabled]


def _build(plugin: EntryPoint, args: Any) -> list[Any]:
    try:
        offered = plugin.load()
        if isinstance(offered, type) and issubclass(offered, Callback):
            overridden = offered.from_arguments.__func__ is not Callback.from_arguments.__func__  # type: ignore[attr-defined]
            built = offered.from_arguments(args) if overridden else offered()
        else:
            built = offered(args)
    except Exception as error:
        raise TrainbusError(
            f"The plugin {plugin.name!r} ({plugin.value}) cannot be loaded: {type(error).__name__}: {error}. "
            f"Mend or uninstall it, or leave it out with TRAINBUS_DISABLE_PLUGINS={plugin.name}."
        ) from error
    return built if isinstance(built, list) else [built]
