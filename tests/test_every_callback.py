"""One suite for every callback: it is built, attached, run, resumed and closed."""

from __future__ import annotations

import ast
import copy
import dataclasses
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import trainbus.callbacks
import trainbus.integrations
from support.callbacks import Boom, stop_at
from support.data import text_samples, token_samples
from support.models import Block, Net, Remembering, Wide, Words, llama
from support.outcomes import same_weights, weights
from support.trainers import net_trainer
from trainbus import Callback, Checkpoint, Evaluate, Log, Stage, TrainingArguments, every
from trainbus.engine.api.preview.result import Preview
from trainbus.engine.checkpoint.format.codec import encode, load_values
from trainbus.engine.checkpoint.write.retention import Keep
from trainbus.events import ArgumentError, SubscriptionError, Trigger, record
from trainbus.events.capabilities import Capability

BASES = {
    "AveragedWeights": "a base class: when weights are added to the average is for subclasses to say",
    "Cadence": "a base class: the flag it raises is for subclasses to name",
    "RowFile": "a base class: the format of the file is for subclasses to say",
    "RowTracker": "a base class: how a run of the tracker is opened is for subclasses to say",
    "ServiceTracker": "a base class: how a run of the service is opened is for subclasses to say",
    "ShardedModel": "a base class: what splits the model is for subclasses to say",
    "Tracker": "a base class: how a run of the tracker is opened is for subclasses to say",
}
"""Classes that are not callbacks by themselves, and why."""

PLAIN = {"DefaultFlowCallback", "PrinterCallback"}
"""Names of transformers that may stay plain classes."""


@dataclass
class Setting:
    """What a callback is run with here."""

    options: Callable[[Path], dict[str, Any]] = lambda folder: {}
    """Its options, so that it has something to do in six steps; `folder` is a temporary one."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Training arguments that it needs beside it."""
    alone: str = ""
    """What it says in a single process, where it cannot work in one."""


def plan_in(folder: Path) -> Path:
    """Write the preview of a run that does nothing, and return its path."""
    path = folder / "plan.json"
    path.write_text(Preview([], [], [], 6, 6, 1.0).to_json(), encoding="utf-8")
    return path


