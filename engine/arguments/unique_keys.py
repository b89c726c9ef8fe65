"""Parsers of JSON and YAML that refuse a key with two values. The usual parsers silently use the last value."""

from __future__ import annotations

import importlib
import json
from typing import Any

from ...events.errors import MissingExtra


class DuplicateKey(ValueError):
    """A mapping has the same key twice.

    Args:
        key: The key.
        where: Where both are, such as "lines 2 and 7"; an empty text if this is not known.
    """

    def __init__(self, key: str, where: str = "") -> None:
        super().__init__(f"the key {key!r} appears twice{f', in {where}' if where else ''}; remove one")
        self.key = key


def parse_json(text: str) -> Any:
    """Parse JSON text.

    Raises:
        DuplicateKey: An object has the same key twice.
        ValueError: The text is not valid JSON.
    """
    return json.loads(text, object_pairs_hook=_as_dict)


def parse_yaml(text: str) -> Any:
    """Parse YAML text. An empty text gives an empty dict.

    Raises:
        DuplicateKey: A mapping has the same key twice.
        MissingExtra: PyYAML is not installed.
        ValueError: The text is not valid YAML.
    """
    try:
        yaml = importlib.import_module("yaml")
    except ModuleNotFoundError as error:
        raise MissingExtra("YAML files need PyYAML: pip install pyyaml") from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            marks: dict[tuple[str, str], Any] = {}
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                first = marks.setdefault((key.tag, key.value), key)
                if first is not key:
                    lines = f"{first.start_mark.line + 1} and {key.start_mark.line + 1}"
                    raise DuplicateKey(key.value, f"lines {lines}")
            return node

    try:
        found = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    return {} if found is None else found


def _as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise DuplicateKey(next(name for name in names if names.count(name) > 1))
    return found
