"""One of two ranks is killed, hangs or raises: the other ends soon and names rank, step and place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.processes import TORCHRUN, run

HERE = Path(__file__).parent
PATIENCE = 8
"""The `ddp_timeout` of processes of which one hangs."""

RUNS = {
    "whole": "whole::0:0:60",
    "raised": "raise:forward:3:1:60",
    "raised in a save": "raise:written:4:1:60",
    "killed": "kill:backward:3:0:60",
    "written": "kill:written:4:1:60",
    "killed beside a write": "kill:thread:4:1:60",
    "raised beside a write": "raise:thread:4:1:60",
    "restarted beside a write": "restart:thread:4:0:60",
    "orphaned": "orphan:gradients:3:1:60",
    "hung": f"hang:forward:3:1:{PATIENCE}",
    "hung in an evaluation": f"hang:evaluation:4:0:{PATIENCE}",
    "raised before": "raise:before:0:1:60",
    "killed before": "kill:before:0:0:60",
    "stopped before": "stop:setup:0:1:60",
    "short of memory": "memory:forward:3:1:60",
    "restarted": "restart:backward:5:1:60",
    "told to stop": "signal:forward:7:1:60",
}
"""What is done to each pair: how, where, in which step, to which rank, and the `ddp_timeout`."""

UNLIKE = {
    *("whole", "raised before", "killed before", "stopped before", "restarted", "restarted beside a write"),
    *("told to stop", "raised beside a write"),
}
"""Those that end well in the end, or before they began."""

pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def ends(folder: Path) -> dict[str, Any]:
    """What became of each pair."""
    run(HERE / "fault_program.py", folder, *[f"{name}={what}" for name, what in RUNS.items()], timeout=280)
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in RUNS}


def error_of(said: str) -> str:
    """The last error that a process printed."""
    errors: list[str] = re.findall(r"(?m)^\[rank\d\]: ([\w.]+: .*)$", said)
    return errors[-1]


def failure_of(said: str) -> str:
    """The same where it is that of a process which waited for another; it is the only such."""
    assert said.count("RankFailure:") == 1, said
    assert "direct cause of the following exception" in said
    return error_of(said).partition("RankFailure: ")[2]


def weights_of(folder: Path, name: str) -> list[float]:
    return json.loads((folder / f"{name}-weights.json").read_text())


def test_an_undisturbed_pair_of_ranks_ends_with_code_zero(ends):
    assert ends["whole"]["codes"] == [[0, 0]]
    assert ends["whole"]["status"]["status"] == "done"
    assert ends["whole"]["status"]["exit_code"] == 0


@pytest.mark.parametrize("name", sorted(set(RUNS) - UNLIKE))
def test_the_remaining_checkpoint_resumes_and_the_status_names_it(ends, name):
    assert ends[name]["folder"] == ["checkpoint-2", "goodput.jsonl", "run_status.json"]
    status = ends[name]["status"]
    assert status["status"] == "failed"
    assert status["resume_from"].endswith("checkpoint-2")
    assert status["exit_code"] == 1
    assert "heard ['on_exception', 'on_close']" in "".join(ends[name]["said"])


def test_the_one_that_raises_keeps_its_error_and_the_other_names_it(ends):
    raised = ends["raised"]
    assert raised["codes"] == [[1, 1]]
    assert "RankFailure" not in raised["said"][1]
    assert error_of(raised["said"][1]) == "ValueError: boom"
    assert all("heard ['on_exception', 'on_close']" in said for said in raised["said"])
    assert failure_of(raised["said"][0]) == (
        "Rank 1 failed in Somewhere.on_loss after step 2: ValueError: boom. Meanwhile rank 0 was waiting in backward "
        "of step 3."
    )


def test_a_rank_that_fails_before_training_is_named_by_the_other(ends):
    raised = ends["raised before"]
    assert raised["codes"] == [[1, 1]]
    assert error_of(raised["said"][1]) == "ValueError: boom"
    assert failure_of(raised["said"][0]) == (
        "Rank 1 failed in its program: ValueError: boom. Meanwhile rank 0 was waiting in comparing arguments and "
        "callbacks after step 0."
    )


def test_a_rank_with_a_signal_before_its_first_step_is_named_by_the_other(ends):
    stopped = ends["stopped before"]
    assert stopped["codes"] == [[1, 143]]
    assert "after step 0: Stopped: SIGTERM, before the first step. Meanwhile rank 0" in failure_of(stopped["said"][0])


@pytest.mark.parametrize("name", ["raised before", "killed before", "stopped before"])
def test_the_status_reports_failures_before_training(ends, name):
    assert ends[name]["folder"] == ["run_status.json"]
    status = ends[name]["status"]
    assert (status["status"], status["step"], status["resume_from"]) == ("failed", 0, None)


def test_a_rank_without_memory_names_the_batch_and_no_rank_restarts(ends):
    short = ends["short of memory"]
    said = (
        "A batch of 4 samples does not fit in the memory of rank 1. Several ranks cannot start over with a smaller "
        "batch: set a lower `per_device_train_batch_size`."
    )
    assert short["codes"] == [[1, 1]]
    assert error_of(short["said"][1]) == f"trainbus.events.errors.ArgumentError: {said}"
    assert failure_of(short["said"][0]).startswith(
        f"Rank 1 failed in Somewhere.on_loss after step 2: ArgumentError: {said[:-1]}"
    )


@pytest.mark.parametrize("name", ["raised", "short of memory"])
def test_the_status_gives_the_error_of_the_one_that_failed_first(ends, name):
    assert ends[name]["status"]["rank"] == 1
    assert not ends[name]["status"]["reason"].startswith("RankFailure")


def test_a_rank_that_cannot_write_its_files_is_named_by_the_other(ends):
    raised = ends["raised in a save"]
    assert raised["codes"] == [[1, 1]]
    assert error_of(raised["said"][1]) == "ValueError: boom"
    assert error_of(raised["said"][0]).endswith(
        "CheckpointError: The checkpoint of step 4 is not written: on rank 1, ValueError: boom"
    )


@pytest.mark.parametrize(
    ("name", "dead", "where"),
    [
        ("killed", 0, "backward of step 3"),
        ("written", 1, "a save after step 4"),
        ("killed before", 0, "comparing arguments and callbacks after step 0"),
        ("orphaned", 1, "agreeing on requests after step 3"),
    ],
)
def test_a_killed_rank_is_named(ends, name, dead, where):
    killed = ends[name]
    codes = [1, 1]
    codes[dead] = -9
    assert killed["codes"] == [codes]
    assert failure_of(killed["said"][1 - dead]) == (
        f"Rank {dead} ended without an error report. It was killed (perhaps because memory ran out), exited early, "
        "or crashed (perhaps because the ranks ran different collectives, for example if a stream gave them different "
        "numbers of batches). Meanwhile rank "
        f"{1 - dead} was waiting in {where}."
    )


def test_a_rank_killed_while_its_thread_writes_is_named(ends):
    killed = ends["killed beside a write"]
    assert killed["codes"] == [[1, -9]]
    assert failure_of(killed["said"][0]).startswith("Rank 1 ended without an error report. It was killed")
    lost = "The connection to another rank was lost while the checkpoint of step 4 was written."
    assert killed["said"][0].count(lost) <= 1
    assert "on_close failed" not in killed["said"][0]


def test_an_error_of_a_thread_ends_both_ranks_after_one_step(ends):
    raised = ends["raised beside a write"]
    assert raised["codes"] == [[1, 1]]
    assert raised["folder"] == ["checkpoint-2", "goodput.jsonl", "run_status.json"]
    assert error_of(raised["said"][1]) == "ValueError: boom"
    assert error_of(raised["said"][0]).endswith(
        "CheckpointError: The checkpoint of step 4 is not written: on rank 1, ValueError: boom"
    )
    steps = {re.findall(r"failed after step (\d+) \(its on_error", said)[-1] for said in raised["said"]}
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("name", "hangs", "where"),
    [("hung", 1, "backward of step 3"), ("hung in an evaluation", 0, "an evaluation after step 4")],
)
def test_a_rank_that_hangs_is_named_after_the_timeout(ends, name, hangs, where):
    hung = ends[name]
    assert hung["codes"][0][1 - hangs] == 1
    assert failure_of(hung["said"][1 - hangs]) == (
        f"Rank {hangs} is alive and sent no error report: it may hang. Meanwhile rank {1 - hangs} was waiting in "
        f"{where}, for the "
        f"{PATIENCE} seconds that `ddp_timeout` allows."
    )
    assert hung["told"] >= PATIENCE


@pytest.mark.parametrize(("name", "codes"), [("restarted", [1, -9]), ("restarted beside a write", [-9, 1])])
def test_a_restarted_rank_ends_with_the_weights_of_an_uninterrupted_run(ends, folder, name, codes):
    assert ends[name]["codes"] == [codes, [0, 0]]
    assert weights_of(folder, name) == weights_of(folder, "whole")


def test_a_signal_at_any_moment_ends_both_ranks_with_its_code_and_loses_no_step(ends, folder):
    assert ends["told to stop"]["codes"] == [[143, 143], [0, 0]]
    assert weights_of(folder, "told to stop") == weights_of(folder, "whole")


def test_torchrun_starts_a_run_again_that_lost_a_process(ends, folder, tmp_path):
    said = run(*TORCHRUN, "--max-restarts=3", HERE / "restart_program.py", tmp_path, "5", timeout=200)
    assert "Rank 1 ended without an error report" in said
    assert (tmp_path / "starts-0").read_text().split() == ["started", "started"]
    assert json.loads((tmp_path / "run_status.json").read_text())["status"] == "done"
    for rank in range(2):
        assert json.loads((tmp_path / f"weights-{rank}.json").read_text()) == weights_of(folder, "whole")
