"""One suite for every tracker: the same rows on the same axis, one run over restarts, and failures that stay apart."""

from __future__ import annotations

import importlib.util
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tracker_files as read
from torch import nn
from torch.utils.data import TensorDataset

import trainbus
from trainbus import Evaluate, Log, Trainer, TrainingArguments, every

ROOM = {
    **{"MLFLOW_ALLOW_FILE_STORE": "true", "COMET_LOGGING_CONSOLE": "ERROR"},
    **{"WANDB_SILENT": "true"},
}


@dataclass
class Case:
    """A tracker, and how to read what it wrote."""

    name: str
    """The class."""
    rows: Callable[[Path], list[read.Row]]
    """Output folder -> rows."""
    package: str = ""
    """The package that it needs."""
    options: dict[str, Any] = field(default_factory=dict)
    """The options of the callback."""
    slow: bool = False
    """Whether the package needs long to import or to close a run."""
    leaves_out: tuple[str, ...] = ()
    """The names in `UNUSUAL` that it does not record."""


UNUSUAL = {
    "text": "a text",
    "list": ["a", "b"],
    "array": np.ones((2, 3)),
    "film": np.ones((2, 3, 4, 5)),
    "object": object(),
    "nested": {"text": "a text", "number": 1.0},
    "large": 10**400,
    "nan": math.nan,
    "none": None,
    "surrogate": "\ud800",
}
"""Values that not every tracker records."""

NO_NUMBERS = ("text", "list", "array", "film", "object", "nested/text", "large", "surrogate")


CASES = [
    Case("JsonLines", read.jsonl, leaves_out=("array", "film", "object")),
    Case("Csv", read.table, leaves_out=("array", "film", "object")),
    Case("TensorBoard", read.tensorboard, "tensorboard", leaves_out=("list", "film", "object", "large", "surrogate")),
    Case("MLflow", read.mlflow, "mlflow", leaves_out=NO_NUMBERS),
    Case("Trackio", read.trackio, "trackio", {"project": "demo"}),
    Case("Wandb", read.wandb, "wandb", {"project": "demo", "mode": "offline"}),
    Case("Comet", read.comet, "comet_ml", {"project": "demo", "online": False}, slow=True, leaves_out=NO_NUMBERS),
    Case(
        "Neptune",
        read.neptune,
        "neptune",
        {"project": "team/demo", "mode": "offline"},
        slow=True,
        leaves_out=(*NO_NUMBERS, "nan"),
    ),
    Case("ClearML", read.clearml, "clearml", {"project": "demo", "offline": True}, slow=True, leaves_out=NO_NUMBERS),
    Case("SwanLab", read.swanlab, "swanlab", {"project": "demo", "mode": "offline"}, slow=True, leaves_out=NO_NUMBERS),
]


def installed(case: Case) -> None:
    if case.package and importlib.util.find_spec(case.package) is None:
        pytest.skip(f"{case.package} is not installed")


@pytest.fixture(
    scope="module",
    params=[pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else []) for case in CASES],
)
def case(request: pytest.FixtureRequest) -> Case:
    installed(request.param)
    return request.param


