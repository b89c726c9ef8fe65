"""The states of the random generators in datasets, collators and samplers."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from ...events.errors import CheckpointError
from ..distributed.cuda import can_use_cuda
from .format.codec import encode
from .rng_state import restore_random_states

logger = logging.getLogger(__name__)

DEPTH = 5
"""The most attributes from an object to its generator: `dataset.transform.transforms.0.generator` has three."""
_ITEMS = 64
"""The most items of a list, tuple or dict that is searched. Longer ones usually hold samples."""
_VISITS = 2000
"""The search ends after this number of objects."""
_LIBRARIES = frozenset({"datasets", "numpy", "tokenizers", "torch", "transformers", "trainbus"})
"""Packages that are searched less: not the globals of their functions, and not the class attributes."""
_WRAPPERS, _WRAPPED = "trainbus.engine.data.", frozenset({"collator", "rows", "sampler"})
"""The modules of the classes in trainbus that wrap a dataset, collator or sampler. And the attributes of these classes
that hold the wrapped object."""
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


class OwnGenerators:
    """The random generators in given objects, such as a collator: in attributes, closures, lists, tuples and dicts.

    Lists, tuples and dicts with more than 64 items are not searched. The global generators of python, numpy and torch
    are not included.
    """

    def __init__(self, owners: Mapping[str, Any]) -> None:
        """Search objects for the random generators that they hold.

        Args:
            owners: the objects by name, such as `collator`. The path of a generator begins with the name.
        """
        self._owners = dict(owners)
        self._warned = False
        self.found: dict[str, Any] = {}
        """The generators by path, such as `collator.generator`. A shared generator has one entry, under its first path.
        """
        self._holders: dict[str, Any] = {}
        self.find()

    def find(self) -> None:
        """Search for new generators. For example, a collator may create a generator for the first batch."""
        search = ObjectSearch(_is_generator)
        for name, owner in self._owners.items():
            search.visit(name, owner, DEPTH)
        self.found, self._holders = search.found, search.holders

    def warn_of_unsaved(self) -> None:
        """Warn once about generators with a state that a checkpoint cannot save."""
        unsaved = (
            [] if self._warned else [path for path, each in self.found.items() if _saved_state(path, each) is None]
        )
        if unsaved:
            self._warned = True
            logger.warning(
                "These random generators have no state that a checkpoint can hold: %s. A resumed run draws other "
                "values from them. Use `random.Random`, `numpy.random.Generator` or `torch.Generator`.",
                ", ".join(f"{path} ({type(self.found[path]).__name__})" for path in unsaved),
            )

    def read(self) -> dict[str, Any]:
        """Return the states of the generators: path of the generator, such as `collator.generator` -> state.

        Generators with a state that a checkpoint cannot save are left out. A process that cannot use CUDA, such as a
        forked worker, also leaves out the generators of a GPU.
        """
        states = {path: _saved_state(path, each) for path, each in self.found.items() if _is_usable(each)}
        return {path: state for path, state in states.items() if state is not None}

    def restore(self, states: Mapping[str, Any]) -> list[str]:
        """Restore the states that `read` returned. Create generators that do not exist yet.

        Returns:
            The paths of the states that are not restored, such as `collator.generator`. At such a path, there is no
            generator of the saved kind, and a new generator cannot be created.
        """
        if states.keys() - self.found.keys():
            self.find()  # batches that were read meanwhile may have created them
        missing = []
        for path, state in states.items():
            generator = self.found.get(path)
            if generator is None:
                generator = self._created(path, state)
            if generator is None or not _restored(generator, state):
                missing.append(path)
        return missing

    def _created(self, path: str, state: Mapping[str, Any]) -> Any:
        """Create a generator at `path` and return it; None if the attribute at `path` has a value or cannot be set."""
        holder, _, name = path.rpartition(".")
        owner = self._holders.get(holder)
        if owner is None or getattr(owner, name, None) is not None:
            return None
        try:
            generator = _new(state)
            setattr(owner, name, generator)
        except (AttributeError, TypeError, RuntimeError):  # also if this machine lacks the device of the generator
            return None
        self.found[path] = generator
        return generator


def restore_states(states: dict[str, Any], own: OwnGenerators) -> None:
    """Restore RNG states.

    Args:
        states: the states of the global generators. The entry `own` has the states of the generators in datasets,
            collators and samplers.
        own: the generators in datasets, collators and samplers.
    """
    restore_random_states(states)
    own.restore(states.get("own", {}))


def _is_usable(generator: Any) -> bool:
    return not isinstance(generator, torch.Generator) or generator.device.type != "cuda" or can_use_cuda()


def _is_generator(value: Any) -> bool:
    return isinstance(value, _GENERATORS)


class ObjectSearch:
    """A search for values in objects, such as random generators in a dataset. `visit` searches one object."""

    def __init__(self, wanted: Callable[[Any], bool]) -> None:
        """Create a search for the values for which `wanted` returns True. It skips the global random generators."""
        self._wanted = wanted
        self.found: dict[str, Any] = {}
        """The found values by path."""
        self.holders: dict[str, Any] = {}
        """The visited objects with attributes, by path."""
        self._seen = {id(random._inst), id(np.random.mtrand._rand), id(torch.default_generator)}
        self._visited: list[Any] = []  # keeps the objects alive, so that each id stays the id of one object

    def visit(self, path: str, value: Any, depth: int) -> None:
        """Search an object and the objects in it, and add the wanted values to `found`.

        `path` is the path of the object, such as `collator`. `depth` limits the chain of attributes: a depth of 2
        reaches `value.a.b`, but not `value.a.b.c`.
        """
        if value is None or isinstance(value, (bool, int, float, str, bytes)) or id(value) in self._seen:
            return
        if len(self._visited) > _VISITS:
            return
        wanted = self._wanted(value)
        if not wanted and isinstance(value, (type, ModuleType, torch.Tensor, np.ndarray, nn.Module)):
            return
        self._seen.add(id(value))
        self._visited.append(value)
        if wanted:
            self.found[path] = value
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value if len(value) <= _ITEMS else ()):
                self.visit(f"{path}.{index}", item, depth)
        elif isinstance(value, dict):
            for key, item in (value if len(value) <= _ITEMS else {}).items():
                self.visit(f"{path}.{key}", item, depth)
        elif depth:
            wraps = type(value).__module__.startswith(_WRAPPERS)
            for name, item in self._parts(path, value):
                if wraps and name in _WRAPPED:  # the path does not depend on the wrappers of the engine
                    self.visit(path, item, depth)
                else:
                    self.visit(f"{path}.{name}", item, depth - 1)

    def _parts(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, partial):
            yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
        elif isinstance(value, (MethodType, BuiltinFunctionType)):
            yield "self", value.__self__
            yield "function", getattr(value, "__func__", None)
        elif isinstance(value, FunctionType):
            yield from _held_by_function(value)
        else:
            self.holders[path] = value
            yield from _attributes(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each attribute of an object, and of each random generator among its class attributes."""
    yield from [*getattr(value, "__dict__", {}).items()]
    for cls in type(value).__mro__:
        if cls.__module__.partition(".")[0] in _LIBRARIES or cls is object:
            continue
        yield from ((name, item) for name, item in [*vars(cls).items()] if isinstance(item, _GENERATORS))
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield name, getattr(value, name, None)


