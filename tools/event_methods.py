"""Generates the modules of event names and event methods, and a stub, from the catalogue. `make docs` writes them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from trainbus.events import COMMON, EVENTS, Event
from trainbus.events.catalog import Param

ROOT = Path(__file__).resolve().parent.parent
NOTICE = "# Generated from events/catalog.py by `make docs`. Change the catalogue instead of this file.\n"


def files() -> dict[Path, str]:
    """Return the whole text of the generated files, by path."""
    folder = ROOT / "events"
    return {
        folder / "event_names.py": names(),
        folder / "event_methods.py": module(),
        folder / "event_methods.pyi": stub(),
    }


def names() -> str:
    """Return the module with the type of event names."""
    literal = "".join(f'    "{event.name}",\n' for event in EVENTS)
    return (
        f'"""EventName: the type of event names."""\n\n{NOTICE}\n'
        "from __future__ import annotations\n\nfrom typing import Literal\n\n"
        f'EventName = Literal[\n{literal}]\n"""The name of an event of the catalogue."""\n'
    )


def module() -> str:
    """Return the module: what runs."""
    parts = [
        f'"""EventMethods: one empty handler per event, the base of every callback."""\n\n{NOTICE}',
        "from __future__ import annotations\n\nfrom typing import Any\n",
        '\nclass EventMethods:\n    """One empty handler per event. Type checkers read the stub beside it."""\n',
        *(
            f'    def {event.name}(self, *args: Any, **kwargs: Any) -> Any:\n        """{event.doc}"""\n'
            for event in EVENTS
        ),
        "\nclass TypedEventMethods(EventMethods):\n"
        '    """The handlers of `EventMethods`. For type checkers, they have typed keyword-only parameters."""\n',
    ]
    return "\n".join(parts)


def stub() -> str:
    """Return the stub: what editors and type checkers read.

    Python's rules for overriding forbid a handler that takes fewer parameters than its base. So `EventMethods` accepts
    any handler. For pyright, and the editors built on it, the handlers show their typed parameters; `*_: Any` and
    `**kwargs: Any` switch the check of overrides off. mypy checks nevertheless, and so sees no parameters. mypy is the
    tool that takes a constant named MYPY for True. `TypedEventMethods` is checked by both.
    """
    params = {param.type for event in EVENTS for param in event.params} | {param.type for param in COMMON}
    paths = {part for type in params for part in type.split(" | ") if part.startswith("trainbus.")}
    imports = sorted(
        f"from ..{path.removeprefix('trainbus.').rpartition('.')[0]} import {_name(path)}" for path in paths
    )
    parts = [
        f"{NOTICE}\nfrom typing import Any\n\nimport torch\n",
        "\n".join(imports) + "\n",
        "MYPY: bool\n",
        "class EventMethods:\n    if MYPY:",
        *(f"        def {event.name}(self, *args: Any, **kwargs: Any) -> Any: ..." for event in EVENTS),
        "    else:",
        *(_handler(event, 8, "*_: Any") for event in EVENTS),
        "class TypedEventMethods(EventMethods):",
        *(_handler(event, 4, "*") for event in EVENTS),
    ]
    return "\n".join(parts)


def _handler(event: Event, indent: int, star: str) -> str:
    own = ["self", star, *_annotated(event.params), *_annotated(COMMON), "**kwargs: Any"]
    margin = " " * indent
    lines = [f"{margin}def {event.name}(", *(f"{margin}    {param}," for param in own), f"{margin}) -> Any:"]
    return "\n".join([*lines, f'{margin}    """{event.doc}"""', ""])


def _annotated(params: Iterable[Param]) -> Iterator[str]:
    for param in params:
        parts = [_name(part) if part.startswith("trainbus.") else part for part in param.type.split(" | ")]
        yield f"{param.name}: {' | '.join(parts)}"


def _name(path: str) -> str:
    return path.rpartition(".")[2]


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}")
    sys.exit(0)
