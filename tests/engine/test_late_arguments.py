"""Arguments that a handler changes during a training."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import trainbus
from support.callbacks import Boom
from support.data import points
from support.models import Regression
from support.outcomes import history, same_weights, saved_steps, weights
from trainbus import Callback, DefaultFlowCallback, PushToHub
from trainbus.callbacks.base.late_arguments import ACCUMULATION, HUB, WATCHED
from trainbus.events.errors import ArgumentError

BASE = {"max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 0.05, "logging_steps": 1}
STARTS: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
CHANGES: dict[str, Any] = {
    **{"eval_delay": 3, "eval_on_start": True, "eval_strategy": "no", "greater_is_better": True},
    **{"hub_always_push": True, "hub_model_id": "other", "hub_private_repo": True, "hub_revision": "other"},
    **{"hub_strategy": "end", "include_num_input_tokens_seen": "all", "load_best_model_at_end": False},
    **{"logging_first_step": True, "logging_strategy": "no", "metric_for_best_model": "eval_runtime"},
    **{"push_to_hub": True, "save_strategy": "no", "save_total_limit": 1, "torch_empty_cache_steps": 1},
}
"""A change of each watched argument for which a warning is logged."""


class Changing(transformers.TrainerCallback):
    """Changes arguments at the end of step 2, as callbacks of transformers do."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == 2:
            for name, value in self.changes.items():
                setattr(args, name, value)


class Explosive(Regression):
    """Has a NaN loss in its third batch. The gradients of this batch are finite."""

    batches = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.batches += self.training
        found = super().forward(x, labels)
        if self.training and self.batches == 3:
            found["loss"] = found["loss"] + math.nan
        return found


class Failing(Callback):
    """Fails after the third step."""

    def on_step_end(self, state: Any) -> None:
        if state.global_step == 3:
            raise Boom


def trained(
    folder: Path, library: Any, *callbacks: Any, model: Any = None, compute_metrics: Any = None, **args: Any
) -> Any:
    arguments = library.TrainingArguments(
        str(folder),
        **{**BASE, "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "report_to": "none"} | args,
    )
    data = {"train_dataset": points(18), "eval_dataset": points(6, seed=1), "compute_metrics": compute_metrics}
    trainer = library.Trainer(model or Regression(0.2), arguments, callbacks=[*callbacks], **data)
    trainer.train()
    return trainer


def logged(trainer: Any) -> list[dict[str, Any]]:
    names = ("step", "loss", "grad_norm", "learning_rate")
    return [{name: entry.get(name) for name in names} for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("norm", [0.01, 0, 5.0])
def test_a_change_of_the_clipping_takes_effect_as_in_transformers(norm: float, tmp_path: Path) -> None:
    change = Changing(max_grad_norm=norm)
    ours, theirs = (
        trained(tmp_path / library.__name__, library, change, max_grad_norm=0.1) for library in (trainbus, transformers)
    )
    assert same_weights(weights(ours.model), weights(theirs.model))
    assert logged(ours) == logged(theirs)
    assert not same_weights(weights(ours.model), weights(trained(tmp_path / "same", trainbus, max_grad_norm=0.1).model))


def test_a_change_of_the_filter_takes_effect_as_in_transformers(tmp_path: Path) -> None:
    change = Changing(logging_nan_inf_filter=False)
    ours, theirs, same = (
        trained(
            tmp_path / name, library, *callbacks, model=Explosive(0.2), logging_steps=2, logging_nan_inf_filter=True
        )
        for name, library, callbacks in (
            ("ours", trainbus, [change]),
            ("theirs", transformers, [change]),
            ("same", trainbus, []),
        )
    )
    nan = [[math.isnan(row["loss"]) for row in logged(trainer)] for trainer in (ours, theirs, same)]
    assert nan == [[False, True], [False, True], [False, False]]


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"save_only_model": True}, {}),
        ({"prediction_loss_only": True}, {}),
        ({"per_device_eval_batch_size": 1}, {}),
        ({"output_dir": "other"}, {}),
    ],
    ids=lambda value: next(iter(value), ""),
)
def test_evaluations_and_saves_read_the_arguments_as_in_transformers(
    changes: dict[str, Any], start: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(library: Any) -> tuple[list[Any], list[str], list[int]]:
        folder, sizes = tmp_path / library.__name__, []
        folder.mkdir()
        monkeypatch.chdir(folder)

        class Sizes(Regression):
            def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
                sizes.append(len(x))
                return super().forward(x, labels)

        trainer = trained(
            *(folder / "out", library, Changing(**changes)),
            **{"model": Sizes(), "compute_metrics": lambda found: {"mean": float(found.predictions.mean())}},
            **{**STARTS, "per_device_eval_batch_size": 3, **start},
        )
        metrics = [
            (row["step"], row["eval_loss"], row.get("eval_mean")) for row in history(trainer) if "eval_loss" in row
        ]
        states = sorted(path.parent.relative_to(folder).as_posix() for path in folder.rglob("*/optimizer*"))
        saved = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("checkpoint-*"))
        return metrics, [*states, *saved], sizes

    assert run(trainbus) == run(transformers)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    return [text for text in found if "changed during the training" in text]


