"""Copy the state of objects before a call, and restore the state in place after the call."""

from __future__ import annotations

import functools
import io
import random
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ...loss.reachable import names_in

_ATOMS = (
    *(bool, int, float, complex, str, bytes, range, types.ModuleType, types.BuiltinFunctionType, types.CodeType),
    *(torch.dtype, torch.device, torch.Size),
)
_ITEMS = 64
"""The largest number of items of a list or dict whose items are searched for state. A longer list or dict is restored,
but not searched, because its items are data."""
_VISITS = 200_000
"""The largest number of objects that are searched for state."""
_ARRAY_BYTES = 16 * 2**20
"""A size in bytes. Larger arrays and tensors of a dataset are not copied, because they are data that nothing changes.
Copies of other larger tensors are in host memory."""
_LIBRARIES = frozenset(
    {
        *sys.stdlib_module_names,
        *("accelerate", "datasets", "numpy", "pandas", "peft", "pyarrow", "tokenizers", "torch", "transformers"),
        __name__.partition(".")[0],
    }
)
"""Packages whose functions and classes are not searched, because they have no state of the program."""
_OPAQUE = frozenset(
    {
        *("_thread", "_weakref", "asyncio", "concurrent", "contextvars", "logging", "multiprocessing", "queue"),
        *("pandas", "pyarrow", "socket", "sqlite3", "ssl", "threading", "tokenizers", "tqdm", "weakref"),
        *("boto3", "clearml", "comet_ml", "google", "grpc", "mlflow", "neptune", "ray", "requests", "swanlab"),
        *("tensorboard", "trackio", "urllib3", "wandb"),
    }
)
"""Packages whose objects are not searched for state. A forward pass does not change their state, or other threads
change it at any time."""


_PART = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")
"""Matches the path from a module to a submodule, parameter or buffer."""


class Unrestorable(Exception):
    """An object has state that cannot be restored. The text of the error names the object."""


