"""Hyperparameter search: with optuna against transformers' own, with stand-ins for ray and wandb."""

from __future__ import annotations

import enum
import json
import math
import os
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

import trainbus
from support.data import points, sentences
from support.models import Regression, bert
from support.outcomes import same_weights, weights
from support.processes import run_on_two
from support.trainers import both, regression_trainer
from trainbus import Callback, Checkpoint, EarlyStopping, Evaluate, Log, Trainer, TrainingArguments, every
from trainbus import integrations as module
from trainbus.engine.search import hyperparameters
from trainbus.engine.search.hyperparameters import (
    BestRun,
    argument_overrides,
    default_compute_objective,
    takes_trial,
    with_values,
)
from trainbus.events import ArgumentError, MissingExtra, TrainbusError, record

optuna = pytest.importorskip("optuna")


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)


def rates(trial):
    return {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)}


def rates_and_sizes(trial):
    return {**rates(trial), "per_device_train_batch_size": trial.suggest_categorical("size", [4, 8])}


def searcher(folder, **options):
    """A trainer for a search that takes 5 steps per epoch, 2 epochs, and evaluates after each."""
    options.setdefault("model_init", Regression)
    args = {"eval_strategy": "epoch", "use_cpu": True, "disable_tqdm": True, **options.pop("args", {})}
    return regression_trainer(folder, eval_dataset=points(8, seed=1), args=args, **options)


def search(built, space=rates, n_trials=2, seed=0, **options):
    return built.hyperparameter_search(
        space, n_trials=n_trials, backend="optuna", sampler=optuna.samplers.RandomSampler(seed=seed), **options
    )


# As transformers does it.


def error(prediction):
    return {"error": float(abs(prediction.predictions - prediction.label_ids).mean())}


@pytest.mark.parametrize(
    ("args", "options", "data"),
    [
        ({"eval_strategy": "steps", "eval_steps": 3}, {}, {"model_init": lambda: bert(), "rows": sentences}),
        ({}, {"direction": "maximize"}, {"compute_metrics": error}),
        ({"eval_strategy": "steps", "eval_steps": 1}, {"pruner": "median"}, {}),
        ({"eval_strategy": "epoch"}, {"direction": ["minimize", "maximize"]}, {"compute_metrics": error}),
    ],
    ids=["evaluated on the way", "evaluated in the end", "pruned", "several objectives"],
)
def test_every_trial_has_the_objective_that_transformers_gives_it_to_the_bit(
    tmp_path, monkeypatch, args, options, data
):
    monkeypatch.setattr("gc.collect", lambda *_: 0)  # transformers collects three times per trial, half a second each

    def do(run):
        seen, said = [], dict(options)
        if said.get("pruner"):
            said["pruner"] = optuna.pruners.MedianPruner(n_startup_trials=1)

        def objective(metrics):
            several = [metrics["eval_loss"], metrics.get("eval_error")]
            seen.append(several if isinstance(said.get("direction"), list) else default_compute_objective(metrics))
            return seen[-1]

        storage = optuna.storages.InMemoryStorage()
        best = run.hyperparameter_search(
            *(rates_and_sizes, objective),
            **{"n_trials": 4, "backend": "optuna", "sampler": optuna.samplers.TPESampler(seed=7)},
            **{"storage": storage, "study_name": "one", **said},
        )
        trials = optuna.load_study(study_name="one", storage=storage).trials
        return seen, best, [(each.number, each.state, each.values, each.params) for each in trials]

    given = {"num_train_epochs": 1, "save_strategy": "no", "logging_strategy": "no", **args}
    data = dict(data)
    rows = data.pop("rows", points)
    data = {"model_init": lambda: Regression(dropout=0.25), "train_dataset": rows(24), **data}
    (_, theirs), (_, ours) = both(tmp_path, given, do, lambda: None, eval_dataset=rows(16, seed=1), **data)
    assert ours[0] == theirs[0]
    assert ours[2] == theirs[2]
    assert len(ours[2]) == 4
    if isinstance(ours[1], list):
        assert [run[:3] for run in ours[1]] == [run[:3] for run in theirs[1]]
    else:
        assert ours[1][:3] == theirs[1][:3]
    if "pruner" in options:
        assert optuna.trial.TrialState.PRUNED in [state for _, state, *_ in ours[2]]


def accuracy(prediction):
    return {"accuracy": 0.5}


@pytest.mark.parametrize(
    ("options", "data", "warns"),
    [
        ({}, {"compute_metrics": accuracy}, True),
        ({"direction": "maximize"}, {"compute_metrics": accuracy}, False),
        ({"compute_objective": lambda metrics: metrics["eval_loss"]}, {"compute_metrics": accuracy}, False),
        ({}, {}, False),
    ],
    ids=["metrics", "maximize", "own objective", "loss"],
)
def test_a_search_that_minimizes_metrics_warns_once(tmp_path, caplog, options, data, warns):
    with caplog.at_level("WARNING", logger="trainbus"):
        search(searcher(tmp_path, **data), n_trials=2, **options)
    found = [message for message in caplog.messages if "pass `direction='maximize'`" in message]
    assert len(found) == int(warns)
    assert all("eval_accuracy" in message for message in found)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"space": {"learning_rate": [1e-3]}}, "`hp_space` is a dict, which is not callable"),
        ({"n_trials": "2"}, "n_trials='2' is not a number of trials"),
        ({"n_trials": 0}, "n_trials=0 is not a number of trials"),
    ],
)
def test_wrong_inputs_of_a_search(tmp_path, options, match):
    with pytest.raises(ArgumentError, match=match):
        search(searcher(tmp_path), **options)