@pytest.fixture(scope="module")
def place(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder that is the working directory, and in which every service writes."""
    folder = tmp_path_factory.mktemp(case.name)
    with pytest.MonkeyPatch.context() as patch:
        enter_place(patch, folder)
        yield folder


def enter_place(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Change to a folder, and let every service write in it."""
    patch.chdir(folder)
    for name, value in ROOM.items():
        patch.setenv(name, value)
    for name, place in (("CLEARML_CACHE_DIR", ""), ("TRACKIO_DIR", "trackio"), ("COMET_OFFLINE_DIRECTORY", "")):
        patch.setenv(name, str(folder / place))
    patch.setenv("MLFLOW_TRACKING_URI", f"file://{folder / 'mlruns'}")
    patch.delenv("WANDB_MODE", raising=False)


@pytest.fixture(autouse=True)
def quiet(recwarn: pytest.WarningsRecorder) -> None:
    """Packages of others may warn of their own code."""
    import warnings

    warnings.simplefilter("ignore")


def build(case: Case, folder: Path, *callbacks: Any, **options: Any) -> Trainer:
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    given = {"max_steps": 8, "save_steps": 4, "use_cpu": True, "disable_tqdm": True, **options}
    tracker = getattr(trainbus, case.name)(**case.options)
    return Trainer(
        nn.Linear(4, 2),
        TrainingArguments(str(folder / "out"), **given),
        train_dataset=data,
        eval_dataset=data,
        criterion=nn.CrossEntropyLoss(),
        callbacks=[tracker, Log(every(2)), Evaluate(every(4)), *callbacks],
    )


@dataclass
class Ended:
    """How the sessions of a tracker were finished."""

    outcomes: list[Any] = field(default_factory=list)

    def watch(self, trainer: Trainer, case: Case) -> None:
        """Record the outcomes with which the sessions of this trainer finish."""
        tracker = trainer.callbacks[case.name]
        connect = tracker.connect

        def watched(run: Any, opening: Any) -> Callable[[], Any]:
            opens = connect(run, opening)

            def open_session() -> Any:
                session = opens()
                finish = session.finish

                def finished(outcome: Any) -> None:
                    finish(outcome)
                    self.outcomes.append(outcome)

                session.finish = finished
                return session

            return open_session

        tracker.connect = watched


def stop_with(error: BaseException, step: int) -> Callable[[Any], None]:
    def stop(state: Any) -> None:
        if state.global_step == step:
            raise error

    return stop


@pytest.fixture(scope="module")
def crashed(case: Case, place: Path) -> tuple[Trainer, Ended, list[read.Row]]:
    """A training that fails at step 7, and continues from the checkpoint of step 4 to step 8."""
    import warnings

    ended = Ended()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = build(case, place)
        ended.watch(first, case)
        first.on("on_step_end", stop_with(RuntimeError("as planned"), 7))
        with pytest.raises(RuntimeError, match="as planned"):
            first.train()
        resumed = build(case, place)
        ended.watch(resumed, case)
        resumed.train(resume_from_checkpoint=str(place / "out" / "checkpoint-4"))
        resumed.end()
    return resumed, ended, case.rows(place)


@pytest.fixture(scope="module")
def room(crashed: Any, place: Path) -> Path:
    """The folder, after `crashed` is read: what other tests write to a service goes to the same folder."""
    return place


def test_every_step_is_one_row_after_a_crash_and_a_resume(crashed: Any) -> None:
    trainer, _, read_back = crashed
    rows = read.by_step(read_back)
    assert {step: len(found) for step, found in rows.items()} == {2: 1, 4: 1, 6: 1, 8: 1}
    losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    assert {step: found[0]["train/loss"] for step, found in rows.items()} == pytest.approx(losses)
    measured = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    found = {step: found[0]["eval/loss"] for step, found in rows.items() if "eval/loss" in found[0]}
    assert found == pytest.approx(measured)
    assert found.keys() == {4, 8}


def test_a_session_finishes_after_an_error_and_at_the_end(case: Case, crashed: Any) -> None:
    _, ended, _ = crashed
    assert [outcome.exit_code for outcome in ended.outcomes] == [1, 0]
    assert "as planned" in ended.outcomes[0].error


def test_a_resumed_training_continues_the_run(case: Case, crashed: Any) -> None:
    trainer, _, _ = crashed
    saved = trainer.callbacks[case.name].state_dict()
    assert saved["resumes"] == 1
    assert saved["run_id"]


@pytest.fixture(scope="module")
def resumed_twice(case: Case, tmp_path_factory: pytest.TempPathFactory) -> list[read.Row]:
    """The rows of one trainer that trains and resumes twice, without `trainer.end()` in between."""
    import warnings

    folder = tmp_path_factory.mktemp(f"{case.name}-again")
    if case.name == "Trackio":  # it chooses its folder once in a process
        case = replace(case, options={"project": "again"}, rows=partial(read.trackio, project="again"))
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        enter_place(patch, folder)
        trainer = build(case, folder)
        trainer.train()
        for name in ("checkpoint-4", "checkpoint-8"):
            trainer.train(resume_from_checkpoint=str(folder / "out" / name))
        trainer.end()
        return case.rows(folder)


def test_a_resume_in_the_same_process_writes_no_row_twice(resumed_twice: list[read.Row]) -> None:
    rows = read.by_step(resumed_twice)
    assert {step: len(found) for step, found in rows.items()} == {2: 1, 4: 1, 6: 1, 8: 1}
    assert {step for step, found in rows.items() if "eval/loss" in found[0]} == {4, 8}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)], ids=["ctrl-c", "signal"])
