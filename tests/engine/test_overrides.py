"""Overrides of transformers' methods, public and private: each runs at the moment at which it runs there."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import trainbus
from support.data import net_samples, sentences
from support.models import Net, bert
from support.outcomes import history, same_weights, weights
from support.trainers import hushed
from trainbus.engine.api.moments import CALLED
from trainbus.engine.api.removed_names import NEVER_CALLED
from trainbus.events.errors import ModelError

METHODS = sorted(
    name
    for name, value in vars(transformers.Trainer).items()
    if callable(value) and not name.startswith("__") and not isinstance(value, (staticmethod, type))
)

SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "max_steps": 6,
    "save_steps": 3,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "logging_steps": 3,
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
}


def recorder(library: Any, calls: Counter[str], names: list[str]) -> type:
    """Return a subclass of a library's Trainer that overrides the methods, counts their calls and calls `super()`."""

    def override(name: str) -> Any:
        def method(self: Any, *args: Any, **options: Any) -> Any:
            calls[name] += 1
            return getattr(super(cls, self), name)(*args, **options)

        return method

    cls = type("Recording", (library.Trainer,), {name: override(name) for name in names})
    return cls


def recorded(library: Any, folder: Path) -> tuple[Any, dict[str, set[str]], dict[str, Counter[str]]]:
    """Train, evaluate, predict, save and resume. Return the last trainer, and the methods that each one called."""
    kept = set(METHODS) - (set(NEVER_CALLED) if library is trainbus else set())
    names = [name for name in METHODS if name in kept and name != "get_optimizer_cls_and_kwargs"]
    calls: Counter[str] = Counter()
    moments: dict[str, Counter[str]] = {}

    def noted(moment: str, do: Any) -> Any:
        calls.clear()
        result = do()
        moments[moment] = Counter(calls)
        return result

    def build() -> Any:
        args = library.TrainingArguments(str(folder), **SETTINGS)
        data = {"train_dataset": sentences(22), "eval_dataset": sentences(10, seed=1)}
        return recorder(library, calls, names)(model=bert(), args=args, **data)

    with hushed():
        trainer = noted("construct", build)
        noted("train", trainer.train)
        noted("evaluate", trainer.evaluate)
        noted("predict", lambda: trainer.predict(sentences(10, seed=2)))
        noted("save", lambda: trainer.save_model(str(folder / "saved")))
        resumed = build()
        noted("resume", lambda: resumed.train(resume_from_checkpoint=str(folder / "checkpoint-3")))
    return resumed, {moment: set(found) for moment, found in moments.items()}, moments


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {
        library.__name__: recorded(library, tmp_path_factory.mktemp(library.__name__))
        for library in (transformers, trainbus)
    }


QUESTIONS = {"is_local_process_zero", "is_world_process_zero", "add_callback"}
"""Methods that transformers calls itself, to learn a fact or to attach callbacks. Here the run knows the fact."""

ONLY_THEIRS = {
    "construct": QUESTIONS,
    "train": QUESTIONS,
    "resume": QUESTIONS,
    "evaluate": {"_wrap_model", "num_examples", "get_tp_size", "get_cp_size", "get_sp_size"},
    "predict": {"_wrap_model", "num_examples", "get_tp_size", "get_cp_size", "get_sp_size"},
    "save": QUESTIONS,
}
"""Moment -> the methods that transformers calls then and we do not."""

ONLY_OURS = {"train": {"create_optimizer_and_scheduler"}, "resume": {"create_optimizer_and_scheduler"}}
"""Moment -> the methods that only we call then. Earlier versions of transformers called them."""

OTHER_COUNTS = {
    "_prepare_input": "once for a batch, not once for each tensor in it",
    "_wrap_model": "not for evaluations",
    "create_optimizer": "also by create_optimizer_and_scheduler",
    "create_scheduler": "also by create_optimizer_and_scheduler",
    "num_examples": "once",
    "get_total_train_batch_size": "once",
    "get_tp_size": "once",
    "get_cp_size": "once",
    "get_sp_size": "once",
}
"""Methods that are called at the same moments, but not equally often -> how often here."""