FIRST = {"direction": ["minimize", "minimize"], "compute_objective": lambda metrics: 1.0}
WRONG_FUNCTIONS = [
    ({"hp_space": lambda trial: None}, r"`hp_space` returned None, which is not a dict\. Return"),
    ({"hp_space": lambda trial: [1]}, r"`hp_space` returned \[1\], which is not a dict"),
    ({"hp_space": lambda: {}}, r"`hp_space` has the parameters \(\), but it receives one value: the trial"),
    ({"compute_objective": lambda metrics: metrics["evl_loss"]}, "reads the metric 'evl_loss', .* mean 'eval_loss'"),
    ({"compute_objective": lambda metrics: None}, "`compute_objective` returned None. Return one number. The metrics"),
    ({"compute_objective": lambda metrics: (1, 2)}, r"returned \(1, 2\)\. Return one number"),
    (FIRST, r"returned 1\.0\. Return a list of 2 numbers"),
    ({"compute_objective": "eval_loss"}, "`compute_objective` is a str, which is not callable"),
    ({"hp_name": "one"}, "`hp_name` is a str, which is not callable"),
    ({"hp_name": lambda trial: None}, "`hp_name` returned None"),
    ({"direction": []}, "`direction` is an empty list"),
    ({"sampler": "tpe"}, r"`sampler` is 'tpe'.* such as optuna\.samplers\.TPESampler\("),
    ({"sampler": optuna.samplers.TPESampler}, r"`sampler` is the class TPESampler.* optuna\.samplers\.TPESampler\("),
    ({"pruner": "medianpruner"}, r"`pruner` is 'medianpruner'.* such as optuna\.pruners\.MedianPruner\("),
    ({"timeout": "1h"}, "`timeout` is '1h'. Pass a number of seconds"),
    ({"n_jobs": "2"}, "`n_jobs` is '2'. Pass a whole number"),
    ({"storage": 5}, "`storage` is 5. Pass the address of a database, such as 'sqlite:///study.db', or"),
    ({"storage": "study.db"}, "`storage` is 'study.db'. Pass the address of a database"),
    ({"storage": Path("study.db")}, r"`storage` is .*Path\('study.db'\)\. Pass the address of a database"),
    ({"study_name": 5}, "`study_name` is 5. Pass a text"),
    ({"catch": "RuntimeError"}, r"`catch` is 'RuntimeError'. Pass classes of errors, such as \(RuntimeError,\)"),
    ({"catch": (RuntimeError(),)}, "`catch` is .*Pass classes of errors"),
    ({"callbacks": 5}, "`callbacks` is 5. Pass a list of functions"),
    ({"callbacks": [5]}, r"`callbacks` is \[5\]. Pass a list of functions"),
    ({"load_if_exists": "no"}, "`load_if_exists` is 'no'. Pass True or False"),
    ({"show_progress_bar": "yes"}, "`show_progress_bar` is 'yes'. Pass True or False"),
]


@pytest.mark.parametrize(("options", "match"), WRONG_FUNCTIONS)
def test_wrong_functions_and_options_of_a_search_say_what_to_write(tmp_path, options, match):
    with pytest.raises(ArgumentError, match=match):
        searcher(tmp_path).hyperparameter_search(**{"hp_space": rates, "n_trials": 1, "backend": "optuna", **options})


def test_right_options_of_a_search_reach_optuna(tmp_path):
    ended = []
    options = {
        "storage": f"sqlite:///{tmp_path / 'study.db'}",
        "study_name": "tuning",
        "catch": RuntimeError,
        "callbacks": [lambda study, trial: ended.append(trial.number)],
        **{"load_if_exists": True, "gc_after_trial": True, "show_progress_bar": False, "timeout": 600.0, "n_jobs": 1},
    }
    for _ in range(2):
        search(searcher(tmp_path), n_trials=1, **options)
    assert ended == [0, 1]
    search(searcher(tmp_path), n_trials=1, storage=optuna.storages.InMemoryStorage(), catch=[RuntimeError])


def test_another_key_error_of_an_objective_stays(tmp_path):
    with pytest.raises(KeyError, match="3"):
        searcher(tmp_path).hyperparameter_search(rates, lambda metrics: {}[3], n_trials=1, backend="optuna")


def test_a_number_of_trials_of_numpy(tmp_path):
    assert search(searcher(tmp_path), n_trials=np.int64(1)).run_id == "0"


def test_the_default_spaces_are_those_of_transformers():
    from transformers import trainer_utils as theirs

    from trainbus.integrations.optuna import OptunaSearch

    asked = []
    for space in (OptunaSearch().default_space, theirs.default_hp_space_optuna):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))
        asked.append([(space(trial), trial.distributions) for trial in (study.ask(), study.ask())])
    assert asked[0] == asked[1]

    pytest.importorskip("wandb")
    from trainbus.integrations.wandb.sweep import WandbSweep

    assert WandbSweep().default_space(None) == theirs.default_hp_space_wandb(None)