class KeptState:
    """A copy of the state of some objects, the roots, and of all objects that the roots refer to.

    The state consists of attributes, containers, tensors, arrays and random generators. The constructor searches
    attributes, items of lists and dicts with at most 64 items, and the closures of functions. The constructor also
    searches the classes of the program, and the globals that functions of the program use. `restore` does not undo
    effects outside of the process, such as written files. `restore` does not restore objects that are written in C.
    """

    def __init__(self, roots: Mapping[str, Any], stops: Iterable[Any] = (), data: bool = False) -> None:
        """Copy the state of objects.

        Args:
            roots: name -> object. The text of an error shows the name.
            stops: objects that are not searched, so that their state is not copied.
            data: True for objects that hold the dataset. Tensors and arrays above 16 MiB are then not copied.

        Raises:
            Unrestorable: if an object cannot be restored: an iterator, or a sharded, lazy or meta weight. Also if more
                than 200,000 objects must be searched, or if the position in an open file cannot be read.
        """
        self._alive: list[Any] = [*stops]
        self._seen = {id(each) for each in self._alive}
        self._undo: list[Callable[[], None]] = []
        self._data = data
        self._waiting = deque(roots.items())
        while self._waiting:
            path, value = self._waiting.popleft()
            self._visit(_PART.sub(r".\1", path), value)
            if len(self._alive) > _VISITS:
                raise Unrestorable(f"more than {_VISITS:,} objects can be reached from it")

    def restore(self) -> None:
        """Give all objects the state that the constructor copied."""
        for undo in self._undo:
            undo()

    def _visit(self, path: str, value: Any) -> None:
        if value is None or isinstance(value, _ATOMS) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._alive.append(value)
        if isinstance(value, torch.Tensor):
            self._keep_tensor(path, value)
        elif isinstance(value, np.ndarray):
            self._keep_array(value)
        elif state := _generator_state(value):
            self._undo.append(state)
        elif isinstance(value, (dict, list, deque, set, bytearray)):
            self._keep_container(path, value)
        elif isinstance(value, (tuple, frozenset)):
            self._wait((f"{path}[{number}]", item) for number, item in enumerate(value if len(value) <= _ITEMS else ()))
        elif isinstance(value, type):
            self._keep_class(path, value)
        elif isinstance(value, types.FunctionType):
            self._keep_function(path, value)
        elif isinstance(value, types.MethodType):
            self._wait([(path, value.__self__), (path, value.__func__)])
        elif isinstance(value, functools.partial):
            self._wait([(path, value.func), (path, value.args), (path, value.keywords)])
        else:
            self._keep_object(path, value)

    def _wait(self, parts: Iterable[tuple[str, Any]]) -> None:
        self._waiting.extend(parts)

    def _keep_tensor(self, path: str, tensor: torch.Tensor) -> None:
        if is_lazy(tensor) or tensor.is_meta:
            raise Unrestorable(f"{path} has no values before the first batch")
        if type(tensor) not in (torch.Tensor, nn.Parameter):
            if tensor.requires_grad:
                raise Unrestorable(f"{path} is a {type(tensor).__name__}")
            return  # a quantized weight, which no step changes
        shares = any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape))
        size = tensor.numel() * tensor.element_size()
        if (self._data and size > _ARRAY_BYTES) or tensor.is_inference() or shares:
            return  # torch refuses to write to an inference tensor, and to a tensor whose elements share memory
        # Copies of weights are in host memory, so that they do not count in the peak of the device.
        large = isinstance(tensor, nn.Parameter) or size > _ARRAY_BYTES
        values = tensor.detach().to("cpu", copy=True) if large else tensor.detach().clone()
        grad = tensor.grad if tensor.is_leaf else None
        grad_values = None if grad is None else grad.detach().clone()

        def undo() -> None:
            if tensor.shape == values.shape:
                tensor.data.copy_(values)
            else:
                tensor.data = values.to(tensor.device)
            if tensor.is_leaf:
                tensor.grad = grad
                if grad is not None and grad_values is not None:
                    grad.data.copy_(grad_values)

        self._undo.append(undo)

    def _keep_array(self, array: np.ndarray[Any, Any]) -> None:
        if array.flags.writeable and not (self._data and array.nbytes > _ARRAY_BYTES):
            values = array.copy()
            self._undo.append(lambda: np.copyto(array, values))

    def _keep_container(self, path: str, container: Any) -> None:
        self._undo.append(functools.partial(_put_back, container, _copy_of(container)))
        if isinstance(container, dict) and len(container) <= _ITEMS:
            self._wait((f"{path}[{key!r}]", item) for key, item in container.items())
        elif isinstance(container, (list, deque)) and len(container) <= _ITEMS:
            self._wait((f"{path}[{number}]", item) for number, item in enumerate(container))

    def _keep_class(self, path: str, cls: type) -> None:
        """Copy the attributes of a class, and search the methods and base classes of the class for more state."""
        if _is_of_library(cls):
            return
        for name, item in [*vars(cls).items()]:
            if name.startswith(("__", "_abc_")) and not isinstance(item, types.FunctionType):
                continue
            if not hasattr(type(item), "__get__"):  # no method, property or slot
                self._undo.append(functools.partial(_set_back, cls, name, item))
                self._wait([(f"{path}.{name}", item)])
            function = item.__func__ if isinstance(item, (staticmethod, classmethod)) else item
            function = function.fget if isinstance(function, property) else function
            if isinstance(function, types.FunctionType):
                self._wait([(f"{path}.{name}", function)])
        self._wait((path, base) for base in cls.__mro__[1:])

    def _keep_function(self, path: str, function: types.FunctionType) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            try:
                item = cell.cell_contents
            except ValueError:  # a variable that has no value yet
                continue
            self._undo.append(functools.partial(_set_back, cell, "cell_contents", item))
            self._wait([(name, item)])
        self._wait([(path, function.__defaults__), (path, function.__kwdefaults__), (path, vars(function))])
        if str(function.__module__).partition(".")[0] in _LIBRARIES:
            return
        scope = function.__globals__
        for name in {*names_in(function.__code__)}.intersection(scope):
            self._undo.append(functools.partial(_set_item_back, scope, name, scope[name]))
            self._wait([(name, scope[name])])

    def _keep_object(self, path: str, value: Any) -> None:
        root = type(value).__module__.partition(".")[0]
        if isinstance(value, io.IOBase):
            self._keep_file(path, value)
        elif root == "datasets":
            self._wait([(path, getattr(value, "_format_kwargs", None))])  # it may hold a transform of the program
        elif root not in _OPAQUE:
            if hasattr(type(value), "__next__"):
                raise Unrestorable(f"{path} is an iterator ({type(value).__name__})")
            if (own := getattr(value, "__dict__", None)) is not None and isinstance(own, dict):
                self._seen.add(id(own))
                self._alive.append(own)
                before = dict(own)
                self._undo.append(functools.partial(_put_back, own, before))
                self._wait((f"{path}.{name}", item) for name, item in before.items())
            for name in _slots_of(type(value)):
                if hasattr(value, name):
                    item = getattr(value, name)
                    self._undo.append(functools.partial(_set_back, value, name, item))
                    self._wait([(f"{path}.{name}", item)])
            self._wait([(type(value).__name__, type(value))])

    def _keep_file(self, path: str, file: Any) -> None:
        if file.closed or not (file.readable() and file.seekable()) or file.writable():
            return
        try:
            place = file.tell()
        except OSError as error:  # a text file that is being iterated over
            raise Unrestorable(f"the position in {path} cannot be read: {error}") from error
        self._undo.append(lambda: None if file.closed else file.seek(place) and None)