MOMENTS = ["construct", "train", "evaluate", "predict", "save", "resume"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_overridden_methods_are_called_at_the_moments_of_transformers(both: dict[str, Any], moment: str) -> None:
    theirs, ours = (both[library][1][moment] for library in ("transformers", "trainbus"))
    assert theirs - ours - set(NEVER_CALLED) <= ONLY_THEIRS[moment]
    assert ours - theirs == ONLY_OURS.get(moment, set())
    counts = [both[library][2][moment] for library in ("transformers", "trainbus")]
    compared = (theirs & ours) - set(OTHER_COUNTS)
    assert {name: counts[0][name] for name in compared} == {name: counts[1][name] for name in compared}


def test_every_method_of_the_table_is_called_at_some_moment(both: dict[str, Any]) -> None:
    called = set().union(*both["trainbus"][1].values())
    needs_more = {"_push_from_checkpoint", "_remove_unused_columns"}  # a hub, and a dataset with columns
    assert set(CALLED) - called == needs_more


def test_overrides_that_call_super_change_nothing(both: dict[str, Any]) -> None:
    theirs, ours = both["transformers"][0], both["trainbus"][0]
    assert same_weights(weights(theirs.model), weights(ours.model))
    assert [entry.get("eval_loss") for entry in history(ours)] == [entry.get("eval_loss") for entry in history(theirs)]


# What an override changes.


def of_both(folder: Path, mixin: type, do: Any = lambda trainer: trainer.train(), **args: Any) -> list[Any]:
    """Do the same with a subclass of transformers' Trainer and with one of ours, and return both trainers."""
    trainers = []
    for library in (transformers, trainbus):
        with hushed():
            given = library.TrainingArguments(str(folder / library.__name__), **{**SETTINGS, **args})
            cls = type(mixin.__name__, (mixin, library.Trainer), {})
            data = {"train_dataset": sentences(22), "eval_dataset": sentences(10, seed=1)}
            trainer = cls(model=bert(), args=given, **data)
            do(trainer)
            trainers.append(trainer)
    return trainers


def folders(trainer: Any) -> dict[str, set[str]]:
    """Return the checkpoint folders of a trainer, each with those of its files that we look for."""
    known = {"note.json", "optimizer-note.json", "rng-note.json", "model.safetensors"}
    return {
        folder.name: {file.name for file in folder.iterdir()} & known
        for folder in Path(trainer.args.output_dir).glob("checkpoint-*")
    }


class Notes:
    """Adds files to checkpoints, after the default and beside the states."""

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        assert (folder / "model.safetensors").is_file()
        (folder / "note.json").write_text("{}")

    def _save_optimizer_and_scheduler(self, output_dir):
        super()._save_optimizer_and_scheduler(output_dir)
        (Path(output_dir) / "optimizer-note.json").write_text("{}")

    def _save_rng_state(self, output_dir):
        super()._save_rng_state(output_dir)
        (Path(output_dir) / "rng-note.json").write_text("{}")


def test_override_adds_files_to_each_checkpoint(tmp_path: Path) -> None:
    theirs, ours = of_both(tmp_path, Notes)
    assert folders(ours) == folders(theirs)
    assert len(folders(ours)) == 2
    assert all(len(files) == 4 for files in folders(ours).values())
    resumed = trainbus.Trainer(bert(), ours.args, train_dataset=sentences(22), eval_dataset=sentences(10, seed=1))
    resumed.train(resume_from_checkpoint=str(tmp_path / "trainbus/checkpoint-3"))  # added files are in no manifest
    assert same_weights(weights(resumed.model), weights(theirs.model))


class OwnFormat:
    """Writes and reads checkpoints in a format of its own."""

    def _save_checkpoint(self, model, trial):
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        folder.mkdir(parents=True)
        (folder / "note.json").write_text(json.dumps(self.state.global_step))


def test_override_replaces_the_checkpoint(tmp_path: Path) -> None:
    saved: list[int] = []

    class Heard(transformers.TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            saved.append(state.global_step)

    trainers = of_both(
        tmp_path,
        OwnFormat,
        lambda trainer: (trainer.add_callback(Heard()), trainer.train()),
        load_best_model_at_end=False,
    )
    assert [folders(trainer) for trainer in trainers] == [{f"checkpoint-{n}": {"note.json"} for n in (3, 6)}] * 2
    assert saved == [3, 6] * 2


class KeepsLast:
    """Loads nothing at the end."""

    def _load_best_model(self):
        self.asked = self.state.best_model_checkpoint


class ChoosesFirst:
    """Calls the first evaluation the best, whatever it measured."""

    def _determine_best_metric(self, metrics, trial):
        if self.state.best_metric is not None:
            return False
        self.state.best_metric, self.state.best_global_step = metrics["eval_loss"], self.state.global_step
        return True


class AddsMetric:
    """Adds a metric to the evaluations of the run."""

    def _evaluate(self, trial, ignore_keys_for_eval, skip_scheduler=False):
        metrics = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
        return {**metrics, "eval_step": float(-self.state.global_step)}


class HalvesNorm:
    """Clips to another norm, and logs it."""

    def _clip_grad_norm(self, model):
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05) / 2


class CountsRows:
    """Averages losses over the rows of a step."""

    def _get_num_items_in_batch(self, batch_samples, device):
        return torch.tensor(sum(len(batch["labels"]) for batch in batch_samples))


class SkipsBatches:
    """Uses every second batch."""

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        next(epoch_iterator, None)
        return batches, items


class ZerosInputs:
    """Blanks the first token in `_prepare_input`, which sees dicts and tensors."""

    def _prepare_input(self, data):
        data = super()._prepare_input(data)
        if isinstance(data, dict) and "input_ids" in data:
            data["input_ids"] = data["input_ids"].index_fill(1, torch.tensor([0]), 0)
        return data


class HalfLoss:
    """Computes the loss in bfloat16."""

    def autocast_smart_context_manager(self, cache_enabled=True):
        return torch.autocast("cpu", dtype=torch.bfloat16)


class LogsRate:
    """Logs another learning rate."""

    def _get_learning_rate(self):
        return 2 * super()._get_learning_rate()


class Smaller:
    """Makes the loaders of training smaller."""

    def _get_dataloader(self, dataset, description, batch_size, *args, **options):
        size = 2 if description == "Training" else batch_size
        return super()._get_dataloader(dataset, description, size, *args, **options)


class Wrapped:
    """Counts the calls of the wrapped model."""

    def _wrap_model(self, model, training=True, dataloader=None):
        model = super()._wrap_model(model, training, dataloader)
        self.wrapped = getattr(self, "wrapped", 0) + 1
        return model


class NotesBatches:
    """Notes how many batches each step asks for, and reads them without a default for the end."""

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        vars(self).setdefault("asked", []).append(num_batches)
        batches = [next(epoch_iterator) for _ in range(num_batches)]
        return batches, self._get_num_items_in_batch(batches, device)


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_steps_ask_an_override_for_as_many_batches_as_in_transformers(tmp_path: Path, accumulate: int) -> None:
    length = {"max_steps": -1, "num_train_epochs": 2, "gradient_accumulation_steps": accumulate}
    theirs, ours = of_both(tmp_path, NotesBatches, save_steps=3, eval_steps=3, **length)
    assert ours.asked == theirs.asked
    assert sum(ours.asked) == 2 * 6
    assert same_weights(weights(theirs.model), weights(ours.model))


def test_a_resume_inside_of_an_epoch_asks_an_override_for_the_remaining_batches(tmp_path: Path) -> None:
    def resume(trainer: Any) -> None:
        trainer.train()
        trainer.asked.clear()
        trainer.train(resume_from_checkpoint=str(Path(trainer.args.output_dir) / "checkpoint-1"))

    length = {"max_steps": -1, "num_train_epochs": 2, "gradient_accumulation_steps": 4}
    every = {"save_steps": 1, "eval_steps": 1, "load_best_model_at_end": False}
    theirs, ours = of_both(tmp_path, NotesBatches, resume, **length, **every)
    assert ours.asked == theirs.asked == [2, 4, 2]


class NotesCalls:
    """Notes who calls `save_model`, and what `evaluation_loop` receives."""

    def save_model(self, output_dir=None, _internal_call=False):
        vars(self).setdefault("noted", []).append(("save", _internal_call))
        super().save_model(output_dir, _internal_call)

    def evaluation_loop(self, dataloader, description, prediction_loss_only=None, *rest, **options):
        vars(self).setdefault("noted", []).append((description, prediction_loss_only))
        return super().evaluation_loop(dataloader, description, prediction_loss_only, *rest, **options)


@pytest.mark.parametrize("loss_only", [False, True])
@pytest.mark.parametrize("metrics", [None, lambda prediction: {"rows": len(prediction.label_ids)}])
def test_overrides_receive_the_arguments_of_transformers(tmp_path: Path, metrics: Any, loss_only: bool) -> None:
    def use(trainer: Any) -> None:
        trainer.compute_metrics = metrics
        trainer.train()
        trainer.save_model(str(Path(trainer.args.output_dir) / "own"))
        trainer.predict(sentences(5, seed=2))
        loop = trainer.evaluation_loop(trainer.get_eval_dataloader(), "Asked", prediction_loss_only=False)
        trainer.noted.append(loop.predictions is None)

    theirs, ours = of_both(tmp_path, NotesCalls, use, prediction_loss_only=loss_only)
    assert ours.noted == theirs.noted
    assert {("save", True), ("save", False)} <= {*ours.noted[:-1]}
    assert ours.noted[-1] is False


def test_an_override_of_save_model_without_the_internal_parameter_works(tmp_path: Path) -> None:
    class Earlier(trainbus.Trainer):
        def save_model(self, output_dir=None):
            vars(self).setdefault("saved", []).append(Path(output_dir).name)
            super().save_model(output_dir)

    args = trainbus.TrainingArguments(str(tmp_path), **{**SETTINGS, "load_best_model_at_end": False})
    trainer = Earlier(bert(), args, train_dataset=sentences(22), eval_dataset=sentences(10, seed=1))
    trainer.train()
    assert len(trainer.saved) == 2


def test_an_override_that_wraps_another_model_is_refused(tmp_path: Path) -> None:
    class Outer(nn.Sequential):
        """A model around the model of the run."""

    class WrapsAnother(trainbus.Trainer):
        def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
            return super()._wrap_model(Outer(model), training, dataloader)

    args = trainbus.TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, report_to="none")
    trainer = WrapsAnother(Net(), args, train_dataset=net_samples())
    with pytest.raises(ModelError, match=r"received a Outer, but it wraps the model of the run, a Net"):
        trainer.train()


