"""The command `trainbus run`: run a program of transformers' Trainer, but with the Trainer of trainbus."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ...events.errors import ArgumentError, TrainbusError
from ..api.transformers_names import as_transformers


def add_to(commands: Any) -> None:
    """Add the command `run` to the subcommands of `trainbus`."""
    parser = commands.add_parser(
        "run",
        description="Run a program as `python program.py ARGS` does, but with the Trainer of trainbus: names such as "
        "`transformers.Trainer` refer to the classes of trainbus. On several processes: "
        "torchrun --nproc_per_node 2 --no-python trainbus run program.py ARGS",
        allow_abbrev=False,
    )
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as in `python -m`")
    parser.add_argument("program", help="a Python file, or a module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the arguments of the program")
    parser.set_defaults(do=run)


def run(options: argparse.Namespace) -> int:
    """Run the program that `options` names in this process. Errors that the program raises are not caught.

    Returns:
        The exit status of the command: 2 if the program cannot be started, else 0.
    """
    program, arguments = options.program, options.arguments
    try:
        if not options.module and not Path(program).is_file():
            raise ArgumentError(f"There is no program {program!r}. Name a Python file, or a module after -m.")
        as_transformers()
    except TrainbusError as error:
        print(f"trainbus: {error}", file=sys.stderr)
        return 2
    execute(program, arguments, options.module)
    return 0


def execute(program: str, arguments: list[str], is_module: bool) -> None:
    """Run a program in this process, as `python program ARGS` or `python -m program ARGS` does.

    Args:
        program: a Python file, or the name of a module.
        arguments: the arguments of the program.
        is_module: whether the program is a module.
    """
    sys.argv = [program, *arguments]
    sys.path[0] = str(Path.cwd() if is_module else Path(program).resolve().parent)
    if is_module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        # Not `runpy.run_path`: it clears the module when the program ends, before its exit handlers run.
        module = ModuleType("__main__")
        module.__file__ = program
        sys.modules["__main__"] = module
        exec(compile(Path(program).read_bytes(), program, "exec"), vars(module))
