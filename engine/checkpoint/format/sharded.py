"""Sharded tensors in checkpoints: each rank writes its shards, and any rank can read any region of a tensor.

A *value file*, such as `optimizer.safetensors`, has all values except shards. Its metadata has dtype and shape of each
sharded tensor. In the same folder, each rank writes its shards into a *shard file*,
`<stem>-<rank>-of-<world size>.safetensors`. If several ranks hold the same shard, only the first of them writes it. The
metadata of a shard file has the first index of each shard in each dimension, such as [512, 0].

A sharded tensor is a DTensor. The functions recognize a DTensor by its attributes, and import no distributed module.
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
from torch.nn import parameter

from ....events.errors import CheckpointError
from .folder import CheckpointFolder
from .layout import arranged, dense_stride
from .subclasses import consists_of_tensors

Files = dict[str, tuple[dict[str, torch.Tensor], dict[str, str]]]

_SPLIT = "trainbus_split"
"""Metadata key in a value file, for dtype and shape of its sharded tensors."""
_BEGINS = "trainbus_begins"
"""Metadata key in a shard file, for the first index of each shard in each dimension."""


@dataclass(frozen=True)
class Region:
    """A rectangular region of a tensor: start and size in each dimension."""

    begin: tuple[int, ...]
    """The first index in each dimension."""
    shape: tuple[int, ...]
    """The size in each dimension."""

    def overlap(self, other: Region) -> Region | None:
        """Return the intersection with another region; None if the intersection is empty."""
        begin = tuple(map(max, self.begin, other.begin))
        ends = (map(sum, zip(region.begin, region.shape)) for region in (self, other))
        shape = tuple(end - start for end, start in zip(map(min, *ends), begin))
        return Region(begin, shape) if all(size > 0 for size in shape) else None

    def slices(self, origin: tuple[int, ...]) -> tuple[slice, ...]:
        """Return the slices that select this region in a shard that begins at index `origin` of the tensor."""
        return tuple(slice(b - o, b - o + size) for b, o, size in zip(self.begin, origin, self.shape))


def is_split(value: Any) -> bool:
    """Return whether a value is a sharded tensor (a DTensor)."""
    return isinstance(value, torch.Tensor) and hasattr(value, "device_mesh") and hasattr(value, "placements")


def is_lazy(value: Any) -> bool:
    """Return whether a value is a parameter or buffer without a shape, of a lazy module such as `nn.LazyLinear`."""
    return bool(parameter.is_lazy(value))


def own_region(tensor: Any) -> Region:
    """Return the region of a sharded tensor that this rank holds.

    Raises:
        CheckpointError: if the tensor has a placement other than `Shard` and `Replicate`.
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
            raise CheckpointError(
                f"A checkpoint cannot hold a tensor with the placement {placement}. Use Shard or Replicate."
            )
    return Region(tuple(begin), tuple(shape))


def is_first_copy(tensor: Any) -> bool:
    """Return whether this rank is the first of all ranks that have the same shard of a tensor.

    Only the first of these ranks writes the shard.
    """
    coordinate = tensor.device_mesh.get_coordinate()
    return all(
        coordinate[dimension] == 0
        for dimension, placement in enumerate(tensor.placements)
        if type(placement).__name__ == "Replicate"
    )


def files_of_rank(
    name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], rank: int, world_size: int
) -> Files:
    """Return the contents of the value file, and of this rank's shard file, by file name.

    Args:
        name: the name of the value file, such as `optimizer.safetensors`.
        tensors: the tensors of both files. The shard file receives this rank's shards of sharded tensors. The value
            file receives all other tensors.
        metadata: the metadata of the value file.
        rank: this rank, from 0.
        world_size: the number of ranks.

    Returns:
        File name -> tensors and metadata. The result has the value file on every rank. If this rank has no shard to
        write, the result has no shard file.
    """
    split: dict[str, Any] = {key: tensor for key, tensor in tensors.items() if is_split(tensor)}
    if not split:
        return {name: (dict(tensors), dict(metadata))}
    sharded = {key: [str(tensor.dtype).removeprefix("torch."), [*tensor.shape]] for key, tensor in split.items()}
    plain = {key: tensor for key, tensor in tensors.items() if key not in split}
    found: Files = {name: (plain, {**metadata, _SPLIT: json.dumps(sharded)})}
    regions = {key: own_region(tensor) for key, tensor in split.items() if is_first_copy(tensor)}
    regions = {key: region for key, region in regions.items() if prod(region.shape)}
    if regions:
        parts = {key: split[key].to_local() for key in regions}
        begins = json.dumps({key: region.begin for key, region in regions.items()})
        stem, _, suffix = name.rpartition(".")
        found[f"{stem}-{rank:05}-of-{world_size:05}.{suffix}"] = (parts, {_BEGINS: begins})
    return found


