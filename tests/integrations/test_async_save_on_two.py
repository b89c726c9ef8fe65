"""Two ranks train on while a thread of each rank writes its files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import names_in
from support.processes import TORCHRUN, run, run_on_two
from trainbus.engine.checkpoint.read.verify import problems

PROGRAM = Path(__file__).with_name("async_save_program.py")
FAST = ("equal=ddp", "equal=fsdp", "resumes", "full=1,warn", "full=0,raise", "stopped", "raised", "signal", "machines")
SLOW = ("equal=simple", "equal=stage1", "equal=stage3-offload", *(f"random={seed}" for seed in range(2, 8)))
TIMES = {"callbacks.safetensors", "manifest.json", "trainer_state.json", "training_args.json"}
"""Files with times, the id of the run, the output folder or `async_save`."""

pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(900)]


class Ends:
    """What both ranks saw, by the name of the case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> list[Any]:
        return [json.loads((self.folder / f"{name}-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    folder = tmp_path_factory.mktemp("async")
    run_on_two(PROGRAM, folder, *FAST, "random=1", timeout=100)
    return Ends(folder)


@pytest.fixture(scope="module")
def more_ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    folder = tmp_path_factory.mktemp("more")
    run(*TORCHRUN, PROGRAM, folder, *SLOW, timeout=150)
    return Ends(folder)


def same_checkpoints(ends: Ends, way: str) -> None:
    """Compare a training with background saves to one with saves in step: events, logs and the bytes of all files."""
    on_threads, in_step = ends[f"{way}-True"], ends[f"{way}-False"]
    for later, there in zip(on_threads, in_step):
        assert set(later["threads"]) == {"checkpoint_0"}
        assert set(there["threads"]) == {"MainThread"}
        assert later["log"] == there["log"]
        assert [commit[1:] for commit in later["commits"]] == [[2, []], [5, []], [8, []]]
        assert there["commits"] == [[2, 2, []], [5, 5, []], [8, 8, []]]
        assert later["commits"][0][0] in (4, 5)  # the disk waits for the end of step 4
    assert on_threads[0]["commits"] == on_threads[1]["commits"]
    assert names_in(ends.folder / f"{way}-True") == ["checkpoint-2", "checkpoint-5", "checkpoint-8"]
    for step in (2, 5, 8):
        here, other = (ends.folder / f"{way}-{later}" / f"checkpoint-{step}" for later in (True, False))
        assert names_in(here) == names_in(other)
        assert len({*names_in(here)} - TIMES) >= 5
        for name in {*names_in(here)} - TIMES:
            assert (here / name).read_bytes() == (other / name).read_bytes(), name
        ours, theirs = (json.loads((folder / "trainer_state.json").read_text()) for folder in (here, other))
        assert without_times(ours) == without_times(theirs)
        assert json.loads((here / "manifest.json").read_text())["files"].keys() == {*names_in(here)} - {"manifest.json"}


def without_times(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: without_times(value) for key, value in state.items() if key not in ("seconds", "run_id")}
    return [without_times(value) for value in state] if isinstance(state, list) else state


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_an_async_save_of_two_ranks_equals_a_synchronous_save(ends, way):
    same_checkpoints(ends, way)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["simple", "stage1", "stage3-offload"])
def test_an_async_save_of_another_way_to_shard_equals_a_synchronous_save(more_ends, way):
    same_checkpoints(more_ends, way)


def test_a_run_resumed_from_an_async_save_equals_the_uninterrupted_run(ends):
    for resumed, whole in ends["resumed"]:
        assert resumed == whole


def test_a_full_disk_of_one_rank_is_a_warning_on_both_ranks(ends):
    zero, one = ends["full-1-warn"]
    for end in (zero, one):
        assert end["error"] == ""
        assert [commit[1] for commit in end["commits"]] == [5, 8]
        assert len(end["warnings"]) == 1
        assert end["log"] == ends["ddp-False"][0]["log"]
    assert zero["commits"] == one["commits"]
    assert zero["warnings"][0] == (
        "The checkpoint of step 2 is not written: on rank 1, OSError: [Errno 28] No space left on device. Training "
        "continues."
    )
    assert one["warnings"][0].startswith("The checkpoint of step 2 cannot be written to ")
    assert names_in(ends.folder / "full-1-warn") == ["checkpoint-5", "checkpoint-8"]


def test_a_full_disk_of_one_rank_ends_both_ranks_after_one_step(ends):
    zero, one = ends["full-0-raise"]
    assert zero["step"] == one["step"] == 5
    assert zero["error"].startswith("CheckpointError: The checkpoint of step 2 cannot be written to ")
    assert "on rank 0, OSError: [Errno 28] No space left on device" in one["error"]
    assert zero["commits"] == one["commits"] == []
    assert names_in(ends.folder / "full-0-raise") == []


@pytest.mark.parametrize(
    ("name", "commits", "error"),
    [
        ("stopped", [[3, 2, []]], ""),
        ("raised", [[3, 2, []]], "ValueError: boom"),
        ("signal", [[3, 2, []], [3, 3, []]], "Stopped: SIGTERM"),
    ],
)
def test_a_run_that_ends_during_a_write_announces_the_checkpoint_once(ends, name, commits, error):
    for end in ends[name]:
        assert end["commits"] == commits
        assert end["error"].partition(", ")[0] == error
        assert end["left"] == []
    assert names_in(ends.folder / name) == [f"checkpoint-{step}" for _, step, _ in commits]


def test_machines_without_a_shared_disk_write_their_own_checkpoints(ends):
    """Each keeps the newest checkpoint only."""
    for rank, end in enumerate(ends["apart"]):
        assert set(end["threads"]) == {"checkpoint_0"}
        assert [commit[1:] for commit in end["commits"]] == [[2, []], [5, []], [8, []]]
        assert names_in(ends.folder / f"apart-{rank}") == ["checkpoint-8"]


def random_speeds(ends: Ends, seed: int) -> None:
    zero, one = ends[f"random-{seed}"]
    assert zero["commits"] == one["commits"]
    assert [commit[1] for commit in zero["commits"]] == [*range(3, 40, 3), 40]
    assert all(step >= saved and not wrong for step, saved, wrong in zero["commits"])
    folder = ends.folder / f"random-{seed}"
    assert names_in(folder) == ["checkpoint-39", "checkpoint-40"]
    assert not [wrong for name in names_in(folder) for wrong in problems(folder / name, full=True)]


def test_both_ranks_announce_each_checkpoint_after_the_same_step(ends):
    random_speeds(ends, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_both_ranks_announce_each_checkpoint_after_the_same_step_at_any_speed(more_ends, seed):
    random_speeds(more_ends, seed)
