"""Generate `event_names.py`, `event_methods.py` and its stub from the catalogue of events. `make docs` runs this
file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from trainbus.events import COMMON, EVENTS, Event
from trainbus.events.catalog import Param

ROOT = Path(__file__).resolve().parent.parent
NOTICE = "# Generated from events/catalog.py by `make docs`. Change the catalogue instead of this file.\n"


def files() -> dict[Path, str]:
    """Return the generated files: path -> text."""
    folder = ROOT / "events"
    return {
        folder / "event_names.py": names(),
        folder / "event_methods.py": module(),
        folder / "event_methods.pyi": stub(),
    }


def names() -> str:
    """Return the text of the module `event_names.py`: the type of event names."""
    literal = "".join(f'    "{event.name}",\n' for event in EVENTS)
    return (
        f'"""EventName: the type of the names of events, for type checkers."""\n\n{NOTICE}\n'
        "from __future__ import annotations\n\nfrom typing import Literal\n\n"
        f'EventName = Literal[\n{literal}]\n"""The name of an event of the catalogue."""\n'
    )


def module() -> str:
    """Return the text of the module `event_methods.py`, which Python runs."""
    parts = [
        f'"""EventMethods: one empty handler per event, the base of every callback."""\n\n{NOTICE}',
        "from __future__ import annotations\n\nfrom typing import Any\n",
        '\nclass EventMethods:\n    """One empty handler per event. Type checkers read `event_methods.pyi`."""\n',
        *(
            f'    def {event.name}(self, *args: Any, **kwargs: Any) -> Any:\n        """{event.doc}"""\n'
            for event in EVENTS
        ),
        "\nclass TypedEventMethods(EventMethods):\n"
        '    """The handlers of `EventMethods`. For type checkers, they have typed keyword-only parameters."""\n',
    ]
    return "\n".join(parts)


def stub() -> str:
    """Return the text of the stub `event_methods.pyi`, which editors and type checkers read.

    A type checker reports a method that takes fewer parameters than the method of its base class. A handler names only
    the parameters that it needs, so the methods of `EventMethods` in the stub must switch this check off:

    - pyright, and the editors that use it, see the typed parameters of each event. `*_: Any` and `**kwargs: Any` switch
      the check off.
    - mypy checks in spite of `*_` and `**kwargs`. So it sees `*args: Any, **kwargs: Any` only. The stub uses the
      constant `MYPY`, which is True for mypy and for no other tool.

    Both tools check the handlers of `TypedEventMethods`.
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