@dataclass(frozen=True)
class StoredShard:
    """A shard of a tensor, or a whole tensor, in a file of a checkpoint."""

    region: Region
    """The region of the tensor that the shard holds."""
    read: Callable[[tuple[slice, ...]], torch.Tensor]
    """A function that reads slices of the shard from the file."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in one or several files of a checkpoint. The method `read` reads any region of the tensor."""

    shape: torch.Size
    dtype: torch.dtype
    shards: tuple[StoredShard, ...]
    where: str
    """The path of the value file, such as `optimizer.safetensors`, for error messages."""
    stride: tuple[int, ...] | None = None
    """The strides of the whole tensor; None if it is contiguous."""

    def read(self, wanted: Region) -> torch.Tensor:
        """Read a region of the tensor from the files.

        Raises:
            CheckpointError: if the files do not hold all of the region.
        """
        # Copy into new memory. The alignment in the file is arbitrary, and it can change how matrix products round.
        made = torch.empty(wanted.shape, dtype=self.dtype)
        count = 0
        for shard in self.shards:
            common = shard.region.overlap(wanted)
            if common is not None:
                made[common.slices(wanted.begin)] = shard.read(common.slices(shard.region.begin))
                count += prod(common.shape)
        if count != made.numel():
            raise CheckpointError(
                f"{self.where} has sharded tensors, and the files with the shards hold {count} of {made.numel()} "
                "values: one of these files is missing. Restore it, or resume from another checkpoint."
            )
        return made

    def whole(self) -> torch.Tensor:
        """Read the whole tensor, with the strides in the attribute `stride`.

        Raises:
            CheckpointError: if the files do not hold all of the tensor.
        """
        whole = self.read(Region((0,) * len(self.shape), tuple(self.shape)))
        return whole if self.stride is None else arranged(whole, self.stride)


def gathered(tensor: Any, device: torch.device, keep: bool) -> torch.Tensor | None:
    """Gather a tensor from all ranks. Return the whole tensor on the CPU if `keep` is True, else None.

    All ranks must call this function, because the ranks exchange their shards on `device`. For a tensor that is not
    sharded, the ranks exchange nothing.
    """
    if not is_split(tensor):
        return tensor.detach().to("cpu", copy=True) if keep else None
    whole = whole_on(tensor, device)
    return whole.to("cpu") if keep else None


def whole_on(tensor: Any, device: torch.device) -> torch.Tensor:
    """Return a whole tensor on a device. Gather a sharded tensor from all ranks. All ranks must call this function."""
    placed = tensor.detach()
    if not is_split(placed):
        moved: torch.Tensor = placed.to(device)
        return moved
    if placed.to_local().device != device:
        placed = type(placed).from_local(
            placed.to_local().to(device),
            placed.device_mesh,
            placed.placements,
            run_check=False,
            shape=placed.shape,
            stride=placed.stride(),
        )
    whole: torch.Tensor = placed.full_tensor()
    return whole


def has_sharded_tensors(path: Path) -> bool:
    """Return whether the metadata of a file lists sharded tensors. Their shards are in other files."""
    with safe_open(path, framework="pt") as file:
        return _SPLIT in (file.metadata() or {})


