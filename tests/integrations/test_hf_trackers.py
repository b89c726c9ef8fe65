"""Trackers of transformers, unmodified, under both trainers: the files that they write have the same content.

Each runs once under `transformers.Trainer` and once here: a training with evaluations and checkpoints, then an
evaluation and a prediction. The reader of each service reads both.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.integrations import integration_utils

import trainbus
from support.data import points
from support.models import Regression
from support.pages import differences_text
from support.trainers import hushed

TIMES = ("runtime", "samples_per_second", "steps_per_second")
OTHER_VALUES = ("hub_token", "logging_nan_inf_filter", "project", "restore_callback_states_from_checkpoint")
"""Arguments with another value here, as docs/differences/ says."""

ONLY_THERE = ("activation_checkpointing", "activation_checkpointing_kwargs", "parallelism_config")
"""Keys of `to_dict()` that it does not have here, as docs/differences/ says."""


@dataclass
class Written:
    """The content of a run of a service."""

    rows: list[tuple[int, str, float]] = field(default_factory=list)
    """Step, name, value. Times are left out."""
    totals: dict[str, float] = field(default_factory=dict)
    """The values of the whole run."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The arguments and the configuration of the model."""
    marks: dict[str, Any] = field(default_factory=dict)
    """Names, states and axes."""


def is_time(name: str) -> bool:
    return name.endswith(TIMES)


def read_tensorboard(folder: Path) -> Written:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [place] = (folder / "out" / "runs").iterdir()
    events = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    tags = events.Tags()
    texts = {name: events.Tensors(name)[0].tensor_proto.string_val[0].decode() for name in tags["tensors"]}
    return Written(
        [(event.step, name, event.value) for name in tags["scalars"] for event in events.Scalars(name)],
        settings=json.loads(texts.pop("args/text_summary")),
        marks=texts,
    )


def read_wandb(folder: Path) -> Written:
    from wandb_files import segments

    [run] = segments(folder)
    rows = [
        (int(row.get("train/global_step", -1)), name, value)
        for row in run.rows
        for name, value in row.items()
        if not name.startswith("_")
    ]
    settings = {name: value for name, value in run.config.items() if name != "_wandb"}
    totals = {name: value for name, value in run.summary.items() if not name.startswith("_")}
    marks = {"axes": run.axes, "exit code": run.exit_code, "project": run.run.project, "name": run.run.display_name}
    marks["artifacts"] = [(each.type, sorted(each.aliases)) for each in run.artifacts]
    return Written(rows, totals, settings, marks)


def read_mlflow(folder: Path) -> Written:
    import mlflow

    client = mlflow.MlflowClient(f"file://{folder / 'mlruns'}")
    # The evaluation after the training reports to a run of its own.
    runs = client.search_runs(
        [each.experiment_id for each in client.search_experiments()], order_by=["attributes.start_time ASC"]
    )
    rows = [
        (point.step, name, point.value)
        for run in runs
        for name in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, name)
    ]
    marks = {"name": runs[0].info.run_name, "states": [run.info.status for run in runs]}
    return Written(rows, settings=dict(runs[0].data.params), marks=marks)


def read_codecarbon(folder: Path) -> Written:
    with (folder / "out" / "emissions.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert all(float(row["duration"]) > 0 for row in found)
    return Written(marks={"rows": len(found), "columns": list(found[0]), "project": found[0]["project_name"]})


@dataclass
class Case:
    """A tracker of transformers."""

    package: str
    """The package that it needs."""
    callback: str
    """The name of its class."""
    read: Callable[[Path], Written]
    """Folder -> the content of its run."""
    words: dict[str, str] = field(default_factory=dict)
    """Environment variables. `{folder}` is the folder of the run."""
    resets: Callable[[], Any] = lambda: None
    """Ends its client, before and after a run: a client may keep the settings of its first run in the process."""


def reset_wandb() -> None:
    import wandb

    wandb.finish()
    wandb.teardown()


CASES = {
    "TensorBoard": Case("tensorboard", "TensorBoardCallback", read_tensorboard),
    "wandb": Case(
        "wandb",
        "WandbCallback",
        read_wandb,
        {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": "{folder}", "WANDB_CONSOLE": "off"}
        | {"WANDB_LOG_MODEL": "checkpoint"},
        reset_wandb,
    ),
    "MLflow": Case(
        "mlflow",
        "MLflowCallback",
        read_mlflow,
        {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_TRACKING_URI": "file://{folder}/mlruns"},
    ),
    "CodeCarbon": Case(
        "codecarbon",
        "CodeCarbonCallback",
        read_codecarbon,
        {"CODECARBON_OFFLINE": "true", "CODECARBON_LOG_LEVEL": "error"},
    ),
}


def run_case(case: Case, library: Any, folder: Path) -> Written:
    """Train, evaluate and predict with a tracker, and read what it wrote."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch, hushed():
        patch.chdir(folder)
        for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_")) and "SERVICE" not in name]:
            patch.delenv(name)
        for name, value in case.words.items():
            patch.setenv(name, value.replace("{folder}", str(folder)))
        case.resets()
        args = library.TrainingArguments(
            "out",
            **{"per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 0.05, "logging_steps": 3},
            **{"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4},
            **{"run_name": "tried", "report_to": "none", "disable_tqdm": True, "use_cpu": True, "seed": 1},
        )
        trainer = library.Trainer(
            Regression(),
            args,
            train_dataset=points(21),
            eval_dataset=points(6, 1),
            callbacks=[getattr(integration_utils, case.callback)()],
        )
        trainer.train()
        if case.callback != "CodeCarbonCallback":
            trainer.evaluate()
            trainer.predict(points(6, 1))
        case.resets()
        return case.read(folder)


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Written, Written]:
    """What a tracker wrote under transformers, and here."""
    case = CASES[request.param]
    if importlib.util.find_spec(case.package) is None:
        pytest.skip(f"{case.package} is not installed")
    folder = tmp_path_factory.mktemp(case.package)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # packages of others may warn of their own code
        theirs, ours = (run_case(case, library, folder / library.__name__) for library in (transformers, trainbus))
    return theirs, ours


def test_the_rows_are_the_same(pair: tuple[Written, Written]) -> None:
    theirs, ours = (
        sorted((step, name, None if is_time(name) else value) for step, name, value in each.rows) for each in pair
    )
    assert ours == theirs


def test_the_values_of_the_whole_run_are_the_same(pair: tuple[Written, Written]) -> None:
    theirs, ours = ({name: None if is_time(name) else value for name, value in each.totals.items()} for each in pair)
    assert ours == theirs


def test_names_states_and_axes_are_the_same(pair: tuple[Written, Written]) -> None:
    theirs, ours = pair
    assert ours.marks == theirs.marks


def test_the_settings_are_the_same_but_for_documented_ones(pair: tuple[Written, Written]) -> None:
    theirs, ours = (each.settings for each in pair)
    assert {name for name in theirs if name not in ours} <= set(ONLY_THERE)
    differing = {name for name in theirs.keys() & ours.keys() if theirs[name] != ours[name]}
    assert differing <= set(OTHER_VALUES)


def test_the_differences_are_documented() -> None:
    page = differences_text()
    assert [name for name in (*OTHER_VALUES, *ONLY_THERE) if f"`{name}`" not in page] == []
