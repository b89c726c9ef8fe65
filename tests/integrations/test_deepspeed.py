"""Training by DeepSpeed, on two processes started by torchrun with gloo on the CPU, and in one."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from launching import run, run_on_two
from safetensors.torch import load_file

from trainbus import Trainer, TrainingArguments
from trainbus.engine.checkpoint.format.codec import load_values
from trainbus.events import ArgumentError, SubscriptionError

pytest.importorskip("deepspeed")

PROGRAM = Path(__file__).with_name("deepspeed_program.py")

STAGES = ("z0", "z1", "z2", "z3")
COMBINATIONS = ["z1", "z1-both", "z2", "z2-optimizer", "z2-scheduler", "z2-both"]
RESUMED = [*COMBINATIONS, "z3", "z3-bf16", "z1-nadam"]
OTHERWISE = [("z2", "ddp"), ("ddp", "z3"), ("z3", "z1"), ("z2-both", "ddp"), ("z3-bf16", "z2-offload")]
"""Runs that go on from the half of another: whose, and as what."""

pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(400)]


class Ended:
    """What a run left in its folder."""

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
def ends(tmp_path_factory):
    """The ends of all runs, by their names."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [f"whole:{folder}:{name}" for name in ("ddp", "z0", *COMBINATIONS, "z3", "z3-bf16", "z1-nadam")]
    runs += [f"resumed:{folder}:{name}:{name}" for name in RESUMED]
    runs += [f"resumed:{folder}:{source}:{name}" for source, name in OTHERWISE]
    runs += [f"steered:{folder}:{name}" for name in ("ddp", "z1", "z2-offload", "z3")]
    runs += [f"twice:{folder}:{name}" for name in ("ddp", "z3")]
    runs += [f"whole:{folder}:z2-round", f"again:{folder}:z1", f"again:{folder}:z3"]
    runs += [f"written:{folder}:{name}" for name in ("ddp", "z1", "z1-bf16", "z2-offload")]
    runs += [f"written:{folder}:z1:resumed"]
    run_on_two(PROGRAM, *runs, timeout=380, DS_ACCELERATOR="cpu")
    alone = folder / "alone"
    # Without decay: of the two groups of parameters one is empty, which DeepSpeed drops.
    runs = [f"whole:{alone}:ddp:0", f"whole:{alone}:z2-offload:0", f"resumed:{alone}:ddp:z3:0"]
    run(PROGRAM, *runs, f"resumed:{alone}:z2-offload:ddp:0", timeout=200, DS_ACCELERATOR="cpu")
    return {str(path.parent.relative_to(folder)): Ended(path.parent) for path in folder.glob("**/facts.json")}


def furthest(one, other):
    """Return how far the weights of two runs are apart."""
    ours, theirs = one.weights(), other.weights()
    assert ours.keys() == theirs.keys()
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_ends_with_the_weights_losses_and_norms_of_ddp(ends, name):
    plain, split = ends["ddp"], ends[name]
    assert furthest(plain, split) < 2e-5
    assert split.logged("loss") == pytest.approx(plain.logged("loss"), abs=2e-5)
    assert split.logged("grad_norm") == pytest.approx(plain.logged("grad_norm"), rel=1e-4)
    assert split.logged("learning_rate") == plain.logged("learning_rate")


def test_gradients_that_go_round_robin_save_each_weight_as_its_own(ends):
    assert furthest(ends["ddp"], ends["z2-round"]) < 2e-5


@pytest.mark.parametrize("name", ["z1", "z3"])
def test_a_trainer_that_has_trained_goes_on_from_a_checkpoint(ends, name):
    ours, theirs = ends[f"again-{name}"].weights(), ends[name].weights()
    assert all(torch.equal(ours[weight], theirs[weight]) for weight in theirs)


@pytest.mark.parametrize("name", ["z1", "z2-offload"])
def test_what_is_written_to_weights_and_averaged_of_them_is_saved_as_with_ddp(ends, name):
    plain, split = ends["written-ddp"], ends[f"written-{name}"]
    assert furthest(plain, split) < 2e-5
    assert split.facts["eval_loss"] == pytest.approx(plain.facts["eval_loss"], abs=2e-5)


def test_it_goes_on_from_there_to_the_same_bits(ends):
    ours, theirs = ends["written-z1-resumed"].weights(), ends["written-z1"].weights()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_what_is_written_to_halved_weights_is_saved_and_trained_on(ends):
    # Half of the average stays at each of 8 steps, and LayerNorm's weights began as 1.
    assert all(weight.abs().max() < 0.26 for weight in ends["written-z1-bf16"].weights().values())
    assert ends["written-z1-bf16"].facts["copies"] < 0.3, "a step of 0.01 or so from there"