@pytest.mark.parametrize("name", sorted({*WATCHED} - {ACCUMULATION, *HUB}))
def test_a_change_without_effect_is_a_warning(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start = dict(STARTS)
    if name in ("greater_is_better", "load_best_model_at_end", "metric_for_best_model"):
        start |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": False}
    changed = trained(tmp_path / "changed", trainbus, Changing(**{name: CHANGES[name]}), **start)
    [told] = warnings_of(caplog)
    assert told.startswith(f"`{name}={CHANGES[name]!r}` changed during the training.")
    same = trained(tmp_path / "same", trainbus, **start)
    assert history(changed) == history(same)
    assert saved_steps(tmp_path / "changed") == saved_steps(tmp_path / "same")


@pytest.mark.parametrize("name", HUB)
def test_a_change_for_the_hub_is_a_warning(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hub = PushToHub("name/of", strategy="end")
    with pytest.raises(Boom):  # before it pushes
        trained(tmp_path, trainbus, hub, Changing(**{name: CHANGES[name]}), Failing())
    [told] = warnings_of(caplog)
    assert told.startswith(f"`{name}={CHANGES[name]!r}` changed during the training. The change has no effect")


def test_a_change_of_the_accumulation_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"`gradient_accumulation_steps` changed from 1 to 2 .*Set the argument"):
        trained(tmp_path, trainbus, Changing(gradient_accumulation_steps=2))


@pytest.mark.parametrize("value", [1, 2])
def test_a_change_for_the_next_training_is_no_error(value: int, tmp_path: Path, caplog: Any) -> None:
    def prepare(args: Any) -> None:
        args.gradient_accumulation_steps, args.logging_strategy = value, "no"

    trainer = trained(tmp_path, trainbus)
    trainer.on("on_train_end", prepare)
    trainer.train()
    assert trainer.args.gradient_accumulation_steps == value
    assert not warnings_of(caplog)


def test_a_callback_that_reads_the_arguments_follows_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change = Changing(logging_strategy="no", eval_strategy="no", save_strategy="no")
    theirs = trained(tmp_path / "theirs", transformers, change, **STARTS)
    ours = trained(tmp_path / "ours", trainbus, DefaultFlowCallback(), change, **STARTS)
    assert not warnings_of(caplog)
    assert logged(ours) == logged(theirs)
    assert saved_steps(tmp_path / "ours") == saved_steps(tmp_path / "theirs")


class Replacing(transformers.TrainerCallback):
    """Replaces the arguments of its trainer at the end of step 2."""

    def __init__(self, **changes: Any) -> None:
        self.changes, self.trainer, self.received = changes, None, []

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.received.append(args)
        if state.global_step == 2:
            other = copy.copy(args)
            for name, value in self.changes.items():
                setattr(other, name, value)
            self.trainer.args = other


def replaced(folder: Path, library: Any, **changes: Any) -> Any:
    replacing = Replacing(**changes)

    class Own(library.Trainer):
        def __init__(self, *inputs: Any, **named: Any) -> None:
            super().__init__(*inputs, **named)
            replacing.trainer = self

    trainer = trained(folder, SimpleNamespace(Trainer=Own, TrainingArguments=library.TrainingArguments), replacing)
    assert replacing.received[-1] is trainer.args
    assert replacing.received[-1] is not replacing.received[0]
    return trainer


@pytest.mark.parametrize("changes", [{"max_grad_norm": 0.01}, {"max_steps": 3}, {"logging_nan_inf_filter": False}])
def test_replaced_arguments_take_effect_as_in_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    ours, theirs = (replaced(tmp_path / each.__name__, each, **changes) for each in (trainbus, transformers))
    assert logged(ours) == logged(theirs)
    assert same_weights(weights(ours.model), weights(theirs.model))


def test_replaced_arguments_that_the_training_has_read_cause_the_same_warning_and_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replaced(tmp_path / "warned", trainbus, logging_strategy="no")
    assert "`logging_strategy='no'` changed during the training" in caplog.text
    with pytest.raises(ArgumentError, match=f"`{ACCUMULATION}` changed from 1 to 2 during the training"):
        replaced(tmp_path / "refused", trainbus, **{ACCUMULATION: 2})


@pytest.mark.parametrize("given", [None, {"max_steps": 1}, transformers.TrainingArguments("unused", use_cpu=True)])
def test_other_objects_are_refused_as_arguments(given: Any, tmp_path: Path) -> None:
    trainer = trained(tmp_path, trainbus)
    kept = trainer.args
    with pytest.raises(ArgumentError, match="`args` is a"):
        trainer.args = given
    assert trainer.args is kept