@pytest.mark.parametrize(
    "metrics",
    [
        {"eval_loss": 0.5, "epoch": 2.0, "eval_runtime": 3.0, "eval_samples_per_second": 7.0},
        {"eval_loss": 0.5, "eval_accuracy": 0.75, "eval_f1": 0.5, "epoch": 2.0, "eval_steps_per_second": 7.0},
        {"eval_a_loss": 0.5, "eval_b_loss": 0.25, "eval_a_runtime": 3.0},
        {"epoch": 1.0},
    ],
)
def test_the_default_objective_is_that_of_transformers(metrics):
    from transformers.trainer_utils import default_compute_objective as theirs

    before = dict(metrics)
    assert default_compute_objective(metrics) == theirs(metrics)
    assert metrics == before


def test_the_default_objective_does_not_count_the_confidence_interval_of_the_loss():
    metrics = {"eval_loss": 0.5, "eval_loss_ci": 0.03, "eval_runtime": 3.0, "epoch": 2.0}
    assert default_compute_objective(metrics) == 0.5
    assert default_compute_objective({**metrics, "eval_f1": 0.25}) == 0.25


# One trial after the other.


def test_each_trial_has_its_own_folder_and_name(tmp_path):
    told = []
    built = searcher(tmp_path, args={"save_strategy": "epoch"})
    built.on("on_train_begin", lambda args, state: told.append((args.run_name, state.trial_name, state.trial_params)))
    best = search(built)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-0", "run-1"]
    assert (tmp_path / "run-1" / "checkpoint-10" / "model.safetensors").is_file()
    assert [name for name, *_ in told] == ["run-0", "run-1"]
    assert best.hyperparameters in [params for *_, params in told]
    state = json.loads((tmp_path / "run-0" / "checkpoint-10" / "trainer_state.json").read_text())
    assert state["is_hyper_param_search"] is True

    search(built, n_trials=1, hp_name=lambda trial: f"rate {trial.params['learning_rate']:.0e}")
    name = told[-1][0]
    assert name.startswith("rate ")
    assert told[-1][1] == name
    assert (tmp_path / name / "checkpoint-10").is_dir()