def test_clipping_was_at_work(ends):
    assert min(ends["ddp"].logged("grad_norm")) > 0.5


@pytest.mark.parametrize("name", ["z1", "z2", "z3"])
def test_each_process_holds_half_of_the_optimizer_state(ends, name):
    assert ends[name].facts["state"] < 0.6 * ends["ddp"].facts["state"]


def test_stage_3_holds_no_whole_weights(ends):
    assert ends["z3"].facts["weights"] == 0
    assert ends["z2"].facts["weights"] == ends["ddp"].facts["weights"] > 0


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_goes_on_to_the_weights_and_the_optimizer_of_the_unbroken_one(ends, name):
    unbroken, resumed = ends[name], ends[f"{name}-{name}"]
    ours, theirs = resumed.weights(), unbroken.weights()
    assert all(torch.equal(ours[weight], theirs[weight]) for weight in theirs)
    ours, theirs = resumed.optimizer(), unbroken.optimizer()
    assert ours["param_groups"] == theirs["param_groups"]
    for number, state in theirs["state"].items():
        assert all(torch.equal(ours["state"][number][key], value) for key, value in state.items())
    assert resumed.logged("loss") == unbroken.logged("loss")


@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_optimizer_and_the_schedule_are_whose_the_configuration_says(ends, name):
    own = not name.endswith(("-scheduler", "-both"))
    assert ends[name].facts["schedule"] == ("LambdaLR" if own else "Schedule")
    # DeepSpeed's schedules begin a step later than torch's: the first two steps are made with the least rate.
    assert ends[name].logged("learning_rate")[:2] == (ends["ddp"].logged("learning_rate")[:2] if own else [0, 0])


def test_the_saved_optimizer_is_numbered_as_that_of_ddp(ends):
    plain, split = ends["ddp"].optimizer(), ends["z3"].optimizer()
    assert [group["params"] for group in split["param_groups"]] == [group["params"] for group in plain["param_groups"]]
    assert split["state"].keys() == plain["state"].keys()
    for number, state in plain["state"].items():
        assert state.keys() == split["state"][number].keys()
        assert all(torch.allclose(value, split["state"][number][key], atol=2e-5) for key, value in state.items())


@pytest.mark.parametrize(("source", "name"), OTHERWISE[:3])
def test_a_run_goes_on_by_other_means(ends, source, name):
    assert furthest(ends[f"{source}-{name}"], ends["ddp"]) < 2e-5


def test_a_run_goes_on_from_a_schedule_of_deepspeed_where_that_was(ends):
    rates = ends["z2-both-ddp"].logged("learning_rate")
    # The fifth step has the saved rate; from the sixth on they are those of the run's own schedule.
    assert rates[:5] == ends["z2-both"].logged("learning_rate")[:5]
    assert rates[5:] == ends["ddp"].logged("learning_rate")[5:]


def test_bf16_is_saved_in_float32_and_goes_on_without_it(ends):
    saved = ends["z3-bf16"].weights()
    assert {weight.dtype for weight in saved.values()} == {torch.float32}
    assert any(not torch.equal(weight, weight.bfloat16().float()) for weight in saved.values())
    assert 0 < furthest(ends["z3-bf16"], ends["ddp"]) < 0.05
    assert 0 < furthest(ends["z3-bf16-z2-offload"], ends["ddp"]) < 0.05


@pytest.mark.parametrize("name", ["z1", "z2-offload", "z3"])
def test_a_step_that_is_left_out_leaves_nothing_behind(ends, name):
    plain, split = ends["steered-ddp"], ends[f"steered-{name}"]
    assert split.facts["skipped"] == plain.facts["skipped"] == 2
    assert furthest(plain, split) < 2e-5


@pytest.mark.parametrize("name", ["z1", "z2-offload", "z3"])
def test_the_best_weights_are_loaded_and_can_be_evaluated_and_saved(ends, name):
    plain, split = ends["steered-ddp"], ends[f"steered-{name}"]
    best = split.folder / Path(split.facts["best"]).name
    assert best.name == Path(plain.facts["best"]).name == "checkpoint-2"
    saved, wanted = split.weights(split.folder / "saved"), split.weights(best)
    assert all(torch.equal(saved[weight], wanted[weight]) for weight in wanted)
    assert split.facts["eval_loss"] == pytest.approx(plain.facts["eval_loss"], abs=2e-5)
    assert split.facts["labels"] == plain.facts["labels"]


def test_a_trainer_trains_once_more_with_its_optimizer(ends):
    assert furthest(ends["twice-z3"], ends["twice-ddp"]) < 2e-5
    assert ends["twice-z3"].optimizer()["state"][0]["step"] == 16


