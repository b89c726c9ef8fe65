"""The JSON that commands print. docs/json.md describes the JSON of each command."""

from __future__ import annotations

import json
from typing import Any

from ...events.recording.files import written

VERSION = 1
"""The version of the JSON of a command. The version increases if a field is removed or gets another meaning."""


def versioned(values: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `values` with the version of the JSON format as its first key, `version`."""
    return {"version": VERSION, **values}


def print_json(values: Any, indent: int | None = 2) -> None:
    """Print values as JSON that every parser reads: NaN and infinite numbers are strings."""
    print(json.dumps(written(values), indent=indent, allow_nan=False, default=str))
