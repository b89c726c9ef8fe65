"""Tensors that are split over processes: each writes the part it holds, and any part can be read from the files of all.

A file of values keeps its plain tensors. Of the split ones its metadata says type and shape, and beside it lie
`<stem>-<rank>-of-<processes>.safetensors`, each with the parts of one process and where in the whole they begin.

What a split tensor tells of itself is asked through its attributes, which are those of torch's DTensor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ....events.errors import CheckpointError
from .manifest import has, matching

Files = dict[str, tuple[dict[str, torch.Tensor], dict[str, str]]]

_SPLIT = "trainbus_split"
"""Key of the metadata under which a file of values tells of its split tensors."""
_BEGINS = "trainbus_begins"
"""Key of the metadata under which a file of parts tells where each begins."""


@dataclass(frozen=True)
class Region:
    """A part of a tensor: a box."""

    begin: tuple[int, ...]
    """Its first index, in each dimension."""
    shape: tuple[int, ...]
    """Its size, in each dimension."""

    def overlap(self, other: Region) -> Region | None:
        """Return the box that both have; None if it is empty."""
        begin = tuple(map(max, self.begin, other.begin))
        ends = (map(sum, zip(region.begin, region.shape)) for region in (self, other))
        shape = tuple(end - start for end, start in zip(map(min, *ends), begin))
        return Region(begin, shape) if all(size > 0 for size in shape) else None

    def slices(self, origin: tuple[int, ...]) -> tuple[slice, ...]:
        """Return what cuts it out of a tensor whose first index is `origin`."""
        return tuple(slice(b - o, b - o + size) for b, o, size in zip(self.begin, origin, self.shape))


def is_split(value: Any) -> bool:
    """Say whether a value is a tensor of which each process holds a part."""
    return isinstance(value, torch.Tensor) and hasattr(value, "device_mesh") and hasattr(value, "placements")


def own_region(tensor: Any) -> Region:
    """Return which part of a split tensor this process holds.

    Raises:
        CheckpointError: if it is split in a way that is not known here.
    """
    mesh, begin, shape = tensor.device_mesh, [0] * tensor.dim(), [*tensor.shape]
    coordinate = mesh.get_coordinate()
    for dimension, placement in enumerate(tensor.placements):
        kind = type(placement).__name__
        if kind == "Shard":
            at, parts = placement.dim % tensor.dim(), mesh.size(dimension)
            each = -(-shape[at] // parts)
            first = min(coordinate[dimension] * each, shape[at])
            begin[at] += first
            shape[at] = min(each, shape[at] - first)
        elif kind != "Replicate":
            raise CheckpointError(f"A checkpoint cannot hold a tensor that is split over processes as {placement}.")
    return Region(tuple(begin), tuple(shape))


def is_first_copy(tensor: Any) -> bool:
    """Say whether, of the processes that hold the same part of a split tensor, this is the first."""
    coordinate = tensor.device_mesh.get_coordinate()
    return all(
        coordinate[dimension] == 0
        for dimension, placement in enumerate(tensor.placements)
        if type(placement).__name__ == "Replicate"
    )


def divide(
    name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], rank: int, processes: int
) -> Files:
    """Return what this process writes of a file of values, by the name of the file.

    Args:
        name: of the file of values.
        tensors: what is in it; the same on every process, as far as it is split.
        metadata: what else is in it.
        rank: this process, from 0.
        processes: how many there are.

    Returns:
        The file of values under its name, and if this process has parts of split tensors to write, those.
    """
    split: dict[str, Any] = {key: tensor for key, tensor in tensors.items() if is_split(tensor)}
    if not split:
        return {name: (dict(tensors), dict(metadata))}
    told = {key: [str(tensor.dtype).removeprefix("torch."), [*tensor.shape]] for key, tensor in split.items()}
    plain = {key: tensor for key, tensor in tensors.items() if key not in split}
    found: Files = {name: (plain, {**metadata, _SPLIT: json.dumps(told)})}
    regions = {key: own_region(tensor) for key, tensor in split.items() if is_first_copy(tensor)}
    regions = {key: region for key, region in regions.items() if prod(region.shape)}
    if regions:
        parts = {key: split[key].to_local() for key in regions}
        begins = json.dumps({key: region.begin for key, region in regions.items()})
        stem, _, suffix = name.rpartition(".")
        found[f"{stem}-{rank:05}-of-{processes:05}.{suffix}"] = (parts, {_BEGINS: begins})
    return found


@dataclass(frozen=True)
class Part:
    """A part of a tensor, in a file."""

    region: Region
    """Which part it is."""
    read: Callable[[tuple[slice, ...]], torch.Tensor]
    """Reads a part of it."""


@dataclass(frozen=True)
class Stored:
    """A tensor in files, of which any part can be read."""

    shape: torch.Size
    dtype: torch.dtype
    parts: tuple[Part, ...]
    where: str
    """The file that tells of it, for errors."""

    def read(self, wanted: Region) -> torch.Tensor:
        """Return a part of it.

        Raises:
            CheckpointError: if the files do not have all of it.
        """
        # Copies, for in the file they begin anywhere, and products may round otherwise by where a tensor begins.
        made = torch.empty(wanted.shape, dtype=self.dtype)
        count = 0
        for part in self.parts:
            common = part.region.overlap(wanted)
            if common is not None:
                made[common.slices(wanted.begin)] = part.read(common.slices(part.region.begin))
                count += prod(common.shape)
        if count != made.numel():
            raise CheckpointError(
                f"{self.where} tells of tensors that lie in the files of several processes, and those have {count} of "
                f"{made.numel()} numbers: one of the files beside it is missing."
            )
        return made

    def whole(self) -> torch.Tensor:
        """Return all of it."""
        return self.read(Region((0,) * len(self.shape), tuple(self.shape)))


def gathered(tensor: Any, device: torch.device, keep: bool) -> torch.Tensor | None:
    """Return a split tensor whole, in the host's memory; called on every process, and None where it is not kept."""
    if not is_split(tensor):
        return tensor.detach().to("cpu", copy=True) if keep else None
    whole = whole_on(tensor, device)
    return whole.to("cpu") if keep else None


