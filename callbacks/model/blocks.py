"""The blocks of a model: the parts that are gathered, or recomputed, at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from ...events.errors import ModelError, nearest

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""What has no forward, and so is never called itself."""

WHOLE = (nn.MultiheadAttention,)
"""What uses the weights of its parts without calling them."""

Kinds = tuple[str | type[nn.Module], ...]
"""Classes of modules, or names of such."""


def blocks_of(model: nn.Module, wanted: Kinds | int | None = None) -> list[nn.Module]:
    """Return parts of a model that it calls one by one, inner ones before those around them.

    A part that shares a weight with what is outside of it is none.

    Args:
        model: the model, which is no block itself.
        wanted: classes, or names of such; or a number of weights, and a block is what has so many that are in no block
            inside of it. By default what the model calls `_no_split_modules`, as those of transformers do, and where it
            does not, what stands in its `nn.ModuleList`s, the outermost.

    Raises:
        ModelError: if there is no module of a class that was named.
    """
    if isinstance(wanted, int):
        found = [module for module, _ in _of_size(model, wanted)]
    elif wanted is not None:
        found = modules_of(model, wanted)[::-1]
    else:
        named = [name for name in getattr(model, "_no_split_modules", None) or () if name in _classes(model)]
        found = modules_of(model, tuple(named))[::-1] if named else [*_listed(model)]
    weighty = [module for module in found if module is not model and next(module.parameters(), None) is not None]
    return _apart(model, list(dict.fromkeys(weighty)))


def modules_of(model: nn.Module, kinds: Kinds) -> list[nn.Module]:
    """Return the modules of some classes, outer ones before those inside of them.

    Args:
        model: the model, itself included.
        kinds: classes, or names of such.

    Raises:
        ModelError: for a class of which it has none, with the nearest name.
    """
    for kind in kinds:
        if not any(_is(module, kind) for module in model.modules()):
            name, known = kind if isinstance(kind, str) else kind.__name__, _classes(model)
            raise ModelError(
                f"{_class_of(model).__name__} has no module of the class {name!r}{nearest(name, known)} It is made of: "
                f"{', '.join(known)}."
            )
    return [module for module in model.modules() if any(_is(module, kind) for kind in kinds)]


def _is(module: nn.Module, kind: str | type[nn.Module]) -> bool:
    return _class_of(module).__name__ == kind if isinstance(kind, str) else isinstance(module, kind)


def _class_of(module: nn.Module) -> type:
    """Return the class that a module was written as; one that is split has a class made of that and FSDPModule."""
    kind, *bases = type(module).__mro__
    return bases[1] if bases[0].__name__ == "FSDPModule" else kind


def _classes(model: nn.Module) -> list[str]:
    return sorted({_class_of(module).__name__ for module in model.modules() if module is not model})


def _listed(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(module, nn.ModuleList) and not isinstance(child, CONTAINERS):
            yield child
        else:
            yield from _listed(child)


def _of_size(module: nn.Module, least: int) -> Iterator[tuple[nn.Module, int]]:
    """Yield the blocks below a module, each with how many weights are in it."""
    for child in module.children():
        inside = [] if isinstance(child, WHOLE) else [*_of_size(child, least)]
        yield from inside
        own = sum(weight.numel() for weight in child.parameters()) - sum(count for _, count in inside)
        if own >= least and not isinstance(child, CONTAINERS):
            yield child, own


def _apart(model: nn.Module, blocks: list[nn.Module]) -> list[nn.Module]:
    """Leave out the blocks that share a weight with another, or with what is in none."""
    while True:
        owners: dict[Any, set[nn.Module]] = {}
        _own(model, model, {*blocks}, owners)
        sharing = {owner for several in owners.values() if len(several) > 1 for owner in several} - {model}
        if not sharing:
            return blocks
        blocks = [block for block in blocks if block not in sharing]


def _own(module: nn.Module, owner: nn.Module, blocks: set[nn.Module], owners: dict[Any, set[nn.Module]]) -> None:
    for weight in module.parameters(recurse=False):
        owners.setdefault(weight, set()).add(owner)
    for child in module.children():
        _own(child, child if child in blocks else owner, blocks, owners)


def own_modules(block: nn.Module, blocks: set[nn.Module]) -> Iterator[nn.Module]:
    """Yield the modules of a block, itself included, that are not in another of the blocks inside of it."""
    yield block
    for child in block.children():
        if child not in blocks:
            yield from own_modules(child, blocks)
