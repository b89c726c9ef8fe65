"""What DeepSpeed refuses, warns of and leaves behind, in a single process on the CPU."""

import gc
import logging
import warnings
import weakref

import pytest
import torch
from torch.utils.data import TensorDataset

from trainbus import EMA, Freeze, NaNGuard, Trainer, TrainingArguments
from trainbus.events import ArgumentError, NonFiniteError

pytest.importorskip("deepspeed")

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    yield
    assert not torch.distributed.is_initialized(), "every trainer left"


class Scaled(torch.nn.Linear):
    """With a parameter that has no dimension."""

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
        (stage(1, **own("Adafactor")), {}, "Adafactor looks at each weight's shape or norm"),
        (stage(1, **own("Adagrad")), {}, "with one group of parameters"),
        (stage(1, bf16={"enabled": True}, fp16={"enabled": True}), {}, "both true: give one of them"),
        (stage(2), {"optim": "adafactor"}, "Adafactor looks at each weight's shape or norm: with stage 2"),
        (stage(2), {"optim": "adagrad"}, "Adagrad is made anew by DeepSpeed"),
        (stage(3), {"callbacks": [EMA()]}, "EMA averages whole weights, and stage 3 has split them"),
        (stage(0), {"model": Scaled()}, "without a dimension, as scale: give it the shape [1]"),
        (stage(1, elasticity={"enabled": True}), {}, "DeepSpeedConfigError: Elastic training has been removed"),
        (
            stage(0, scheduler={"type": "WarmupLR", "params": {"warmup_steps": 2}}),
            {},
            "did you mean 'warmup_num_steps'?",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(tmp_path, config, options, said):
    with pytest.raises(ArgumentError) as caught:
        trainer(tmp_path, config, **options).train()
    assert said in str(caught.value)


def test_an_optimizer_that_is_given_and_one_of_the_configuration_are_one_too_many(tmp_path):
    model = torch.nn.Linear(2, 2)
    given = (torch.optim.SGD(model.parameters(), lr=0.1), None)
    with pytest.raises(ArgumentError, match="has 'optimizer', and a SGD is given as well"):
        trainer(tmp_path, stage(1, **own("SGD", lr="auto")), model=model, optimizers=given).train()


def test_weights_frozen_on_the_way_are_refused_where_they_would_move(tmp_path):
    refused = trainer(tmp_path, stage(1), [Freeze("weight")])
    with pytest.raises(ArgumentError, match=r"weight and 0 other weights were frozen after .* stage 1 they would"):
        refused.train()
    refused.bus.announce("on_end")
    model = torch.nn.Linear(2, 2)
    before = model.weight.detach().clone()
    trainer(tmp_path, stage(0), [Freeze("weight")], model=model, weight_decay=0.5).train()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("number", [1, 3])
def test_weights_that_are_frozen_before_stay_as_they_are(tmp_path, number):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].weight.requires_grad_(False)
    before = model[0].weight.detach().clone()
    groups = [{"params": [*model.parameters()], "weight_decay": 0.5}]  # of which DeepSpeed would let none out
    given = (torch.optim.AdamW(groups, lr=0.1), None)
    built = trainer(tmp_path, stage(number), model=model, optimizers=given)
    built.train()
    built.save_model(str(tmp_path / "saved"))
    from safetensors.torch import load_file

    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert torch.equal(saved["0.weight"], before)
    assert not torch.equal(saved["1.weight"], torch.zeros(2, 2))
    built.bus.announce("on_end")


def test_the_optimizer_of_stage_0_may_look_at_shapes_and_goes_on(tmp_path):
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
def test_gradients_that_are_no_numbers_are_seen_once_their_norm_is_known(tmp_path, number):
    built = trainer(tmp_path, stage(number), [NaNGuard()])

    def spoil(run):
        if run.state.global_step == 1:
            run.loss = run.loss * float("nan")

    built.on("on_loss", spoil)
    with pytest.raises(NonFiniteError, match=r"in step 2\. The weights were not updated"):
        built.train()
    built.bus.announce("on_end")


def test_an_engine_goes_with_its_trainer(tmp_path):
    from trainbus.integrations.deepspeed.process import leave

    built = trainer(tmp_path, stage(3), max_steps=1)
    built.train()
    holder = next(each for each in built.bus.subscribers.values() if type(each).__name__ == "DeepSpeed")
    let_go = holder._let_go
    assert let_go.alive
    built, holder = weakref.ref(built), None
    gc.collect()
    assert built() is None
    assert not let_go.alive
    leave()


def test_linear_layers_of_others_compute_as_before(tmp_path):
    plain, during = torch.nn.functional.linear, []
    built = trainer(tmp_path, stage(3), max_steps=1)
    built.on("on_step_begin", lambda: during.append(torch.nn.functional.linear))
    for _ in range(2):
        built.train()
        assert torch.nn.functional.linear is plain
    assert during[0] is during[1] is not plain
    built.bus.announce("on_end")


def test_torch_s_warning_of_names_that_deepspeed_uses_is_not_repeated_while_an_engine_lives(tmp_path):
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
def test_a_lock_of_a_compilation_is_named(tmp_path, monkeypatch, caplog, params):
    from trainbus.integrations.deepspeed.process import warn_of_compiling

    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "cpu_adam").mkdir()
    (tmp_path / "cpu_adam" / "lock").touch()
    with caplog.at_level(logging.WARNING, "trainbus"):
        warn_of_compiling({"optimizer": {"type": "AdamW", "params": params}})
    said = caplog.text
    assert (str(tmp_path / "cpu_adam" / "lock") in said) == (not params)
    assert ("DeepSpeed compiles its AdamW now" in said) == (not params)


def test_a_configuration_with_nothing_in_it_is_a_way_to_split_like_any_other(tmp_path):
    with pytest.raises(ArgumentError, match="are different ways to split the same things"):
        TrainingArguments(str(tmp_path), use_cpu=True, deepspeed={}, fsdp=True)


def test_the_path_of_a_configuration_may_be_an_object(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text("{}")
    assert TrainingArguments(str(tmp_path), use_cpu=True, deepspeed=path).deepspeed == str(path)
