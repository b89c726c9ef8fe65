"""The command `trainbus`. The module of each command has a function `add_to`, which adds the parser of the command.

The module of `compose` has a function `run` instead, which builds its own parser from `TrainingArguments`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from ...events.errors import TrainbusError, nearest
from ...events.installed import COMMAND_GROUP, Plugin, installed
from ..distributed.memory_errors import lacks_memory
from . import COMMANDS

ERROR_STATUS = 2
"""The exit status of an error, as in argparse. A command sets another status with `set_defaults(error_status=...)`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: the words after the program name. Default: the arguments of this process.

    Returns:
        The exit status. 0: success. 1: the command found something, such as damage (`verify`) or a difference
        (`diff`). 2: an error.

        The command `preview` has other codes. 1: an error. 2: the preview differs from the file of `--against`.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["run"]:  # without the handling of errors below: the errors of a program keep their traceback
        options = _parser(words).parse_args(words)
        return int(options.do(options))
    try:
        code = _done(words)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _done(words: list[str]) -> int:
    """Run a command, print its error if it fails, and return the exit status."""
    status = ERROR_STATUS
    try:
        command = words[0] if words else ""
        if command == "compose":
            return int(_module(command).run(words[1:]))
        parser = _parser(words)
        expanded = getattr(_module(command), "expanded", list) if command in COMMANDS else list
        options = parser.parse_args(expanded(words))
        status = getattr(options, "error_status", ERROR_STATUS)
        code = options.do(options) or 0
        if not isinstance(code, int):
            raise TrainbusError(f"The command {words[0]!r} returned {code!r}. Return an exit status, or None.")
        return int(code)
    except BrokenPipeError:
        raise
    except (TrainbusError, OSError) as error:
        print(f"trainbus: {error}", file=sys.stderr)
        return status


def _module(command: str) -> Any:
    """Import and return the module of a command."""
    return importlib.import_module(f".{COMMANDS[command][0]}", __package__)


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations. For an unknown command or option, the error shows the nearest known
    name."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "allow_abbrev": False})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        options = [option for option in self._option_string_actions if option.startswith("--")]
        if self._subparsers is None and not any(action.nargs == argparse.REMAINDER for action in self._actions):
            # Check this before argparse does. For a misspelled option, argparse would say that an argument is missing.
            names = [word.partition("=")[0] for word in args or () if word.startswith("--") and word != "--"]
            self._refuse_unknown([name for name in names if name not in options], options)
        known, unknown = super().parse_known_args(args, namespace)
        if self._subparsers is None:
            self._refuse_unknown([word.partition("=")[0] for word in unknown], options)
        return known, unknown

    def _refuse_unknown(self, names: list[str], options: list[str]) -> None:
        for name in names:
            self.error(f"unknown argument {name!r}{nearest(name, options)}")

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(self.get_default("error_status") or ERROR_STATUS, f"{self.prog}: {message}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            self.error(f"unknown {action.dest} {value!r}{nearest(str(value), known)} Known: {', '.join(known)}.")


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Build the parser for a command line.

    The parser has the options of one command only: the first of `words` that does not begin with `-`. Each other
    command has only a line of help, so that its module is not imported.
    """
    chosen = next((word for word in words if not word.startswith("-")), "")
    parser = Parser(
        "trainbus",
        description="Plan, preview, watch, steer and compare runs, and run programs of transformers.",
    )
    parser.add_argument("--version", action="version", version=f"trainbus {version('trainbus')}")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND", parser_class=Parser)
    if chosen in COMMANDS:
        _module(chosen).add_to(commands)
    for name, (_, text) in COMMANDS.items():
        if name not in commands.choices:
            commands.add_parser(name, help=text, add_help=False)
    _add_installed(commands, chosen)
    return parser


def _add_installed(commands: Any, chosen: str) -> None:
    """Add the commands of installed packages. Import only the command `chosen`; the others get one line of help."""
    for name, plugin in installed(COMMAND_GROUP).items():
        if name in COMMANDS:
            continue  # no package replaces a command of this library
        if name == chosen:
            _add(plugin, commands)
        else:
            commands.add_parser(name, help=f"a command of {plugin.origin}", add_help=False)


def _add(plugin: Plugin, commands: Any) -> None:
    offered = plugin.load()
    add = getattr(offered, "add_to", offered)
    label = f"The command {plugin.name!r} of {plugin.origin} ({plugin.value})"
    before = {*commands.choices}
    try:
        add(commands)
    except (Exception, SystemExit) as error:
        if lacks_memory(error):
            raise
        raise plugin.failure(error) from error
    if plugin.name not in commands.choices:
        added = ", ".join(map(repr, {*commands.choices} - before)) or "none"
        raise TrainbusError(
            f"{label} adds no parser of its name. Its `add_to(commands)` must call "
            f"`commands.add_parser({plugin.name!r})`. It adds {added}."
        )
    parser = commands.choices[plugin.name]
    if not callable(parser.get_default("do")) and parser._subparsers is None:
        raise TrainbusError(
            f"{label} does nothing. Its `add_to(commands)` must call `parser.set_defaults(do=function)`."
        )


def problem_of(plugin: Plugin) -> str:
    """Import the command of a package, and return why the command cannot be called; an empty text if it can."""
    try:
        _add(plugin, Parser("trainbus").add_subparsers(dest="command", parser_class=Parser))
    except TrainbusError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    sys.exit(main())
