"""Errors, warnings and clean-up of DeepSpeed, in a single process on the CPU."""

import gc
import json
import logging
import warnings
import weakref

import programs
import pytest
import torch
from torch.utils.data import TensorDataset

from support.outcomes import same_weights, weights
from trainbus import EMA, SWA, Freeze, HfArgumentParser, NaNGuard, Trainer, TrainingArguments
from trainbus.events import ArgumentError, NonFiniteError

pytest.importorskip("deepspeed")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    yield
    assert not torch.distributed.is_initialized(), "a trainer did not leave the process group"


class Scaled(torch.nn.Linear):
    """A model with a parameter without a dimension."""

    def __init__(self):
        super().__init__(2, 2)
        self.scale = torch.nn.Parameter(torch.tensor(1.0))


def trainer(folder, config, callbacks=None, model=None, optimizers=(None, None), **options):
    arguments = {"use_cpu": True, "max_steps": 3, "report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    return Trainer(
        torch.nn.Linear(2, 2) if model is None else model,
        TrainingArguments(str(folder), deepspeed=config, **{**arguments, **options}),
        train_dataset=TensorDataset(torch.randn(32, 2), torch.randn(32, 2)),
        callbacks=callbacks,
        criterion=torch.nn.MSELoss(),
        optimizers=optimizers,
    )


def stage(number, **sections):
    return {"zero_optimization": {"stage": number}, **sections}


def own(kind, **params):
    return {"optimizer": {"type": kind, "params": params}}


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        ({"zero_optimization": {"stag": 2}}, {}, "zero_optimization.stag is unknown; did you mean 'stage'?"),
        (stage(1, bf16={"enable": True}), {}, "bf16.enable is unknown; did you mean 'enabled'?"),
        (stage(1, **own("AdmW")), {}, "optimizer.type is 'AdmW'; did you mean 'AdamW'?"),
        (stage(1, **own("Adafactor")), {}, "Adafactor depends on the shape or norm of each weight"),
        (stage(1, **own("Adagrad")), {}, "with a single parameter group"),
        (stage(1, bf16={"enabled": True}, fp16={"enabled": True}), {}, "both true: enable one of them"),
        (stage(2), {"optim": "adafactor"}, "Adafactor depends on the shape or norm of each weight: with stage 2"),
        (stage(2), {"optim": "adagrad"}, "Adagrad is rebuilt by DeepSpeed"),
        (stage(3), {"callbacks": [EMA()]}, "EMA averages full weights, and stage 3 shards them"),
        (stage(3), {"callbacks": [SWA()]}, "SWA averages full weights, and stage 3 shards them"),
        (stage(0), {"model": Scaled()}, "without a dimension, such as scale: use the shape [1]"),
        (stage(1, elasticity={"enabled": True}), {}, "DeepSpeedConfigError: Elastic training has been removed"),
        (
            stage(0, scheduler={"type": "WarmupLR", "params": {"warmup_steps": 2}}),
            {},
            "did you mean 'warmup_num_steps'?",
        ),
    ],
)
def test_an_unsupported_configuration_is_refused_with_the_remedy(tmp_path, config, options, said):
    with pytest.raises(ArgumentError) as caught:
        trainer(tmp_path, config, **options).train()
    assert said in str(caught.value)


def test_an_optimizer_in_both_places_is_refused(tmp_path):
    model = torch.nn.Linear(2, 2)
    given = (torch.optim.SGD(model.parameters(), lr=0.1), None)
    with pytest.raises(ArgumentError, match="has 'optimizer', and `optimizers` has a SGD"):
        trainer(tmp_path, stage(1, **own("SGD", lr="auto")), model=model, optimizers=given).train()


def test_freezing_weights_during_training_is_refused_with_zero(tmp_path):
    refused = trainer(tmp_path, stage(1), [Freeze("weight")])
    with pytest.raises(
        ArgumentError, match=r"weight and 0 other weights were frozen after .* Stage 1 ignores this change"
    ):
        refused.train()
    refused.bus.announce("on_end")
    model = torch.nn.Linear(2, 2)
    before = model.weight.detach().clone()
    trainer(tmp_path, stage(0), [Freeze("weight")], model=model, weight_decay=0.5).train()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("number", [1, 3])
def test_weights_frozen_before_training_do_not_change(tmp_path, number):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].weight.requires_grad_(False)
    before = model[0].weight.detach().clone()
    groups = [{"params": [*model.parameters()], "weight_decay": 0.5}]  # DeepSpeed itself would keep the frozen one
    given = (torch.optim.AdamW(groups, lr=0.1), None)
    built = trainer(tmp_path, stage(number), model=model, optimizers=given)
    built.train()
    built.save_model(str(tmp_path / "saved"))
    from safetensors.torch import load_file

    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert torch.equal(saved["0.weight"], before)
    assert not torch.equal(saved["1.weight"], torch.zeros(2, 2))
    built.bus.announce("on_end")


def test_stage_0_trains_and_resumes_with_adafactor(tmp_path):
    model = torch.nn.Linear(2, 2)
    first = model.state_dict()
    first = {name: weight.clone() for name, weight in first.items()}
    options = {"optim": "adafactor", "save_strategy": "steps", "save_steps": 2, "seed": 1}
    torch.manual_seed(0)
    trainer(tmp_path / "whole", stage(0), model=model, **options).train()
    again = torch.nn.Linear(2, 2)
    again.load_state_dict(first)
    torch.manual_seed(0)
    trainer(tmp_path / "resumed", stage(0), model=again, **options).train(
        resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2")
    )
    assert torch.equal(model.weight, again.weight)


