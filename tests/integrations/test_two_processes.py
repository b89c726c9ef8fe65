"""Training on two processes, started by torchrun with gloo on the CPU."""

from pathlib import Path

import pytest
import torch

from support.processes import TORCHRUN, run, run_on_two

PROGRAM = Path(__file__).with_name("ddp_program.py")

pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """The ends of runs by DDP and by ShardedDDP: whole with accumulation 1 and 2, and stopped half-way and resumed.

    Under the ranks, what the cases of averaging found.
    """
    folder = tmp_path_factory.mktemp("runs")
    modes = ("simple", "")  # fairscale, imported by a second trainer, would find the group and hold it.
    whole = [f"{folder}/{mode}-{accumulate}:{mode}:{accumulate}:8:" for mode in modes for accumulate in (1, 2)]
    run_on_two(PROGRAM, *whole, folder, *(f"{folder}/{mode}-resumed:{mode}:1:4:" for mode in modes), timeout=200)
    # In processes of their own: a resumed run has nothing but the checkpoint.
    resumed = [f"{folder}/{mode}-resumed:{mode}:1:8:resume" for mode in modes]
    run(*TORCHRUN, PROGRAM, *resumed, timeout=200)
    averaging = {rank: torch.load(folder / f"averaging{rank}.pt") for rank in range(2)}
    return {path.parent.name: torch.load(path) for path in folder.glob("*/end.pt")} | averaging


def same_weights(one, other):
    return all(torch.equal(one["weights"][name], other["weights"][name]) for name in one["weights"])


@pytest.mark.parametrize("accumulate", [1, 2])
def test_sharded_ddp_ends_with_the_weights_of_ddp_bit_for_bit(ends, accumulate):
    plain, sharded = ends[f"-{accumulate}"], ends[f"simple-{accumulate}"]
    assert same_weights(plain, sharded)
    assert plain["losses"] == sharded["losses"]
    assert plain["norms"] == sharded["norms"]


@pytest.mark.parametrize("mode", ["", "simple"])
def test_each_row_is_evaluated_once_and_in_order(ends, mode):
    assert ends[f"{mode}-1"]["labels"] == ends[f"{mode}-1"]["expected"]


def test_the_compared_runs_clip_gradients(ends):
    assert max(ends["-1"]["norms"]) > 0.5


@pytest.mark.parametrize("mode", ["", "simple"])
def test_a_stopped_run_resumes_to_the_weights_of_an_unbroken_one(ends, mode):
    unbroken, resumed = ends[f"{mode}-1"], ends[f"{mode}-resumed"]
    assert same_weights(unbroken, resumed)
    assert unbroken["losses"] == resumed["losses"]


@pytest.mark.parametrize("way", ["ddp", "simple", "stage1"])
@pytest.mark.parametrize("case", ["unused", "thawed", "stranger", "own"])
def test_weights_that_are_not_trained_in_all_steps_end_as_under_ddp(ends, case, way):
    plain, here, there = ends[0][case]["ddp"], ends[0][case][way], ends[1][case][way]
    assert same_weights(here, there)
    assert same_weights(here, plain)
    for told in ("grad_norm", "eval_loss", "after"):
        assert here[told] == plain[told]
    assert max(plain["grad_norm"]) > 0.5  # clipping is at work, which ranks that measure other norms do differently


@pytest.mark.parametrize("way", ["ddp", "simple", "stage1"])
def test_a_model_that_is_wrapped_again_after_an_evaluation_trains(ends, way):
    modes = ends[0]["thawed"][way]["modes"]
    assert modes
    assert all(modes)


def test_weights_without_gradients_stay_as_they_are(ends):
    assert ends[0]["unused"]["ddp"]["weights"]["spare"].tolist() == [1.0] * 3
    stranger, thawed = (ends[0][case]["ddp"]["weights"]["parts.0.body.1.weight"] for case in ("stranger", "thawed"))
    assert stranger.tolist() == [1.0] * 7
    assert (thawed != 1).all()


@pytest.mark.parametrize(
    ("case", "ways", "said"),
    [
        ("past", 3, "ModelError: A step computed gradients without calling the "),
        (
            "made",
            2,
            "a Powers on each rank, but cannot read power from the optimizer that `create_optimizer` built: pass",
        ),
        ("two modes", 2, "ArgumentError: TwoModes has separate weights for training and evaluation, but Sharded"),
        ("mixed", 2, "in one tensor, which needs one dtype, but there are 20 of float32 and 2 of float64: convert"),
        ("sparse", 1, "ModelError: ShardedDDP averages dense gradients only"),
        ("low rank", 1, "ModelError: The last step did not use all weights, but DDP(comm_hook='powersgd') waits"),
        ("static", 1, "ArgumentError: DDP(static_graph=True) needs steps of one batch"),
    ],
    ids=str,
)
def test_settings_that_would_change_the_weights_are_refused(ends, case, ways, said):
    for rank in range(2):
        texts = ends[rank]["refused"][case]
        assert len(texts) == ways
        assert all(said in text for text in texts)
