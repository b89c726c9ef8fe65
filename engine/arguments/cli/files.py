"""Configuration files: .json, .yaml and .yml hold values by name, .args holds words such as `--seed 1`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ....events.errors import ArgumentError
from ..unique_keys import parse_json, parse_yaml

VALUE_READERS: dict[str, Callable[[str], Any]] = {".json": parse_json, ".yaml": parse_yaml, ".yml": parse_yaml}
"""File ending -> parser, for files with values by name. Files with other endings hold words such as `--seed 1`."""

ENDINGS = (*VALUE_READERS, ".args")
"""File name endings that mark a configuration file on the command line."""


def read_values(path: Path, reader: Callable[[str], Any]) -> dict[str, Any]:
    """Read a configuration file and return its values by argument name.

    Args:
        path: The file.
        reader: Parses the text of the file.

    Raises:
        ArgumentError: The file cannot be read or parsed, or does not contain a mapping.
        MissingExtra: The file is YAML and PyYAML is not installed.
    """
    text = _text_of(path)
    try:
        found = reader(text)
    except ValueError as error:
        raise ArgumentError(f"{path} cannot be parsed ({error}). Correct the file.") from error
    if not isinstance(found, dict):
        raise ArgumentError(
            f"{path} contains a {type(found).__name__}. Write a mapping from argument names to values instead."
        )
    return found


def read_flags(path: Path) -> list[str]:
    """Return the words of an .args file. A line that starts with `#` is a comment.

    Text in quotes is one word, without the quotes: `"my run"` becomes `my run`. The quotes may follow a flag and `=`:
    `--run_name="my run"` becomes `--run_name=my run`. At other places in a word, quotes stay: `{"a":1}` is unchanged.

    Raises:
        ArgumentError: The file cannot be read.
    """
    flag = r"""(?P<flag>-[^\s"'=]*=)?"""
    quoted = r"""(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)')"""
    found = re.finditer(rf"^[ \t]*#.*$|{flag}{quoted}|(?P<plain>\S+)", _text_of(path), re.MULTILINE)
    parts = ([part for part in match.groups() if part is not None] for match in found)
    return ["".join(each) for each in parts if each]  # a comment has no part


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # editors on Windows write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} cannot be read ({error}). Check the path.") from error
