"""Two ranks act on the request of one: at the same step, with its author, reason and rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.processes import ends_on_two, of_both

PROGRAM = Path(__file__).with_name("consensus_program.py")

pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process wrote of all the runs, in order of rank."""
    return ends_on_two(PROGRAM.with_name("hash_seeded.py"), PROGRAM, tmp_path_factory.mktemp("consensus"), timeout=200)


SIGNALS = {"step": ("SIGTERM", 143, [4]), "backward": ("SIGINT", 130, [4, 5]), "evaluation": ("SIGUSR1", 138, [4])}
"""Where a signal came to one of the processes, in which step it was to be the last, and the exit code."""


@pytest.mark.parametrize("place", SIGNALS)
def test_a_signal_to_one_process_ends_both_after_the_same_step(ends, place):
    _, code, saved = SIGNALS[place]
    assert of_both(ends, place, "code") == code
    assert of_both(ends, place, "saved") == saved
    assert of_both(ends, place, "step") == saved[-1]
    assert of_both(ends, place, "weights")


@pytest.mark.parametrize(("place", "on"), [("step", 1), ("backward", 0), ("evaluation", 1)])
def test_each_process_knows_which_one_got_the_signal(ends, place, on):
    name = SIGNALS[place][0]
    assert ends[on][place]["why"].endswith(f"by StopOnSignal: {name}")
    assert ends[1 - on][place]["why"].endswith(f"by StopOnSignal: {name}, on rank {on}")


def test_an_evaluation_is_left_after_the_same_batch(ends):
    assert of_both(ends, "evaluation", "batches") == [4]


@pytest.mark.parametrize("place", SIGNALS)
def test_a_stopped_and_resumed_run_equals_the_uninterrupted_run(ends, place):
    for of_rank in ends:
        assert of_rank[place]["resumed"]["error"] == ""
        assert of_rank[place]["resumed"]["weights"] == of_rank["unbroken"]["weights"]
        assert of_rank[place]["resumed"]["numbers"] == of_rank["unbroken"]["numbers"]


def test_an_evaluation_of_a_handler_completes_on_both_and_then_both_stop(ends):
    assert of_both(ends, "handler", "code") == 143
    assert of_both(ends, "handler", "saved") == [3]
    assert of_both(ends, "handler", "batches") == [3, 3, 3]
    for of_rank in ends:
        whole, resumed = of_rank["handler"]["whole"], of_rank["handler"]["resumed"]
        assert (resumed["error"], resumed["weights"]) == ("", whole["weights"])
        assert resumed["numbers"] == whole["numbers"]


def test_two_signals_have_both_end_with_one_code(ends):
    assert of_both(ends, "signals", "code") == 143
    assert of_both(ends, "signals", "saved") == [4]
    assert [of_rank["signals"]["error"] for of_rank in ends] == ["Stopped: SIGTERM", "Stopped: SIGTERM, on rank 0"]


def test_a_signal_at_the_very_end_is_the_exit_code_of_both(ends):
    assert of_both(ends, "end", "code") == 143


def test_the_status_file_has_the_end_and_the_checkpoint_to_resume(ends):
    status = json.loads(ends[0]["backward"]["status"])
    assert (status["status"], status["exit_code"], status["step"], status["world_size"]) == ("preempted", 130, 5, 2)
    assert status["resume_from"].endswith("backward-SIGINT/checkpoint-5")
    assert "SIGINT" in status["reason"]


def test_a_request_of_one_rank_is_served_on_both_under_its_callback(ends):
    assert of_both(ends, "local stop", "step") == 3
    assert ends[0]["local stop"]["why"] == "stopped at step 3 by Local: I want to, on rank 1"
    assert ends[1]["local stop"]["why"] == "stopped at step 3 by Local: I want to"
    [entry] = [entry for entry in ends[0]["local stop"]["ledger"] if "(rank 1)" in entry]
    assert entry == "step 3: Local request training_stop (False -> True): I want to, on rank 1 (rank 1)"


def test_a_veto_of_one_rank_holds_on_all(ends):
    assert of_both(ends, "local veto", "saved") == [8]


def test_settings_that_only_the_first_process_reads_change_on_both(ends):
    assert of_both(ends, "words", "saved") == [5]
    assert of_both(ends, "words", "rates") == [0.001, 0.001]


