"""Plugin manifests: JSON files that describe plugins, so that trainbus can list plugins without importing them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from typing import Any

from ....events.callback import Callback
from ....events.capabilities import Conflict
from ....events.catalog import CATALOG, Event
from ....events.contract import CONTRACT
from ....events.errors import ArgumentError, TrainbusError
from ....events.installed import MANIFEST, Plugin, duplicates, installed, manifest_of, module_folder
from ....events.stages import ORDER_MARK, Order, Stage
from ....events.subscribers import base_of
from .callback_problems import problems_of as callback_problems
from .names import own_names
from .offers import problem_of_offer, unbound
from .options import OF_ALL, options_of, set_apart
from .text import as_text, unknown_name


def described(plugin: Plugin) -> dict[str, Any]:
    """Build the description of a plugin for a manifest. This imports the plugin.

    Raises:
        TrainbusError: if the plugin cannot be imported.
    """
    offered = plugin.load()
    target = unbound(offered)[0]
    hidden = {"id", "on_error", *(set_apart(target, dict.fromkeys(OF_ALL)) if isinstance(target, type) else ())}
    row: dict[str, Any] = {"value": plugin.value, **_of_target(target)}
    row["options"] = {
        name: {
            "type": option.type_text,
            "required": option.is_required,
            "default": None if option.is_required else _default(option.default),
        }
        for name, option in options_of(offered).items()
        if name not in hidden and option.is_shown
    }
    return row


def _default(value: Any) -> str:
    """Return the default of an option as text for a plugin manifest.

    Sets are sorted, also inside of other values, and memory addresses are removed. So the text of such a default is
    equal in every process.
    """
    return re.sub(r" at 0x[0-9a-fA-F]+", "", as_text(value))


def _summary(target: Any) -> str:
    """Return the first paragraph of the docstring of a class or function, in one line; an empty string if it has none.

    A docstring of a base class, or one that `dataclass` generates, is not used, because it does not describe the class.
    """
    own = vars(target).get("__doc__") if isinstance(target, type) else getattr(target, "__doc__", None)
    doc = inspect.cleandoc(own) if isinstance(own, str) else ""
    if isinstance(target, type) and doc.startswith(f"{target.__name__}("):
        return ""
    return " ".join(doc.partition("\n\n")[0].split())


def _of_target(target: Any) -> dict[str, Any]:
    doc = _summary(target)
    if not isinstance(target, type):
        return {"kind": "function", "doc": doc, "auto": getattr(target, "auto", False) is True}
    if not issubclass(target, Callback):
        handlers = handlers_of(target)
        return {"kind": "class", "doc": doc, "auto": False, "stage": stage_of(target), "handlers": handlers}
    return {
        "kind": "class",
        "doc": doc,
        "auto": target.auto is True,
        "stage": stage_of(target),
        "handlers": handlers_of(target),
        "events": {event.name: event.doc for event in _items(target.events) if isinstance(event, Event)},
        "requires": target.requires,
        "conflicts": [_name(each.other) for each in _items(target.conflicts_with) if isinstance(each, Conflict)],
        "arguments": list(_items(target.arguments)),
    }


def _items(value: Any) -> Iterable[Any]:
    """Return the value of a class attribute if it is a tuple or list, else (). `problems_of` reports other values."""
    return value if isinstance(value, (tuple, list)) else ()


def stage_of(cls: type) -> str:
    """Return the name of the stage of a callback class; `DECIDE` if the class sets no valid stage."""
    stage = getattr(cls, "stage", Stage.DECIDE)
    return stage.name if isinstance(stage, Stage) else Stage.DECIDE.name


def handlers_of(cls: type) -> dict[str, str]:
    """Return the handlers of a callback class: event name -> name of the stage in which the handler runs."""
    base = base_of(cls) or object
    own = {event.name for event in _items(getattr(cls, "events", ())) if hasattr(event, "name")}
    found = {}
    for name in dir(cls):
        handler = getattr(cls, name)
        if not name.startswith("on_") or name == "on_error" or handler is getattr(base, name, None):
            continue
        if callable(handler) and (name in CATALOG or name in own or base is Callback):
            mark: Order = getattr(handler, ORDER_MARK, Order())
            found[name] = mark.stage.name if mark.stage is not None else stage_of(cls)
    return found


def _name(other: Any) -> str:
    return str(getattr(other, "__name__", None) or getattr(other, "value", other))


def problems_of(plugin: Plugin) -> list[str]:
    """Return the problems of a plugin. The function imports the plugin.

    The function checks that:

    - the plugin can be imported, and offers a callback class or a function,
    - its events, parameters and annotations are valid,
    - this trainbus has the version of the callback interface that the plugin requires (`requires`),
    - its manifest is not outdated,
    - its name is valid, such as `damp_spikes`, and no other package offers the same name.
    """
    try:
        target = unbound(plugin.load())[0]
    except TrainbusError as error:
        return [f"cannot be loaded: {type(error.__cause__).__name__}: {error.__cause__}"]
    problems = []
    if isinstance(target, type):
        try:
            blank: Any = object.__new__(target)
        except TypeError as error:  # an abstract class, or a subclass of a built-in type
            problems.append(f"{plugin.value} is not a callback class: {error}")
        else:
            problems += callback_problems(blank, CATALOG, _handled_elsewhere())
    elif problem := problem_of_offer(target):
        problems.append(f"{plugin.value}: {problem}")
    shipped = manifest_of(plugin.module)
    if shipped:
        row = shipped["plugins"].get(plugin.name)
        if row != json.loads(json.dumps(described(plugin))):
            problems.append(f"its manifest is outdated: run `trainbus plugins manifest {plugin.package}`")
    problems += [_problem_of_name(plugin.name)] if _problem_of_name(plugin.name) else []
    for other in duplicates().get(plugin.name, []):
        if other != plugin and other.package != plugin.package:
            problems.append(f"{other.origin} offers the same name: uninstall one of the two")
    return problems


def _problem_of_name(name: str) -> str:
    """Return the problem of a plugin's name; an empty string if there is none.

    A name must be an identifier such as `damp_spikes`. It must not be `none`, `all`, or the name of a callback of
    trainbus.
    """
    remedy = "use letters, digits and underscores in the entry point"
    if "." in name and name.replace(".", "_").isidentifier():
        return f"the options of {name!r} have no flags: {remedy}"
    if not name.isidentifier():
        return f"no run can name {name!r}: {remedy}"
    if name in ("none", "all"):
        return f"{name!r} has a meaning of its own in the environment variables: rename the entry point"
    if name in own_names():
        return f"trainbus has a callback {name!r}, which `callbacks` takes instead: rename the entry point"
    return ""


def _handled_elsewhere() -> list[str]:
    """Return the names of the events that installed plugins define, from the plugin manifests."""
    found: list[str] = []
    for plugin in installed().values():
        found += (plugin.manifest() or {}).get("events", {})
    return found


def manifest_for(package: str) -> tuple[dict[str, Any], Path]:
    """Build the plugin manifest of an installed package. Return the manifest and the path of the manifest file.

    The function imports the plugins of the package. It does not write the manifest file.

    Args:
        package: the name of the distribution, or of a package that the distribution installs.

    Raises:
        ArgumentError: if the package is not installed or offers no plugin. Also if no single folder with `__init__.py`
            holds all plugins of the package.
        TrainbusError: if a plugin cannot be imported.
    """
    names = packages_distributions().get(package.replace("-", "_"), [])
    for name in (package, *names):
        try:
            dist = distribution(name)
        except PackageNotFoundError:
            continue
        break
    else:
        known = {plugin.package for plugin in installed().values()}
        raise ArgumentError(f"No package {package!r} is installed{unknown_name(package, known)}")
    own = [plugin for plugin in installed().values() if plugin.package == dist.name]
    if not own:
        raise ArgumentError(f"{dist.name} offers no plugin. Declare an entry point in the group 'trainbus.callbacks'.")
    tops = sorted({plugin.module.partition(".")[0] for plugin in own})
    folder = module_folder(tops[0])
    if len(tops) > 1 or folder is None:
        raise ArgumentError(
            f"The plugins of {dist.name} are in {', '.join(tops)}. A manifest needs one package, a folder with "
            "__init__.py, that holds all of them."
        )
    rows = {plugin.name: described(plugin) for plugin in own}
    return {"schema": 1, "package": dist.name, "contract": CONTRACT, "plugins": rows}, folder / MANIFEST