SETTINGS: dict[str, Setting] = {
    "RecurrentMemory": Setting(arguments={"model_init": Remembering}),
    "Checkpoint": Setting(lambda folder: {"trigger": every(2), "keep": Keep(last=2)}),
    # `inductor` starts a C++ compiler: `make torture` does so.
    "Compile": Setting(lambda folder: {"backend": "aot_eager"}),
    "DDP": Setting(alone="torchrun --nproc_per_node"),
    "DataParallel": Setting(lambda folder: {"devices": 1}),
    "EMA": Setting(lambda folder: {"decay": 0.5}),
    "EarlyStopping": Setting(lambda folder: {"patience": 2}, {"eval_strategy": "steps", "eval_steps": 2}),
    "EarlyStoppingCallback": Setting(
        arguments={"metric_for_best_model": "loss", "eval_strategy": "steps", "eval_steps": 2}
    ),
    "Evaluate": Setting(lambda folder: {"trigger": every(2), "on_start": True}),
    "FSDP": Setting(alone="torchrun --nproc_per_node"),
    "FairscaleFSDP": Setting(alone="torchrun --nproc_per_node"),
    "Float8": Setting(lambda folder: {"emulate": True}, {"model_init": Wide}),
    "FollowPlan": Setting(lambda folder: {"path": str(plan_in(folder))}),
    "GradientCheckpointing": Setting(lambda folder: {"blocks": (Block,)}),
    "Log": Setting(lambda folder: {"trigger": every(2)}),
    "MetricSchedule": Setting(
        arguments={
            **{"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0}},
            **{"eval_strategy": "steps", "eval_steps": 2},  # these arguments want to be told that there are evaluations
        }
    ),
    "NEFTune": Setting(
        arguments={"model_init": Words, "train_dataset": token_samples(), "eval_dataset": token_samples(8)}
    ),
    "NaNGuard": Setting(lambda folder: {"action": "skip"}),
    "Progress": Setting(lambda folder: {"bar": True}),
    # Nobody listens there: what it does is told in a warning, and the training goes on.
    "PushToHub": Setting(lambda folder: {"strategy": "end", "endpoint": "http://127.0.0.1:9"}),
    "OffloadActivations": Setting(lambda folder: {"blocks": (Block,), "min_bytes": 0}),
    "OptimizerInBackward": Setting(arguments={"max_grad_norm": 0}),
    "ShardedDDP": Setting(alone="torchrun --nproc_per_node"),
    "ShardedOptimizer": Setting(alone="torchrun --nproc_per_node"),
    "RemoteStore": Setting(lambda folder: {"url": f"file://{folder / 'store'}", "fetch": False}),
    "SWA": Setting(lambda folder: {"start": 0.0, "trigger": every(2)}),
    "SkipBatches": Setting(lambda folder: {"when": callable}),  # a batch is not callable, so none is skipped
    "SkipSpikes": Setting(lambda folder: {"warmup": 1}),
    "WatchModules": Setting(lambda folder: {"trigger": every(2)}),
    "TF32": Setting(lambda folder: {"enabled": False}),  # what a CPU can do too
    "ClearML": Setting(lambda folder: {"project": "demo", "offline": True}),
    "ChunkedCrossEntropy": Setting(
        arguments={"model_init": llama, "train_dataset": text_samples(), "eval_dataset": text_samples(8)}
    ),
    "CollectGarbage": Setting(lambda folder: {"trigger": every(2)}),
    "Comet": Setting(lambda folder: {"project": "demo", "online": False}),
    "Neptune": Setting(lambda folder: {"project": "team/demo", "mode": "offline"}),
    "SwanLab": Setting(lambda folder: {"project": "demo", "mode": "offline", "options": {"logdir": str(folder)}}),
    "Wandb": Setting(lambda folder: {"mode": "offline", "options": {"dir": str(folder)}}),
}


def discover() -> tuple[list[type[Callback]], dict[str, str]]:
    """Return every callback class of the two packages, and why some modules were left out."""
    found, missing = [], {}
    for package in (trainbus.callbacks, trainbus.integrations):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda name: None):
            try:
                module = importlib.import_module(info.name)
            except ModuleNotFoundError as error:
                if error.name is None or error.name.startswith("trainbus"):
                    raise
                missing[info.name.removeprefix(f"{package.__name__}.")] = f"{error.name} is not installed"
                continue
            found += [
                value
                for value in vars(module).values()
                if isinstance(value, type) and issubclass(value, Callback) and value.__module__ == module.__name__
            ]
    return sorted((cls for cls in found if cls.__name__ not in BASES), key=lambda cls: cls.__name__), missing


FOUND, MISSING = discover()


def each(classes: list[type[Callback]]) -> Any:
    """Parametrize a test with these classes; modules without their package are shown as skipped."""
    skipped = [pytest.param(None, id=name, marks=pytest.mark.skip(reason=why)) for name, why in MISSING.items()]
    return pytest.mark.parametrize("cls", [*(pytest.param(cls, id=cls.__name__) for cls in classes), *skipped])


def setting(cls: type[Callback]) -> Setting:
    return SETTINGS.get(cls.__name__, Setting())


SEARCHES = ("FindLearningRate",)
"""With one of these a run is a search: it saves and evaluates nothing, and gives the weights back."""

every_callback = each(FOUND)
every_runnable_callback = each([cls for cls in FOUND if not setting(cls).alone and cls.__name__ not in SEARCHES])


@pytest.fixture
def make(cls: type[Callback], tmp_path: Path) -> Callable[[], Any]:
    """Build the callback under test, as its setting says."""
    return lambda: cls(**setting(cls).options(tmp_path))