def open_tensors(path: Path, folder: CheckpointFolder) -> tuple[dict[str, torch.Tensor | StoredTensor], dict[str, str]]:
    """Open a value file, such as `optimizer.safetensors`. Return its tensors by name, and its metadata.

    A tensor without dimensions is read at once. Any other tensor is a `StoredTensor`, which reads its values later. The
    metadata lists the sharded tensors. Their shards are in other files of `folder`.

    Args:
        path: the value file.
        folder: the checkpoint that the value file belongs to.
    """
    found: dict[str, torch.Tensor | StoredTensor] = {}
    file: Any = safe_open(path, framework="pt")
    metadata: dict[str, str] = file.metadata() or {}
    for key, shard in _shards_in(file, {}):
        dtype, shape = _dtype_of(file, key), torch.Size(shard.region.shape)
        found[key] = StoredTensor(shape, dtype, (shard,), str(path)) if shape else file.get_tensor(key).clone()
    sharded = json.loads(metadata.get(_SPLIT, "{}"))
    if sharded:
        shards: dict[str, list[StoredShard]] = {key: [] for key in sharded}
        for beside in filter(Path.is_file, folder.parts_of(path.name)):
            opened: Any = safe_open(beside, framework="pt")
            for key, shard in _shards_in(opened, json.loads((opened.metadata() or {})[_BEGINS])):
                shards[key].append(shard)
        for key, (dtype, shape) in sharded.items():
            found[key] = StoredTensor(torch.Size(shape), getattr(torch, dtype), tuple(shards[key]), str(path))
    return found, metadata


def _shards_in(file: Any, begins: Mapping[str, list[int]]) -> Iterator[tuple[str, StoredShard]]:
    for key in file.keys():  # noqa: SIM118 - not a dict
        shape = tuple(file.get_slice(key).get_shape())
        region = Region(tuple(begins.get(key, (0,) * len(shape))), shape)
        yield key, StoredShard(region, _reader(file, key))


def _reader(file: Any, key: str) -> Callable[[tuple[slice, ...]], torch.Tensor]:
    return lambda slices: file.get_slice(key)[slices]


def _dtype_of(file: Any, key: str) -> torch.dtype:
    """Return the torch dtype of a tensor in a file.

    The function loads one value of the tensor, because safetensors offers no other way to get the dtype.
    """
    piece = file.get_slice(key)
    shape = piece.get_shape()
    some = piece[tuple(slice(0, 1) for _ in shape)] if prod(shape) and shape else file.get_tensor(key)
    dtype: torch.dtype = some.dtype
    return dtype


def as_tensor(value: Any) -> Any:
    """Read a `StoredTensor` and return the whole tensor. Return any other value unchanged."""
    return value.whole() if isinstance(value, StoredTensor) else value


def fitted(value: Any, like: Any) -> Any:
    """Return a value of a checkpoint with the sharding and the memory layout of the tensor `like`.

    If `like` is sharded, the result is sharded in the same way, and only the shard of this rank is read. Otherwise the
    result is the whole tensor.

    A `StoredTensor` is a tensor that is not read yet. The function returns three kinds of values unchanged:

    - a value that is neither a tensor nor a `StoredTensor`;
    - a tensor that is already sharded;
    - a tensor that stores its values in other tensors, as `consists_of_tensors` describes.

    If `like` is not a tensor, or has another shape than `value`, the function returns `as_tensor(value)`.

    Args:
        value: a tensor, a `StoredTensor`, or any other value.
        like: the tensor whose sharding and layout the result gets, or any other value.
    """
    tensor = isinstance(value, (torch.Tensor, StoredTensor)) and not is_split(value) and not consists_of_tensors(value)
    if not tensor or not isinstance(like, torch.Tensor) or value.shape != like.shape:
        return as_tensor(value)
    if not is_split(like):
        return arranged(as_tensor(value), dense_stride(like))
    region = own_region(like)
    local = value.read(region) if isinstance(value, StoredTensor) else value[region.slices((0,) * value.dim())]
    made: Any = torch.empty_like(like.detach(), dtype=value.dtype)
    made.to_local().copy_(local)
    return made
