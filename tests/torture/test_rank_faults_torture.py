"""Pairs of ranks, disturbed at many places: no step is lost, and waits are short."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import TORCHRUN, run

INTEGRATIONS = Path(__file__).parent.parent / "integrations"
AT_ONCE = 3
"""The number of pairs that train at the same time."""
REPEATED = int(os.environ.get("TRAINBUS_TORTURE", "30"))
"""How often each fault is caused."""
PATIENCE = 6
"""The `ddp_timeout` of pairs with a rank that hangs, in seconds."""
PLACES = ("forward", "backward", "gradients", "step end", "evaluation", "save")

pytestmark = [pytest.mark.slow, pytest.mark.world_size(2), pytest.mark.timeout(3600)]


def disturbed(folder: Path, runs: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Disturb pairs of ranks, a few pairs at a time, and yield the outcome of each pair."""
    names = list(runs)
    for first in range(0, len(names), AT_ONCE):
        some = names[first : first + AT_ONCE]
        run(INTEGRATIONS / "fault_program.py", folder, *(f"{name}={runs[name]}" for name in some), timeout=600)
        for name in some:
            end = json.loads((folder / f"{name}.json").read_text())
            weights = folder / f"{name}-weights.json"
            yield {**end, "name": name, "weights": json.loads(weights.read_text()) if weights.exists() else None}


def chosen(seed: int) -> tuple[str, int]:
    """Return a random place of a step, and the number of a step that passes this place."""
    chance = random.Random(seed)
    place = chance.choice(PLACES)
    return place, chance.choice({"evaluation": [4, 8, 12], "save": [4, 6, 8, 10]}.get(place, range(3, 14)))


def failure_of(said: str) -> str:
    """Return the message of the only `RankFailure` in an output."""
    assert said.count("RankFailure:") == 1, said
    return said.partition("RankFailure: ")[2].partition("\n")[0]