def test_a_session_finishes_after_a_signal(case: Case, room: Path, error: BaseException) -> None:
    trainer, ended = build(case, room / type(error).__name__), Ended()
    ended.watch(trainer, case)
    trainer.on("on_step_end", stop_with(error, 2))
    with pytest.raises(type(error)):
        trainer.train()
    [outcome] = ended.outcomes
    assert outcome.exit_code == (255 if isinstance(error, KeyboardInterrupt) else 143)


def test_a_failing_service_gives_one_warning_and_a_count_at_the_end(
    case: Case, room: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = build(case, room / "failing")
    tracker = trainer.callbacks[case.name]
    connect = tracker.connect

    def failing(run: Any, opening: Any) -> Callable[[], Any]:
        opens = connect(run, opening)

        def open_session() -> Any:
            session = opens()

            def write(row: dict[str, Any], step: int) -> None:
                raise ConnectionError("the service is down")

            session.write = write
            return session

        return open_session

    tracker.connect = failing
    with caplog.at_level(logging.WARNING, "trainbus"):
        trainer.train()
        trainer.end()
    assert trainer.state.global_step == 8
    said = [record.getMessage() for record in caplog.records if "the service is down" in record.getMessage()]
    assert len(said) == 2
    assert "the training continues" in said[0]
    assert f"{tracker.service} did not receive 4 rows" in said[1]


def test_a_run_that_does_not_open_leaves_the_weights_as_they_are(case: Case, room: Path) -> None:
    trainer, plain = build(case, room / "closed"), build(CASES[0], room / "plain")
    trainer.callbacks[case.name].connect = lambda run, opening: lambda: (_ for _ in ()).throw(OSError("no route"))
    trainer.train()
    plain.train()
    assert all(torch.equal(a, b) for a, b in zip(trainer.model.parameters(), plain.model.parameters(), strict=True))


def test_a_value_that_is_not_recorded_gives_one_warning_with_its_name(
    case: Case, room: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The other values of the row are recorded."""
    trainer = build(case, room / "unusual")
    trainer.on("on_step_end", lambda run: run.log(dict(UNUSUAL)))
    connect, written = trainer.callbacks[case.name].connect, []

    def watched(run: Any, opening: Any) -> Callable[[], Any]:
        def open_session() -> Any:
            session = connect(run, opening)()
            write = session.write

            def noted(row: dict[str, Any], step: int) -> None:
                write(row, step)
                written.append(step)

            session.write = noted
            return session

        return open_session

    trainer.callbacks[case.name].connect = watched
    with caplog.at_level(logging.WARNING, "trainbus"):
        trainer.train()
        trainer.end()
    said = [record.getMessage() for record in caplog.records if "does not record" in record.getMessage()]
    named = [re.search(r"does not record 'train/(.*?)', a value of the type", text) for text in said]
    assert sorted(found[1] for found in named if found) == sorted(case.leaves_out)
    assert len(named) == len(case.leaves_out)
    assert all(text.startswith(f"{trainer.callbacks[case.name].service} does") for text in said)
    assert "did not receive" not in caplog.text
    assert set(written) == set(range(1, 9))