def _held_by_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield name and value of the objects that a function uses: closure, defaults and global variables.

    For a function of a library such as torch, global variables are left out. If a function of a library has no
    closure, its defaults are left out too.
    """
    if function.__module__ and function.__module__.partition(".")[0] in _LIBRARIES and not function.__closure__:
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # a variable that has no value yet
            continue
    yield "defaults", function.__defaults__
    yield "kwdefaults", function.__kwdefaults__
    if function.__module__ and function.__module__.partition(".")[0] not in _LIBRARIES:
        for name in function.__code__.co_names:
            yield name, function.__globals__.get(name)


def _saved_state(path: str, generator: Any) -> dict[str, Any] | None:
    """Return the state of a random generator in a form that a checkpoint can save.

    Return None if a checkpoint cannot save the state, as for `random.SystemRandom`.

    Args:
        path: the path of the generator, such as `dataset.generator`.
        generator: the generator.
    """
    if isinstance(generator, torch.Generator):
        return {"kind": "torch", "device": str(generator.device), "state": generator.get_state()}
    if isinstance(generator, np.random.RandomState):
        return {"kind": "numpy.RandomState", "state": generator.get_state(legacy=False)}
    if isinstance(generator, np.random.Generator):
        state = {"kind": "numpy", "state": generator.bit_generator.state}
        known = type(generator.bit_generator).__module__.startswith("numpy.")
        return state if known or _can_be_encoded(state, path) else None
    try:
        state = {"kind": "python", "state": generator.getstate()}
    except NotImplementedError:  # random.SystemRandom
        return None
    return state if type(generator) is random.Random or _can_be_encoded(state, path) else None


def _can_be_encoded(state: dict[str, Any], path: str) -> bool:
    try:
        encode(state, path)
    except CheckpointError:
        return False
    return True


def _restored(generator: Any, saved: Mapping[str, Any]) -> bool:
    """Load a saved state into a generator. Return False if the state is of another kind of generator."""
    kind, state = saved["kind"], saved["state"]
    try:
        if kind == "torch" and isinstance(generator, torch.Generator):
            generator.set_state(state.cpu())
        elif kind == "numpy.RandomState" and isinstance(generator, np.random.RandomState):
            generator.set_state(state)
        elif kind == "numpy" and isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        elif kind == "python" and isinstance(generator, random.Random):
            generator.setstate(state)
        else:
            return False
    except (ValueError, TypeError, RuntimeError):  # such as the state of another bit generator
        return False
    return True


def _new(saved: Mapping[str, Any]) -> Any:
    """Create a generator of the same kind as the saved generator. The function does not load the saved state."""
    kind = saved["kind"]
    if kind == "torch":
        return torch.Generator(saved["device"])
    if kind == "numpy.RandomState":
        return np.random.RandomState()
    if kind == "numpy":
        return np.random.Generator(getattr(np.random, saved["state"]["bit_generator"], np.random.PCG64)())
    return random.Random()
