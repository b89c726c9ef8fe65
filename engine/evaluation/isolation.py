"""Call functions and modules without an effect on the run: copy the functions, and restore the modules afterwards."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..checkpoint.rng_state import random_states, restore_random_states

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type, types.ModuleType, types.BuiltinFunctionType)
_CONTAINERS = (list, dict, set, tuple)


class NotIsolated(Exception):
    """The error that `isolated` raises for a function that it cannot copy.

    There are two causes. The given object is callable, but is not a plain Python function. Or the state of the function
    has a value that cannot be copied, such as an object of a class that the user wrote.
    """


def isolated(function: Any) -> Callable[..., Any]:
    """Return a copy of a plain Python function. A call of the copy does not change the state of the original.

    The state is the closure and the defaults of the function, and the globals of its module that the function uses. The
    copy includes functions of the same module that the function calls. Some globals are not copied: objects of a class
    from another module, such as a metric of a library. A call of the copy may change these objects.

    Raises:
        NotIsolated: if `function` is not a plain Python function, or if its state cannot be copied.
    """
    copied: Callable[..., Any] = _Copies().of_function(function)
    return copied


class _Copies:
    """The copies that one call of `isolated` makes: of functions, and of the values that these functions use."""

    def __init__(self) -> None:
        self._functions: dict[int, Any] = {}
        self._scopes: dict[int, dict[str, Any]] = {}

    def of_function(self, function: Any) -> Any:
        """Return the copy of a function. The first call for a function makes the copy."""
        if not isinstance(function, types.FunctionType):
            raise NotIsolated
        if id(function) in self._functions:
            return self._functions[id(function)]
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        scope = self._scopes.setdefault(id(function.__globals__), dict(function.__globals__))
        copied = types.FunctionType(function.__code__, scope, function.__name__, None, cells)
        self._functions[id(function)] = copied
        for cell, original in zip(cells, function.__closure__ or ()):
            cell.cell_contents = self._of(original.cell_contents)
        copied.__defaults__ = self._of(function.__defaults__)
        copied.__kwdefaults__ = self._of(function.__kwdefaults__)
        for name in _names(function.__code__):
            if name in function.__globals__ and scope[name] is function.__globals__[name]:
                scope[name] = self._of_global(function, function.__globals__[name])
        return copied

    def _of_global(self, function: types.FunctionType, value: Any) -> Any:
        """Return the value that the copy of a function uses for a global variable.

        Functions of the same module, lists, dicts, sets and tuples are copied. Other values stay the same objects.

        Args:
            function: the function that uses the global variable.
            value: the value of the global variable.

        Raises:
            NotIsolated: if `value` is an object of a class of the same module, or contains a value that cannot be
                copied.
        """
        own = getattr(value, "__module__", None) == function.__module__
        if isinstance(value, types.FunctionType) and not own:
            return value
        if isinstance(value, (*_PLAIN, *_CONTAINERS, types.FunctionType)):
            return self._of(value)
        if type(value).__module__ == function.__module__:
            raise NotIsolated  # an object of a class of the user
        return value

    def _of(self, value: Any) -> Any:
        """Return a copy of a plain value, a container of plain values or a function.

        Raises:
            NotIsolated: for any other value.
        """
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, types.FunctionType):
            return self.of_function(value)
        if type(value) in _CONTAINERS and _is_plain(value):
            return copy.deepcopy(value)
        raise NotIsolated


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return all(map(_is_plain, value)) if type(value) in _CONTAINERS else isinstance(value, _PLAIN)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


@contextmanager
def undisturbed(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put modules into evaluation mode inside a `with` block.

    At the end of the block, restore the modes, buffers and attributes of the modules, and all RNG states.
    """
    parts = [part for module in modules for part in module.modules()]
    attributes = [(part, _attributes(part)) for part in parts]
    buffers = [
        (buffer, buffer.detach().clone()) for part in parts for buffer in part._buffers.values() if buffer is not None
    ]
    before = random_states()
    try:
        for part in parts:
            part.training = False
        yield
    finally:
        for part, kept in attributes:
            _restore(part, kept)
        for buffer, values in buffers:
            buffer.data.copy_(values)
        restore_random_states(before)


def _attributes(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Return the attributes of a module, for `_restore`: name -> pair of the value and a shallow copy of the value.

    Only lists, dicts and sets are copied, because they can change in place. For other values, the copy is None.
    """
    return {
        name: (value, copy.copy(value) if type(value) in (list, dict, set) else None)
        for name, value in vars(module).items()
    }


def _restore(module: nn.Module, kept: dict[str, tuple[Any, Any]]) -> None:
    own = vars(module)
    for name in own.keys() - kept.keys():
        del own[name]
    for name, (value, content) in kept.items():
        own[name] = value
        if isinstance(value, list):
            value[:] = content
        elif content is not None:
            value.clear()
            value.update(content)
