"""Select the installed plugins of a run: plugins that the run names, and plugins that join every run."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....events.errors import ArgumentError, SubscriptionError, TrainbusError
from ....events.installed import Plugin, duplicates, installed
from ...distributed.memory_errors import lacks_memory
from .._base import refusal
from .._names import TRACKER_PACKAGES
from .build import built_from, reads_arguments
from .callback_problems import events_of, is_callback, problems_of
from .names import find_plugin, offered_by, own_names
from .text import Spec, as_texts, split, unknown_name

logger = logging.getLogger(__name__)

ONLY = "TRAINBUS_PLUGINS"
"""The environment variable that lists the only plugins that join: texts, separated by commas, or `none`."""

DISABLED = "TRAINBUS_DISABLE_PLUGINS"
"""The environment variable that lists plugins that never join: names, separated by commas, or `all`."""

OFF = "no:"
"""The prefix in `plugins` that leaves a plugin out."""


@dataclass(frozen=True)
class Request:
    """The settings about plugins: in the arguments of the run, and in environment variables."""

    named: Sequence[Spec] = ()
    """The plugins that the arguments `plugins` and `report_to` name."""
    off: Collection[str] = ()
    """The names of the plugins that the arguments leave out with `no:`."""
    only: Sequence[Spec] | None = None
    """The plugins in the variable `TRAINBUS_PLUGINS`, empty for `none`. None if the variable is not set."""
    disabled: Collection[str] = ()
    """The names in the variable `TRAINBUS_DISABLE_PLUGINS`."""

    @classmethod
    def of(cls, plugins: Iterable[str], trackers: Iterable[str], environment: Mapping[str, str]) -> Request:
        """Build the request of a run from its arguments and the environment variables.

        Args:
            plugins: the argument `plugins`, as texts.
            trackers: the names in `report_to` that are not trackers of this library, and so may be plugins.
            environment: the environment variables.

        Raises:
            ArgumentError: if `plugins` or an environment variable has a text that cannot be parsed.
        """
        plugins = list(plugins)
        named = [Spec.parse(text) for text in plugins if not text.startswith(OFF)]
        named += [Spec(name) for name in trackers if name not in {spec.name for spec in named}]
        words = split(environment.get(ONLY, ""))
        alone = [word for word in words if word.lower() == "none"]
        if alone and len(words) > 1:
            raise ArgumentError(f"`{ONLY}` is {environment[ONLY]!r}. Write `none` alone, or only names of plugins.")
        only = None if not words else [] if alone else [_parsed(ONLY, word) for word in words]
        disabled = {_parsed(DISABLED, word.removeprefix(OFF)).name for word in split(environment.get(DISABLED, ""))}
        return cls(named, {text.removeprefix(OFF) for text in plugins if text.startswith(OFF)}, only, disabled)


def _parsed(variable: str, text: str) -> Spec:
    try:
        return Spec.parse(text)
    except ArgumentError as error:
        raise ArgumentError(f"`{variable}`: {error}") from None


@dataclass(frozen=True)
class Selection:
    """The decision about the plugins of a run."""

    joins: Mapping[str, tuple[Spec, str]] = field(default_factory=dict)
    """Name of each plugin that joins -> its name with options, and why it joins: `auto` (it joins every run), `named`
    (in the arguments), or the name of an environment variable."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Name of each plugin that is left out -> the setting that leaves it out."""
    problems: Sequence[str] = ()
    """The problems of the request."""


def select(known: Collection[str], auto: Collection[str], request: Request) -> Selection:
    """Decide which plugins join the run and which are left out. The result also lists the problems of the request.

    Args:
        known: the names of the installed plugins.
        auto: the names of the plugins that join every run.
        request: the plugins that the run names and leaves out.
    """
    problems = [_unknown("plugins", spec.name, known) for spec in request.named if spec.name not in known]
    problems += [_unknown(f"{OFF}{name}", name, known) for name in sorted(request.off) if name not in known]
    problems += [_unknown(ONLY, spec.name, known) for spec in request.only or () if spec.name not in known]
    wanted = {name: (Spec(name), "auto") for name in sorted(auto)}
    for spec in request.named:
        if spec.name in wanted and wanted[spec.name][1] == "named":
            problems.append(f"`plugins` names {spec.name!r} twice; name it once, with all options.")
        wanted[spec.name] = (spec, "named")
    if request.only is not None:
        only = {spec.name: spec for spec in request.only}
        problems += [
            f"`{ONLY}` names {name!r} with different options; name it once, with all options."
            for name, spec in only.items()
            if any(other.name == name and other != spec for other in request.only)
        ]
        left_out = {name: ONLY for name in wanted if name not in only}
        # The options of the arguments hold, unless the variable has options of its own.
        joins = {
            name: (wanted[name][0] if not spec.options and name in wanted else spec, ONLY)
            for name, spec in only.items()
        }
    else:
        joins, left_out = dict(wanted), {}
    for name in list(joins):
        reason = f"{OFF}{name}" if name in request.off else DISABLED if {name, "all"} & {*request.disabled} else ""
        if reason:
            del joins[name]
            left_out[name] = reason
    return Selection(joins, left_out, problems)


def _unknown(source: str, name: str, known: Collection[str]) -> str:
    hint = "; it is a callback of this library. Name it in `callbacks`." if name in own_names() else ""
    if ":" in name and not name.startswith(OFF):
        hint = ". Name a class in `callbacks`."
    return f"`{source}` names {name!r}, which is not an installed plugin{hint or unknown_name(name, known)}"


