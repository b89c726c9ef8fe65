"""The command `trainbus`. Each command is a module of this folder with `add_to`, which adds its parser."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from ...events.errors import TrainbusError, nearest
from . import checkpoints, plan, run, status, tell

COMMANDS = (status, tell, checkpoints, plan, run)
"""The modules of the commands, in the order of the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: the words after the program name. Default: those of this process.

    Returns:
        The exit status: 0; 1 if `verify` found damage; 2 if the command cannot be done.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(checkpoints.expanded(words))
    if words[:1] == ["run"]:
        return run.run(options)
    try:
        status: int = options.do(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (TrainbusError, OSError) as error:
        print(f"trainbus: {error}", file=sys.stderr)
        return 2
    return status


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations, and names the nearest command or option for an unknown one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "allow_abbrev": False})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # Before argparse, which would name the missing argument that the user has misspelled.
        if self._subparsers is None and not any(action.nargs == argparse.REMAINDER for action in self._actions):
            options = [option for option in self._option_string_actions if option.startswith("--")]
            names = [word.partition("=")[0] for word in args or () if word.startswith("--") and word != "--"]
            for name in names:
                if name not in options:
                    self.error(f"unknown argument {name!r}{nearest(name, options)}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {message}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(map(str, action.choices))
            self.error(f"unknown {action.dest} {value!r}{nearest(str(value), known)} Known: {', '.join(known)}.")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "trainbus", description="Plan, watch and steer a run, manage its checkpoints, and run programs of transformers."
    )
    parser.add_argument("--version", action="version", version=f"trainbus {version('trainbus')}")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND", parser_class=Parser)
    for command in COMMANDS:
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