def summary(kind: str, seconds: list[float]) -> None:
    """Print how long the other processes took to report a fault."""
    seconds = sorted(seconds)
    print(f"\n{kind}: {len(seconds)} of {len(seconds)}, median {seconds[len(seconds) // 2]:.2f} s, {seconds[-1]:.2f} s")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The weights of the uninterrupted run."""
    [end] = disturbed(tmp_path_factory.mktemp("whole"), {"whole": "whole::0:0:60"})
    assert end["weights"]
    return end["weights"]


def test_a_process_that_is_killed_in_a_save_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    seconds = []
    runs = {f"r2-{n}": f"kill:written:{random.Random(n).choice([4, 6, 8])}:{n % 2}:60" for n in range(REPEATED)}
    for end in disturbed(tmp_path, runs):
        dead = int(end["name"].partition("-")[2]) % 2
        step = int(runs[end["name"]].split(":")[2])
        codes = [1, 1]
        codes[dead] = -9
        assert end["codes"] == [codes]
        saved = [f"checkpoint-{before}" for before in range(2, step, 2)]
        assert sorted(name for name in end["folder"] if name.startswith("checkpoint-")) == sorted(saved)
        assert f"Rank {dead} ended without an error report" in failure_of(end["said"][1 - dead])
        assert end["status"]["resume_from"].endswith(saved[-1])
        seconds.append(end["told"])
    summary("killed in a save", seconds)


def test_a_kill_during_a_write_leaves_only_complete_checkpoints(tmp_path: Path, whole: list[float]) -> None:
    """The kill comes while a thread writes its first file, or less than 1 ms after the commit."""
    runs = {
        f"r2b-{n}": f"restart:{('thread', 'committed')[n // 2 % 2]}:{random.Random(n).choice([4, 6, 8])}:{n % 2}:60"
        for n in range(REPEATED)
    }
    for end in disturbed(tmp_path, runs):
        dead = int(end["name"].partition("-")[2]) % 2
        codes = [1, 1]
        codes[dead] = -9
        assert end["codes"] == [codes, [0, 0]]
        assert f"Rank {dead} ended without an error report" in failure_of(end["said"][1 - dead])
        assert "on_close failed" not in end["said"][1 - dead]
        assert end["weights"] == whole
        assert [f"checkpoint-{step}" for step in range(2, 25, 2)] == sorted(
            (name for name in end["folder"] if name.startswith("checkpoint-")), key=lambda name: int(name[11:])
        )
        assert not [name for name in end["folder"] if name.startswith(".tmp")]


def test_a_signal_to_one_rank_stops_both_and_loses_no_step(tmp_path: Path, whole: list[float]) -> None:
    places = {n: chosen(n) for n in range(REPEATED)}
    runs = {f"r9-{n}": f"signal:{place}:{step}:{n % 2}:60" for n, (place, step) in places.items()}
    count = 0
    for end in disturbed(tmp_path, runs):
        assert end["codes"] == [[143, 143], [0, 0]], end["said"]
        assert end["weights"] == whole
        count += 1
    print(f"\na signal to one: {count} of {count}")


def test_a_killed_process_is_reported_and_the_run_restarts(tmp_path: Path, whole: list[float]) -> None:
    places = {n: chosen(100 + n) for n in range(REPEATED)}
    runs = {f"r17-{n}": f"restart:{place}:{step}:{n % 2}:60" for n, (place, step) in places.items()}
    starts = []
    for end in disturbed(tmp_path, runs):
        dead = int(end["name"].partition("-")[2]) % 2
        codes = [1, 1]
        codes[dead] = -9
        assert end["codes"][0] == codes
        assert end["codes"][-1] == [0, 0]
        assert f"Rank {dead} ended without an error report" in failure_of(end["said"][1 - dead])
        assert end["weights"] == whole
        starts.append(len(end["codes"]))
    print(f"\nstarted again: {starts.count(2)} of {len(starts)} at the first attempt")
    assert set(starts) == {2}


def test_a_killed_process_is_reported_at_once(tmp_path: Path) -> None:
    places = {n: chosen(200 + n) for n in range(REPEATED)}
    runs = {f"r17b-{n}": f"kill:{place}:{step}:{n % 2}:60" for n, (place, step) in places.items()}
    seconds = []
    for end in disturbed(tmp_path, runs):
        dead = int(end["name"].partition("-")[2]) % 2
        assert end["codes"][0][1 - dead] == 1
        assert f"Rank {dead} ended without an error report" in failure_of(end["said"][1 - dead])
        seconds.append(end["told"])
    summary("killed", seconds)


def test_a_hanging_process_is_reported_after_the_timeout(tmp_path: Path) -> None:
    places = {n: chosen(300 + n) for n in range(REPEATED)}
    runs = {f"r18-{n}": f"hang:{place}:{step}:{n % 2}:{PATIENCE}" for n, (place, step) in places.items()}
    seconds = []
    for end in disturbed(tmp_path, runs):
        hangs = int(end["name"].partition("-")[2]) % 2
        assert end["codes"][0][1 - hangs] == 1
        assert f"Rank {hangs} is alive and sent no error report: it may hang" in failure_of(end["said"][1 - hangs])
        assert end["told"] >= PATIENCE
        seconds.append(end["told"])
    summary(f"hung, with a ddp_timeout of {PATIENCE} s", seconds)


def test_a_process_that_raises_is_named_by_the_other(tmp_path: Path) -> None:
    places = {n: chosen(400 + n) for n in range(REPEATED)}
    runs = {f"r15-{n}": f"raise:{place}:{step}:{n % 2}:60" for n, (place, step) in places.items()}
    seconds = []
    for end in disturbed(tmp_path, runs):
        raises = int(end["name"].partition("-")[2]) % 2
        assert end["codes"] == [[1, 1]]
        assert "ValueError: boom" in end["said"][raises]
        assert "RankFailure" not in end["said"][raises]
        assert f"Rank {raises} failed in " in failure_of(end["said"][1 - raises])
        assert all("heard ['on_exception', 'on_close']" in said for said in end["said"])
        assert not [name for name in end["folder"] if name.startswith(".")]
        seconds.append(end["told"])
    summary("raised", seconds)


@pytest.mark.parametrize("rows", ["consensus", "shares_of_two"])
def test_rank_tests_pass_with_many_hash_seeds(rows: str) -> None:
    """Repeat the tests of NaN on one rank (R14), of handler orders (R16), and of other world sizes (R12)."""
    for number in range(REPEATED):
        options = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-W", "ignore")
        tests = INTEGRATIONS / f"test_{rows}.py"
        run(*options, tests, timeout=400, PYTHONHASHSEED=str(number))
    print(f"\n{rows}: {REPEATED} of {REPEATED}")


@pytest.mark.parametrize("restarts", [0, 3])
def test_torchrun_restarts_a_run_with_a_killed_rank(restarts: int, tmp_path: Path, whole: list[float]) -> None:
    """Without restarts, the run fails. With restarts, it reaches the weights of the uninterrupted run."""
    for number in range(REPEATED if restarts else 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        killed_at = str(3 + number % 20)
        program = INTEGRATIONS / "restart_program.py"
        code = int(restarts == 0)
        said = run(*TORCHRUN, f"--max-restarts={restarts}", program, folder, killed_at, timeout=300, code=code)
        assert (folder / "killed").exists()
        if restarts:
            assert [json.loads((folder / f"weights-{rank}.json").read_text()) for rank in range(2)] == [whole, whole]
        assert "Rank 1 ended without an error report" in said
        assert (folder / "starts-0").read_text().split() == ["started"] * (2 if restarts else 1)