def test_trials_write_into_one_place_if_the_program_changes_its_working_folder(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    args = {"logging_dir": "logs", "report_to": "tensorboard", "save_strategy": "epoch", "logging_steps": 5}
    built = searcher("out", args=args)
    built.on("on_step_end", lambda: os.chdir(tmp_path / "elsewhere"))
    search(built)
    for folder in ("out", "logs"):
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == ["run-0", "run-1"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_trainer_itself_stays_as_it_was(tmp_path):
    built = searcher(tmp_path)
    before, args, attached = weights(built.model), built.args.to_dict(), list(built.callbacks)
    search(built)
    assert same_weights(weights(built.model), before)
    assert built.args.to_dict() == args
    assert list(built.callbacks) == attached
    assert built.state.log_history == []
    assert built.train().global_step == 10


def test_a_trial_equals_a_trainer_with_its_values(tmp_path):
    ends = []
    built = searcher(tmp_path / "search")
    built.on("on_train_end", lambda model: ends.append(weights(model)))
    best = search(built, lambda trial: {**rates(trial), "seed": trial.suggest_int("seed", 1, 40)}, n_trials=1)
    alone = searcher(tmp_path / "alone", args=best.hyperparameters)
    alone.train()
    assert same_weights(ends[0], weights(alone.model))
    assert best.objective == alone.evaluate()["eval_loss"]
    assert best.run_summary.best_trial.number == 0


def test_model_init_gets_the_trial_and_may_suggest_values(tmp_path):
    seen = []

    def model_init(trial):
        seen.append(trial)
        return Regression(dropout=trial.suggest_categorical("dropout", [0.25, 0.5]) if trial is not None else 0.0)

    built = searcher(tmp_path, model_init=model_init)
    drops = []
    built.on("on_train_begin", lambda model: drops.append(model.dropout.p))
    best = search(built)
    assert [getattr(trial, "number", None) for trial in seen] == [None, 0, 1]
    assert best.hyperparameters["dropout"] in (0.25, 0.5)
    assert [trial.params["dropout"] for trial in best.run_summary.trials] == drops


def one(trial):
    """Needs it."""


def maybe(trial=None):
    """Would take it."""


def other(dropout=0.1, seed=0):
    """Takes something else."""


@pytest.mark.parametrize(
    ("model_init", "expected"), [(one, True), (maybe, True), (other, False), (Regression, False), (lambda: None, False)]
)
def test_signatures_that_accept_a_trial(model_init, expected):
    assert takes_trial(model_init) is expected


def test_a_model_init_with_other_parameters_or_no_result_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="requires the parameters first, second"):
        searcher(tmp_path, model_init=lambda first, second: Regression())
    with pytest.raises(TrainbusError, match="returned None"):
        searcher(tmp_path, model_init=lambda: None)


class Doubling(Trainer):
    """A trainer with a constructor of its own, and a loss of its own."""

    def __init__(self, factor, folder):
        super().__init__(
            args=TrainingArguments(str(folder), max_steps=2, save_strategy="no", logging_strategy="no", use_cpu=True),
            model_init=Regression,
            train_dataset=points(20),
            eval_dataset=points(8, seed=1),
        )
        self.factor = factor
        self.losses = []

    def compute_loss(self, *args, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(*args, return_outputs=True, **kwargs)
        self.losses.append(self.factor)
        return (self.factor * loss, outputs) if return_outputs else self.factor * loss


def test_a_subclass_with_its_own_constructor_works(tmp_path):
    built = Doubling(2.0, tmp_path)
    search(built, n_trials=1)
    assert len(built.losses) == 3  # of two steps, and one batch of the evaluation
    assert set(built.losses) == {2.0}
    assert built.run.state.global_step == 0


class Counting(Callback):
    """Counts what it hears."""

    def __init__(self):
        self.began, self.closed, self.ended, self.failed = 0, 0, 0, []

    def on_train_begin(self):
        self.began += 1

    def on_close(self, run):
        self.closed += run.mode == "train"

    def on_exception(self, exception):
        self.failed.append(type(exception).__name__)

    def on_end(self):
        self.ended += 1


def test_callbacks_given_as_instances_serve_one_trial_after_the_other(tmp_path):
    counting, stopping = Counting(), EarlyStopping(patience=1, threshold=1e9)
    shared = [counting, stopping, Log(every(5)), Checkpoint(every(5)), Evaluate(every(2))]
    args = TrainingArguments(str(tmp_path), num_train_epochs=2, per_device_train_batch_size=4, use_cpu=True)
    data = {"train_dataset": points(20), "eval_dataset": points(8, seed=1)}
    built = Trainer(args=args, model_init=Regression, callbacks=shared, **data)
    steps = []
    built.on("on_train_end", lambda state: steps.append(state.global_step))
    search(built, n_trials=3)
    assert (counting.began, counting.closed, counting.ended) == (3, 3, 3)
    assert steps == [4, 4, 4]  # each stops after its second evaluation: none knows of another's best
    assert built.callbacks["Counting"] is counting


def test_a_tracker_given_as_an_instance_opens_a_run_for_each_trial_and_finishes_it(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    opened, sessions = [], [MagicMock(id="one"), MagicMock(id="two")]
    monkeypatch.setattr(wandb, "init", lambda **options: opened.append(options) or sessions[len(opened) - 1])
    search(searcher(tmp_path, callbacks=[trainbus.Wandb()]), pruner=PruneFirst())
    assert [options["name"] for options in opened] == ["run-0", "run-1"]
    assert len({options["id"] for options in opened} - {None}) == 2
    for session in sessions:
        session.finish.assert_called_once()


def test_trials_keep_added_callbacks_and_omit_removed_ones(tmp_path):
    built = searcher(tmp_path)
    counting, counted, gone = Counting(), [], []
    built.add_callback(counting)
    built.on("on_step_end", lambda state: counted.append(state.global_step), every=4)
    built.on("on_step_end", lambda: gone.append(1))()
    built.remove_callback("StopAtMaxSteps")
    asked = []
    built.on("on_train_begin", lambda run: asked.append("StopAtMaxSteps" in run.bus.subscribers), once=1)
    search(built)
    assert counting.began == 2
    assert counted == [4, 8, 4, 8]
    assert gone == []
    assert asked == [False, False]


def test_values_set_on_the_trainer_later_count(tmp_path):
    built = searcher(tmp_path)
    built.compute_metrics = lambda prediction: {"constant": 3.0}
    built.args.max_steps = 1
    rows = built.train_dataset = points(4, seed=9)
    seen = []
    built.on("on_train_begin", lambda run: seen.append((run.state.max_steps, run.train_dataloader.dataset is rows)))
    assert search(built, n_trials=1).objective == 3.0
    assert seen == [(1, True)]


# Several processes.


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
def test_two_processes_train_the_same_trials_and_agree_on_the_best(tmp_path):
    run_on_two(Path(__file__).with_name("search_program.py"), tmp_path, timeout=200)
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert first["begun"] == ["run-0", "run-1", "run-2"]
    assert first["ended"] == ["run-1", "run-2"]  # the first is pruned, on both
    assert first["best"][0] in ("1", "2")
    assert first["best"][2].keys() == {"learning_rate", "dropout"}
    assert first["no study"], "no rank waits for a study that rank 0 cannot create"
    assert first["best"][1] > 0
    assert "did you mean 'learning_rate'" in first["refused"]


# Pruning and failing.


class PruneFirst(optuna.pruners.BasePruner):
    """Gives up the first trials at their first report."""

    def __init__(self, trials=1):
        self.trials = trials

    def prune(self, study, trial):
        return trial.number < self.trials


def test_a_pruned_trial_closes_and_the_study_continues(tmp_path):
    counting = Counting()
    built = searcher(tmp_path, callbacks=[counting])
    traces = []
    built.on("on_evaluate_end", lambda run: traces.append(run.state.global_step))
    best = search(built, n_trials=3, pruner=PruneFirst(2))
    states = [trial.state.name for trial in best.run_summary.trials]
    assert states == ["PRUNED", "PRUNED", "COMPLETE"]
    assert best.run_id == "2"
    assert traces == [5, 5, 5, 10]
    assert (counting.began, counting.closed, counting.ended) == (3, 3, 3)
    assert counting.failed == ["TrialPruned", "TrialPruned"]
    assert [trial.intermediate_values.keys() for trial in best.run_summary.trials] == [{5}, {5}, {5, 10}]


def test_search_without_completed_trial_lists_the_trial_states(tmp_path):
    with pytest.raises(TrainbusError, match=r"no best trial, because no trial completed \(0: pruned, 1: pruned\)"):
        search(searcher(tmp_path), n_trials=2, pruner=PruneFirst(2))


def failing(built, number, error):
    def fail(state, run):
        if run.args.run_name == f"run-{number}" and state.global_step == 3:
            raise error

    built.on("on_step_end", fail)
    return built


def test_a_failing_trial_is_named(tmp_path):
    counting = Counting()
    built = failing(searcher(tmp_path, callbacks=[counting]), 1, RuntimeError("as planned"))
    with pytest.raises(RuntimeError, match="as planned") as caught:
        search(built, n_trials=3)
    assert (counting.began, counting.closed, counting.ended) == (2, 2, 2)
    if sys.version_info >= (3, 11):
        assert any("trial 1 of the search, with {'learning_rate'" in line for line in caught.value.__notes__)


def test_optunas_catch_lets_the_study_continue(tmp_path):
    built = failing(searcher(tmp_path), 0, KeyError("as planned"))
    best = search(built, n_trials=2, catch=(KeyError,))
    assert [trial.state.name for trial in best.run_summary.trials] == ["FAIL", "COMPLETE"]


def test_an_evaluation_of_something_else_on_the_way_is_not_reported(tmp_path):
    built = searcher(tmp_path, args={"eval_strategy": "no"})
    built.on("on_step_end", lambda run: run.evaluate(eval_dataset=points(4, seed=2)), once=3)
    best = search(built, n_trials=1)
    assert best.run_summary.trials[0].intermediate_values == {}
    assert best.objective > 0


# The values.


def test_arguments_keep_their_values_except_those_of_the_trial():
    class Quantity(str, enum.Enum):
        MANY = "16"

    args = TrainingArguments("out", learning_rate=1e-3, eval_strategy="steps", logging_steps=7)
    made = with_values(args, {"per_device_train_batch_size": "16", "seed": 7.9, "weight_decay": 1, "logging_steps": 3})
    assert (made.per_device_train_batch_size, made.seed, made.weight_decay) == (16, 7, 1)
    assert made.given == {*args.given, "per_device_train_batch_size", "seed", "weight_decay"}
    assert made.eval_steps == 3  # which follows from `logging_steps`, and is made anew
    assert (made.output_dir, made.learning_rate, args.seed) == ("out", 1e-3, 42)
    import numpy as np

    assert type(with_values(args, {"max_steps": np.int64(5)}).max_steps) is int


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"learning_rat": 0.1}, "`learning_rat` is not an argument; did you mean 'learning_rate'"),
        ({"learning_rate": "fast"}, "`learning_rate` is 'fast'"),
        ({"seed": float("nan")}, "`seed` is nan"),
        ({"gradient_accumulation_steps": 0}, "`gradient_accumulation_steps` is 0"),
        ({"lr_scheduler_type": "linaer"}, "did you mean 'linear'"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_and_the_trial_named(tmp_path, values, says):
    with pytest.raises(ArgumentError, match="hyperparameters of run-0 cannot be used") as caught:
        search(searcher(tmp_path), lambda trial: values)
    assert says in str(caught.value)


def test_names_that_are_no_arguments_are_left_to_a_model_init_that_takes_the_trial(tmp_path, caplog):
    built = searcher(tmp_path, model_init=lambda trial: Regression())
    search(built, lambda trial: {"layers_of_the_net": 3, "max_step": 1}, n_trials=1)
    assert "'max_step' is left to `model_init`; did you mean 'max_steps'?" in caplog.text
    assert "layers_of_the_net" not in caplog.text


# What is asked for.


def test_invalid_searches_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="Pass `model_init`"):
        search(regression_trainer(tmp_path))
    built = searcher(tmp_path)
    with pytest.raises(ArgumentError, match="did you mean 'optuna'"):
        built.hyperparameter_search(backend="optun")
    with pytest.raises(ArgumentError, match="did you mean 'minimize'"):
        search(built, direction="minimise")
    with pytest.raises(ArgumentError, match="did you mean 'maximize'"):
        search(built, direction=["minimize", "maximise"])
    with pytest.raises(ArgumentError, match="Set it to 1 or more"):
        search(built, n_trials=0)
    with pytest.raises(ArgumentError, match=r"'samplr'; did you mean 'sampler'"):
        built.hyperparameter_search(backend="optuna", samplr=None)


def test_a_missing_backend_is_an_error_that_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "trainbus.integrations.optuna", raising=False)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"pip install 'trainbus\[optuna\]'"):
        searcher(tmp_path).hyperparameter_search(backend="optuna")


