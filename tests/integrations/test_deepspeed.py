"""Training with DeepSpeed on two gloo ranks on the CPU, started by torchrun, and in a single process."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from support.processes import run, run_on_two
from trainbus import Trainer, TrainingArguments
from trainbus.engine.checkpoint.format.codec import load_values
from trainbus.events import ArgumentError, SubscriptionError

pytest.importorskip("deepspeed")

PROGRAM = Path(__file__).with_name("deepspeed_program.py")

STAGES = ("z0", "z1", "z2", "z3")
COMBINATIONS = ["z1", "z1-both", "z2", "z2-optimizer", "z2-scheduler", "z2-both"]
RESUMED = [*COMBINATIONS, "z3", "z3-bf16", "z1-nadam"]
SWITCHED = [("z2", "ddp"), ("ddp", "z3"), ("z3", "z1"), ("z2-both", "ddp"), ("z3-bf16", "z2-offload")]
"""Resumed runs: the run that wrote the checkpoint, and the configuration that resumes it."""

pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(900)]


class FinishedRun:
    """The files of a finished run."""

    def __init__(self, folder):
        self.folder = folder
        self.facts = json.loads((folder / "facts.json").read_text())
        self.last = folder / "checkpoint-8"
        state = json.loads((self.last / "trainer_state.json").read_text())
        self.logs = [entry for entry in state["log_history"] if "loss" in entry]

    def weights(self, folder=None):
        return load_file((folder or self.last) / "model.safetensors")

    def optimizer(self):
        return load_values(self.last / "optimizer.safetensors")

    def logged(self, name):
        return [entry.get(name) for entry in self.logs]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """All finished runs by name."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [f"whole:{folder}:{name}" for name in ("ddp", "z0", *COMBINATIONS, "z3", "z3-bf16", "z1-nadam")]
    runs += [f"resumed:{folder}:{name}:{name}" for name in RESUMED]
    runs += [f"resumed:{folder}:{source}:{name}" for source, name in SWITCHED]
    runs += [f"steered:{folder}:{name}" for name in ("ddp", "z1", "z2-offload", "z3")]
    runs += [f"twice:{folder}:{name}" for name in ("ddp", "z3")]
    runs += [f"whole:{folder}:z2-round", f"again:{folder}:z1", f"again:{folder}:z3"]
    runs += [f"written:{folder}:{name}" for name in ("ddp", "z1", "z1-bf16", "z2-offload")]
    runs += [f"written:{folder}:z1:resumed"]
    run_on_two(PROGRAM, *runs, timeout=380, DS_ACCELERATOR="cpu")
    single = folder / "single"
    # Without weight decay one of the two parameter groups is empty, and DeepSpeed drops it.
    runs = [f"whole:{single}:ddp:0", f"whole:{single}:z2-offload:0", f"resumed:{single}:ddp:z3:0"]
    run(PROGRAM, *runs, f"resumed:{single}:z2-offload:ddp:0", timeout=200, DS_ACCELERATOR="cpu")
    return {str(path.parent.relative_to(folder)): FinishedRun(path.parent) for path in folder.glob("**/facts.json")}


def largest_difference(one, other):
    """Return the largest difference between the weights of two runs."""
    ours, theirs = one.weights(), other.weights()
    assert ours.keys() == theirs.keys()
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


@pytest.mark.parametrize("name", STAGES)
def test_each_stage_reaches_the_weights_losses_and_norms_of_ddp(finished, name):
    plain, split = finished["ddp"], finished[name]
    assert largest_difference(plain, split) < 2e-5
    assert split.logged("loss") == pytest.approx(plain.logged("loss"), abs=2e-5)
    assert split.logged("grad_norm") == pytest.approx(plain.logged("grad_norm"), rel=1e-4)
    assert split.logged("learning_rate") == plain.logged("learning_rate")


def test_round_robin_gradients_reach_the_weights_of_ddp(finished):
    assert largest_difference(finished["ddp"], finished["z2-round"]) < 2e-5


@pytest.mark.parametrize("name", ["z1", "z3"])
def test_a_trained_trainer_resumes_from_a_checkpoint(finished, name):
    ours, theirs = finished[f"again-{name}"].weights(), finished[name].weights()
    assert all(torch.equal(ours[weight], theirs[weight]) for weight in theirs)


@pytest.mark.parametrize("name", ["z1", "z2-offload"])
def test_written_weights_and_their_average_are_saved_as_with_ddp(finished, name):
    plain, split = finished["written-ddp"], finished[f"written-{name}"]
    assert largest_difference(plain, split) < 2e-5
    assert split.facts["eval_loss"] == pytest.approx(plain.facts["eval_loss"], abs=2e-5)


def test_a_run_with_written_weights_resumes_bit_for_bit(finished):
    ours, theirs = finished["written-z1-resumed"].weights(), finished["written-z1"].weights()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_writes_to_bf16_weights_are_saved_and_trained(finished):
    # The average keeps half at each of 8 steps, and the weights of LayerNorm start at 1.
    assert all(weight.abs().max() < 0.26 for weight in finished["written-z1-bf16"].weights().values())
    assert finished["written-z1-bf16"].facts["copies"] < 0.3, "the limit plus a step of about 0.01"


