"""Which installed plugins join a run: those that it names, and those that join every run."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....events.errors import TrainbusError
from ....events.installed import Plugin, installed
from .._base import refusal
from .._names import TRACKER_PACKAGES
from .build import _FAILURES, built_from, reads_arguments
from .names import find_plugin, own_names
from .text import Spec, as_texts, split, unknown_name

logger = logging.getLogger(__name__)

ONLY = "TRAINBUS_PLUGINS"
"""The environment variable with exactly those plugins that join: texts that commas separate, or `none`."""

DISABLED = "TRAINBUS_DISABLE_PLUGINS"
"""The environment variable with plugins that never join: names that commas separate, or `all`."""

OFF = "no:"
"""The prefix in `plugins` that leaves a plugin out."""


@dataclass(frozen=True)
class Request:
    """The plugins that a run names, leaves out or excludes."""

    named: Sequence[Spec] = ()
    """The plugins that its arguments name."""
    off: Collection[str] = ()
    """The names that its arguments leave out with `no:`."""
    only: Sequence[Spec] | None = None
    """The plugins of `TRAINBUS_PLUGINS`; None if it is not set."""
    disabled: Collection[str] = ()
    """The names of `TRAINBUS_DISABLE_PLUGINS`."""

    @classmethod
    def of(cls, plugins: Iterable[str], trackers: Iterable[str], environment: Mapping[str, str]) -> Request:
        """Return the request of a run.

        Args:
            plugins: the argument `plugins`.
            trackers: the names in `report_to` that are no trackers of this library.
            environment: the environment variables.

        Raises:
            ArgumentError: if `TRAINBUS_PLUGINS` has a text that cannot be parsed.
        """
        plugins = list(plugins)
        named = [Spec.parse(text) for text in plugins if not text.startswith(OFF)]
        named += [Spec(name) for name in trackers if name not in {spec.name for spec in named}]
        words = split(environment.get(ONLY, ""))
        only = None if not words else [] if words == ["none"] else [Spec.parse(word) for word in words]
        disabled = {name.strip() for name in environment.get(DISABLED, "").split(",")} - {""}
        return cls(named, {text.removeprefix(OFF) for text in plugins if text.startswith(OFF)}, only, disabled)


@dataclass(frozen=True)
class Selection:
    """The decision about the plugins of a run."""

    joins: Mapping[str, tuple[Spec, str]] = field(default_factory=dict)
    """The plugins that join, by name: the text, and why."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The plugins that a setting leaves out, by name: which setting."""
    problems: Sequence[str] = ()
    """What is wrong with the request."""


def select(known: Collection[str], auto: Collection[str], request: Request) -> Selection:
    """Return which plugins join.

    Args:
        known: the names of the installed plugins.
        auto: those that join every run.
        request: what the run says about them.
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
    hint = "; it is a callback of this library: name it in `callbacks`." if name in own_names() else ""
    return f"`{source}` names {name!r}, which is no installed plugin{hint or unknown_name(name, known)}"


@dataclass
class Joined:
    """The plugins of a run, and the callbacks that they built."""

    named: list[Any] = field(default_factory=list)
    """The callbacks of plugins that the run names."""
    auto: list[Any] = field(default_factory=list)
    """The callbacks of plugins that join every run."""
    lines: list[str] = field(default_factory=list)
    """What the opening lines of the run say, one line per plugin."""


def join(args: Any) -> Joined:
    """Return the callbacks of the plugins that join a run.

    A plugin that joins every run and cannot be loaded is left out with a warning, so that an installed package breaks
    no run. A plugin that the run names must work.

    Args:
        args: the training arguments.

    Raises:
        ArgumentError: lists unknown plugins and wrong options.
        TrainbusError: if a plugin that the run names cannot be loaded.
    """
    plugins = installed()
    trackers = [name for name in args.trackers if name in plugins and name not in TRACKER_PACKAGES]
    request = Request.of(as_texts(args.plugins), trackers, os.environ)
    hopeless = {*request.disabled} & {"all"} or (request.only is not None and not request.only)
    auto = [] if hopeless else [name for name, plugin in plugins.items() if _is_auto(plugin, request)]
    selection = select(plugins, auto, request)
    if selection.problems:
        raise refusal([*selection.problems])
    joined, problems = Joined(), []
    for name, (spec, why) in selection.joins.items():
        plugin = plugins[name]
        callbacks, wrong = _built(plugin, spec, args, why == "auto")
        problems += wrong
        (joined.auto if why == "auto" else joined.named).extend(callbacks)
        if callbacks:
            origin = {"auto": f"{plugin.origin}, auto", "named": plugin.origin}.get(why, f"{plugin.origin}, by {why}")
            joined.lines.append(f"{spec} ({origin})")
    if problems:
        raise refusal(problems)
    joined.lines += [f"without {name} (by {reason})" for name, reason in sorted(selection.left_out.items())]
    return joined


def _is_auto(plugin: Plugin, request: Request) -> bool:
    """Return whether a plugin joins every run. It is imported only if its package ships no manifest."""
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
    target = plugin.load()
    if auto and reads_arguments(target):
        try:
            found = target.from_arguments(args)
        except _FAILURES as error:
            raise plugin.failure(error) from error
        return ([] if found is None else [found]), []
    try:
        return built_from(spec, args, find_plugin)
    except Exception as error:
        raise plugin.failure(error) from error