def _copy_of(container: Any) -> Any:
    if isinstance(container, dict):
        return dict(container)
    return set(container) if isinstance(container, set) else list(container)


def _put_back(container: Any, values: Any) -> None:
    """Replace the content of a container by `values`, an earlier copy of the content."""
    if not _same(container, values):
        container.clear()
        (container.update if isinstance(container, (dict, set)) else container.extend)(values)


def _same(container: Any, values: Any) -> bool:
    """Return whether the content of a container is equal to `values`, an earlier copy of the content."""
    if len(container) != len(values):
        return False
    if isinstance(container, dict):
        # Other keys than texts and numbers are compared by identity: two tensors have no truth value.
        plain = (str, int)
        keys = zip(container, values)
        return all(a is b or (isinstance(a, plain) and isinstance(b, plain) and a == b) for a, b in keys) and all(
            container[key] is item for key, item in values.items()
        )
    if isinstance(container, set):
        return bool(container == values)
    return all(a is b for a, b in zip(container, values))


def _set_back(owner: Any, name: str, item: Any) -> None:
    if getattr(owner, name, None) is not item:
        setattr(owner, name, item)


def _set_item_back(scope: dict[str, Any], name: str, item: Any) -> None:
    scope[name] = item


def _slots_of(cls: type) -> Iterator[str]:
    for each in cls.__mro__:
        slots = vars(each).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and not name.startswith("__"):
                yield name


def _generator_state(value: Any) -> Callable[[], None] | None:
    """Return a function that restores the state of a random generator; None for other objects."""
    if isinstance(value, random.Random):
        try:
            return functools.partial(value.setstate, value.getstate())
        except NotImplementedError:  # random.SystemRandom
            return None
    if isinstance(value, np.random.RandomState):
        return functools.partial(value.set_state, value.get_state(legacy=False))
    if isinstance(value, np.random.Generator):
        return functools.partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    if isinstance(value, torch.Generator):
        return functools.partial(value.set_state, value.get_state())  # type: ignore[return-value]
    return None


def _is_of_library(cls: type) -> bool:
    return str(cls.__module__).partition(".")[0] in _LIBRARIES