def test_the_gradients_were_clipped(finished):
    assert min(finished["ddp"].logged("grad_norm")) > 0.5


@pytest.mark.parametrize("name", ["z1", "z2", "z3"])
def test_each_rank_holds_half_of_the_optimizer_state(finished, name):
    assert finished[name].facts["state"] < 0.6 * finished["ddp"].facts["state"]


def test_stage_3_holds_no_full_weights(finished):
    assert finished["z3"].facts["weights"] == 0
    assert finished["z2"].facts["weights"] == finished["ddp"].facts["weights"] > 0


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_reaches_the_same_weights_and_optimizer_state(finished, name):
    uninterrupted, resumed = finished[name], finished[f"{name}-{name}"]
    ours, theirs = resumed.weights(), uninterrupted.weights()
    assert all(torch.equal(ours[weight], theirs[weight]) for weight in theirs)
    ours, theirs = resumed.optimizer(), uninterrupted.optimizer()
    assert ours["param_groups"] == theirs["param_groups"]
    for number, state in theirs["state"].items():
        assert all(torch.equal(ours["state"][number][key], value) for key, value in state.items())
    assert resumed.logged("loss") == uninterrupted.logged("loss")


@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_configuration_chooses_the_schedule(finished, name):
    own = not name.endswith(("-scheduler", "-both"))
    assert finished[name].facts["schedule"] == ("LambdaLR" if own else "Schedule")
    # DeepSpeed's schedules start one step later than torch's: the first two steps use the lowest rate.
    assert finished[name].logged("learning_rate")[:2] == (
        finished["ddp"].logged("learning_rate")[:2] if own else [0, 0]
    )


def test_the_saved_optimizer_has_the_numbering_of_ddp(finished):
    plain, split = finished["ddp"].optimizer(), finished["z3"].optimizer()
    assert [group["params"] for group in split["param_groups"]] == [group["params"] for group in plain["param_groups"]]
    assert split["state"].keys() == plain["state"].keys()
    for number, state in plain["state"].items():
        assert state.keys() == split["state"][number].keys()
        assert all(torch.allclose(value, split["state"][number][key], atol=2e-5) for key, value in state.items())


@pytest.mark.parametrize(("source", "name"), SWITCHED[:3])
def test_a_run_resumes_with_another_configuration(finished, source, name):
    assert largest_difference(finished[f"{source}-{name}"], finished["ddp"]) < 2e-5


def test_the_default_schedule_resumes_from_a_deepspeed_schedule(finished):
    rates = finished["z2-both-ddp"].logged("learning_rate")
    # The fifth step uses the saved rate. From the sixth step on the run's own schedule sets the rates.
    assert rates[:5] == finished["z2-both"].logged("learning_rate")[:5]
    assert rates[5:] == finished["ddp"].logged("learning_rate")[5:]


def test_bf16_weights_are_saved_in_float32_and_resume_without_bf16(finished):
    saved = finished["z3-bf16"].weights()
    assert {weight.dtype for weight in saved.values()} == {torch.float32}
    assert any(not torch.equal(weight, weight.bfloat16().float()) for weight in saved.values())
    assert 0 < largest_difference(finished["z3-bf16"], finished["ddp"]) < 0.05
    assert 0 < largest_difference(finished["z3-bf16-z2-offload"], finished["ddp"]) < 0.05


@pytest.mark.parametrize("name", ["z1", "z2-offload", "z3"])
def test_a_skipped_step_leaves_no_gradients(finished, name):
    plain, split = finished["steered-ddp"], finished[f"steered-{name}"]
    assert split.facts["skipped"] == plain.facts["skipped"] == 2
    assert largest_difference(plain, split) < 2e-5


@pytest.mark.parametrize("name", ["z1", "z2-offload", "z3"])
def test_the_best_weights_are_loaded_evaluated_and_saved(finished, name):
    plain, split = finished["steered-ddp"], finished[f"steered-{name}"]
    best = split.folder / Path(split.facts["best"]).name
    assert best.name == Path(plain.facts["best"]).name == "checkpoint-2"
    saved, wanted = split.weights(split.folder / "saved"), split.weights(best)
    assert all(torch.equal(saved[weight], wanted[weight]) for weight in wanted)
    assert split.facts["eval_loss"] == pytest.approx(plain.facts["eval_loss"], abs=2e-5)
    assert split.facts["labels"] == plain.facts["labels"]


def test_a_second_train_keeps_the_optimizer(finished):
    assert largest_difference(finished["twice-z3"], finished["twice-ddp"]) < 2e-5
    assert finished["twice-z3"].optimizer()["state"][0]["step"] == 16


def test_a_single_process_trains_and_leaves_its_process_group(finished):
    plain = finished["single/ddp"]
    assert not finished["single/z2-offload"].facts["joined"]
    assert largest_difference(finished["single/z2-offload"], plain) < 2e-5
    assert largest_difference(finished["single/ddp-z3"], plain) < 2e-5
    assert largest_difference(finished["single/z2-offload-ddp"], plain) < 2e-5