@dataclass
class Joined:
    """The plugins of a run, and the callbacks that they built."""

    named: list[Any] = field(default_factory=list)
    """The callbacks of plugins that the arguments or `TRAINBUS_PLUGINS` name."""
    auto: list[Any] = field(default_factory=list)
    """The callbacks of plugins that join every run and that nothing names."""
    lines: list[str] = field(default_factory=list)
    """A line for each plugin that joins or that a setting leaves out. The run logs the lines at its start."""


def join(args: Any, beside: Iterable[Any] = ()) -> Joined:
    """Select the plugins that join a run, and build their callbacks.

    If a plugin that joins every run cannot be loaded, built or attached, the function logs a warning, and the run
    continues without the plugin. An installed package can therefore not break a run. For a plugin that the run names,
    the same problem raises an error.

    Args:
        args: the training arguments.
        beside: the other callbacks of the run, or their classes. Plugins may handle events that these callbacks
            declare.

    Raises:
        ArgumentError: lists unknown plugins, names that several packages offer, and wrong options.
        TrainbusError: if a plugin that the run names cannot be loaded, or offers something else than a callback.
    """
    plugins = installed()
    trackers = [name for name in args.trackers if name in plugins and name not in TRACKER_PACKAGES]
    request = Request.of(as_texts(args.plugins), trackers, os.environ)
    hopeless = {*request.disabled} & {"all"} or (request.only is not None and not request.only)
    auto = [] if hopeless else [name for name, plugin in plugins.items() if _is_auto(plugin, request)]
    selection = select(plugins, auto, request)
    ambiguous = [] if hopeless else _ambiguous(selection)
    if selection.problems or ambiguous:
        raise refusal([*selection.problems, *ambiguous])
    joined, problems = Joined(), []
    built: dict[str, list[Any]] = {}
    for name, (spec, why) in selection.joins.items():
        callbacks, wrong = _built(plugins[name], spec, args, why == "auto")
        problems += wrong
        built[name] = callbacks
    if problems:
        raise refusal(problems)
    events = events_of([*beside, *(callback for callbacks in built.values() for callback in callbacks)])
    for name, (spec, why) in selection.joins.items():
        plugin, callbacks = plugins[name], built[name]
        if why == "auto" and (wrong := [problem for each in callbacks for problem in problems_of(each, events)]):
            logger.warning("%s This run does without it.", plugin.failure(SubscriptionError(" ".join(wrong))))
            continue
        (joined.auto if why == "auto" else joined.named).extend(callbacks)
        if callbacks:
            origin = {"auto": f"{plugin.origin}, auto", "named": plugin.origin}.get(why, f"{plugin.origin}, by {why}")
            joined.lines.append(f"{spec} ({origin})")
    joined.lines += [f"without {name} (by {reason})" for name, reason in sorted(selection.left_out.items())]
    return joined


def _ambiguous(selection: Selection) -> list[str]:
    """Return an error text for each plugin of the run that several packages offer.

    If the plugin joins every run, and this run does not name the plugin, log a warning instead.
    """
    problems = []
    for name, offers in duplicates().items():
        packages = {plugin.package: f"{plugin.origin} ({plugin.value})" for plugin in offers}
        if len(packages) == 1 or name not in selection.joins:
            continue
        said = f"{' and '.join(packages.values())} both offer the plugin {name!r}"
        if selection.joins[name][1] == "auto":
            logger.warning("%s. This run uses the first one. Uninstall one of the two.", said)
        else:
            problems.append(
                f"{said}. Uninstall one of the two, or name the class in `callbacks`: package.module:Class."
            )
    return problems


def _is_auto(plugin: Plugin, request: Request) -> bool:
    """Return whether a plugin has `auto = True`, and no setting excludes it.

    If the package of the plugin has no plugin manifest, the plugin is imported. If this import fails, return False.
    """
    if plugin.name in request.disabled or plugin.name in request.off:
        return False
    row = plugin.manifest()
    if row is not None:
        return row.get("auto") is True
    try:
        return getattr(plugin.load(), "auto", False) is True
    except TrainbusError as error:
        if all(spec.name != plugin.name for spec in (*request.named, *(request.only or ()))):
            logger.warning("%s This run does without it.", error)
        return False


def _built(plugin: Plugin, spec: Spec, args: Any, auto: bool) -> tuple[list[Any], list[str]]:
    """Build the callbacks of a plugin with the options in `spec`. Return the callbacks, and problems of the options.

    If the plugin joins every run (`auto`) and has a problem, log a warning and return two empty lists.
    """
    try:
        callbacks, problems = _made(plugin, spec, args, auto)
        for callback in callbacks:
            if not is_callback(callback):
                raise plugin.failure(TypeError(f"it returns {callback!r}, which is not a callback"))
    except TrainbusError as error:
        if not auto:
            raise
        logger.warning("%s This run does without it.", error)
        return [], []
    if auto and problems:
        logger.warning("%s This run does without it.", plugin.failure(ArgumentError(" ".join(problems))))
        return [], []
    return callbacks, problems


def _made(plugin: Plugin, spec: Spec, args: Any, auto: bool) -> tuple[list[Any], list[str]]:
    target = offered_by(plugin)
    try:
        if auto and reads_arguments(target):
            found = target.from_arguments(args)
            return ([] if found is None else [found]), []
        return built_from(spec, args, find_plugin)
    except (Exception, SystemExit) as error:
        if lacks_memory(error):
            raise
        raise plugin.failure(error) from error