def test_without_a_name_the_first_that_is_installed_is_taken(monkeypatch):
    from transformers.trainer_utils import HPSearchBackend

    from trainbus.integrations.optuna import OptunaSearch

    assert isinstance(module.search_backend(None), OptunaSearch)
    assert isinstance(module.search_backend(HPSearchBackend.OPTUNA), OptunaSearch)
    monkeypatch.setattr(module, "find_spec", lambda package: None)
    with pytest.raises(MissingExtra, match=r"trainbus\[optuna\].*trainbus\[ray\].*trainbus\[wandb\]"):
        module.search_backend(None)
    monkeypatch.setattr(module, "find_spec", lambda package: package == "wandb" or None)
    monkeypatch.setattr(module, "load", lambda entry: lambda: entry)
    assert module.search_backend(None) == "wandb_search"


def test_the_reporter_of_a_search_of_ones_own(tmp_path):
    reported = []
    reporter = trainbus.ReportToTrial(lambda *said: reported.append(said), name="mine", params={"x": 1})
    built = searcher(tmp_path, callbacks=[reporter])
    with record(built.bus) as trace:
        built.train()
    assert [(step, objective == metrics["eval_loss"]) for objective, step, metrics in reported] == [
        (5, True),
        (10, True),
    ]
    assert reporter.objective == reported[-1][0]
    assert (built.state.trial_name, built.state.trial_params) == ("mine", {"x": 1})
    assert trace.events.count("on_evaluate_end") == 2
    built.evaluate()
    assert len(reported) == 2  # an evaluation after the training is not the trial's