def whole_on(tensor: Any, device: torch.device) -> torch.Tensor:
    """Return all of a tensor, split or not, on the device where it is gathered; called on every process."""
    placed = tensor.detach()
    if not is_split(placed):
        moved: torch.Tensor = placed.to(device)
        return moved
    if placed.to_local().device != device:
        placed = type(placed).from_local(
            *(placed.to_local().to(device), placed.device_mesh, placed.placements),
            run_check=False,
            shape=placed.shape,
            stride=placed.stride(),
        )
    whole: torch.Tensor = placed.full_tensor()
    return whole


def _parts_beside(path: Path) -> list[Path]:
    """Return the files with the parts of the split tensors of a file of values, also those that are missing."""
    return matching(path.parent, f"{path.stem}-*-of-*{path.suffix}")


def is_complete(path: Path) -> bool:
    """Say whether a checkpoint has a file of values, with all the files that parts of it are in."""
    return has(path.parent, path.name) and all(part.is_file() for part in _parts_beside(path))


def tells_of_split(path: Path) -> bool:
    """Say whether a file of values has tensors that are split over other files."""
    with safe_open(path, framework="pt") as file:
        return _SPLIT in (file.metadata() or {})


def stored_in(path: Path) -> tuple[dict[str, torch.Tensor | Stored], dict[str, str]]:
    """Return what is in a file of tensors, split ones included, to be read when wanted; and its metadata.

    Tensors of no dimension are read at once.
    """
    found: dict[str, torch.Tensor | Stored] = {}
    file: Any = safe_open(path, framework="pt")
    metadata: dict[str, str] = file.metadata() or {}
    for key, part in _parts_of(file, {}):
        dtype, shape = _kind_of(file, key), torch.Size(part.region.shape)
        found[key] = Stored(shape, dtype, (part,), str(path)) if shape else file.get_tensor(key).clone()
    told = json.loads(metadata.get(_SPLIT, "{}"))
    if told:
        parts: dict[str, list[Part]] = {key: [] for key in told}
        for beside in filter(Path.is_file, _parts_beside(path)):
            opened: Any = safe_open(beside, framework="pt")
            for key, part in _parts_of(opened, json.loads((opened.metadata() or {})[_BEGINS])):
                parts[key].append(part)
        for key, (dtype, shape) in told.items():
            found[key] = Stored(torch.Size(shape), getattr(torch, dtype), tuple(parts[key]), str(path))
    return found, metadata


def _parts_of(file: Any, begins: Mapping[str, list[int]]) -> Iterator[tuple[str, Part]]:
    for key in file.keys():  # noqa: SIM118 - it is no dict
        shape = tuple(file.get_slice(key).get_shape())
        region = Region(tuple(begins.get(key, (0,) * len(shape))), shape)
        yield key, Part(region, _reader(file, key))


def _reader(file: Any, key: str) -> Callable[[tuple[slice, ...]], torch.Tensor]:
    return lambda slices: file.get_slice(key)[slices]


def _kind_of(file: Any, key: str) -> torch.dtype:
    """Return torch's type of a tensor in a file, which has words of its own for types; a piece of it has torch's."""
    piece = file.get_slice(key)
    shape = piece.get_shape()
    some = piece[tuple(slice(0, 1) for _ in shape)] if prod(shape) and shape else file.get_tensor(key)
    dtype: torch.dtype = some.dtype
    return dtype


def as_tensor(value: Any) -> Any:
    """Return a stored tensor as a tensor; everything else as it is."""
    return value.whole() if isinstance(value, Stored) else value


def fitted(value: Any, like: Any) -> Any:
    """Return a tensor, stored or not, as another is held: of a split one this process's part, else all of it."""
    shaped = isinstance(value, (torch.Tensor, Stored)) and not is_split(value) and is_split(like)
    if not shaped or value.shape != like.shape:
        return as_tensor(value)
    region = own_region(like)
    local = value.read(region) if isinstance(value, Stored) else value[region.slices((0,) * value.dim())]
    made: Any = torch.empty_like(like.detach(), dtype=value.dtype)
    made.to_local().copy_(local)
    return made
