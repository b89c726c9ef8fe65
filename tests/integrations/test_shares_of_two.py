"""Two ranks, started by `accelerate launch`: shares of the samples, gradients, and rank 0 work."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support.data import Stream
from support.processes import environment
from support.streams import CHAINS, build, chained, end_of, rows_of

PROGRAM = Path(__file__).with_name("shares_program.py")

pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(900)]

ALTERNATELY = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 1, "logging_steps": 3}


def stopped_at(step, trainer):
    trainer.on("on_step_end", lambda control: control.request("training_stop", "as planned"), once=step)
    return trainer


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What both processes wrote down, and what single ones did before and after them."""
    folder = tmp_path_factory.mktemp("shares")
    # In batches of eight, where two processes have batches of four.
    one = {**ALTERNATELY, "per_device_train_batch_size": 8}
    first, began = build(folder / "numbers" / "1-2-1", rows_of(24), **one)
    stopped_at(2, first).train()
    stream, stream_began = build(folder / "numbers" / "stream", Stream(rows_of(24)), **{**one, "max_steps": 6})
    stopped_at(2, stream).train()
    chains = chained(folder / "numbers", 1, 0, 0)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    variables = environment(OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore", CUDA_VISIBLE_DEVICES="")
    done = subprocess.run(
        [*launch, str(PROGRAM), str(folder)], env=variables, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-4000:]
    both = [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(2)]
    whole, in_order = build(folder / "whole", rows_of(24), **one)
    whole.train()
    ends = {}
    for name in ("1-2-1", "2-1"):
        last, seen = build(folder / "numbers" / name, rows_of(24), **one)
        last.train(resume_from_checkpoint=True)
        ends[name] = (end_of(last), seen)
    chains |= chained(folder / "numbers", 1, 1, 2)
    return {
        "both": both,
        "alone": chains,
        "said": done.stderr + done.stdout,
        "whole": (end_of(whole), in_order),
        "ends": ends,
        "began": {"1-2-1": began, "2-1": [], "stream": stream_began},
    }


def of_both(found, part, name):
    return [of_one[part][name] for of_one in found["both"]]


def flat(batches):
    return [row for batch in batches for row in batch]


# Streams.


@pytest.mark.parametrize("kind", ["stream", "sized", "datasets", "shuffled", "too few shards", "workers"])
def test_each_sample_of_a_stream_goes_to_one_rank_and_first_samples_fill_up(found, kind):
    first, second = (of_one["seen"] for of_one in of_both(found, "streams", kind))
    assert [*map(len, first)] == [*map(len, second)] == [4, 4, 4, 4, 1]
    rows = flat(first) + flat(second)
    assert sorted(rows[:-1]) == [*range(33)]
    assert rows[-1] == first[0][0]


def test_rows_come_in_the_order_of_the_stream(found):
    first, second = (of_one["seen"] for of_one in of_both(found, "streams", "stream"))
    assert first == [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18, 19], [24, 25, 26, 27], [32]]
    assert second == [[4, 5, 6, 7], [12, 13, 14, 15], [20, 21, 22, 23], [28, 29, 30, 31], [0]]


def test_batches_that_are_incomplete_on_a_rank_can_be_dropped(found):
    first, second = (of_one["seen"] for of_one in of_both(found, "streams", "dropping"))
    assert sorted(flat(first[:4]) + flat(second[:4])) == [*range(32)]
    assert (first[4], second[4]) == (first[0], second[0])  # the next time round


@pytest.mark.parametrize("kind", ["own shards", "own shards, workers", "split by node"])
def test_ranks_that_read_their_own_parts_end_together(found, kind):
    first, second = (of_one["seen"] for of_one in of_both(found, "streams", kind))
    assert len(first) == len(second)
    assert {*flat(first), *flat(second)} == {*range(33)}
    assert not {*flat(first[:3])} & {*flat(second[:3])}  # before the first that only fills up


@pytest.mark.parametrize(
    "kind",
    ["stream", "sized", "datasets", "shuffled", "workers", "own shards", "own shards, workers", "split by node"],
)
def test_each_row_of_a_stream_is_evaluated_once(found, kind):
    first, second = (of_one["evaluated"] for of_one in of_both(found, "streams", kind))
    assert first == second
    assert sorted(first) == [*range(33)]


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_few_rows_are_evaluated_once_too(found, rows):
    assert of_both(found, "streams", f"{rows} rows") == [{"evaluated": [*range(rows)]}] * 2


@pytest.mark.parametrize("kind", ["stream", "datasets", "shuffled", "own shards", "workers"])
def test_a_run_on_a_stream_resumes_to_the_same_weights(found, kind):
    for of_one in of_both(found, "streams", f"{kind} resumed"):
        assert of_one["same"]
        assert of_one["seen"] == of_one["whole"][4:]


@pytest.mark.parametrize("kind", ["stream", "workers", "own shards", "split by node"])
def test_both_processes_end_with_the_same_weights(found, kind):
    first, second = of_both(found, "streams", kind)
    assert first["weights"] == second["weights"]
    assert first["losses"] == second["losses"]


# Gradients.