# ray and wandb, by stand-ins that call back as they do.


class RayTune:
    """As much of Ray Tune as a search needs: each trial of a grid, one after the other, here."""

    def __init__(self):
        self.reports, self.asked = {}, {}
        self.trial = None
        tune = ModuleType("ray.tune")
        for name in ("CLIReporter", "loguniform", "uniform", "choice"):
            setattr(tune, name, lambda *args, name=name, **kwargs: (name, args, kwargs))
        tune.with_parameters = lambda function, **given: lambda config: function(config, **given)
        tune.report = lambda metrics: self.reports.setdefault(self.trial, []).append(metrics)
        tune.get_context = lambda: SimpleNamespace(get_trial_id=lambda: self.trial)
        tune.run = self.run
        self.package = ModuleType("ray")
        self.package.tune = tune

    def run(self, trainable, config, num_samples, **options):
        self.asked = options
        trials = []
        for number in range(num_samples):
            self.trial = f"abc_{number}"
            values = {name: options[number] for name, options in config.items()}
            trainable(values)
            last = self.reports[self.trial][-1]
            trials.append(SimpleNamespace(trial_id=self.trial, last_result=last, config=values))
        return SimpleNamespace(get_best_trial=lambda **how: self.best(trials, **how))

    def best(self, trials, metric, mode, scope, filter_nan_and_inf=True):
        if len(trials) == 1:  # as Ray, which does not look at the objective then
            return trials[0]
        assert scope == "last"
        judged = [each for each in trials if not filter_nan_and_inf or math.isfinite(each.last_result[metric])]
        return {"min": min, "max": max}[mode](judged, key=lambda trial: trial.last_result[metric], default=None)


@pytest.fixture
def tune(monkeypatch):
    stand_in = RayTune()
    monkeypatch.setitem(sys.modules, "ray", stand_in.package)
    monkeypatch.setitem(sys.modules, "ray.tune", stand_in.package.tune)
    monkeypatch.delitem(sys.modules, "trainbus.integrations.ray", raising=False)
    yield stand_in
    sys.modules.pop("trainbus.integrations.ray", None)


def test_ray_trains_each_trial_and_receives_each_evaluation(tmp_path, tune, monkeypatch):
    monkeypatch.chdir(tmp_path)
    built = searcher("out", model_init=lambda trial: Regression(), args={"save_strategy": "epoch"})
    space = {"learning_rate": [1e-5, 0.05], "seed": [3.7, 4.2], "depth": [1, 2]}
    best = built.hyperparameter_search(lambda trial: space, n_trials=2, backend="ray", verbose=0)
    assert best.run_id == "abc_1"
    assert best.hyperparameters == {"learning_rate": 0.05, "seed": 4, "depth": 2}
    for name, value in best.hyperparameters.items():
        if name != "depth":
            setattr(built.args, name, value)
    assert best.objective == tune.reports["abc_1"][-1]["eval_loss"]
    assert [report["epoch"] for report in tune.reports["abc_0"]] == [1.0, 2.0]
    assert tune.asked["resources_per_trial"] == {"cpu": 1}
    assert tune.asked["verbose"] == 0
    assert (tmp_path / "out" / "run-abc_1" / "checkpoint-10").is_dir()
    with pytest.raises(ArgumentError, match="ray searches for one objective, not 2"):
        built.hyperparameter_search(backend="ray", direction=["minimize", "minimize"])


def test_ray_gets_the_result_of_a_trial_evaluated_only_at_the_end(tmp_path, tune):
    built = searcher(tmp_path, args={"eval_strategy": "no"})
    best = built.hyperparameter_search(
        lambda trial: {"learning_rate": [0.05, 1e-5]}, n_trials=2, direction="maximize", backend="ray"
    )
    assert best.run_id == "abc_1"
    assert tune.reports["abc_0"][0].keys() == {"objective"}


@pytest.mark.parametrize("value", [16.9, "16", np.int64(16), np.float64(16.0)], ids=lambda value: type(value).__name__)
def test_values_of_the_best_trial_can_be_assigned(tmp_path, tune, value):
    built = searcher(tmp_path)
    space = {"per_device_train_batch_size": [value], "learning_rate": [str(0.05)]}
    best = built.hyperparameter_search(lambda trial: space, n_trials=1, backend="ray")
    for name, chosen in best.hyperparameters.items():
        setattr(built.args, name, chosen)
    assert (built.args.per_device_train_batch_size, built.args.learning_rate) == (16, 0.05)


