"""The command `trainbus new-plugin`: write an installable package with a callback, its tests and a CI file."""

from __future__ import annotations

import argparse
import keyword
import re
import shutil
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from ...events.contract import CONTRACT
from ...events.errors import ArgumentError
from ...events.installed import MANIFEST

KINDS = {
    "callback": "a callback that measures",
    "tracker": "a tracker, which reports to a service",
    "decider": "a callback that decides, with state",
    "stepper": "a callback that changes how a step is made",
}
"""Kind of package -> description. The kind is also the name of its template folder."""


def add_to(commands: Any) -> None:
    """Add the command `new-plugin` to the subcommands of `trainbus`."""
    parser = commands.add_parser(
        "new-plugin",
        description="Write a package into the folder NAME: source, manifest, tests, README, CI file and licence. It "
        "installs with `pip install ./NAME`, and its tests pass with `pytest NAME`.",
    )
    parser.add_argument("name", help="the name of the package, such as damp-spikes. The module is damp_spikes")
    kinds = parser.add_mutually_exclusive_group()
    for kind, description in KINDS.items():
        if kind != "callback":
            kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=description)
    parser.set_defaults(do=_write, kind="callback")


def _write(options: argparse.Namespace) -> int:
    folder = Path(options.name)
    module = checked_module(folder.name)
    if folder.exists():
        raise ArgumentError(f"{folder} exists. Give another name, or move the folder away.")
    write_package(folder, module, options.kind or "callback")
    print(f"{folder} is a package with {KINDS[options.kind or 'callback']}, {class_name(module)}. Next:")
    print(f"  pip install --editable ./{folder}" if not folder.is_absolute() else f"  pip install --editable {folder}")
    print(f"  pytest {folder}")
    return 0


def checked_module(name: str) -> str:
    """Convert the name of a package to the name of its module, and check it: `damp-spikes` becomes `damp_spikes`.

    Raises:
        ArgumentError: if Python cannot import a module of this name, or if a module of this name is installed. Also if
            the name already has a meaning in the argument `callbacks` or in the variable `TRAINBUS_PLUGINS`.
    """
    module = re.sub(r"[-.]+", "_", name).lower()
    if not module.isidentifier() or not module.isascii():
        raise ArgumentError(
            f"{name!r} is not a Python package name. Use letters, digits, `-` and `_`, and begin with a letter, as "
            "in `damp-spikes`."
        )
    if keyword.iskeyword(module) or keyword.issoftkeyword(module):
        raise ArgumentError(f"{module!r} is a keyword of Python. Add a word, such as `{module}-plugin`.")
    if _is_own(module):
        raise ArgumentError(
            f"trainbus has a callback with the name {module!r}, so the argument `callbacks` could not select yours. "
            f"Add a word, such as `{module}-plugin`."
        )
    if module in ("all", "none"):
        raise ArgumentError(
            f"{module!r} has a special meaning in TRAINBUS_PLUGINS. Add a word, such as `{module}-plugin`."
        )
    found = find_spec(module)
    if found is not None and found.origin is not None:  # a folder without code has no origin
        raise ArgumentError(
            f"A module {module!r} is installed already, and Python finds only one module of a name. Add a word, such "
            f"as `{module}-plugin`."
        )
    return module


def _is_own(module: str) -> bool:
    """Return whether `module` is the name of a callback of trainbus: `early_stopping` is the name of `EarlyStopping`.

    A plugin must not have such a name, because the argument `callbacks` selects the callback of trainbus instead.
    """
    root: Any = import_module(__name__.partition(".")[0])
    own = [name for place, names in root._MODULES.items() if place.startswith("callbacks.") for name in names]
    return module.replace("_", "") in {name.lower() for name in (*own, *root._EXTRAS)}


def class_name(module: str) -> str:
    """Return the class name for the name of a module: `damp_spikes` becomes `DampSpikes`."""
    return "".join(word.capitalize() for word in module.split("_")) or module


def write_package(folder: Path, module: str, kind: str) -> None:
    """Write the package of a plugin into a new folder. If an error occurs, delete the folder.

    Args:
        folder: the folder, which does not exist.
        module: the name of the module and of the entry point.
        kind: a key of `KINDS`, such as `tracker`.
    """
    templates = files(__package__) / "templates"
    words = {"project": module.strip("_").replace("_", "-"), "module": module, "cls": class_name(module), "part": kind}
    words["contract"] = CONTRACT
    words["summary"] = (templates / kind / "summary.txt.tmpl").read_text(encoding="utf-8").strip()
    source = f"src/{module}"
    places = {
        "pyproject.toml": "package/pyproject.toml",
        "README.md": "package/README.md",
        "LICENSE": "package/LICENSE",
        ".gitignore": "package/gitignore",
        ".github/workflows/tests.yml": "package/ci.yml",
        f"{source}/__init__.py": "package/init.py",
        f"{source}/{kind}.py": f"{kind}/callback.py",
        f"{source}/{MANIFEST}": f"{kind}/manifest.json",
        "tests/conftest.py": "package/tests/conftest.py",
        f"tests/test_{module}.py": f"{kind}/test.py",
    }
    texts = {place: (templates / f"{name}.tmpl").read_text(encoding="utf-8") for place, name in places.items()}
    folder.mkdir(parents=True)
    try:
        for place, text in texts.items():
            path = folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            filled = text if place == "LICENSE" else Template(text).substitute(words)
            path.write_text(filled, encoding="utf-8")
        (folder / source / "py.typed").touch()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
