"""Calls of private methods by the program itself: each does what it does in transformers, or raises an error."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.utils.data import DataLoader

import trainbus
from support.data import points, sentences
from support.models import Regression, bert
from support.outcomes import same_weights, timeless, weights
from support.trainers import hushed, regression_trainer
from trainbus import Callback, Checkpoint
from trainbus.engine.api.moments import CALLED
from trainbus.events import ArgumentError, CheckpointError

LIBRARIES = (transformers, trainbus)

SETTINGS: dict[str, Any] = {
    "max_steps": 6,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-3,
    "save_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "logging_steps": 2,
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
    "greater_is_better": True,  # the best model is not the last one
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}


def build(library: Any, folder: Path, mixin: type = object, **args: Any) -> Any:
    kind = type("Mine", (mixin, library.Trainer), {}) if mixin is not object else library.Trainer
    given = library.TrainingArguments(str(folder / library.__name__), **{**SETTINGS, **args})
    data = {"train_dataset": sentences(22), "eval_dataset": sentences(10, seed=1)}
    with hushed():
        return kind(model=bert(), args=given, **data)


def trained(library: Any, folder: Path, mixin: type = object, **args: Any) -> Any:
    trainer = build(library, folder, mixin, **args)
    with hushed():
        trainer.train()
    return trainer


def checkpoint(trainer: Any, step: int = 2) -> str:
    return str(Path(trainer.args.output_dir) / f"checkpoint-{step}")


# The same effect as in transformers.


def scrambled(trainer: Any) -> None:
    """Change what a checkpoint restores."""
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.zero_()
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(99)


def loads_weights(trainer: Any) -> Any:
    trainer._load_from_checkpoint(checkpoint(trainer))
    return weights(trainer.model)


def loads_weights_into_another_model(trainer: Any) -> Any:
    other = bert()
    trainer._load_from_checkpoint(checkpoint(trainer), other)
    assert not weights(trainer.model)["classifier.weight"].any()
    return weights(other)


def loads_weights_of_a_saved_model(trainer: Any) -> Any:
    folder = str(Path(trainer.args.output_dir) / "saved")
    loads_weights(trainer)
    trainer.save_model(folder)
    scrambled(trainer)
    trainer._load_from_checkpoint(folder)
    return weights(trainer.model)


def loads_best_model(trainer: Any) -> Any:
    trainer._load_best_model()
    return weights(trainer.model)


def loads_optimizer(trainer: Any) -> Any:
    trainer._load_optimizer_and_scheduler(None)
    assert trainer.lr_scheduler.last_epoch == 6
    trainer._load_optimizer_and_scheduler(checkpoint(trainer))
    of_weights = {
        f"{name}.{entry}": value
        for name, weight in trainer.model.named_parameters()
        for entry, value in trainer.optimizer.state[weight].items()
    }
    rate, last = trainer.optimizer.param_groups[0]["lr"], trainer.lr_scheduler.last_epoch
    return {**of_weights, "rate": torch.tensor(rate), "last": torch.tensor(last)}


def loads_randomness(trainer: Any) -> Any:
    trainer._load_rng_state(None)
    trainer._load_rng_state(checkpoint(trainer))
    return {"draws": torch.tensor([float(torch.rand(1)), np.random.rand(), random.random()])}


def clips(trainer: Any) -> Any:
    for weight in trainer.model.parameters():
        weight.grad = torch.ones_like(weight)
    before = trainer._get_grad_norm(trainer.model)
    norms = {"before": before, "clipped": trainer._clip_grad_norm(trainer.model)}
    return {
        **norms,
        "after": trainer._get_grad_norm(trainer.model),
        "known": trainer._get_grad_norm(None, norms)["before"],
    }


def removes_columns(trainer: Any) -> Any:
    rows = [{**row, "text": "not for the model"} for row in sentences(4)]
    collator = trainer._get_collator_with_removed_columns(transformers.default_data_collator, description="training")
    return {name: value for batch in DataLoader(rows, 2, collate_fn=collator) for name, value in batch.items()}


def evaluates(trainer: Any) -> Any:
    trainer._load_from_checkpoint(checkpoint(trainer))
    return {"loss": torch.tensor(trainer._evaluate(None, None)["eval_loss"])}


def finds_best(trainer: Any) -> Any:
    found = [trainer._determine_best_metric({"eval_loss": value}, None) for value in (0.0, 5.0, 4.0, float("nan"))]
    return {"best": torch.tensor([*found, trainer.state.best_metric == 5.0, trainer.state.best_global_step == 6])}


SAME = [
    *(loads_weights, loads_weights_into_another_model, loads_weights_of_a_saved_model, loads_best_model),
    *(loads_optimizer, loads_randomness, clips, removes_columns, evaluates, finds_best),
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return [trained(library, tmp_path_factory.mktemp("run")) for library in LIBRARIES]


@pytest.mark.parametrize("call", SAME)
def test_direct_call_has_the_effect_that_it_has_in_transformers(both: list[Any], call: Callable[[Any], Any]) -> None:
    found = []
    for trainer in both:
        scrambled(trainer)
        found.append(call(trainer))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(torch.as_tensor(value), torch.as_tensor(found[1][name])) for name, value in found[0].items())


def test_direct_call_inside_of_a_step_clips_and_does_not_change_the_training(tmp_path: Path) -> None:
    class Clips:
        def training_step(self, *args: Any, **options: Any) -> Any:
            loss = super().training_step(*args, **options)
            self.seen = [*getattr(self, "seen", []), float(self._clip_grad_norm(self.model))]
            return loss

    theirs, ours = (trained(library, tmp_path, Clips) for library in LIBRARIES)
    assert theirs.seen == ours.seen
    assert same_weights(weights(theirs.model), weights(ours.model))


# Before a training.


def test_program_that_loads_weights_itself_trains_from_them(tmp_path: Path) -> None:
    results = []
    for library in LIBRARIES:
        first = trained(library, tmp_path)
        second = build(library, tmp_path, max_steps=2)
        second._load_from_checkpoint(checkpoint(first))
        assert not same_weights(weights(second.model), weights(bert()))
        with hushed():
            second.train()
        results.append(weights(second.model))
    assert same_weights(*results)


def test_program_that_loads_all_parts_itself_equals_a_resumed_run(tmp_path: Path) -> None:
    class Heard(Callback):
        def __init__(self) -> None:
            self.steps = 0

        def on_step_end(self) -> None:
            self.steps += 1

        def state_dict(self) -> dict[str, Any]:
            return {"steps": self.steps}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.steps = state["steps"]

    args = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    heard = Heard()
    first = regression_trainer(tmp_path, args=args, callbacks=[heard])
    first.train()
    path = str(tmp_path / "checkpoint-3")
    first._load_callback_state()  # the newest checkpoint
    assert heard.steps == 6
    by_hand = regression_trainer(tmp_path, args=args)
    by_hand.create_optimizer_and_scheduler(6)
    by_hand._load_from_checkpoint(path)
    by_hand._load_optimizer_and_scheduler(path)
    by_hand._load_scaler(path)
    by_hand._load_rng_state(path)
    assert by_hand.lr_scheduler.last_epoch == 3
    rates: list[float] = []
    resumed = regression_trainer(tmp_path, args=args)
    resumed.on("on_step_begin", lambda optimizer: rates.append(optimizer.param_groups[0]["lr"]), once=4)
    resumed.train(resume_from_checkpoint=path)
    assert rates == [by_hand.optimizer.param_groups[0]["lr"]]


# After a training.


def test_checkpoint_is_on_disk_when_the_call_returns_and_resumes(tmp_path: Path) -> None:
    args = {"max_steps": 6, "save_strategy": "no"}
    trainer = regression_trainer(tmp_path, args=args)
    trainer.train()
    trainer._save_checkpoint(trainer.model, None)
    assert (tmp_path / "checkpoint-6" / "manifest.json").is_file()
    longer = [regression_trainer(tmp_path / name, args={**args, "max_steps": 9}) for name in ("resumed", "unbroken")]
    longer[0].train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    longer[1].train()
    assert longer[0].state.global_step == 9


def test_scaler_is_loaded_alone(tmp_path: Path) -> None:
    trainer = regression_trainer(tmp_path, args={"max_steps": 1})
    trainer.train()
    trainer.run.seams.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    trainer._save_checkpoint(trainer.model)
    trainer.run.seams.scaler = scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    trainer.lr_scheduler.last_epoch = 7
    trainer._load_scaler(str(tmp_path / "checkpoint-1"))
    assert (scaler.get_scale(), trainer.lr_scheduler.last_epoch) == (8.0, 7)


def test_evaluation_needs_no_callback(tmp_path: Path) -> None:
    trainer = regression_trainer(tmp_path, eval_dataset=points(8))
    expected = trainer._evaluate(None, None)["eval_loss"]
    trainer.remove_callback(trainbus.Evaluate)
    trainer._determine_best_metric({"eval_loss": 0.0}, None)
    assert trainer._evaluate(None, None)["eval_loss"] == expected


@pytest.mark.parametrize("place", ["step", "after"])
def test_override_of_a_save_that_the_program_calls_runs_once(tmp_path: Path, place: str) -> None:
    class Notes(trainbus.Trainer):
        calls = 0

        def _save_checkpoint(self, model: Any, trial: Any) -> None:
            self.calls += 1
            super()._save_checkpoint(model, trial)
            folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            assert (folder / "manifest.json").is_file()
            self._save_rng_state(str(folder))  # the checkpoint has them

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            if place == "step" and self.state.global_step == 2:
                self._save_checkpoint(model, None)
            return super().training_step(model, inputs, num_items_in_batch)

    args = {"max_steps": 4, "save_strategy": "no"}
    trainer = regression_trainer(tmp_path, args=args, kind=Notes)
    trainer.train()
    if place == "after":
        trainer._save_checkpoint(trainer.model, None)
    assert trainer.calls == 1
    resumed = regression_trainer(tmp_path, args={**args, "max_steps": 5})
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 5


def test_override_of_an_evaluation_that_the_program_calls_runs_once(tmp_path: Path) -> None:
    class Adds(trainbus.Trainer):
        calls = 0

        def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> Any:
            self.calls += 1
            return {**super()._evaluate(trial, ignore_keys_for_eval), "eval_own": 1.0}

    trainer = regression_trainer(tmp_path, eval_dataset=points(8), kind=Adds)
    metrics = trainer._evaluate(None, None)
    assert (trainer.calls, metrics["eval_own"]) == (1, 1.0)
    assert metrics["eval_loss"] == trainer.evaluate()["eval_loss"]


class Around:
    """Counts its calls, around the whole training."""

    calls = 0

    def _inner_training_loop(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return super()._inner_training_loop(*args, **options)


@pytest.mark.parametrize("mixin", [object, Around])
def test_inner_training_loop_trains(tmp_path: Path, mixin: type) -> None:
    results = []
    for library in LIBRARIES:
        trainer = build(library, tmp_path, mixin)
        with hushed():
            output = trainer._inner_training_loop(batch_size=4, args=trainer.args)
        assert output.global_step == 6
        assert getattr(trainer, "calls", 1) == 1
        results.append(trainer)
    assert same_weights(weights(results[0].model), weights(results[1].model))
    assert [timeless(entry) for entry in results[1].state.log_history][:-1] == [
        timeless(entry) for entry in results[0].state.log_history
    ][:-1]
    with pytest.raises(ArgumentError, match=r"Set `args\.per_device_train_batch_size`"):
        results[1]._inner_training_loop(batch_size=3)


# Other checkpoints than the checkpoint of the engine.


def test_override_may_load_another_checkpoint(tmp_path: Path) -> None:
    class Redirects:
        def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
            super()._load_from_checkpoint(str(Path(resume_from_checkpoint).with_name("checkpoint-2")), model)

        def _load_best_model(self) -> None:
            self.state.best_model_checkpoint = checkpoint(self, 4)
            super()._load_best_model()

    results = []
    for library in LIBRARIES:
        trained(library, tmp_path)
        trainer = build(library, tmp_path, Redirects)
        with hushed():
            trainer.train(resume_from_checkpoint=checkpoint(trainer, 6))
        results.append(weights(trainer.model))
        expected = build(library, tmp_path)
        expected._load_from_checkpoint(checkpoint(trainer, 4))
        assert same_weights(results[-1], weights(expected.model))
    assert same_weights(*results)
    trainer = build(trainbus, tmp_path, Redirects, load_best_model_at_end=False, save_strategy="no")
    began: list[Any] = []
    trainer.on("on_train_begin", lambda model: began.append(weights(model)))
    trainer.train(resume_from_checkpoint=checkpoint(trainer, 4))
    expected = build(trainbus, tmp_path)
    expected._load_from_checkpoint(checkpoint(trainer, 2))
    assert same_weights(began[0], weights(expected.model))


# Errors with the remedy.

ERRORS: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "weights of nothing": (
        lambda run: run._load_from_checkpoint("nowhere"),
        *(CheckpointError, "the folder 'nowhere' does not exist"),
    ),
    "weights of a flag": (
        lambda run: run._load_from_checkpoint(True),
        *(ArgumentError, r"Pass the path of a checkpoint. .* `train\(resume_from_checkpoint=True\)`"),
    ),
    "weights of an empty folder": (
        lambda run: run._load_from_checkpoint(str(Path(run.args.output_dir).parent)),
        *(CheckpointError, "no weights"),
    ),
    "no best model": (lambda run: run._load_best_model(), CheckpointError, "Set `load_best_model_at_end=True`"),
    "no optimizer": (
        lambda run: run._load_optimizer_and_scheduler("checkpoint-1"),
        *(ArgumentError, r"Call `create_optimizer_and_scheduler\(num_training_steps\)` first"),
    ),
    "no learning rate": (lambda run: run._get_learning_rate(), ArgumentError, "There is no optimizer yet"),
    "no RNG states": (
        lambda run: run._load_rng_state(str(Path(run.args.output_dir).parent)),
        *(CheckpointError, "RNG states of rank 0 are unknown"),
    ),
    "no checkpoint": (lambda run: run._load_callback_state(), CheckpointError, "Resume with `train"),
    "nothing to save": (lambda run: run._save_checkpoint(run.model), ArgumentError, r"`trainer.save_model\(folder\)`"),
    **{
        name: (
            lambda run, name=name: getattr(run, name)(run.args.output_dir),
            *(ArgumentError, r"Call `trainer._save_checkpoint\(model\)`"),
        )
        for name in ("_save_optimizer_and_scheduler", "_save_rng_state", "_save_scaler")
    },
    "no hub": (lambda run: run._push_from_checkpoint("checkpoint-1"), ArgumentError, "Set `push_to_hub=True`"),
    "raised flag": (
        lambda run: (run.control.request("log"), run._maybe_log_save_evaluate(0, 0, run.model, None, 0.0, None, 0.0)),
        *(ArgumentError, r"serves the raised flags \(log\).*`trainer.log\(values\)`"),
    ),
}


@pytest.mark.parametrize(("call", "error", "said"), ERRORS.values(), ids=ERRORS)
def test_direct_call_that_cannot_work_names_the_remedy(
    tmp_path: Path, call: Callable[[Any], Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        call(regression_trainer(tmp_path / "run"))


def test_direct_save_without_the_callback_names_the_remedy(tmp_path: Path) -> None:
    trainer = regression_trainer(tmp_path, args={"max_steps": 1})
    trainer.train()
    trainer.remove_callback(Checkpoint)
    with pytest.raises(ArgumentError, match="`Checkpoint` is not attached"):
        trainer._save_checkpoint(trainer.model)


def test_weights_without_values_are_not_loaded(tmp_path: Path) -> None:
    trainer = regression_trainer(tmp_path, args={"max_steps": 1, "save_strategy": "steps", "save_steps": 1})
    trainer.train()
    trainer.run.replace_model(Regression().to("meta"))
    with pytest.raises(CheckpointError, match=r"Resume with `train\(resume_from_checkpoint=...\)`"):
        trainer._load_from_checkpoint(str(tmp_path / "checkpoint-1"))


def test_metrics_without_the_metric_of_the_best_model_are_refused(both: list[Any]) -> None:
    with pytest.raises(ArgumentError, match="'eval_loss' chooses the best model, but the metrics are eval_other"):
        both[1]._determine_best_metric({"eval_other": 1.0}, None)


def test_without_a_raised_flag_there_is_nothing_to_do(both: list[Any]) -> None:
    for trainer in both:
        logged = len(trainer.state.log_history)
        trainer._maybe_log_save_evaluate(torch.tensor(1.0), None, trainer.model, None, 1.0, None, 0.0)
        assert len(trainer.state.log_history) == logged


NO_EFFECT = {
    "create_accelerator_and_postprocess": "the accelerator exists",
    "_validate_args": "the arguments are checked",
    "_wrap_model": "returns the wrapper of the run, or the model",
    "_finish_current_push": "waits for pushes, if there are any",
}
"""Methods whose direct call changes nothing without a special set-up -> what the call does."""

RETURNS = {
    *("_get_dataloader", "_get_num_items_in_batch", "_move_model_to_device", "_prepare_input", "get_batch_samples"),
    *("_remove_unused_columns", "autocast_smart_context_manager", "compute_loss_context_manager"),
    *("get_cp_size", "get_sp_size", "get_tp_size"),
}
"""Methods that only return a value, or work on their arguments."""


def test_every_method_of_the_table_has_a_test_of_a_direct_call() -> None:
    source = Path(__file__).read_text()
    missing = {name for name in set(CALLED) - RETURNS if f"{name}(" not in source and f'"{name}"' not in source}
    assert missing == set()


def test_methods_without_an_effect_return_what_the_run_has(tmp_path: Path) -> None:
    trainer = regression_trainer(tmp_path)
    for name in ("create_accelerator_and_postprocess", "_validate_args", "_finish_current_push"):
        assert getattr(trainer, name)() is None
    assert trainer._wrap_model(trainer.model) is trainer.model