class Sweeps:
    """As much of wandb's sweeps as a search needs: the agent runs its function, and logs what fails."""

    def __init__(self, configs):
        self.configs, self.sweeps, self.sessions, self.asked = configs, [], [], None

    def sweep(self, config, **where):
        self.sweeps.append((config, where))
        return "sweep-1"

    def agent(self, sweep_id, function, count, **where):
        self.asked = (sweep_id, where)
        for config in self.configs[:count]:
            self.next = config
            try:
                function()
            except Exception:
                continue

    def init(self):
        session = Session(f"id{len(self.sessions)}", self.next)
        self.sessions.append(session)
        return session


class Session:
    """A run of wandb."""

    def __init__(self, id, config):
        self.id, self.config, self.logged, self.summary, self.finished = id, config, [], {}, None

    def log(self, values):
        self.logged.append(values)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.finished = "failed" if kind else "finished"


@pytest.fixture
def sweeps(monkeypatch):
    wandb = pytest.importorskip("wandb")
    stand_in = Sweeps([{"learning_rate": 1e-5}, {"learning_rate": 0.05}, {"learning_rate": 1e-3}])
    for name in ("sweep", "agent", "init"):
        monkeypatch.setattr(wandb, name, getattr(stand_in, name))
    return stand_in


def test_a_sweep_without_the_service_names_the_remedy(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")

    def refuse(*args, **options):
        raise wandb.errors.AuthenticationError("no key.")

    monkeypatch.setattr(wandb, "sweep", refuse)
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(TrainbusError, match=r"no key\. A sweep .* with WANDB_MODE=offline\. .* backend='optuna'"):
        searcher(tmp_path).hyperparameter_search(backend="wandb", n_trials=1)


def test_a_wandb_sweep_receives_the_logs_of_each_trial(tmp_path, sweeps):
    built = searcher(tmp_path, args={"report_to": "wandb"})
    best = built.hyperparameter_search(backend="wandb", n_trials=3, project="demo", name="try")
    config, where = sweeps.sweeps[0]
    assert config["metric"] == {"name": "objective", "goal": "minimize"}
    assert config["name"] == "try"
    assert where == {"project": "demo"}
    assert sweeps.asked == ("sweep-1", {"project": "demo"})
    assert (best.run_id, best.hyperparameters, best.run_summary) == ("id1", {"learning_rate": 0.05}, "sweep-1")
    heard = [values["eval/loss"] for values in sweeps.sessions[1].logged if "eval/loss" in values]
    assert heard[-1] == best.objective
    assert sweeps.sessions[1].summary == {"objective": best.objective}
    assert len(sweeps.sessions) == 3  # the tracker of `report_to` opens none beside them
    assert {session.finished for session in sweeps.sessions} == {"finished"}


@pytest.mark.parametrize(
    ("given", "option", "direction", "expected"),
    [
        (None, None, "maximize", {"name": "objective", "goal": "maximize"}),
        (None, "eval/loss", "minimize", {"name": "eval/loss", "goal": "minimize"}),
        ({"name": "eval/f1"}, None, "maximize", {"name": "eval/f1", "goal": "maximize"}),
        ({"name": "eval/f1", "goal": "maximize"}, None, "maximize", {"name": "eval/f1", "goal": "maximize"}),
        ({"name": "objective", "goal": "minimize"}, None, "maximize", {"name": "objective", "goal": "maximize"}),
        ({"name": "eval/f1", "target": 0.9}, None, "maximize", {"name": "eval/f1", "goal": "maximize", "target": 0.9}),
        ({"name": "eval/f1"}, "eval/loss", "minimize", {"name": "eval/loss", "goal": "minimize"}),
    ],
)
def test_a_sweep_optimizes_the_metric_of_the_space(tmp_path, sweeps, given, option, direction, expected):
    space = {"method": "bayes", "parameters": {"learning_rate": {"values": [0.1]}}}
    space |= {} if given is None else {"metric": given}
    options = {} if option is None else {"metric": option}
    before = json.dumps(space)
    built = searcher(tmp_path)
    built.hyperparameter_search(lambda trial: space, backend="wandb", n_trials=1, direction=direction, **options)
    assert sweeps.sweeps[0][0] == {**space, "metric": expected}
    assert json.dumps(space) == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "eval/f1", "goal": "maximize"}, "goal 'maximize', but `direction` is 'minimize'. Pass direction="),
        ("eval/f1", "The `metric` of the space is 'eval/f1', which is not a dict. Write {'name': "),
    ],
)
def test_a_metric_that_contradicts_the_search_is_refused(tmp_path, sweeps, given, message):
    space = {"method": "bayes", "parameters": {"learning_rate": {"values": [0.1]}}, "metric": given}
    with pytest.raises(ArgumentError, match=message):
        searcher(tmp_path).hyperparameter_search(lambda trial: space, backend="wandb", n_trials=1)