def test_a_file_that_only_the_first_process_sees_has_both_save(ends):
    assert of_both(ends, "file", "saved") == [3, 8]


def test_an_evaluation_due_on_one_rank_runs_on_both(ends):
    assert of_both(ends, "two", "heard") == ["", "second"]


def test_ranks_use_one_clock_if_their_clocks_differ(ends):
    assert of_both(ends, "clock", "saved") == [2, 4, 6, 8]


def test_a_request_of_one_rank_during_work_is_served_on_both(ends):
    assert of_both(ends, "work", "saved") == [4, 8]


def test_a_save_vetoed_on_one_rank_is_written_by_no_rank(ends):
    assert of_both(ends, "forbidden", "saved") == [8]


def test_the_end_that_an_evaluation_brings_is_saved_by_both(ends):
    assert of_both(ends, "brought", "step") == 12
    assert of_both(ends, "brought", "saved") == [12]


def test_a_stop_request_of_one_rank_before_the_first_step_stops_both(ends):
    assert of_both(ends, "before", "step") == 0
    assert ends[0]["before"]["why"] == "stopped at step 0 by AtOnce: not today, on rank 1"


def test_a_deadline_of_one_stops_both(ends):
    assert of_both(ends, "time", "step") == 1


def test_a_callback_that_one_lacks_is_refused_by_name(ends):
    assert "Extra handles on_log on rank 0 and not on rank 1" in of_both(ends, "one", "error")


def test_another_order_is_refused_by_name(ends):
    assert "in on_step_end, rank 0 calls B where rank 1 calls A" in of_both(ends, "order", "error")


def test_an_undeclared_local_decision_is_named_in_debug_mode(ends):
    error = of_both(ends, "careless", "error")
    assert "After step 3, Careless requested 'training_stop' on rank 1 and not on rank 0" in error
    assert "`local = True`" in error


def test_an_update_left_out_by_one_is_named_before_it_is_made_where_that_is_watched(ends):
    error = of_both(ends, "leaves out", "error")
    assert "After step 2, LeavesOut requested 'skip_update' on rank 0 and not on rank 1" in error
    assert "`local = True`" in error
    assert of_both(ends, "leaves out", "step") == 2


def test_an_update_left_out_by_one_ends_the_run_before_the_next(ends):
    error = of_both(ends, "left out", "error")
    assert "The update of step 3 was skipped on rank 0 and not on rank 1, by LeavesOut: I want to" in error
    assert of_both(ends, "left out", "step") == 3


def test_a_declared_local_skip_skips_the_update_on_all_ranks(ends):
    run = "left out by all"
    assert of_both(ends, run, "error") == ""
    assert of_both(ends, run, "skipped") == 1
    assert of_both(ends, run, "weights") != of_both(ends, "unbroken", "weights")
    assert any("LeavesOutAllowed request skip_update" in entry for entry in ends[0][run]["ledger"])


def test_all_ranks_know_every_requester(ends):
    for of_rank in ends:
        [entry] = [entry for entry in of_rank["both"]["ledger"] if "Here request save" in entry]
        assert entry.endswith("(rank 1)")
    assert of_both(ends, "both", "saved") == [3, 8]


def test_all_ranks_know_the_requesters_that_are_attached_during_the_training(ends):
    assert of_both(ends, "late", "error") == ""
    assert of_both(ends, "late", "heard")[0] == ["First", "Second"]
    for of_rank in ends:
        asked = [entry for entry in of_rank["late"]["ledger"] if "request evaluate" in entry and "step 3" in entry]
        assert sorted(entry.split()[2] + entry[-8:] for entry in asked) == ["First(rank 0)", "Second(rank 1)"]


