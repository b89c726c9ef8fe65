"""The names of callbacks in text options: `early_stopping` for this library, `package.module:Class` for any class."""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import Any

from ....events.errors import ArgumentError, SubscriptionError, closest
from ....events.installed import Plugin, installed
from ..cli.values import Unreadable
from .offers import problem_of_offer
from .options import imported
from .text import split, unknown_name

_ROOT = __name__.partition(".")[0]
NOT_CALLBACKS = frozenset({"Callback", "CarryPast", "ExportableState", "Predictions", "TrainerCallback"})
"""Public names without a name in text options: base classes of callbacks, and classes that are not callbacks."""


def snake_case(name: str) -> str:
    """Convert a class name for use in text options: `EarlyStopping` -> `early_stopping`, `NaNGuard` -> `nan_guard`."""
    if name in _IRREGULAR:
        return _IRREGULAR[name]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


_IRREGULAR = {
    "NaNGuard": "nan_guard",
    "MLflow": "mlflow",
    "ClearML": "clearml",
    "SwanLab": "swanlab",
    "TensorBoard": "tensorboard",
    "DeepSpeed": "deepspeed",
}
"""Names that differ from the rule: some capitals do not begin a word, and `report_to` and `deepspeed` have their own
names."""


@cache
def own_names() -> dict[str, str]:
    """Return the callbacks of this library: snake_case name -> class name. This imports no callback."""
    root: Any = importlib.import_module(_ROOT)
    classes = [name for module, names in root._MODULES.items() if module.startswith("callbacks.") for name in names]
    found = sorted({*classes, *root._EXTRAS} - NOT_CALLBACKS)
    return {snake_case(name): name for name in found}


def is_own(cls: type) -> bool:
    """Return whether a class is a public callback of this library."""
    public = own_names().get(snake_case(cls.__name__))
    return public == cls.__name__ and cls.__module__.startswith(f"{_ROOT}.")


def name_of(cls: type) -> str:
    """Return the name of a callback class in text options.

    A public callback of this library has a short name, such as `early_stopping`. Any other class has the name
    `package.module:Class`.
    """
    if is_own(cls):
        return snake_case(cls.__name__)
    return f"{cls.__module__}:{cls.__qualname__}"


def find(name: str) -> Any:
    """Import and return the class, or the function that builds callbacks, for a name in a text option.

    Args:
        name: a callback of this library, an installed plugin, or `package.module:Class`.

    Raises:
        ArgumentError: if the name is unknown, or if its object cannot build a callback.
        MissingExtra: if the callback needs a package that is not installed.
        TrainbusError: if the name is the name of a plugin that cannot be loaded.
    """
    if ":" in name:
        try:
            found = imported(name)
        except Unreadable as error:
            raise ArgumentError(f"{name!r} is not a callback{error}") from error
        if not callable(found):
            raise ArgumentError(f"{name!r} is {found!r}; name a callback class, or a function that returns callbacks.")
        if problem := problem_of_offer(found):
            raise ArgumentError(f"{name!r}: {problem}.")
        return found
    own = own_names()
    if name in own:
        return getattr(importlib.import_module(_ROOT), own[name])
    plugins = installed()
    if name in plugins:
        return offered_by(plugins[name])
    close = nearest_name(name)
    known = f". Known: {', '.join([*own, *plugins])}. Or write `package.module:Class`."
    raise ArgumentError(f"Unknown callback {name!r}{f'; did you mean {close!r}?' if close else known}")


def nearest_name(name: str) -> str:
    """Return the valid name that is nearest to `name`: `early_stopping` for `EarlyStopping`, `a.b:C` for `a.b.C`.

    A valid name, or a name with a colon, is returned unchanged. If no valid name is similar, return an empty string.
    """
    own, plugins = own_names(), installed()
    if ":" in name or name in own or name in plugins:
        return name
    public = {public: text for text, public in own.items()}
    if name in public:
        return public[name]
    module, _, last = name.rpartition(".")
    return f"{module}:{last}" if module else closest(name, [*own, *plugins])


def refuse_texts(listed: Any) -> None:
    """Refuse texts in the parameter `callbacks` of the Trainer, which takes objects.

    Args:
        listed: the value of the parameter: a list of callbacks, or a text.

    Raises:
        SubscriptionError: if there are texts. The error names the nearest callback and the remedies for each text.
    """
    texts = split(listed) if isinstance(listed, str) else [each for each in listed if isinstance(each, str)]
    if texts:
        raise SubscriptionError(" ".join(map(_refusal_of_text, texts)))


def _refusal_of_text(text: str) -> str:
    name = text.partition("(")[0].strip()
    close = nearest_name(name)
    if not close:
        return (
            f"{text!r} is a text, and no callback has this name. Pass an object, such as `EarlyStopping(patience=3)`."
        )
    options = text.strip()[len(name) :]
    hint = f"; did you mean {close!r}?" if close != name else "."
    remedy = f"Write texts of callbacks in the arguments: `TrainingArguments(callbacks=[{close + options!r}])`."
    public = f" Or pass an object: `{own_names()[close]}{options or '()'}`." if close in own_names() else ""
    return f"{text!r} is a text{hint} {remedy}{public}"


def find_plugin(name: str) -> Any:
    """Import and return the class or function that an installed plugin offers.

    Raises:
        ArgumentError: if no installed plugin has the name. The message gives the nearest name.
        TrainbusError: if the plugin cannot be loaded.
    """
    plugins = installed()
    if name not in plugins:
        if name in own_names():
            raise ArgumentError(f"{name!r} is a callback of {_ROOT}, not a plugin. Name it in `callbacks`.")
        raise ArgumentError(f"Unknown plugin {name!r}{unknown_name(name, plugins)}")
    return offered_by(plugins[name])


def offered_by(plugin: Plugin) -> Any:
    """Import and return the class or function that a plugin offers.

    Raises:
        TrainbusError: if the plugin cannot be loaded, or if its object cannot build a callback.
    """
    target = plugin.load()
    if problem := problem_of_offer(target):
        raise plugin.failure(TypeError(problem))
    return target
