"""The TensorBoard tracker: writes scalars, texts, images, histograms and hyperparameters to event files."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from ..callbacks.base.row_tracker import Opening, Outcome, RowTracker, TrackerSession
from ..callbacks.base.tracker import in_sections
from ..callbacks.base.tracker_rows import AXIS
from ..engine.arguments import TrainingArguments
from ..engine.run import Run

LAYOUT = {"trainbus": {"loss": ["Multiline", ["train/loss", "eval/loss"]]}}
"""The default layout of the page Custom Scalars: the losses of training and evaluation in one chart."""

HYPERPARAMETERS = ("learning_rate", "per_device_train_batch_size", "num_train_epochs", "weight_decay", "optim", "seed")
"""The arguments that the page HParams shows by default."""


class TensorBoardSession(TrackerSession):
    """An open writer of event files."""

    def __init__(self, writer: SummaryWriter, run_id: str) -> None:
        self.writer, self.run_id, self._step = writer, run_id, 0
        self._totals: dict[str, Any] = {}
        self._broken = False

    def write(self, row: dict[str, Any], step: int) -> None:
        self._mend()
        try:
            self._write(row, step)
        except OSError:
            self._broken = True
            raise

    def _mend(self) -> None:
        """Open another event file after an error: the thread of the earlier writer has ended."""
        if self._broken:
            _check_space(Path(self.writer.log_dir))
            self.writer = SummaryWriter(self.writer.log_dir)
            self._broken = False

    def _write(self, row: dict[str, Any], step: int) -> None:
        # The step comes last: a row that a kill cuts off has none, and is written again.
        for name, value in _leaves({name: row[name] for name in sorted(row, key=AXIS.__eq__)}):
            self._add(name, value, step)
        self._step = step
        self._write_totals()
        self.writer.flush()  # a killed run keeps its rows

    def _add(self, name: str, value: Any, step: int) -> None:
        try:
            _add(self.writer, name, value, step, self.logged_at)
        except (ArithmeticError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
            self.leave_out(name, value, str(error))

    def summarize(self, values: Mapping[str, Any]) -> None:
        self._totals.update(values)  # they come before the last row, and belong to its step

    def _write_totals(self) -> None:
        for name, value in self._totals.items():
            self._add(in_sections(name), value, self._step)
        self._totals.clear()

    def finish(self, outcome: Outcome) -> None:
        self._mend()
        self._write_totals()
        self.writer.close()


@dataclass
class TensorBoard(RowTracker):
    """Writes logged values to event files, on rank 0. A resumed run hides old values of the steps that it repeats.

    Set `report_to="tensorboard"` or `logging_dir`, or add `TensorBoard("runs/first")` to the callbacks. To see the
    values, run `tensorboard --logdir FOLDER`. By default, `FOLDER` is `<output_dir>/runs`. A number becomes a scalar,
    and a text stays a text. An array or tensor with one dimension becomes a histogram. An array or tensor with two or
    three dimensions becomes an image. When a new run begins, the callback also writes the arguments, the values for the
    page HParams, and the charts for the page Custom Scalars.
    """

    service: ClassVar[str] = "TensorBoard"

    folder: str | None = None
    """The folder of the event files. Default: `TENSORBOARD_LOGGING_DIR`, else `runs` in the output folder. Later runs
    in the same folder write to subfolders `run-2`, `run-3` and so on."""
    layout: Mapping[str, Any] | None = field(default=None, kw_only=True)
    """The charts of the page Custom Scalars, in the format of `SummaryWriter.add_custom_scalars`. Default: one chart
    with the losses of training and evaluation."""
    hparams: Mapping[str, Any] | None = field(default=None, kw_only=True)
    """The values on the page HParams. Default: the learning rate, the batch size and four other arguments."""
    metrics: tuple[str, ...] = field(default=("train/loss", "eval/loss"), kw_only=True)
    """The metrics that the page HParams compares."""
    _opened: tuple[str, Path] | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> TensorBoard:
        return cls(folder=args.logging_dir)

    @property
    def writer(self) -> SummaryWriter | None:
        """The open writer, to write other data than logged values, such as a graph; None if no writer is open."""
        return self._session.writer if isinstance(self._session, TensorBoardSession) else None

    def unfinished_run(self, run: Run) -> str | None:
        return run.run_id

    def saved_state(self) -> dict[str, Any]:
        return {"folder": str(self._opened[1])} if self._opened is not None else {}

    def connect(self, run: Run, opening: Opening) -> Callable[[], TrackerSession]:
        base = self.folder or os.environ.get("TENSORBOARD_LOGGING_DIR") or run.args.output_path / "runs"
        base = Path(base).expanduser() if "://" in str(base) else run.args.resolved(Path(base).expanduser())
        reopened = self._opened is not None and self._opened[0] == opening.run_id
        folder = self._opened[1] if reopened and self._opened else _folder(base, opening)
        self._opened = (opening.run_id, folder)
        described = "```json\n" + json.dumps(run.args.to_sanitized_dict(), indent=2, default=str) + "\n```"
        values = dict(_default_hparams(run.args) if self.hparams is None else self.hparams)

        def open_writer() -> TrackerSession:
            writer = SummaryWriter(str(folder), purge_step=opening.step + 1 if opening.resumes else None)
            session = TensorBoardSession(writer, opening.run_id)
            if opening.resumes:
                session.last_step, session.rows_of_last_step = last_step(folder, opening.step)
            elif not reopened:
                writer.add_text("arguments", described)
                writer.add_custom_scalars(dict(LAYOUT if self.layout is None else self.layout))
                for summary in hparams(values, dict.fromkeys(self.metrics, 0.0)):  # type: ignore[no-untyped-call]
                    writer._get_file_writer().add_summary(summary)  # type: ignore[no-untyped-call]
            writer.flush()
            return session

        return open_writer


def _folder(base: Path, opening: Opening) -> Path:
    """Choose the folder of a run: `base`, or a subfolder if another run already has event files in `base`.

    A resumed run gets the folder of its earlier session.
    """
    if opening.resumes and (known := opening.state.get("folder")) and Path(known).exists():
        return Path(known)
    last = base
    for folder in (base, *(base / f"run-{number}" for number in range(2, 10_000))):
        if not any(folder.glob("events.out.tfevents.*")):
            return last if opening.resumes else folder
        last = folder
    return last


def last_step(folder: Path, upto: int) -> tuple[int, int]:
    """Return the last step in the event files that is not above `upto`, and the number of its rows.

    If the files have no such step, return (-1, 0).
    """
    reader = logging.getLogger("tensorboard")  # it warns of the rows that a resumed run hides on purpose
    before = reader.level
    reader.setLevel(logging.ERROR)
    try:
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    finally:
        reader.setLevel(before)
    steps = [event.step for event in events.Scalars(AXIS)] if AXIS in events.Tags()["scalars"] else []
    last = max((step for step in steps if step <= upto), default=-1)
    return last, steps.count(last)


def _check_space(folder: Path) -> None:
    """Raise an error if the disk is full. Otherwise, TensorBoard would leave an empty file."""
    with tempfile.TemporaryFile(dir=folder if folder.is_dir() else None) as file:
        file.write(bytes(65536))
        file.flush()


def _default_hparams(args: TrainingArguments) -> dict[str, Any]:
    values = args.to_sanitized_dict()
    return {name: values[name] for name in HYPERPARAMETERS if values.get(name) is not None}


def _leaves(row: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in row.items():
        found += _leaves(value, f"{above}{name}/") if isinstance(value, Mapping) else [(f"{above}{name}", value)]
    return found


def _add(writer: SummaryWriter, name: str, value: Any, step: int, logged_at: float) -> None:
    """Write a value in the form that fits its type. Do nothing for None.

    Args:
        writer: the writer of the event file.
        name: the name of the value.
        value: the value.
        step: the optimizer step.
        logged_at: when the value was logged, in seconds since 1970.

    Raises:
        TypeError: if event files have no form for the value. torch raises other errors if it cannot convert the value.
    """
    if hasattr(value, "convert"):  # an image of PIL
        value = np.asarray(value.convert("RGB"))
    if isinstance(value, str):
        writer.add_text(name, value, step, walltime=logged_at)
    elif isinstance(value, (bool, int, float, np.number)):
        writer.add_scalar(name, value, step, walltime=logged_at)
    elif isinstance(value, (np.ndarray, torch.Tensor)):
        value = value.to_dense() if isinstance(value, torch.Tensor) and value.is_sparse else value
        if value.ndim == 0 or value.shape == (1,):
            writer.add_scalar(name, value.item(), step, walltime=logged_at)
        elif value.ndim == 1:
            writer.add_histogram(name, value, step, walltime=logged_at)
        elif value.ndim == 2:
            writer.add_image(name, value, step, walltime=logged_at, dataformats="HW")
        elif value.ndim == 3:
            layout = "CHW" if value.shape[0] in (1, 3) else "HWC"
            writer.add_image(name, value, step, walltime=logged_at, dataformats=layout)
        else:
            raise TypeError(f"images have 2 or 3 dimensions, not {value.ndim}")
    elif value is not None:
        raise TypeError("only numbers, texts, arrays, tensors and images are recorded")