def test_it_works_in_a_single_process_and_leaves_no_group_there(ends):
    plain = ends["alone/ddp"]
    assert not ends["alone/z2-offload"].facts["joined"]
    assert furthest(ends["alone/z2-offload"], plain) < 2e-5
    assert furthest(ends["alone/ddp-z3"], plain) < 2e-5
    assert furthest(ends["alone/z2-offload-ddp"], plain) < 2e-5


def trainer(folder, config, callbacks=(), **options):
    from trainbus import DeepSpeed

    args = TrainingArguments(str(folder), use_cpu=True, max_steps=2, report_to="none", **options)
    data = [{"x": torch.zeros(2), "labels": torch.tensor(0)}] * 4
    listed = [DeepSpeed(config), *callbacks]
    return Trainer(torch.nn.Linear(2, 2), args, train_dataset=data, callbacks=listed, criterion=torch.nn.MSELoss())


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        ({"fp16": {"enabled": True}}, {}, "cannot compute in fp16 on this device, cpu: use bf16"),
        ({"bf16": {"enabled": True}}, {}, '{"zero_optimization": {"stage": 1}}'),
        ({"optimizer": {"type": "Muon"}}, {}, "Muon forms groups of parameters"),
        ({"zero_optimization": {"stage": 3}}, {"auto_find_batch_size": True}, "find the size with stage 2"),
        ({"gradient_accumulation_steps": 2}, {}, "gradient_accumulation_steps is 2, and the arguments say 1"),
        ("absent.json", {}, "absent.json cannot be read"),
        (3, {}, "is a int; give a dict"),
    ],
    ids=["fp16", "bf16 whole", "Muon", "trying sizes", "contradiction", "no file", "no configuration"],
)
def test_what_cannot_work_is_refused_before_anything_is_built(tmp_path, monkeypatch, config, options, said):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with pytest.raises(ArgumentError) as caught:
        trainer(tmp_path, config, **options).train()
    assert said in str(caught.value)
    assert not torch.distributed.is_initialized()


def test_what_deepspeed_itself_refuses_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(Exception, match="stage"):
        trainer(tmp_path, {"zero_optimization": {"stage": 9}}).train()
    assert not torch.distributed.is_initialized()
    assert "LOCAL_RANK" not in os.environ


def test_two_ways_to_half_precision_are_refused(tmp_path):
    from trainbus import MixedPrecision

    with pytest.raises(SubscriptionError, match=r"DeepSpeed and MixedPrecision both|MixedPrecision and DeepSpeed both"):
        trainer(tmp_path, {}, [MixedPrecision()]).train()


def test_the_arguments_for_half_precision_are_deepspeed_s_with_it(tmp_path):
    args = TrainingArguments(str(tmp_path), use_cpu=True, bf16=True, deepspeed={"zero_optimization": {"stage": 1}})
    built = Trainer(torch.nn.Linear(2, 2), args).describe()
    assert "DeepSpeed" in built
    assert "MixedPrecision" not in built


def test_a_schedule_that_nobody_has_is_named():
    from trainbus.integrations.deepspeed.schedules import make_schedule

    with pytest.raises(ArgumentError, match="'WarmupDecay'; did you mean 'WarmupDecayLR'"):
        make_schedule({"type": "WarmupDecay"}, torch.optim.SGD([torch.zeros(1)], lr=0.1))


def test_a_schedule_of_torch_can_be_had_too():
    from trainbus.integrations.deepspeed.schedules import make_schedule

    schedule = make_schedule({"type": "StepLR", "params": {"step_size": 2}}, torch.optim.SGD([torch.zeros(1)], lr=0.1))
    assert isinstance(schedule, torch.optim.lr_scheduler.StepLR)


def test_the_scale_of_the_loss_is_kept(tmp_path):
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    from trainbus.integrations.deepspeed.optimizer_state import load_scale, scale_state

    def engine():
        scaler = DynamicLossScaler(2**8, 2, 1, 1, False)
        return SimpleNamespace(optimizer=SimpleNamespace(loss_scaler=scaler))

    unbroken, resumed = engine(), engine()
    scales = []
    for step in range(8):
        unbroken.optimizer.loss_scaler.update_scale(False)
        if step == 4:
            load_scale(resumed, json.loads(json.dumps(scale_state(unbroken))))
        if step > 4:
            resumed.optimizer.loss_scaler.update_scale(False)
            scales.append((resumed.optimizer.loss_scaler.loss_scale, unbroken.optimizer.loss_scaler.loss_scale))
    assert all(ours == theirs for ours, theirs in scales)
    assert len({theirs for _, theirs in scales}) > 1
    assert scale_state(None) == {}
