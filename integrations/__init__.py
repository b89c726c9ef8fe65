"""Integrations with external packages: one file or folder per package. A package is imported when a run needs it."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from typing import Any

from ..engine.arguments.unsupported import reason_against
from ..engine.distributed.strategies import Strategy
from ..events.errors import ArgumentError, MissingExtra, nearest
from ..events.installed import GROUP as GROUP
from ..events.installed import installed

logger = logging.getLogger(__name__)


class Kind(Enum):
    """The purpose of an integration."""

    TRACKER = "tracker"
    """Records runs. Users write the name of the integration in `report_to`."""
    SEARCH = "search"
    """Runs a hyperparameter search. Users write the `option` of the row in `hyperparameter_search(backend=...)`."""
    STRATEGY = "strategy"
    """Shards the training. `args.way_to_shard` returns the `option` of the row."""
    DATA = "data"
    """Converts tables to datasets. The Trainer loads the integration when a dataset is a table."""
    OTHER = "other"
    """Any other purpose. Users select the integration with its argument or its callback."""


@dataclass(frozen=True)
class Integration:
    """One row of the registry: a class and the package that it needs."""

    target: str
    """The class, as `module:Class`. The module is relative to this folder."""
    package: str
    """The import name of the external package; empty if the integration needs no package."""
    extra: str
    """The extra of `setup.cfg` that installs the package; empty if the integration needs no package."""
    requirement: str
    """The requirement of the extra, as `setup.cfg` spells it; empty if the integration needs no package."""
    kind: Kind
    """The purpose of the integration."""
    option: str = ""
    """The word that users write for the integration. Empty: the name of the row in the registry."""

    @property
    def class_name(self) -> str:
        """The name of the class."""
        return self.target.partition(":")[2]


INTEGRATIONS: dict[str, Integration] = {
    "wandb": Integration("wandb.tracker:Wandb", "wandb", "wandb", "wandb >= 0.19", Kind.TRACKER),
    "tensorboard": Integration(
        "tensorboard:TensorBoard", "tensorboard", "tensorboard", "tensorboard >= 2.10", Kind.TRACKER
    ),
    "trackio": Integration("trackio:Trackio", "trackio", "trackio", "trackio >= 0.20", Kind.TRACKER),
    "mlflow": Integration("mlflow:MLflow", "mlflow", "mlflow", "mlflow >= 3.0", Kind.TRACKER),
    "jsonl": Integration(".callbacks.monitor.row_files:JsonLines", "", "", "", Kind.TRACKER),
    "csv": Integration(".callbacks.monitor.row_files:Csv", "", "", "", Kind.TRACKER),
    "comet_ml": Integration("comet:Comet", "comet_ml", "comet", "comet_ml >= 3.44", Kind.TRACKER),
    "neptune": Integration("neptune:Neptune", "neptune", "neptune", "neptune >= 1.10", Kind.TRACKER),
    "clearml": Integration("clearml:ClearML", "clearml", "clearml", "clearml >= 1.16", Kind.TRACKER),
    "swanlab": Integration("swanlab:SwanLab", "swanlab", "swanlab", "swanlab >= 0.6", Kind.TRACKER),
    "tables": Integration("tables:Tables", "datasets", "datasets", "datasets >= 3.0", Kind.DATA),
    "liger": Integration("liger:Liger", "liger_kernel", "liger", "liger-kernel >= 0.6", Kind.OTHER),
    "float8": Integration("torchao:Float8", "torchao", "torchao", "torchao >= 0.18", Kind.OTHER),
    "lightning": Integration("lightning.callback:Lightning", "lightning", "lightning", "lightning >= 2.4", Kind.OTHER),
    "hub": Integration("hub:PushToHub", "huggingface_hub", "hub", "huggingface_hub >= 1.0", Kind.OTHER),
    "remote": Integration("remote:RemoteStore", "fsspec", "remote", "fsspec >= 2023.6", Kind.OTHER),
    "deepspeed": Integration(
        "deepspeed.callback:DeepSpeed", "deepspeed", "deepspeed", "deepspeed >= 0.16", Kind.STRATEGY
    ),
    "sharded_ddp": Integration(
        "fairscale.sharded_ddp:ShardedDDP", "fairscale", "sharded", "fairscale == 0.4.13", Kind.STRATEGY, "fairscale"
    ),
    "fairscale_fsdp": Integration(
        "fairscale.fsdp:FairscaleFSDP", "fairscale", "sharded", "fairscale == 0.4.13", Kind.STRATEGY
    ),
    "optuna_search": Integration("optuna:OptunaSearch", "optuna", "optuna", "optuna >= 4.0", Kind.SEARCH, "optuna"),
    "ray_search": Integration("ray:RaySearch", "ray", "ray", "ray[tune] >= 2.40", Kind.SEARCH, "ray"),
    "wandb_search": Integration("wandb.sweep:WandbSweep", "wandb", "wandb", "wandb >= 0.19", Kind.SEARCH, "wandb"),
}
"""The registry: name -> row. A new integration is a row here, a file, and a test.

