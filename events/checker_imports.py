"""Names that a module imports only for type checkers, below `if TYPE_CHECKING:`.

At run time, an annotation with such a name cannot be evaluated. The functions here read the imports from the source of
the module, so that the annotation can still be checked. The functions import no package except trainbus.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.util import resolve_name
from typing import Any

from .imported import imported

_ROOT = __name__.partition(".")[0]


def checker_imports(names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects that a module imports only for type checkers: name -> object.

    The function leaves out names from modules that the program has not imported.

    Args:
        names: the global names of the module, with `__file__` and `__package__`.
    """
    place = names.get("__file__")
    if not isinstance(place, str):
        return {}  # a notebook, or code from a text
    try:
        changed = os.stat(place).st_mtime_ns
    except OSError:
        return {}
    found = {}
    for name, module, attribute in _read(place, changed):
        value = _object(module, attribute, str(names.get("__package__") or ""))
        if value is not None:
            found[name] = value
    return found


def _object(module: str, attribute: str, package: str) -> Any:
    try:
        holder = imported(resolve_name(module, package))
    except (ImportError, ValueError):  # a relative import outside of a package
        return None
    if not attribute or holder is None or attribute in vars(holder):
        return vars(holder)[attribute] if holder is not None and attribute else holder
    # The modules of other libraries may be lazy, and would import a lot. This package is lazy for its own modules only,
    # except for the names of its extras.
    own = holder.__name__.partition(".")[0] == _ROOT and attribute not in vars(holder).get("_EXTRAS", ())
    return getattr(holder, attribute, None) if own else None


@lru_cache(maxsize=256)
def _read(place: str, changed: int) -> tuple[tuple[str, str, str], ...]:
    """Read the imports below `if TYPE_CHECKING:` in a file. Return (name, module, attribute) for each name.

    If a name is a module, its `attribute` is empty. If the file cannot be read or parsed, the result is `()`. The
    function caches each result until the file changes.

    Args:
        place: the path of the file.
        changed: the modification time of the file, in nanoseconds. The time is part of the key of the cache.
    """
    try:
        with open(place, "rb") as file:
            body = ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError):
        return ()
    blocks = (node.body for node in body if isinstance(node, ast.If) and _is_for_checkers(node.test))
    return tuple(row for block in blocks for node in block for row in _names_of(node))


def _is_for_checkers(test: ast.expr) -> bool:
    return ast.unparse(test).rpartition(".")[2] == "TYPE_CHECKING"


def _names_of(node: ast.stmt) -> Iterator[tuple[str, str, str]]:
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        for each in node.names:
            yield each.asname or each.name, module, each.name
    elif isinstance(node, ast.Import):
        for each in node.names:  # `import a.b` binds `a`
            top = each.name.partition(".")[0]
            yield (each.asname, each.name, "") if each.asname else (top, top, "")