CHANGING = [KeepsLast, ChoosesFirst, AddsMetric, HalvesNorm, SkipsBatches, ZerosInputs, HalfLoss, LogsRate]


@pytest.mark.parametrize("mixin", [*CHANGING, CountsRows, Smaller, Wrapped])
def test_override_has_the_effect_that_it_has_in_transformers(tmp_path: Path, mixin: type) -> None:
    best = {"metric_for_best_model": "step", "greater_is_better": False} if mixin is AddsMetric else {}
    steps = {"max_steps": 3} if mixin is SkipsBatches else {}
    theirs, ours = of_both(tmp_path, mixin, **best, **steps)
    assert same_weights(weights(theirs.model), weights(ours.model))
    names = ("loss", "grad_norm", "learning_rate", "eval_loss")
    assert [[entry.get(name) for name in names] for entry in history(ours)] == [
        [entry.get(name) for name in names] for entry in history(theirs)
    ]
    for name in ("best_metric", "best_global_step", "global_step"):
        assert getattr(ours.state, name) == getattr(theirs.state, name)
    if mixin is KeepsLast:
        assert Path(ours.asked).name == Path(theirs.asked).name


class LoadsItself:
    """Loads the weights of checkpoints itself, and looks at what it is told."""

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        self.told = [Path(resume_from_checkpoint).name]
        state = torch.load(Path(resume_from_checkpoint) / "own.pt", weights_only=True)
        self.model.load_state_dict(state)

    def _load_optimizer_and_scheduler(self, checkpoint):
        self.told.append(Path(checkpoint).name)

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        torch.save({name: value * 0.5 for name, value in self.model.state_dict().items()}, Path(output_dir) / "own.pt")


def test_override_restores_weights_and_optimizer_in_its_own_way(tmp_path: Path) -> None:
    def resume(trainer: Any) -> None:
        trainer.train()
        trainer.train(resume_from_checkpoint=str(Path(trainer.args.output_dir) / "checkpoint-3"))

    class Recreated(LoadsItself):
        def create_optimizer(self, model=None):
            self.optimizer = None  # each training has its own
            return super().create_optimizer()

    theirs, ours = of_both(tmp_path, Recreated, resume, load_best_model_at_end=False)
    assert ours.told == theirs.told == ["checkpoint-3", "checkpoint-3"]
    assert same_weights(weights(theirs.model), weights(ours.model))


def test_checkpoint_can_be_written_on_request(tmp_path: Path) -> None:
    class Early(trainbus.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            if self.state.global_step == 2:
                self._save_checkpoint(model, trial=None)
            return super().training_step(model, inputs, num_items_in_batch)

    args = trainbus.TrainingArguments(str(tmp_path), **{**SETTINGS, "save_steps": 6, "load_best_model_at_end": False})
    Early(bert(), args, train_dataset=sentences(22), eval_dataset=sentences(10, seed=1)).train()
    assert {folder.name for folder in tmp_path.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-6"}
