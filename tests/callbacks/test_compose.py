"""Composition of a trainer's callbacks from arguments and the user's list."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import trainbus.callbacks
from support.trainers import net_trainer
from trainbus import (
    DDP,
    EMA,
    FSDP,
    Callback,
    Checkpoint,
    CountFlops,
    EarlyStopping,
    Evaluate,
    Keep,
    KeepBest,
    Log,
    MixedPrecision,
    Progress,
    StopAtMaxSteps,
    TrainingArguments,
    at_end,
    every,
    never,
)
from trainbus.callbacks.base.service_tracker import ServiceTracker
from trainbus.callbacks.compose import compose
from trainbus.callbacks.defaults import DEFAULTS
from trainbus.callbacks.monitor.row_files import RowFile
from trainbus.events import ArgumentError


def kinds(callbacks):
    return [type(callback).__name__ for callback in callbacks]


def only(callbacks, kind):
    [found] = [callback for callback in callbacks if isinstance(callback, kind)]
    return found


def args(**arguments):
    return TrainingArguments("out", **arguments)


BEFORE = ("AlignTokens", "Capsule", "CountFlops", "StopAtMaxSteps", "StopOnSignal", "ControlFile")
AFTER = ("StatusFile", "AccountTime", "WatchStalls", "MeasureGoodput", "DryBatch", "Summary", "Progress")


def test_arguments_build_exactly_their_callbacks():
    assert kinds(compose(args(), [])) == [*BEFORE, "Log", "Evaluate", "Checkpoint", *AFTER]
    more = compose(
        args(bf16=True, load_best_model_at_end=True, eval_strategy="epoch", save_strategy="epoch", save_total_limit=2),
        [],
    )
    assert only(more, MixedPrecision) == MixedPrecision("bf16")
    assert only(more, KeepBest) == KeepBest("loss")
    assert only(more, Checkpoint) == Checkpoint(every(1, "epoch"), Keep(total=2))
    assert only(more, Evaluate) == Evaluate(every(1, "epoch"))


def test_the_order_is_arguments_then_found_then_listed():
    class Found(Callback):
        pass

    class Mine(Callback):
        pass

    composed = compose(args(), [Mine(), Log(every(7))], found=[Found(), None])
    assert kinds(composed) == [
        *(*BEFORE, "Evaluate", "Checkpoint", *AFTER),
        *("Found", "Mine", "Log"),
    ]


def test_a_listed_callback_takes_the_place_of_its_kind():
    mine = Log(every(7))
    assert only(compose(args(), [mine]), Log) is mine


def test_a_subclass_replaces_the_default_too():
    class MyProgress(Progress):
        pass

    mine = MyProgress()
    assert only(compose(args(), [mine]), Progress) is mine


def test_it_replaces_a_discovered_callback_too():
    class Tracker(Callback):
        pass

    mine = Tracker()
    assert only(compose(args(), [mine], found=[Tracker()]), Tracker) is mine


def test_classes_are_instantiated():
    assert only(compose(args(), [EarlyStopping]), EarlyStopping) == EarlyStopping()


def test_two_callbacks_of_one_class_both_stay():
    first, second = EarlyStopping("loss"), EarlyStopping("score", id="second")
    assert [callback for callback in compose(args(), [first, second]) if isinstance(callback, EarlyStopping)] == [
        first,
        second,
    ]


@pytest.mark.parametrize(
    ("beside", "arguments", "spelled"),
    [
        (Log(every(7), prefix="seventh_"), {"logging_steps": 5}, Log(every(5) | at_end(early=False))),
        (
            Evaluate(every(7), dataset=[1], name="other"),
            {"eval_strategy": "epoch"},
            Evaluate(every(1, "epoch")),
        ),
    ],
    ids=["Log", "Evaluate"],
)
def test_an_additional_callback_replaces_no_other(beside, arguments, spelled):
    composed = compose(args(**arguments), [beside])
    assert [callback for callback in composed if isinstance(callback, type(beside))] == [spelled, beside]


def test_an_argument_and_a_callback_that_say_the_same_agree():
    composed = compose(args(logging_steps=5, bf16=True), [Log(every(5) | at_end(early=False)), MixedPrecision("bf16")])
    assert kinds(composed).count("Log") == kinds(composed).count("MixedPrecision") == 1


@pytest.mark.parametrize(
    ("callback", "arguments", "message"),
    [
        (Log(every(7)), {"logging_steps": 5}, r"Log\(trigger=every\(7\).*logging_steps=5 .*Log\(trigger=every\(5\)"),
        (Checkpoint(at_end()), {"save_total_limit": 2}, r"Checkpoint\(.*save_total_limit=2 .*Keep\(.*total=2"),
        (Evaluate(every(7)), {"eval_strategy": "epoch"}, r"Evaluate\(.*eval_strategy='epoch' .*every\(1, \"epoch\"\)"),
        (MixedPrecision("fp16"), {"bf16": True}, r"MixedPrecision\(dtype='fp16'.*bf16=True .*\(dtype='bf16'"),
        (Progress(bar=True), {"disable_tqdm": True}, r"Progress\(bar=True\) in the list, and disable_tqdm=True"),
        (
            KeepBest("score"),
            {"metric_for_best_model": "f1", "load_best_model_at_end": True, "eval_strategy": "epoch"},
            r"KeepBest\(metric='eval_score'.*metric_for_best_model='f1'.*KeepBest\(metric='eval_f1'",
        ),
    ],
)  # fmt: skip
def test_a_contradiction_names_both(callback, arguments, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        compose(args(**arguments), [callback])
    assert "leave out one of the two" in str(caught.value)


def test_all_contradictions_come_at_once():
    with pytest.raises(ArgumentError) as caught:
        compose(args(logging_steps=5, bf16=True), [Log(every(7)), MixedPrecision("fp16")])
    assert str(caught.value).count("\n- ") == 2


def test_default_arguments_never_contradict_a_callback():
    assert only(compose(args(), [Checkpoint(never())]), Checkpoint) == Checkpoint(never())


def test_sharded_ddp_takes_the_place_of_ddp(monkeypatch):
    pytest.importorskip("fairscale")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert "DDP" in kinds(compose(args(), []))
    composed = compose(args(), [trainbus.ShardedDDP()])
    assert "DDP" not in kinds(composed)
    assert "ShardedDDP" in kinds(composed)


def test_two_processes_train_with_ddp(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert only(compose(args(ddp_bucket_cap_mb=3), []), DDP) == DDP(bucket_cap_mb=3)


def test_the_defaults_list_every_callback_that_arguments_build():
    """A callback with `from_arguments` that is in no list would silently ignore what the user wrote."""
    spelled = {
        value
        for info in pkgutil.walk_packages(trainbus.callbacks.__path__, "trainbus.callbacks.")
        for value in vars(importlib.import_module(info.name)).values()
        if isinstance(value, type) and issubclass(value, Callback) and "from_arguments" in vars(value)
    } - {Callback, RowFile, ServiceTracker}  # base classes
    assert set(DEFAULTS) == spelled
    assert len(DEFAULTS) == len(spelled)
    assert {CountFlops, StopAtMaxSteps} <= spelled


def test_callbacks_that_exclude_each_other_are_refused_with_both_names():
    with pytest.raises(ArgumentError, match=r"EMA\(decay=0.9.*does not work with EMA\(decay=0.99,"):
        compose(args(), [EMA(0.9), EMA(0.99)])
    with pytest.raises(ArgumentError, match=r"KeepBest\(.*both choose the best model.*Leave one of them out"):
        compose(args(), [KeepBest("loss"), KeepBest("score", id="second")])
    with pytest.raises(ArgumentError, match="HalfEvaluation does not work with FSDP: it converts full weights"):
        compose(args(bf16_full_eval=True), [FSDP()])


def test_a_callback_that_conflicts_with_an_attached_one_is_not_attached(tmp_path):
    built = net_trainer(tmp_path, EMA())
    with pytest.raises(ArgumentError, match="only one average"):
        built.add_callback(EMA(id="second"))
    assert "second" not in built.bus.subscribers
    built.train()


def test_the_description_names_the_capabilities(tmp_path):
    described = net_trainer(
        tmp_path, KeepBest("loss"), Checkpoint(every(2)), Log(every("1min"), prefix="slow_")
    ).describe()
    section = described.partition("Capabilities:\n")[2].partition("\n\n")[0]
    assert "  KeepBest: chooses the best model, writes checkpoints" in section.splitlines()
    assert "  Checkpoint: writes checkpoints" in section.splitlines()
    assert "  Log-2: decides on one rank (local)" in section.splitlines()