A test compares the rows with the extras of `setup.cfg`, the public names of `trainbus` and the pages of `docs/`.
"""


def options(kind: Kind) -> dict[str, str]:
    """Return the integrations of a kind: the word that users write -> the name in the registry."""
    return {row.option or name: name for name, row in INTEGRATIONS.items() if row.kind is kind}


TRACKERS = tuple(options(Kind.TRACKER))
"""The names that `report_to` takes."""

SEARCHES = options(Kind.SEARCH)
"""Name for `hyperparameter_search(backend=...)` -> registry name. The order is the order of preference for
`backend=None`."""

TABLE = {name: (row.target, row.package, row.extra) for name, row in INTEGRATIONS.items() if row.package}
"""The rows of the registry that need a package, as tuples: name -> (target, package, extra)."""


def load(name: str) -> Any:
    """Import an integration, and return its class.

    Raises:
        ArgumentError: for an unknown name. The error suggests the most similar known name.
        MissingExtra: if the package of the integration is not installed. The error names the extra to install.
    """
    if name not in INTEGRATIONS:
        known = ", ".join(INTEGRATIONS)
        raise ArgumentError(f"The integration {name!r} is unknown{nearest(name, INTEGRATIONS)} Known: {known}.")
    row = INTEGRATIONS[name]
    module = row.target.partition(":")[0]
    try:
        return getattr(importlib.import_module(f".{module}", __name__), row.class_name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != row.package:
            raise
        raise MissingExtra(f"{row.class_name} needs {row.package}: pip install 'trainbus[{row.extra}]'") from error


def search_backend(name: str | None) -> Any:
    """Import the backend of a hyperparameter search, and return an instance of its class.

    Args:
        name: `optuna`, `ray` or `wandb`. None selects the first installed backend.

    Raises:
        ArgumentError: for an unknown name. The error suggests the most similar known name.
        MissingExtra: if the package of the backend is not installed. With None: if no backend is installed.
    """
    if name is None:
        name = next((known for known, entry in SEARCHES.items() if _is_installed(entry)), None)
        if name is None:
            extras = ", ".join(f"pip install 'trainbus[{INTEGRATIONS[entry].extra}]'" for entry in SEARCHES.values())
            raise MissingExtra(f"A hyperparameter search needs a backend. Install one of: {extras}")
    plain = getattr(name, "value", name)  # a member of transformers' enum
    if plain not in SEARCHES:
        raise ArgumentError(f"backend={plain!r} is unknown{nearest(plain, SEARCHES)} Known: {', '.join(SEARCHES)}.")
    return load(SEARCHES[plain])()


def found_callbacks(args: Any) -> list[Any]:
    """Build the callbacks of the integrations that the arguments select, such as the trackers in `report_to`.

    The result does not include callbacks of installed plugins.
    """
    found = [load(name).from_arguments(args) for name in dict.fromkeys(_trackers(args))]  # a name counts once
    if way := way_to_shard(args):
        found.append(load(way).from_arguments(args))
    if args.push_to_hub:
        found.append(load("hub").from_arguments(args))
    if args.use_liger_kernel:
        found.append(load("liger").from_arguments(args))
    return found


def way_to_shard(args: Any) -> str:
    """Return the registry name of the strategy that shards the training.

    The name is empty if torch shards the training, or if nothing is sharded.

    Raises:
        ArgumentError: if the strategy needs several ranks, but this is a single process. DeepSpeed also works in a
            single process, because DeepSpeed can offload there.
    """
    row = Strategy.selected_by(args).row
    if not row.single_process and args.world_size == 1:
        name = next(name for name in row.selecting_arguments if getattr(args, name) not in (None, "", False))
        raise ArgumentError(
            f"`{name}={getattr(args, name)!r}` only works in distributed training, but this is a single process: start "
            f"N of 2 or more ranks with `{row.launch}`, or remove `{name}`. Checkpoints resume on any number of ranks."
        )
    return row.integration


def _trackers(args: Any) -> Iterator[str]:
    for name in args.trackers:
        if name == "all":
            yield from (tracker for tracker in TRACKERS if _is_installed(tracker))
        elif name in TRACKERS:
            yield name
        elif name not in (plugins := installed()):  # a plugin joins with the other plugins
            known = f"Known: {', '.join([*TRACKERS, *plugins])}, all, none.{reason_against('report_to', name)}"
            raise ArgumentError(f"report_to={name!r} is unknown{nearest(name, [*TRACKERS, *plugins])} {known}")


def _is_installed(name: str) -> bool:
    package = INTEGRATIONS[name].package
    return bool(package) and find_spec(package) is not None
