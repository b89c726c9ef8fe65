"""Metrics in files: modules in the format of the library `evaluate`."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

from ...events.errors import ArgumentError


def is_path(name: str | os.PathLike[str]) -> bool:
    """Return whether a metric is given as a path and not as a name.

    A path is a path object, a text that ends in `.py` or contains a slash, or the name of an existing folder.
    """
    text = os.fspath(name)
    return not isinstance(name, str) or text.endswith(".py") or "/" in text or os.sep in text or Path(text).is_dir()


def load_metric(path: str | os.PathLike[str], **options: Any) -> Any:
    """Import a file, and create an instance of the metric class in it. The import runs the code of the file.

    Args:
        path: a file, or a folder `name` with the file `name.py`.
        **options: arguments of the metric class.

    Raises:
        ArgumentError: if there is no such file, if the file does not define exactly one class with the methods
            `add_batch` and `compute`, or if the file imports a package that is not installed.
    """
    given = Path(path).expanduser()
    file = given / f"{given.resolve().name}.py" if given.is_dir() else given
    if not file.is_file():
        raise ArgumentError(
            f"There is no metric at {os.fspath(path)!r}: no file {str(file)!r}. The working folder is {Path.cwd()}. "
            "Pass the path of a file with a class that has `add_batch` and `compute`."
        )
    module = _imported(file.resolve())
    classes = [value for value in vars(module).values() if _is_metric(value) and value.__module__ == module.__name__]
    if len(classes) != 1:
        found = ", ".join(cls.__name__ for cls in classes) or "none"
        raise ArgumentError(f"{file} needs one class with the methods `add_batch` and `compute`. It has: {found}.")
    metric = classes[0](**options)
    if hasattr(metric, "download_and_prepare"):
        metric.download_and_prepare()
    return metric


def _imported(file: Path) -> types.ModuleType:
    """Import a file and return its module.

    The folder of the file becomes a package. The file can therefore import other files of the folder with
    `from .name import ...`.

    Raises:
        ArgumentError: if the file imports a package that is not installed.
    """
    package = f"_trainbus_metric_{hashlib.sha256(str(file.parent).encode()).hexdigest()[:12]}"
    if package not in sys.modules:
        parent = types.ModuleType(package)
        parent.__path__ = [str(file.parent)]
        parent.__spec__ = importlib.machinery.ModuleSpec(package, None, is_package=True)
        sys.modules[package] = parent
    name = f"{package}.{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        del sys.modules[name]
        if error.name is None or error.name.startswith(package):
            raise
        raise ArgumentError(f"{file} needs the package {error.name!r}. Install it: pip install {error.name}") from error
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_metric(value: Any) -> bool:
    return isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("add_batch", "compute"))