@pytest.fixture
def build(cls: type[Callback], make: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Build a trainer with the callback under test that logs at each step, and evaluates and saves at every second."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    built = []

    def new(callback: Any = None, folder: str = "run", **options: Any) -> Any:
        callback = make() if callback is None else callback
        beside = (Log(every(1)), Evaluate(every(2)), Checkpoint(every(2)))
        around = [other for other in beside if not isinstance(callback, type(other))]
        arguments = {"model_init": Net, **setting(cls).arguments, **options}
        if "eval_strategy" in arguments:
            around = [other for other in around if not isinstance(other, Evaluate)]
        built.append(net_trainer(tmp_path / folder, *around, callback, **arguments))
        built[-1].under_test = callback
        return built[-1]

    yield new
    for each_built in built:
        each_built.end()


def trained(built: Any, **options: Any) -> tuple[str, dict[str, torch.Tensor]]:
    """Train, and return the trace of the events and the weights in the end."""
    with record(built.bus) as trace:
        built.train(**options)
    return str(trace), weights(built.model)


def test_every_callback_is_found() -> None:
    """The search is what all other tests stand on, so it is checked against the list that users are shown."""
    places = [target.partition(":") for target, _, _ in trainbus.integrations.TABLE.values()]
    public = set(dir(trainbus)) - {name for module, _, name in places if module in MISSING}
    offered = {
        value.__name__
        for name in public
        if isinstance(value := getattr(trainbus, name), type) and issubclass(value, Callback)
    }
    assert {cls.__name__ for cls in FOUND} == offered - {"Callback", "TypedCallback"}
    known = {cls.__name__ for cls in FOUND} | {name for _, _, name in places} | set(MISSING)
    assert SETTINGS.keys() <= known, "a setting of a callback that is gone"


# What it is.


@every_callback
def test_constructs_with_its_defaults(cls: type[Callback]) -> None:
    assert isinstance(cls(), Callback)


@every_callback
def test_is_a_dataclass_with_a_docstring(cls: type[Callback]) -> None:
    assert cls.__name__ in PLAIN or "__dataclass_params__" in vars(cls)
    doc = vars(cls).get("__doc__") or ""
    assert doc.split("\n")[0].endswith("."), doc
    assert not doc.startswith(f"{cls.__name__}("), "the docstring is the one that @dataclass makes up"


@every_callback
def test_every_public_field_has_a_sentence_under_it(cls: type[Callback]) -> None:
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
    own = {name for name in getattr(cls, "__annotations__", {}) if not name.startswith("_")}
    said = {
        statement.target.id: following.value.value
        for statement, following in pairwise(body)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
    }
    fields = {known.name for known in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for name in own & fields:
        assert said.get(name, "").endswith("."), f"{cls.__name__}.{name} has no sentence under it"


@every_callback
def test_equal_and_shown_by_value(cls: type[Callback], make: Callable[[], Any]) -> None:
    if cls.__name__ in PLAIN:
        return
    one, other = make(), make()
    assert one == other
    assert repr(one) == repr(other)
    assert " object at 0x" not in repr(one)
    for known in dataclasses.fields(cls):
        another = _another(cls, known.name, getattr(one, known.name))
        if known.init and another is not None:
            changed = dataclasses.replace(one, **{known.name: another})
            assert changed != one, f"{known.name} does not count"
            assert repr(changed) != repr(one), f"{known.name} is not shown"


def _another(cls: type[Callback], name: str, value: Any) -> Any:
    """Return another value of the same kind that the field takes too, or None if this does not know one."""
    if (cls.__name__, name) == ("Wandb", "shared"):
        return None  # it needs the service, and the callback of these tests is offline
    if name in ("id", "prefix", "project"):
        return "other"
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2 if value else 0.25
    if isinstance(value, Trigger):
        return value | every(7)
    return Keep(last=7) if isinstance(value, Keep) else None


@every_callback
def test_the_arguments_that_a_callback_names_exist(cls: type[Callback]) -> None:
    assert set(cls.arguments) <= {known.name for known in dataclasses.fields(TrainingArguments)}


@every_callback
def test_is_built_from_default_arguments_or_left_out(cls: type[Callback]) -> None:
    built = cls.from_arguments(TrainingArguments())
    assert built is None or type(built) is cls
    assert built is None or cls.__name__ in PLAIN or built == cls.from_arguments(TrainingArguments())


# Attaching.


@every_callback
def test_is_attached_once(cls: type[Callback], make: Callable[[], Any], tmp_path: Path) -> None:
    callback, built = make(), net_trainer(tmp_path)
    handle = built.add_callback(callback)
    with pytest.raises(SubscriptionError, match="is already attached"):
        built.add_callback(callback)
    assert [other for other in built.callbacks.values() if other is callback] == [callback]
    handle()
    assert all(other is not callback for other in built.callbacks.values())


@pytest.mark.thorough
@every_runnable_callback
def test_serves_a_second_trainer_after_the_first(cls: type[Callback], build: Any) -> None:
    first = build(folder="first")
    before = trained(first)
    second = build(first.under_test, folder="second")
    assert _alike(trained(second), before)


def _alike(one: tuple[str, dict[str, Any]], other: tuple[str, dict[str, Any]]) -> bool:
    assert one[0] == other[0], "another course of events"
    assert same_weights(one[1], other[1]), "other weights"
    return True


# Running.


@pytest.mark.thorough
@every_runnable_callback
def test_trains_twice_to_the_same_end(cls: type[Callback], build: Any) -> None:
    """A second `train()` is a run of its own: nothing that a callback remembers of the first may show."""
    built = build()
    first = trained(built)
    assert built.state.global_step == 6
    assert "on_evaluate" in first[0]
    assert "on_save" in first[0]
    assert _alike(trained(built), first)


@every_runnable_callback
def test_closes_twice(cls: type[Callback], build: Any) -> None:
    built = build()
    built.train()
    attached = list(built.callbacks)
    end = weights(built.model)
    built.bus.announce("on_close")
    built.bus.announce("on_close")
    assert list(built.callbacks) == attached
    assert same_weights(weights(built.model), end)
    assert built.evaluate()["eval_loss"] > 0
    assert _untouched(built.model)


def _untouched(model: torch.nn.Module) -> bool:
    """Return whether every module of a model runs the forward of its class again."""
    return not any("forward" in vars(module) for module in model.modules())


@every_runnable_callback
def test_state_survives_the_checkpoint_format(cls: type[Callback], build: Any, make: Any, tmp_path: Path) -> None:
    built = build()
    states = []
    built.on("on_save", lambda state: states.append(copy.deepcopy(built.under_test.state_dict())), every=1)
    built.train()
    assert states, "nothing was saved"
    for number, state in enumerate(states):
        tensors, metadata = encode({"state": state}, "the state")
        save_file(tensors, tmp_path / f"{number}.safetensors", metadata)
        loaded = load_values(tmp_path / f"{number}.safetensors")["state"]
        fresh = make()
        if state:
            fresh.load_state_dict(loaded)
            assert _equal(fresh.state_dict(), state)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return one == other


@every_runnable_callback
def test_resumes_to_the_weights_of_an_unbroken_run(cls: type[Callback], build: Any, tmp_path: Path) -> None:
    unbroken = build(folder="unbroken", max_steps=8)
    unbroken.train()
    broken = build(folder="broken", max_steps=8)
    broken.on("on_step_end", stop_at(4))
    broken.train()
    assert broken.state.global_step == 4
    resumed = build(folder="broken", max_steps=8)
    steps = []
    resumed.on("on_step_end", lambda state: steps.append(state.global_step))
    resumed.train(resume_from_checkpoint=str(tmp_path / "broken" / "checkpoint-4"))
    assert steps == [5, 6, 7, 8]
    assert same_weights(weights(resumed.model), weights(unbroken.model))


@every_runnable_callback
@pytest.mark.parametrize("where", ["on_gradients", "on_prediction_step", "on_save_begin"])
def test_survives_an_exception(cls: type[Callback], where: str, build: Any) -> None:
    """In the middle of a step, of an evaluation, of a save: all hear of it, and the model is left as it is trained."""
    built = build()
    attached = list(built.callbacks)
    at_last: dict[str, dict[str, torch.Tensor]] = {}

    def remember(model: torch.nn.Module) -> None:
        at_last["weights"] = weights(model)

    def fail(state: Any) -> None:
        if state.global_step >= 3:
            raise Boom

    built.on("on_step_begin", remember)
    built.on("on_step_end", remember)
    failing = built.on(where, fail, stage=Stage.RELEASE)
    with record(built.bus) as trace, pytest.raises(Boom):
        built.train()
    failed = trace.events.index("on_exception")
    assert trace.events[failed - 1] == where
    after = trace.events[failed + 1 :]
    assert after == ["on_close"] or (cls.__name__ == "SaveOnException" and after[-1] == "on_close")
    assert {weight.dtype for weight in built.model.parameters()} == {torch.float32}
    # Weights that were trained in half precision come back in full, and are then those in more digits.
    left = {name: weight.to(at_last["weights"][name].dtype) for name, weight in weights(built.model).items()}
    updated = where == "on_gradients" and built.under_test.has(Capability.UPDATES_IN_BACKWARD)
    assert same_weights(left, at_last["weights"]) is not updated
    assert _untouched(built.model)
    assert [name for name in built.callbacks if name in attached] == attached
    failing()
    assert built.train().global_step == 6


@each([cls for cls in FOUND if setting(cls).alone])
def test_usage_says_how_to_start_it(cls: type[Callback], make: Callable[[], Any], tmp_path: Path) -> None:
    built = net_trainer(tmp_path, make())
    with pytest.raises(ArgumentError, match=setting(cls).alone):
        built.train()
    assert _untouched(built.model)
