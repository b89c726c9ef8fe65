"""The command `trainbus compose`: print the callbacks of a run as Python and as YAML."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

_DESCRIPTION = (
    "Print the callbacks of a run with these arguments, as Python and as YAML: callbacks that the arguments build, "
    "callbacks that `--callbacks` and `--plugins` name, and plugins that join every run. Nothing is trained. The "
    "arguments are the fields of TrainingArguments. A configuration file may come first. Example: trainbus compose "
    "--eval_strategy epoch --callbacks 'early_stopping(patience=3)'"
)


def run(words: Sequence[str]) -> int:
    """Print the callbacks that the Trainer builds from the training arguments in `words`, as Python and as YAML.

    With `--only python` in `words`, print only Python. With `--only yaml`, print only YAML.

    Returns:
        The exit status 0.

    Raises:
        SystemExit: if an argument is invalid. The status is 2.
        ArgumentError: if a callback cannot be built, or cannot be written as text.
    """
    # Imported here, so that importing this module does not import torch.
    from ..arguments import TrainingArguments
    from ..arguments.cli.parser import ArgumentParser
    from ..arguments.plugins.build import as_yaml
    from ..arguments.plugins.python import as_python
    from ..trainer import Trainer

    parser = ArgumentParser(TrainingArguments, prog="trainbus compose", description=_DESCRIPTION)
    parser.add_argument("--only", choices=("python", "yaml"), help="print only Python, or only YAML")
    args, *rest = parser.parse_args_into_dataclasses([*words], look_for_args_file=False)
    only = next((each.only for each in rest if isinstance(each, argparse.Namespace)), None)
    logger = logging.getLogger(__name__.partition(".")[0])
    before = logger.level
    logger.setLevel(logging.ERROR)  # only the callbacks are printed
    try:
        with redirect_stdout(sys.stderr):  # a plugin may print when it is imported
            composed = Trainer.compose(args)
    finally:
        logger.setLevel(before)
    parts = {"python": as_python, "yaml": as_yaml}
    print("\n".join(write(composed) for name, write in parts.items() if only in (None, name)), end="")
    return 0
