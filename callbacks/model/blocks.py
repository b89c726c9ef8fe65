"""Find the blocks of a model: modules that are gathered or recomputed as one unit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from ...engine.optim.sizes import count_elements
from ...events.errors import ModelError, nearest

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Modules without a forward. The model calls their children instead."""

WHOLE = (nn.MultiheadAttention,)
"""Modules that use the weights of their children without calling the children. No part of such a module is a block."""

Kinds = tuple[str | type[nn.Module], ...]
"""Classes of modules, or their names."""


def blocks_of(model: nn.Module, wanted: Kinds | int | None = None) -> list[nn.Module]:
    """Return the blocks of a model, inner blocks before outer ones.

    A module without parameters is not a block. A module that shares a weight with another block, or with the rest of
    the model, is not a block either.

    Args:
        model: the model. The model itself is not a block.
        wanted: the classes of the blocks, the names of these classes, or the smallest number of parameter elements of a
            block. Elements of an inner block do not count for the blocks around it. Default: the classes that a
            transformers model names in `_no_split_modules`. If the model has no module of these classes: the members of
            the outermost `nn.ModuleList`s.

    Raises:
        ModelError: if `wanted` has a class, and no module of the model has this class.
    """
    if isinstance(wanted, int):
        found = [module for module, _ in _of_size(model, wanted)]
    elif wanted is not None:
        found = modules_of(model, wanted)[::-1]
    else:
        named = [name for name in getattr(model, "_no_split_modules", None) or () if name in _classes(model)]
        found = modules_of(model, tuple(named))[::-1] if named else [*_members_of_lists(model)]
    with_weights = [module for module in found if module is not model and next(module.parameters(), None) is not None]
    return _without_shared_weights(model, list(dict.fromkeys(with_weights)))


def modules_of(model: nn.Module, kinds: Kinds) -> list[nn.Module]:
    """Return the modules of the given classes, outer modules before inner ones.

    Args:
        model: the model. The result may include the model itself.
        kinds: classes, or the names of classes.

    Raises:
        ModelError: if `kinds` has a class, and no module of the model has this class. The error suggests the most
            similar class name.
    """
    for kind in kinds:
        if not any(_is(module, kind) for module in model.modules()):
            name, known = kind if isinstance(kind, str) else kind.__name__, _classes(model)
            raise ModelError(
                f"{_class_of(model).__name__} has no module of the class {name!r}{nearest(name, known)} "
                f"Its modules are: {', '.join(known)}."
            )
    return [module for module in model.modules() if any(_is(module, kind) for kind in kinds)]


def _is(module: nn.Module, kind: str | type[nn.Module]) -> bool:
    return _class_of(module).__name__ == kind if isinstance(kind, str) else isinstance(module, kind)


def _class_of(module: nn.Module) -> type:
    """Return the original class of a module.

    FSDP2 replaces the class of a module. The new class is a subclass of `FSDPModule` and of the original class.
    """
    kind, *bases = type(module).__mro__
    return bases[1] if bases[0].__name__ == "FSDPModule" else kind


def _classes(model: nn.Module) -> list[str]:
    return sorted({_class_of(module).__name__ for module in model.modules() if module is not model})


def _members_of_lists(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(module, nn.ModuleList) and not isinstance(child, CONTAINERS):
            yield child
        else:
            yield from _members_of_lists(child)


def _of_size(module: nn.Module, least: int) -> Iterator[tuple[nn.Module, int]]:
    """Yield the submodules with at least `least` parameter elements, each with its number of elements.

    Inner submodules come first. Elements of a submodule that was yielded do not count for the modules around it.
    Containers, such as `nn.ModuleList`, are not yielded.
    """
    for child in module.children():
        inside = [] if isinstance(child, WHOLE) else [*_of_size(child, least)]
        yield from inside
        own = count_elements(child.parameters()) - sum(count for _, count in inside)
        if own >= least and not isinstance(child, CONTAINERS):
            yield child, own


def _without_shared_weights(model: nn.Module, blocks: list[nn.Module]) -> list[nn.Module]:
    """Return the blocks that share no weight with another block or with the rest of the model."""
    while True:
        owners: dict[Any, set[nn.Module]] = {}
        _collect_owners(model, model, {*blocks}, owners)
        sharing = {owner for several in owners.values() if len(several) > 1 for owner in several} - {model}
        if not sharing:
            return blocks
        blocks = [block for block in blocks if block not in sharing]


def _collect_owners(
    module: nn.Module, owner: nn.Module, blocks: set[nn.Module], owners: dict[Any, set[nn.Module]]
) -> None:
    for weight in module.parameters(recurse=False):
        owners.setdefault(weight, set()).add(owner)
    for child in module.children():
        _collect_owners(child, child if child in blocks else owner, blocks, owners)


def own_modules(block: nn.Module, blocks: set[nn.Module]) -> Iterator[nn.Module]:
    """Yield a block and the modules in it, without inner blocks and their modules.

    `blocks` has all blocks of the model.
    """
    yield block
    for child in block.children():
        if child not in blocks:
            yield from own_modules(child, blocks)