@pytest.mark.parametrize("number", [1, 3])
def test_nan_guard_sees_non_finite_gradients(tmp_path, number):
    built = trainer(tmp_path, stage(number), [NaNGuard()])

    def spoil(run):
        if run.state.global_step == 1:
            run.loss = run.loss * float("nan")

    built.on("on_loss", spoil)
    with pytest.raises(NonFiniteError, match=r"in step 2\. The weights were not updated"):
        built.train()
    built.bus.announce("on_end")


def test_the_engine_is_released_with_its_trainer(tmp_path):
    from trainbus.integrations.deepspeed.process import leave_process_group

    built = trainer(tmp_path, stage(3), max_steps=1)
    built.train()
    callback = next(each for each in built.bus.subscribers.values() if type(each).__name__ == "DeepSpeed")
    finalizer = callback._finalizer
    assert finalizer.alive
    built, callback = weakref.ref(built), None
    gc.collect()
    assert built() is None
    assert not finalizer.alive
    leave_process_group()


def test_torchs_linear_is_restored_after_training(tmp_path):
    plain, during = torch.nn.functional.linear, []
    built = trainer(tmp_path, stage(3), max_steps=1)
    built.on("on_step_begin", lambda: during.append(torch.nn.functional.linear))
    for _ in range(2):
        built.train()
        assert torch.nn.functional.linear is plain
    assert during[0] is during[1] is not plain
    built.bus.announce("on_end")


def test_deprecation_warnings_are_ignored_while_an_engine_is_alive(tmp_path):
    built = trainer(tmp_path, stage(3), max_steps=1)
    built.train()

    def warn(name):
        warnings.warn(f"`torch.distributed.{name}` is deprecated.", FutureWarning, stacklevel=1)

    warn("all_gather_into_tensor")
    with pytest.raises(FutureWarning):
        warn("all_gather_coalesced")
    built.bus.announce("on_end")
    with pytest.raises(FutureWarning):
        warn("all_gather_into_tensor")


@pytest.mark.parametrize("params", [{}, {"torch_adam": True}])
def test_a_lock_of_an_unfinished_compilation_is_named(tmp_path, monkeypatch, caplog, params):
    from trainbus.integrations.deepspeed.process import warn_before_compilation

    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "cpu_adam").mkdir()
    (tmp_path / "cpu_adam" / "lock").touch()
    with caplog.at_level(logging.WARNING, "trainbus"):
        warn_before_compilation({"optimizer": {"type": "AdamW", "params": params}})
    said = caplog.text
    assert (str(tmp_path / "cpu_adam" / "lock") in said) == (not params)
    assert ("DeepSpeed compiles its AdamW now" in said) == (not params)


def test_an_empty_configuration_conflicts_with_fsdp(tmp_path):
    with pytest.raises(ArgumentError, match="select different sharding strategies"):
        TrainingArguments(str(tmp_path), use_cpu=True, deepspeed={}, fsdp=True)


def test_the_configuration_may_be_a_path_object(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text("{}")
    assert TrainingArguments(str(tmp_path), use_cpu=True, deepspeed=path).deepspeed == str(path)


def test_the_two_configurations_of_transformers_4_train_alike(tmp_path):
    """The page gives a complete file, and a short one with the arguments that complete it."""
    complete = json.loads(programs.TRANSFORMERS_4_DEEPSPEED)
    del complete["fp16"]  # needs a GPU
    complete["optimizer"]["params"]["torch_adam"] = True  # DeepSpeed's own is compiled for minutes
    short = {"zero_optimization": complete["zero_optimization"]}
    words = programs.TRANSFORMERS_4_COMMAND_LINE.split()
    with pytest.warns(FutureWarning, match="fp16_backend"):
        (given,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(["--output_dir", "out", *words])
    arguments = {name: getattr(given, name) for name in given.given if name not in ("output_dir", "fp16")}
    ends = []
    for config, options in ((complete, {}), (short, {**arguments, "deepspeed_fill_sections": True})):
        torch.manual_seed(0)
        made = trainer(tmp_path / str(len(ends)), config, **options)
        made.train()
        assert type(made.lr_scheduler.inner).__name__ == "WarmupLR"
        ends.append(weights(made.model))
        made.end()
    assert same_weights(*ends)
    assert not torch.equal(ends[0]["weight"], initial_weight())


def initial_weight():
    torch.manual_seed(0)
    return torch.nn.Linear(2, 2).weight


def test_sections_are_filled_from_the_arguments_only_on_request(tmp_path):
    plain = trainer(tmp_path / "plain", stage(1), weight_decay=0.1)
    filled = trainer(tmp_path / "filled", stage(1), weight_decay=0.1, warmup_steps=2, deepspeed_fill_sections=True)
    for made in (plain, filled):
        made.train()
    assert type(plain.lr_scheduler).__name__ == "LambdaLR"
    assert type(filled.lr_scheduler.inner).__name__ == "WarmupDecayLR"
    assert filled.lr_scheduler.inner.total_num_steps == 3
    assert {group["weight_decay"] for group in filled.optimizer.param_groups} == {0.1, 0.0}
    for made in (plain, filled):
        made.end()


def test_a_schedule_that_deepspeed_does_not_have_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"no schedule of DeepSpeed for lr_scheduler_type='cosine'. Use 'linear'"):
        trainer(tmp_path, stage(1), lr_scheduler_type="cosine", deepspeed_fill_sections=True).train()


def test_parameters_of_a_loss_module_are_refused_with_deepspeeds_optimizer(tmp_path):
    made = trainer(tmp_path, stage(1, **own("AdamW", torch_adam=True)))
    made.criterion = torch.nn.Bilinear(2, 2, 1)
    with pytest.raises(ArgumentError, match="DeepSpeed updates only the parameters of the model, but the loss module"):
        made.train()
