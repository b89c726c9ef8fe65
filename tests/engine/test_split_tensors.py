"""Tensors that are split over processes, written in parts and read in others; without processes."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.tensor import Replicate, Shard

from trainbus.engine.checkpoint.format.codec import encode, load_values
from trainbus.engine.checkpoint.format.folder import CheckpointFolder
from trainbus.engine.checkpoint.format.sharded import Region, as_tensor, files_of_rank, fitted, open_tensors, own_region
from trainbus.events.errors import CheckpointError

ROW, HYBRID, ON_COLUMNS = (Shard(0),), (Replicate(), Shard(0)), (Shard(1),)


def part(whole, coordinate, sizes, placements=ROW):
    """Return a tensor as it is seen by the process at `coordinate` of a mesh of these `sizes`: what DTensor has."""
    tensor = whole.clone()
    tensor.device_mesh = SimpleNamespace(get_coordinate=lambda: coordinate, size=lambda dimension: sizes[dimension])
    tensor.placements = placements
    tensor.detach = lambda: tensor
    region = own_region(tensor)
    tensor.to_local = lambda: whole[region.slices((0,) * whole.dim())].contiguous()
    return tensor


def write(folder, values, coordinates, sizes, placements=ROW):
    """Write values as all processes of a mesh do, and return the value file."""
    for rank, coordinate in enumerate(coordinates):
        mine = {
            name: part(value, coordinate, sizes, placements) if value.dim() else value for name, value in values.items()
        }
        for name, (tensors, metadata) in files_of_rank(
            "it.safetensors", *encode(mine, "it"), rank, len(coordinates)
        ).items():
            if rank == 0 or name != "it.safetensors":
                save_file(tensors, folder / name, metadata)
    return folder / "it.safetensors"


VALUES = {
    "odd": torch.arange(35.0).reshape(7, 5),
    "few": torch.arange(2.0),
    "half": torch.arange(12).reshape(6, 2).bfloat16(),
    "empty": torch.zeros(0, 3),
    "step": torch.tensor(3.0),
}


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in other
    )


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_files_of_all_ranks_are_read_as_whole_tensors(tmp_path, processes):
    path = write(tmp_path, VALUES, [(rank,) for rank in range(processes)], (processes,))
    assert same(load_values(path), VALUES)


def test_of_equal_parts_one_is_written(tmp_path):
    path = write(tmp_path, VALUES, [(copy, shard) for copy in (0, 1) for shard in (0, 1)], (2, 2), HYBRID)
    assert same(load_values(path), VALUES)
    parts = sorted(found.name for found in tmp_path.glob("it-*"))
    assert parts == ["it-00000-of-00004.safetensors", "it-00001-of-00004.safetensors"]


def test_columns_may_be_split_too(tmp_path):
    values = {"odd": VALUES["odd"]}
    assert same(load_values(write(tmp_path, values, [(0,), (1,)], (2,), ON_COLUMNS)), values)


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 4])
def test_other_processes_read_other_parts(tmp_path, before, after):
    path = write(tmp_path, VALUES, [(rank,) for rank in range(before)], (before,))
    stored = load_values(path, whole=False)
    for rank in range(after):
        for name in ("odd", "few", "half"):
            wanted = own_region(part(VALUES[name], (rank,), (after,)))
            read = stored[name].read(wanted)
            assert torch.equal(read, VALUES[name][wanted.slices((0,) * read.dim())])


def test_a_plain_file_is_read_in_parts_too(tmp_path):
    save_file(VALUES, tmp_path / "plain.safetensors")
    stored, metadata = open_tensors(tmp_path / "plain.safetensors", CheckpointFolder(tmp_path))
    assert metadata == {}
    assert same({name: as_tensor(value) for name, value in stored.items()}, VALUES)
    assert torch.equal(stored["odd"].read(Region((2, 1), (3, 2))), VALUES["odd"][2:5, 1:3])


def test_loaded_tensors_do_not_change_with_the_file(tmp_path):
    path = write(tmp_path, VALUES, [(0,)], (1,))
    read = load_values(path)
    read["odd"].zero_()
    assert same(load_values(path), VALUES)


@pytest.mark.parametrize("gone", [0, 1])
def test_a_part_that_is_missing_is_named_by_its_size(tmp_path, gone):
    path = write(tmp_path, VALUES, [(0,), (1,)], (2,))
    (tmp_path / f"it-0000{gone}-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"the shards hold \d+ of 35 values: one of these files is missing"):
        load_values(path, whole=False)["odd"].whole()


def test_a_way_to_split_that_is_not_known_is_refused():
    class Strided(Shard):
        pass

    with pytest.raises(CheckpointError, match="cannot hold a tensor with the placement"):
        part(VALUES["odd"], (0,), (2,), (Strided(0),))


def test_unsharded_weights_are_in_one_file():
    tensors, metadata = encode(VALUES, "it")
    assert files_of_rank("it.safetensors", tensors, metadata, 1, 2) == {"it.safetensors": (tensors, metadata)}


def test_an_unsharded_tensor_is_returned_unchanged():
    assert fitted(VALUES["odd"], VALUES["odd"]) is VALUES["odd"]
    assert fitted(None, VALUES["odd"]) is None


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        (Region((0,), (4,)), Region((2,), (4,)), Region((2,), (2,))),
        (Region((0, 0), (4, 4)), Region((3, 1), (5, 2)), Region((3, 1), (1, 2))),
        (Region((0,), (4,)), Region((4,), (2,)), None),
        (Region((), ()), Region((), ()), Region((), ())),
    ],
)
def test_overlap_returns_the_common_region(one, other, common):
    assert one.overlap(other) == other.overlap(one) == common