@pytest.mark.parametrize(("hook", "far"), [("function", 0.0), ("fp16", 1e-3), ("powersgd", 0.05)])
def test_communication_hooks_reach_nearly_the_same_weights(found, hook, far):
    first, second = of_both(found, "gradients", hook)
    assert first["weights"] == second["weights"]
    plain = of_both(found, "gradients", "plain")[0]
    for one, other in zip(first["weights"], plain["weights"]):
        assert torch.allclose(torch.tensor(one), torch.tensor(other), rtol=0, atol=far)
    assert (first["losses"] == plain["losses"]) is (far == 0)


def test_objects_that_a_backend_cannot_send_are_refused(found):
    assert "needs the backend nccl. The backend gloo cannot reduce" in of_both(found, "gradients", "bf16")[0]


def test_weights_are_frozen_and_thawed_on_all_processes_alike(found):
    first, second = of_both(found, "gradients", "thawed")
    assert first["first"][0] == first["first"][1] != first["first"][2] != first["first"][3]
    assert first["weights"] == second["weights"]


def test_ddp_does_not_wait_for_frozen_weights_where_it_does_not_look_for_them(found):
    for plain, unseen in zip(of_both(found, "gradients", "thawed"), of_both(found, "gradients", "thawed unseen")):
        assert plain == unseen


# Which process does what.


def test_main_first_runs_the_first_rank_first(found):
    for name in ("filled", "filled by rank 0", "filled by a local rank"):
        assert [of_one["waits"][name] for of_one in found["both"]] == [True, True]
    assert [of_one["waits"]["last"] for of_one in found["both"]] == [False, True]


def test_one_process_saves_and_prints_or_one_of_each_machine(found):
    (one, other), (mine, yours) = of_both(found, "roles", "one"), of_both(found, "roles", "each")
    assert [one["level"], other["level"]] == [logging.INFO, logging.ERROR]
    assert [mine["level"], yours["level"]] == [logging.INFO, logging.INFO]
    random = [f"rng_state_{rank}.safetensors" for rank in range(2)]
    assert {*random, "model.safetensors", "manifest.json"} <= {*one["saved"]}
    for own, lacking, of_one in ((random[0], random[1], mine), (random[1], random[0], yours)):
        assert {own, "model.safetensors", "manifest.json"} <= {*of_one["saved"]}
        assert lacking not in of_one["saved"]


def test_machines_without_a_shared_disk_resume_from_a_checkpoint_good_on_all(found):
    first, second = (resumed["newest"] for resumed in of_both(found, "roles", "resumed"))
    assert first["steps"] == second["steps"] == 4
    assert first["weights"] == second["weights"]


def test_a_checkpoint_damaged_on_one_machine_is_named_on_all(found):
    first, second = (resumed["path"] for resumed in of_both(found, "roles", "resumed"))
    for rank, said in enumerate((first, second)):
        assert f"each/{rank}/checkpoint-4 cannot be resumed from: on rank 1 (" in said
        assert "optimizer.safetensors has changed since it was written" in said
        assert f"each/{rank}/checkpoint-2, which is good" in said


# Other numbers of processes.


@pytest.mark.parametrize(("name", "stop"), [("1-2-1", 4), ("2-1", 2)])
def test_each_sample_is_used_once_per_epoch_on_any_world_size(found, name, stop):
    _, in_order = found["whole"]
    first, second = of_both(found, "numbers", name)
    middle = [one + other for one, other in zip(first, second)]
    end, last = found["ends"][name]
    assert found["began"][name] + middle + last == in_order
    assert end["steps"] == len(in_order) == 6
    assert len(found["began"][name]) + len(middle) == stop


@pytest.mark.parametrize("name", ["1-2-1", "2-1"])
def test_the_numbers_are_those_of_the_unbroken_run(found, name):
    (whole, _), (end, _) = found["whole"], found["ends"][name]
    assert end["losses"] == pytest.approx(whole["losses"], rel=1e-6)
    for one, other in zip(whole["weights"], end["weights"]):
        assert torch.allclose(torch.tensor(one), torch.tensor(other), rtol=1e-5, atol=1e-6)


def test_a_stream_resumes_on_another_world_size(found):
    first, second = of_both(found, "numbers", "stream")
    assert found["began"]["stream"] == [[*range(8)], [*range(8, 16)]]
    assert first + second == [[16, 17, 18, 19], [20, 21, 22, 23]]


@pytest.mark.parametrize("kind", ["rows", "grouped", "stream"])
@pytest.mark.parametrize("chain", CHAINS)
def test_each_sample_is_used_once_if_the_world_size_changes_again(found, chain, kind):
    batches = []
    for session, processes in enumerate(CHAINS[chain]):
        name = f"{kind} {chain} {session}"
        if processes == 1:
            of_all = [found["alone"][name]]
        else:
            of_all = [of_one[name] for of_one in of_both(found, "numbers", "chains")]
            assert of_all[0]["end"] == of_all[1]["end"]
        batches += [flat(together) for together in zip(*(one["seen"] for one in of_all))]
        steps, planned, epoch, rate = of_all[0]["end"]
    assert steps == planned
    if kind == "stream":
        assert steps == 20
        assert flat(batches)[:53] == [*range(53)]
    else:
        assert epoch == 1.0
        assert rate == 0.0
        assert {*flat(batches)} == {*range(53)}
        assert len({*flat(batches[:-1])}) == len(flat(batches[:-1]))  # the last may be filled up


def test_another_world_size_is_logged(found):
    assert "was written with world size 1 and resumes with world size 2" in found["said"]
