"""Find the modules that a loss function uses: in closures, in globals, and in objects that the function reads."""

from __future__ import annotations

import functools
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from torch import nn

_DEPTH = 5
_SIZE = 100
"""A longer list or dict is not searched, because it usually contains data."""
_LIBRARIES = {"torch", "numpy", "transformers", "builtins", __name__.partition(".")[0]}
"""Packages that are not searched, because their functions and objects refer to no module of the user."""


def untrained_modules(function: Any, known: Iterable[nn.Parameter]) -> list[nn.Module]:
    """Return each module that a loss function uses and that has a trainable parameter outside of `known`.

    The run does not train these parameters. The search follows partial objects, closures, defaults, globals, bound
    methods, callable objects, lists and dicts. It also follows the attributes that the function reads, such as
    `self.head`.

    Args:
        function: a loss function. If it is itself a module, the result is empty.
        known: the parameters that the run trains.
    """
    trained = {*known}
    return [
        each
        for each in _modules(function, (), _DEPTH, set())
        if each is not function and any(weight.requires_grad and weight not in trained for weight in each.parameters())
    ]


def _modules(value: Any, names: Collection[str], depth: int, seen: set[int]) -> Iterator[nn.Module]:
    """Search a value and the values inside of it for modules, and yield each module.

    Args:
        value: the value.
        names: the attributes to search in an object that is not callable. For a callable, the function does not use
            `names`, and searches the values that the code of the callable reads.
        depth: how many levels to search.
        seen: the ids of values that were already searched. The function adds ids to this set.
    """
    if depth == 0 or id(value) in seen or value is None or isinstance(value, (str, bytes, int, float, type)):
        return
    seen.add(id(value))
    parts: Iterable[Any] = ()
    if isinstance(value, nn.Module):
        yield value
        return
    if isinstance(value, functools.partial):
        parts = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, types.MethodType):
        parts, names = _read_by(value.__func__, value.__self__)
    elif isinstance(value, types.FunctionType):
        parts, names = _read_by(value)
    elif isinstance(value, (Mapping, list, tuple, set)):
        parts = () if len(value) > _SIZE else value.values() if isinstance(value, Mapping) else value
    elif not _is_of_library(value):
        call = getattr(type(value), "__call__", None)  # noqa: B004
        if isinstance(call, types.FunctionType):
            parts, names = _read_by(call, value)
        else:
            held = getattr(value, "__dict__", {})
            parts = [held[name] for name in names if name in held]
    for part in parts:
        yield from _modules(part, names, depth - 1, seen)


def _read_by(function: Any, owner: Any = None) -> tuple[list[Any], Collection[str]]:
    """Return the values that a function reads, and the names of globals and attributes in the code of the function.

    Args:
        function: the function. For any other object, and for a function of a library, both results are empty.
        owner: the object `self` if the function is a method, else None. The values of a method include the attributes
            and methods of `self` that the code names.
    """
    function = getattr(function, "__wrapped__", function)
    if not isinstance(function, types.FunctionType) or _is_of_library(function):
        return [], ()
    names = {*names_in(function.__code__)}
    values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # the variable has no value yet
            continue
    values += [function.__globals__[name] for name in names if name in function.__globals__]
    if owner is not None:
        own = getattr(owner, "__dict__", {})
        values += [own[name] for name in names if name in own]
        methods = [getattr(type(owner), name, None) for name in names if name not in own]
        values += [types.MethodType(each, owner) for each in methods if isinstance(each, types.FunctionType)]
    return values, names


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a code object and in the functions inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


def _is_of_library(value: Any) -> bool:
    name = getattr(value, "__name__" if isinstance(value, types.ModuleType) else "__module__", None)
    return str(name).partition(".")[0] in _LIBRARIES
