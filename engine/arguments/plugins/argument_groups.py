"""The options of installed plugins on the command line and in configuration files: `--damp_spikes.factor 4`."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ....events.errors import ArgumentError, TrainbusError
from ....events.installed import Plugin, installed
from .manifest import described
from .options import OF_ALL
from .text import Spec, as_texts, unknown_name, value_of


def plugin_of(name: str) -> str:
    """Return the name of the plugin that has an option: `damp_spikes` for the option `damp_spikes.factor`.

    If there is no dot, or if no such plugin is installed, return an empty string.
    """
    plugin, dot, _ = name.partition(".")
    return plugin if dot and plugin.isidentifier() and plugin in installed() else ""


def unknown_plugin(name: str) -> str:
    """Return a hint about plugins, for the end of an error text about an unknown setting.

    If `name` is an option of a plugin that is not installed, such as `damp.factor`, the hint says so: `; the plugin
    'damp' is not installed`. If `name` is the name of an installed plugin, the hint says how to set the options of the
    plugin. For any other name, return an empty string.
    """
    plugin, dot, _ = name.replace("-", "_").partition(".")
    if dot and plugin.isidentifier() and plugin not in installed():
        return f"; the plugin {plugin!r} is not installed{unknown_name(plugin, installed())}"
    if not dot and plugin in installed():
        return (
            f"; it is a plugin. Name it in `plugins`: {{{plugin!r}: {{'option': value}}}}, or write `{plugin}.option`."
        )
    return ""


def named_in(words: Iterable[str]) -> list[str]:
    """Return the names of the installed plugins that have an option in `words`, such as `--damp_spikes.factor`."""
    names = (word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--") and "." in word)
    return [*dict.fromkeys(filter(None, map(plugin_of, names)))]


def row_of(plugin: Plugin) -> Mapping[str, Any]:
    """Return the description of a plugin, from its manifest or, without a manifest, from its class.

    Raises:
        TrainbusError: if the plugin has no manifest and cannot be loaded.
    """
    return plugin.manifest() or described(plugin)


def add_groups(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Add the options of plugins to a parser, a section for each plugin.

    Args:
        parser: the parser.
        names: the names of installed plugins. Plugins that the parser already has are skipped.
    """
    plugins, known = installed(), {group.title for group in parser._action_groups}
    for name in names:
        plugin = plugins[name]
        title = f"Plugin {name} ({plugin.origin})"
        if title in known:
            continue
        try:
            row = row_of(plugin)
        except TrainbusError as error:
            parser.add_argument_group(title, _plain(str(error)))
            continue
        joins = "It joins every run." if row.get("auto") else f"--plugins {name} or an option lets it join."
        group = parser.add_argument_group(title, _plain(f"{_sentence(row.get('doc', ''))} {joins}".strip()))
        rows = {**dict.fromkeys(OF_ALL if "handlers" in row else (), _HIDDEN), **(row.get("options") or {})}
        for option, said in rows.items():
            default = "required" if said.get("required") else f"default: {said.get('default')}"
            flag = f"--{name}.{option}"
            group.add_argument(
                *dict.fromkeys([flag, flag.replace("_", "-")]),
                dest=f"{name}.{option}",
                action=_StoreOption,
                metavar=str(said.get("type", "Any")),
                help=argparse.SUPPRESS if said is _HIDDEN else f"({default})".replace("%", "%%"),
                nargs="?",
                const=True,
                default=argparse.SUPPRESS,
                type_text=str(said.get("type", "")),
            )


def _plain(text: str) -> str:
    """Escape the description of a `--help` group, so that argparse prints it unchanged. Return the escaped text.

    argparse interprets `%` in a description only if the description contains `%(prog)`.
    """
    return text.replace("%", "%%") if "%(prog)" in text else text


def _sentence(text: str) -> str:
    return f"{text}." if text and text[-1] not in ".!?:" else text


_HIDDEN: Mapping[str, Any] = {"type": "str", "required": False}
"""The description of the options in `OF_ALL`, which every callback has. The help does not show these options."""


class _StoreOption(argparse.Action):
    """Adds the option of a plugin to `plugins`: `--damp_spikes.factor 4` adds the text `damp_spikes(factor=4)`."""

    def __init__(self, *args: Any, type_text: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.type_text = type_text

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        plugin, _, option = self.dest.partition(".")
        value = _value(values, self.type_text) if isinstance(values, str) else values
        namespace.plugins = with_option(getattr(namespace, "plugins", None), plugin, option, value)


def _value(word: str, type_text: str) -> Any:
    """Convert a word of the command line for an option with the type `type_text`.

    If the type is `int` or `float`, a word with a number becomes this number. If the type allows a collection, a word
    in brackets is read as a Python literal. Any other word stays text.
    """
    if type_text in ("int", "float"):
        return _number(word)
    if word.lstrip()[:1] in ("[", "(", "{") and _SEVERAL.search(type_text):
        with suppress(ArgumentError):  # its type decides whether the text is valid
            return value_of(word)
    return word


_SEVERAL = re.compile(r"\b(list|tuple|set|frozenset|dict|sequence|iterable|collection|mapping|any)\b", re.IGNORECASE)


def _number(word: str) -> Any:
    try:
        value = ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word
    return value if isinstance(value, (int, float)) else word


def with_option(plugins: Any, name: str, option: str, value: Any) -> list[str]:
    """Return the value of the argument `plugins` with one more option, such as `["damp_spikes(factor=4)"]`.

    If the value does not name the plugin, the plugin is added.

    Args:
        plugins: the current value, in any form that `as_texts` converts.
        name: the name of the plugin.
        option: the name of the option.
        value: the value of the option.
    """
    texts: Sequence[Any] = as_texts(plugins)
    found, result = False, []
    for text in texts:
        if isinstance(text, str) and not text.startswith("no:") and (spec := Spec.parse(text)).name == name:
            found = True
            text = str(Spec(name, {**spec.options, option: value}))
        result.append(text)
    return result if found else [*result, str(Spec(name, {option: value}))]
