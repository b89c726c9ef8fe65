"""fairscale's FullyShardedDataParallel on two ranks against DDP, with fake CUDA streams on the CPU."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.outcomes import same_weights
from support.processes import run_on_two
from support.sharding import Net, data, farthest, language_model
from trainbus import TrainingArguments
from trainbus.callbacks.compose import compose
from trainbus.engine.checkpoint.format.codec import load_values
from trainbus.events.errors import ArgumentError, MissingExtra
from trainbus.integrations import found_callbacks, load

fairscale_fsdp = pytest.importorskip("trainbus.integrations.fairscale.fsdp", reason="needs fairscale")
FairscaleFSDP = fairscale_fsdp.FairscaleFSDP

PROGRAM = Path(__file__).with_name("fairscale_fsdp_program.py")
WAYS = ["2", "3", "3-offload", "root"]
TRAINED = [*((way, "") for way in WAYS), ("2", "-2"), ("3-offload", "-2")]
"""Runs with a DDP run to compare to: plain, and with gradient accumulation over two batches (`-2`)."""

two_processes = [pytest.mark.world_size(2), pytest.mark.timeout(900)]


def start(top, *words):
    run_on_two(PROGRAM, top, *words, timeout=280)
    return top


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder with all runs of the program."""
    return start(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def end(runs):
    """A function that returns the results of a run by name."""
    return lambda name: torch.load(runs / name / "end.pt")


@pytest.fixture(scope="module")
def weights(runs):
    """A function that returns the final weights of a run by name."""
    return lambda name: load_file(runs / name / "final" / "model.safetensors")


class TestTwoProcesses:
    pytestmark = two_processes

    @pytest.mark.parametrize(("way", "suffix"), TRAINED)
    def test_every_way_reaches_the_weights_of_ddp(self, end, weights, way, suffix):
        assert farthest(weights(way + suffix), weights("ddp" + suffix)) <= 2e-5
        assert end(way + suffix)["norms"] == pytest.approx(end("ddp" + suffix)["norms"], rel=1e-6)
        assert end(way + suffix)["losses"] == pytest.approx(end("ddp" + suffix)["losses"], rel=1e-5)
        assert max(end("ddp")["norms"]) > 0.5  # clipping is at work

    def test_each_rank_holds_half_of_ddps_memory(self, end):
        (mine,), (theirs,) = end("lean")["memory"], end("ddp")["memory"]
        assert mine < 0.6 * theirs

    @pytest.mark.parametrize("way", [*WAYS, "lean"])
    def test_each_sample_is_evaluated_once_and_in_order(self, end, way):
        assert end(way)["labels"] == [data().labels] * 2
        assert end(way)["eval_losses"] == pytest.approx(end("ddp")["eval_losses"], rel=1e-5)

    @pytest.mark.parametrize("way", ["3", "3-offload"])
    def test_a_resumed_run_equals_an_uninterrupted_one(self, end, weights, way):
        assert same_weights(weights(f"{way}-resumed"), weights(way))
        assert end(f"{way}-resumed")["losses"] == end(way)["losses"]

    @pytest.mark.parametrize("switched", ["ddp-to-3", "3-to-ddp", "3-to-stage3"])
    def test_a_checkpoint_resumes_with_another_way_to_shard(self, weights, switched):
        assert farthest(weights(switched), weights("ddp")) <= 2e-5

    @pytest.mark.parametrize("way", WAYS)
    def test_model_and_optimizer_are_saved_unsharded(self, runs, way):
        folder = runs / way / "checkpoint-8"
        assert [path.name for path in folder.glob("*odel*")] == ["model.safetensors"]
        Net().load_state_dict(load_file(folder / "model.safetensors"), strict=True)
        mine, theirs = (load_values(runs / name / "checkpoint-8" / "optimizer.safetensors") for name in (way, "ddp"))
        groups = [[group["params"] for group in state["param_groups"]] for state in (mine, theirs)]
        assert groups[0] == groups[1]
        assert mine["state"].keys() == theirs["state"].keys()
        assert all(farthest(mine["state"][number], theirs["state"][number]) <= 2e-5 for number in mine["state"])

    def test_sharded_weights_keep_their_names(self, runs):
        found = torch.load(runs / "names.pt")
        assert found["names"] == [name for name, _ in Net().named_parameters()]
        assert found["keys"] == [*Net().state_dict()]
        assert found["blocks"] == 2

    def test_the_gradient_hook_runs_once_per_weight_and_step(self, runs):
        found = torch.load(runs / "names.pt")
        assert found["calls"] == 8 * len(found["names"])

    def test_a_sharded_model_is_evaluated_before_and_after_training(self, end, weights):
        mine, theirs = end("3-offload-long"), end("ddp-long")
        for name in ("before", "after"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-5)
        assert torch.allclose(mine["predicted"], theirs["predicted"], atol=1e-5)
        assert mine["after"] == pytest.approx(mine["best"], rel=1e-6)
        assert farthest(weights("3-offload-long"), weights("ddp-long")) <= 2e-5

    @pytest.mark.parametrize("what", ["scaled", "failed"])
    def test_a_scaled_loss_and_an_error_in_backward_do_not_change_the_weights(self, end, weights, what):
        assert farthest(weights(f"3-{what}"), weights(f"ddp-{what}")) <= 2e-5
        assert end(f"3-{what}")["norms"] == pytest.approx(end(f"ddp-{what}")["norms"], rel=1e-5)

    def test_the_gradients_of_a_part_of_the_weights_are_clipped(self, end, weights):
        assert end("3-part")["memory"] == pytest.approx(end("ddp-part")["memory"], rel=1e-4)
        assert farthest(weights("3-part"), weights("ddp-part")) <= 2e-5

    def test_frozen_blocks_are_unfrozen(self, weights):
        assert farthest(weights("3-thawed"), weights("ddp-thawed")) < 1e-3
        assert farthest(weights("ddp-thawed"), weights("ddp")) > 1e-2

    def test_a_transformers_model_is_sharded_by_block_with_gradient_checkpointing(self, runs, weights):
        assert farthest(weights("words-3"), weights("words-ddp")) <= 2e-5
        loaded = type(language_model()).from_pretrained(runs / "words-3" / "final")
        assert loaded.lm_head.weight is loaded.transformer.wte.weight

    @pytest.mark.parametrize(
        ("what", "said"),
        [
            ("optimizer", "`optimizers` has an optimizer of the whole weights"),
            ("adafactor", "Adafactor depends on the shape of a weight"),
            ("average", "FairscaleFSDP does not work with EMA"),
            ("half evaluation", "HalfEvaluation does not work with FairscaleFSDP"),
            (
                "bf16",
                "its bf16 is not supported; remove the word 'fairscale'",
            ),
            ("compile", "FairscaleFSDP does not work with Compile"),
            ("batch size", "`auto_find_batch_size`"),
            ("generate", "`predict_with_generate` uses weights outside of forward"),
            ("half weights", "start.weight is torch.bfloat16"),
            ("no values", "on meta"),
            ("already sharded", "Net was sharded by another trainer's FairscaleFSDP"),
            ("state of sgd", "a state of the optimizer AdamW"),
            ("words without cuda", "works on CUDA only, but this run is on cpu: remove the word 'fairscale'"),
            ("callback without cuda", "works on CUDA only, but this run is on cpu: remove the word 'fairscale'"),
        ],
    )
    def test_unsupported_settings_are_refused(self, runs, what, said):
        assert said in torch.load(runs / "errors.pt")[what]


@pytest.mark.gpu
@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
def test_on_gpus_it_reaches_the_weights_of_ddp(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("there are no two GPUs")
    start(tmp_path, "cuda")

    def final(name):
        return load_file(tmp_path / name / "final" / "model.safetensors")

    for way, suffix in TRAINED:
        assert farthest(final(way + suffix), final("ddp" + suffix)) <= 1e-4
    for way in ("3", "3-offload"):
        assert farthest(final(f"{way}-resumed"), final(way)) <= 1e-4
    (mine,), (theirs,) = (torch.load(tmp_path / name / "end.pt")["memory"] for name in ("lean", "ddp"))
    assert mine < 0.6 * theirs
    assert 0 < farthest(final("half"), final("3")) < 0.1


# Arguments and composition.


@pytest.fixture
def two_ranks(monkeypatch):
    """Set the environment of rank 0 of two."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("zero_dp_3 fairscale", {"wrap": ()}),
        ("fairscale zero_dp_2", {"wrap": (), "reshard_after_forward": False}),
        (["zero_dp_3", "fairscale", "auto_wrap"], {}),
        ("zero_dp_3 fairscale offload auto_wrap", {"offload": True}),
    ],
    ids=str,
)
def test_the_words_of_sharded_ddp_set_the_fields(monkeypatch, words, fields):
    monkeypatch.setattr(fairscale_fsdp, "has_cuda", lambda device: True)
    args = TrainingArguments(use_cpu=True, sharded_ddp=words)
    assert args.way_to_shard == "fairscale_fsdp"
    built = compose(args, [], found_callbacks(args))
    ways = [callback for callback in built if type(callback).__name__ in ("DDP", "FSDP", "FairscaleFSDP")]
    assert ways == [FairscaleFSDP(**fields)]


@pytest.mark.usefixtures("two_ranks")
def test_without_cuda_fairscale_is_refused_before_anything_is_built():
    with pytest.raises(ArgumentError, match=r"works on CUDA only.* PyTorch's FSDP2, which does the same"):
        found_callbacks(TrainingArguments(use_cpu=True, sharded_ddp="zero_dp_3 fairscale"))


def test_a_single_process_is_refused():
    with pytest.raises(ArgumentError, match="a single process: start N of 2 or more ranks with `torchrun"):
        found_callbacks(TrainingArguments(use_cpu=True, sharded_ddp="zero_dp_3 fairscale"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"sharded_ddp": "fairscale"},
            "can't work on its own. Add zero_dp_2 or zero_dp_3, as in 'zero_dp_2 fairscale'",
        ),
        ({"sharded_ddp": "simple fairscale"}, "is not compatible with any other option"),
        ({"sharded_ddp": "zero_dp_3 fairscle"}, "did you mean 'fairscale'?"),
        (
            {"sharded_ddp": "zero_dp_3 fairscale", "bf16": True},
            "does not work with `bf16`; remove the word 'fairscale'",
        ),
        ({"sharded_ddp": "zero_dp_3 fairscale", "sharding_degree": 2}, "remove the word 'fairscale'"),
        ({"sharded_ddp": "zero_dp_3 fairscale", "fsdp": True}, "select different sharding strategies"),
    ],
    ids=str,
)
def test_invalid_words_and_combinations_are_refused(given, said):
    with pytest.raises(ArgumentError) as error:
        TrainingArguments(use_cpu=True, **given)
    assert said in str(error.value)


def test_the_error_about_a_missing_package_names_its_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fairscale.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fairscale", None)
    for name in ("fairscale.fsdp", "fairscale.fsdp_units"):
        monkeypatch.delitem(sys.modules, f"trainbus.integrations.{name}", raising=False)
    with pytest.raises(MissingExtra, match=r"FairscaleFSDP needs fairscale: pip install 'trainbus\[sharded\]'"):
        load("fairscale_fsdp")
