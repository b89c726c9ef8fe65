"""A resume warns about each changed argument that has no effect, because the checkpoint sets its value."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import trainbus
from support.data import points
from support.models import Regression
from support.trainers import hushed
from trainbus.engine.api.costs.facts import facts_of

WARNING = "differ from the checkpoint and have no effect"
PLATEAU = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 2}


def build(library: Any, folder: Path, own_rate: float | None = None, **args: Any) -> Any:
    """A trainer of trainbus or transformers. `own_rate` is the learning rate of an optimizer of the program."""
    settings = {
        **{"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 0.01, "optim": "adamw_torch"},
        **{"per_device_train_batch_size": 4, "use_cpu": True, "disable_tqdm": True, "report_to": "none", **args},
    }
    with hushed():
        arguments = library.TrainingArguments(str(folder), **settings)
    model = Regression()
    own = None if own_rate is None else torch.optim.SGD(model.parameters(), lr=own_rate)
    rows = points(20)
    return library.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, optimizers=(own, None))


def said(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    before: dict[str, Any],
    after: dict[str, Any],
    library: Any = trainbus,
) -> str:
    """Save a checkpoint with the arguments `before`, resume with `after` too, and return the warning or ""."""
    with hushed():
        build(library, folder / "a", **before).train()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        build(trainbus, folder / "b", **before, **after).train(resume_from_checkpoint=str(folder / "a/checkpoint-2"))
    found = [record.getMessage() for record in caplog.records if WARNING in record.getMessage()]
    assert len(found) <= 1
    return "".join(found)


CHANGES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"learning_rate": 0.1}, "learning_rate=0.1 (the checkpoint has 0.01)"),
    ({}, {"weight_decay": 0.5}, "weight_decay=0.5 (the checkpoint has 0.0)"),
    ({"weight_decay": 0.5}, {"adam_beta1": 0.5}, "adam_beta1=0.5 (the checkpoint has 0.9)"),
    ({}, {"adam_beta2": 0.5}, "adam_beta2=0.5 (the checkpoint has 0.999)"),
    ({}, {"adam_epsilon": 0.1}, "adam_epsilon=0.1 (the checkpoint has 1e-08)"),
    ({"optim": "sgd"}, {"optim_args": "momentum=0.5"}, "optim_args='momentum=0.5' (the checkpoint has None)"),
    ({"learning_rates": {"linear.bias": 0.1}}, {"learning_rate": 0.2}, "learning_rate=0.2 (the checkpoint has 0.01)"),
    (
        PLATEAU,
        {"lr_scheduler_kwargs": {"factor": 0.5}},
        "lr_scheduler_kwargs={'factor': 0.5} (the checkpoint has None)",
    ),
    (PLATEAU, {"learning_rate": 0.1}, "learning_rate=0.1 (the checkpoint has 0.01)"),
    ({}, {"seed": 7}, "seed=7 (the checkpoint has 42)"),
    ({"own_rate": 0.2}, {}, ""),
    ({}, {}, ""),
    ({}, {"lr_scheduler_type": "cosine", "warmup_steps": 3}, ""),
    ({}, {"max_steps": 6, "max_grad_norm": 0.1, "logging_steps": 1}, ""),
    ({"optim": "sgd"}, {"adam_beta1": 0.5}, ""),
]


@pytest.mark.parametrize(("before", "after", "expected"), CHANGES)
def test_a_changed_argument_without_effect_is_named_with_the_value_that_applies(
    before: dict[str, Any], after: dict[str, Any], expected: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = said(tmp_path, caplog, before, after)
    assert expected in found
    assert bool(expected) == bool(found)
    assert ("trainbus tell" in found) == ("learning_rate" in after)


@pytest.mark.parametrize(
    ("before", "after", "library"),
    [
        *((before, after, trainbus) for before, after, expected in CHANGES if expected),
        ({}, {"learning_rate": 0.1, "adam_beta2": 0.5}, transformers),
    ],
)
def test_each_later_resume_warns_again_and_a_return_to_the_first_values_does_not(
    before: dict[str, Any],
    after: dict[str, Any],
    library: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = said(tmp_path, caplog, before, {**after, "save_steps": 1}, library)
    for step, values, warns in ((3, {**before, **after}, True), (4, before, False)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            trainer = build(trainbus, tmp_path / "b", **{**values, "save_steps": 1, "max_steps": step + 1})
            trainer.train(resume_from_checkpoint=str(tmp_path / f"b/checkpoint-{step}"))
        again = [record.getMessage() for record in caplog.records if WARNING in record.getMessage()]
        assert len(again) == warns
        assert not again or again[0].partition(". To ")[0] == first.partition(". To ")[0]


def test_a_new_learning_rate_of_an_own_optimizer_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with hushed():
        build(trainbus, tmp_path / "a", own_rate=0.2).train()
    with caplog.at_level(logging.WARNING):
        build(trainbus, tmp_path / "b", own_rate=0.3).train(resume_from_checkpoint=str(tmp_path / "a/checkpoint-2"))
    assert "initial_lr=0.3 (the checkpoint has 0.2)" in caplog.text


def test_a_checkpoint_of_transformers_is_compared_by_its_optimizer_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert said(tmp_path / "same", caplog, {}, {}, transformers) == ""
    found = said(tmp_path / "other", caplog, {}, {"learning_rate": 0.1, "adam_beta2": 0.5}, transformers)
    assert "learning_rate=0.1 (the checkpoint has 0.01), adam_beta2=0.5 (the checkpoint has 0.999)" in found


@pytest.mark.parametrize(
    "changes",
    [{"learning_rate": 0.1, "weight_decay": 0.5}, {"lr_scheduler_type": "cosine", "warmup_steps": 3}, {"max_steps": 6}],
)
def test_transformers_ignores_the_same_arguments(changes: dict[str, Any], tmp_path: Path) -> None:
    rates = []
    for library in (trainbus, transformers):
        folder = tmp_path / library.__name__
        with hushed():
            build(library, folder / "a", logging_steps=1).train()
            trainer = build(library, folder / "b", logging_steps=1, **changes)
            trainer.train(resume_from_checkpoint=str(folder / "a/checkpoint-2"))
        rates.append([row["learning_rate"] for row in trainer.state.log_history if "learning_rate" in row])
    assert rates[0] == rates[1] != []


def test_a_rate_that_tell_set_is_not_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from trainbus.engine.optim.set_rate import set_learning_rate

    first = build(trainbus, tmp_path / "a")
    first.on("on_train_begin", lambda: set_learning_rate(first.optimizer, first.lr_scheduler, 0.5))
    first.train()
    build(trainbus, tmp_path / "b").train(resume_from_checkpoint=str(tmp_path / "a/checkpoint-2"))
    assert WARNING not in caplog.text


def test_the_opening_line_has_the_learning_rate_that_applies(tmp_path: Path) -> None:
    with hushed():
        build(trainbus, tmp_path / "a").train()
    trainer, lines = build(trainbus, tmp_path / "b", learning_rate=0.1), {}
    trainer.on("on_train_begin", lambda run: lines.update(facts_of(run)))
    trainer.train(resume_from_checkpoint=str(tmp_path / "a/checkpoint-2"))
    assert lines["optimizer"] == "AdamW, learning rate 0.01, schedule linear (now 0.005)"

    own = build(trainbus, tmp_path / "c", own_rate=0.2)
    own.on("on_train_begin", lambda run: lines.update(facts_of(run)))
    own.train()
    assert lines["optimizer"] == "SGD, learning rate 0.2, schedule linear"