def test_search_joins_an_existing_sweep_and_reports_failures(tmp_path, sweeps):
    built = failing(searcher(tmp_path), "id1", RuntimeError("as planned"))
    best = built.hyperparameter_search(backend="wandb", n_trials=2, sweep_id="there", direction="maximize")
    assert sweeps.sweeps == []
    assert best == BestRun("id0", best.objective, {"learning_rate": 1e-5}, "there")
    assert [session.finished for session in sweeps.sessions] == ["finished", "failed"]
    with pytest.raises(ArgumentError, match="'projct'; did you mean 'project'"):
        built.hyperparameter_search(backend="wandb", projct="demo")
    sweeps.configs, sweeps.sessions = [{"learning_rat": 1.0}], []
    with pytest.raises(TrainbusError, match="no best trial, because no trial completed") as caught:
        built.hyperparameter_search(backend="wandb", n_trials=1)
    assert "did you mean 'learning_rate'" in str(caught.value.__cause__)


# Arguments that callbacks set.


@pytest.mark.parametrize(
    ("gives", "error", "text"),
    [
        ({"max_steps": 3}, None, ""),
        (ArgumentError("max_steps is taken"), ArgumentError, "max_steps is taken"),
        (KeyError("missing"), KeyError, "KeyError: 'missing'"),
        ({"max_steps": object()}, TypeError, "TypeError: Object of type object is not JSON serializable"),
    ],
)
def test_an_error_of_overrides_on_rank_0_reaches_the_other_ranks(tmp_path, gives, error, text):
    class Sets(Callback):
        def argument_overrides(self, args):
            if isinstance(gives, Exception):
                raise gives
            return gives

    args = TrainingArguments(str(tmp_path), use_cpu=True)
    store = torch.distributed.HashStore()
    store.set_timeout(timedelta(seconds=20))
    outcomes = []
    for rank in (0, 1):
        built = mock.patch.object(hyperparameters, "_BUILT", Counter())
        try:
            with built:
                outcomes.append(argument_overrides(args, [Sets()], SimpleNamespace(rank=rank, store=store)))
        except Exception as raised:
            outcomes.append(raised)
    if error is None:
        assert outcomes == [gives, gives]
    else:
        assert type(outcomes[0]) is error
        assert isinstance(outcomes[1], ArgumentError)
        assert text in str(outcomes[1])


@pytest.mark.parametrize("with_callback", [(True, False), (False, True), (False, False)])
def test_overrides_of_a_later_trainer_are_not_mixed_up(tmp_path, with_callback):
    """In the first trainer, only some ranks have the callback. In the second one, all ranks have it."""

    class Sets(Callback):
        def __init__(self, steps):
            self.steps = steps

        def argument_overrides(self, args):
            return {"max_steps": self.steps}

    args = TrainingArguments(str(tmp_path), use_cpu=True)
    store = torch.distributed.HashStore()
    store.set_timeout(timedelta(seconds=5))
    outcomes = []
    for rank in (0, 1):
        ranks = SimpleNamespace(rank=rank, store=store)
        with mock.patch.object(hyperparameters, "_BUILT", Counter()):
            first = argument_overrides(args, [Sets(1)] if with_callback[rank] else [], ranks)
            outcomes.append((first, argument_overrides(args, [Sets(2)], ranks)))
    assert outcomes[0] == ({"max_steps": 1} if with_callback[0] else {}, {"max_steps": 2})
    assert outcomes[1] == ({}, {"max_steps": 2})


# An objective that is NaN.


def in_turn(*objectives):
    """Return a function that gives the trials these objectives, one after the other."""
    left = iter(objectives)
    return lambda metrics: next(left)


def searching(folder, backend, objectives, direction):
    """Search with trials that have these objectives, and return the best run."""
    built = searcher(folder, args={"eval_strategy": "no"})
    spaces = {
        "optuna": rates,
        "ray": lambda trial: {"learning_rate": [0.05, 1e-5, 1e-3][: len(objectives)]},
        "wandb": lambda trial: {},
    }
    return built.hyperparameter_search(
        spaces[backend],
        compute_objective=in_turn(*objectives),
        n_trials=len(objectives),
        direction=direction,
        backend=backend,
    )


BACKENDS = ["optuna", "ray", "wandb"]


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize("objectives", [(math.nan, 0.5, 0.5), (0.5, math.nan, 0.5), (math.nan, math.nan, 0.5)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_trial_with_the_objective_nan_is_never_the_best(tmp_path, tune, sweeps, backend, objectives, direction):
    assert searching(tmp_path, backend, objectives, direction).objective == 0.5


@pytest.mark.parametrize("trials", [1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_search_without_an_objective_that_is_a_number_has_no_best_trial(tmp_path, tune, sweeps, backend, trials):
    with pytest.raises(TrainbusError, match=r"no best trial.* NaN"):
        searching(tmp_path, backend, [math.nan] * trials, "minimize")


@pytest.mark.parametrize("objective", [math.nan, math.inf])
@pytest.mark.parametrize("scope", ["last", "all", "avg"])
def test_a_single_trial_of_ray_is_the_best_only_with_a_finite_objective(tmp_path, tune, monkeypatch, scope, objective):
    monkeypatch.setenv("RAY_SCOPE", scope)
    with pytest.raises(TrainbusError, match=r"no best trial.* NaN"):
        searching(tmp_path, "ray", [objective], "minimize")