def test_arguments_that_differ_are_refused_with_ranks_and_values(ends):
    error = of_both(ends, "other", "error")
    assert error.startswith(
        "RankDivergence: The ranks have different settings: `learning_rate`: 0.05 on rank 0, 0.5 on rank 1; `optim`: "
        "'adamw_torch' on rank 0, 'sgd' on rank 1. They would"
    ), "what differs by nature is not named"
    assert of_both(ends, "other", "step") == 0


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("optimizer", "`lr` of the optimizer's group 0: 0.1 on rank 0, 1.1 on rank 1"),
        ("fewer rows", "samples of the train dataset: 96 on rank 0, 10 on rank 1; batches per epoch: 12 on"),
        ("fewer eval rows", "samples of the eval dataset: 24 on rank 0, 10 on rank 1"),
        ("another stream", "set `max_steps`): 12 on rank 0, 11 on rank 1"),
        ("fewer rows of its own", "samples of the dataset: 24 on rank 0, 16 on rank 1; batches: 3 on rank 0, 2"),
    ],
)
def test_models_that_differ_between_ranks_are_refused_with_ranks_and_values(ends, run, said):
    assert said in of_both(ends, run, "error")


@pytest.mark.parametrize("run", ["another stream, and steps", "another eval stream"])
def test_streams_may_have_another_length_on_each_rank_if_all_have_the_same_steps(ends, run):
    assert of_both(ends, run, "error") == ""
    assert of_both(ends, run, "weights")


def test_all_ranks_decide_from_the_metrics_of_rank_0(ends):
    assert of_both(ends, "best", "error") == ""
    assert of_both(ends, "best", "best").endswith("checkpoint-4")
    assert of_both(ends, "best", "weights")
    assert of_both(ends, "plateau", "rate") == pytest.approx(0.05 * 0.1)
    measured = [entry["eval_rank"] for entry in ends[1]["best"]["numbers"] if "eval_rank" in entry]
    assert measured == [[1]] * 4, "what nothing is decided from is its own"


def test_a_state_that_one_cannot_save_is_no_checkpoint_on_all_and_the_next_is_written(ends):
    assert of_both(ends, "unsavable", "error") == ""
    assert of_both(ends, "unsavable", "step") == 8
    assert of_both(ends, "unsavable", "saved") == [8]
    assert of_both(ends, "unsavable", "weights") == of_both(ends, "unbroken", "weights")


def test_a_state_that_one_cannot_save_ends_all_where_that_is_an_error(ends):
    run = "unsavable, and refused"
    assert of_both(ends, run, "step") == 4
    assert "CheckpointError" in ends[0][run]["error"]
    assert "The checkpoint of step 4 is not written: on rank 0, CheckpointError" in ends[1][run]["error"]


def test_a_declared_local_decision_passes_in_debug_mode(ends):
    assert of_both(ends, "watched", "error") == ""
    assert of_both(ends, "watched", "step") == 3


def test_the_order_of_callbacks_is_the_same_under_other_seeds_of_the_hashes(ends):
    assert ends[0]["orders"]["hashed"] != ends[1]["orders"]["hashed"]
    assert of_both(ends, "orders", "described").count("c1") > 1
    assert of_both(ends, "orders", "step") == 8


def test_auto_starts_a_new_run_without_a_checkpoint(ends):
    for of_rank in ends:
        assert of_rank["auto"]["weights"] == of_rank["unbroken"]["weights"]


@pytest.mark.parametrize(("action", "step"), [("raise", 2), ("skip", 8), ("stop", 3)])
def test_a_nan_loss_on_one_rank_has_the_same_effect_on_both(ends, action, step):
    run = f"nan {action}"
    assert of_both(ends, run, "step") == step
    assert of_both(ends, run, "before") == of_both(ends, run, "after")  # the weights around the step
    assert all(("NonFiniteError" in of_rank[run]["error"]) == (action == "raise") for of_rank in ends)
    assert all(value == value for value in of_both(ends, run, "weights"))


def test_ranks_with_different_output_folders_get_an_error_before_the_first_step(ends):
    seen = of_both(ends, "own", "seen")["error"]
    assert seen.startswith("ArgumentError: `output_dir` is ")
    assert "own-0 on rank 0 and " in seen
    assert "own-1 on rank 1, and all ranks write into one folder" in seen


def test_a_rank_with_another_output_folder_gets_an_error(ends):
    said = [of_rank["own"]["unseen"]["error"] for of_rank in ends]
    assert all(
        "own-1 is not the folder that the first rank writes into. Give all ranks the same" in error for error in said
    )
    assert "is not written: on rank 1, CheckpointError" in said[0]
    assert [of_rank["own"]["unseen"]["saved"] for of_rank in ends] == [[], []]