def trainer(folder, config, callbacks=(), **options):
    from trainbus import DeepSpeed

    args = TrainingArguments(str(folder), use_cpu=True, max_steps=2, report_to="none", **options)
    data = [{"x": torch.zeros(2), "labels": torch.tensor(0)}] * 4
    listed = [DeepSpeed(config), *callbacks]
    return Trainer(torch.nn.Linear(2, 2), args, train_dataset=data, callbacks=listed, criterion=torch.nn.MSELoss())


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        ({"bf16": {"enabled": True}}, {}, '{"zero_optimization": {"stage": 1}}'),
        ({"optimizer": {"type": "Muon"}}, {}, "Muon builds parameter groups"),
        ({"zero_optimization": {"stage": 3}}, {"auto_find_batch_size": True}, "find the size with stage 2"),
        ({"gradient_accumulation_steps": 2}, {}, "gradient_accumulation_steps is 2, but the arguments give 1"),
        ("absent.json", {}, "absent.json cannot be read"),
        (3, {}, "is of type int; give a dict"),
    ],
    ids=["bf16 without ZeRO", "Muon", "auto_find_batch_size", "contradiction", "no file", "no configuration"],
)
def test_an_unsupported_configuration_is_refused_before_the_process_group_exists(
    tmp_path, monkeypatch, config, options, said
):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with pytest.raises(ArgumentError) as caught:
        trainer(tmp_path, config, **options).train()
    assert said in str(caught.value)
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("supported", "said"),
    [(False, "does not support fp16 on this device, cpu: use bf16"), (True, "enables fp16 without ZeRO")],
)
def test_fp16_is_refused_on_a_device_without_it(tmp_path, monkeypatch, supported, said):
    """DeepSpeed computes in fp16 on some CPUs, so the test sets what this one can do."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.accelerator import get_accelerator

    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: supported)
    with pytest.raises(ArgumentError) as caught:
        trainer(tmp_path, {"fp16": {"enabled": True}}).train()
    assert said in str(caught.value)
    assert ("does not support fp16" in str(caught.value)) is not supported
    assert not torch.distributed.is_initialized()


def test_a_refused_configuration_leaves_no_group_and_no_environment_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(Exception, match="stage"):
        trainer(tmp_path, {"zero_optimization": {"stage": 9}}).train()
    assert not torch.distributed.is_initialized()
    assert "LOCAL_RANK" not in os.environ


def test_deepspeed_with_mixed_precision_is_refused(tmp_path):
    from trainbus import MixedPrecision

    with pytest.raises(SubscriptionError, match=r"DeepSpeed and MixedPrecision both|MixedPrecision and DeepSpeed both"):
        trainer(tmp_path, {}, [MixedPrecision()]).train()


def test_bf16_builds_no_mixed_precision_with_deepspeed(tmp_path):
    args = TrainingArguments(str(tmp_path), use_cpu=True, bf16=True, deepspeed={"zero_optimization": {"stage": 1}})
    built = Trainer(torch.nn.Linear(2, 2), args).describe()
    assert "DeepSpeed" in built
    assert "MixedPrecision" not in built


def test_an_unknown_schedule_is_refused():
    from trainbus.integrations.deepspeed.schedules import make_schedule

    with pytest.raises(ArgumentError, match="'WarmupDecay'; did you mean 'WarmupDecayLR'"):
        make_schedule({"type": "WarmupDecay"}, torch.optim.SGD([torch.zeros(1)], lr=0.1))


def test_a_torch_schedule_is_built():
    from trainbus.integrations.deepspeed.schedules import make_schedule

    schedule = make_schedule({"type": "StepLR", "params": {"step_size": 2}}, torch.optim.SGD([torch.zeros(1)], lr=0.1))
    assert isinstance(schedule, torch.optim.lr_scheduler.StepLR)


def test_the_loss_scaler_state_is_restored(tmp_path):
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    from trainbus.integrations.deepspeed.optimizer_state import load_loss_scaler_state, loss_scaler_state

    def engine():
        scaler = DynamicLossScaler(2**8, 2, 1, 1, False)
        return SimpleNamespace(optimizer=SimpleNamespace(loss_scaler=scaler))

    uninterrupted, resumed = engine(), engine()
    scales = []
    for step in range(8):
        uninterrupted.optimizer.loss_scaler.update_scale(False)
        if step == 4:
            load_loss_scaler_state(resumed, json.loads(json.dumps(loss_scaler_state(uninterrupted))))
        if step > 4:
            resumed.optimizer.loss_scaler.update_scale(False)
            scales.append((resumed.optimizer.loss_scaler.loss_scale, uninterrupted.optimizer.loss_scaler.loss_scale))
    assert all(ours == theirs for ours, theirs in scales)
    assert len({theirs for _, theirs in scales}) > 1
    assert loss_scaler_state(None) == {}
