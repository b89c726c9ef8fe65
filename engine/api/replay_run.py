"""The run of a replay: it has the values of a recorded run, and no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from ...events.activity import Activity
from ...events.bus import EventBus
from ...events.callback import Callback
from ...events.capabilities import Capability
from ...events.catalog import Clock
from ...events.control import TrainerControl
from ...events.errors import TrainbusError
from ...events.recording.files import number
from ...events.recording.recorder import Record
from ...events.state import TrainerState
from ..arguments import TrainingArguments
from ..checkpoint.format.files import CheckpointRecord, folder_name
from .preview.virtual import VirtualRanks


class ReplayError(TrainbusError):
    """A replayed callback uses something that only a live run has."""


class Absent:
    """A placeholder for a value that a recording does not have.

    Reading an attribute of the placeholder, calling it or computing with it raises a `ReplayError`.
    """

    def __init__(self, name: str) -> None:
        """Create the object for the missing parameter or attribute `name`. The error shows this name."""
        object.__setattr__(self, "_name", name)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        name = object.__getattribute__(self, "_name")
        raise ReplayError(
            f"A replay has no {name!r}: a recording holds events, flags, logs, metrics and the state. Test the "
            "callback with a short training instead."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self._refuse()

    __setattr__ = __call__ = __iter__ = __len__ = __getitem__ = __setitem__ = __bool__ = __float__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __int__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __contains__ = __enter__ = _refuse
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<no {object.__getattribute__(self, '_name')} in a replay>"


class RecordedEvaluations(Callback):
    """A callback without handlers, in place of the callback that evaluated in a recorded run.

    Some callbacks require that another callback evaluates.
    """

    capabilities = frozenset({Capability.EVALUATES, Capability.PLANS_EVALUATIONS})


class ReplayBus(EventBus):
    """The bus of a replay.

    If the recorded run evaluated, the attribute `subscribers` also has the callback `evaluations`. A replayed callback
    that needs evaluations, such as `EarlyStopping`, then finds a callback that evaluates.
    """

    evaluations: Callback | None = None
    """A `RecordedEvaluations`; None if the recorded run did not evaluate."""

    @property
    def subscribers(self) -> dict[str, Any]:
        found = super().subscribers
        return found if self.evaluations is None else {"recorded evaluations": self.evaluations, **found}


class ReplayServices:
    """The object `run.services` of a replay.

    A service that is not a method of this class is an `Absent` object. A use of this object raises a `ReplayError`.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Absent(name)

    def rehearse_evaluation(self) -> tuple[str, ...] | None:
        """Return None: a recording does not say which metrics an evaluation measures."""
        return None

    def check_evaluation(self, eval_dataset: Any = None) -> None:
        """Do nothing: the recorded run checked its datasets."""

    def at(self, moment: str, work: Callable[[], Any], *arguments: Any) -> Any:
        """Call `work`, which does the work of the Trainer method named `moment`. Return the result of `work`.

        If `moment` is `_load_best_model`, do nothing and return None, because a replay has no model.
        """
        return None if moment == "_load_best_model" else work()


@dataclass
class ReplaySession:
    """The object `run.session` of a replay.

    It has the attributes `resume_requested` and `first_step`. Every other attribute is an `Absent` object.
    """

    resume_requested: bool = False
    """Whether the caller of the recorded session asked to resume. In a recording without this value: whether the
    session began after step 0."""
    first_step: int = 0
    """The number of steps that were done before the session."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Absent(name)


class ReplayRun:
    """The run that handlers read in a replay.

    It has values of the recording, such as `state`. An attribute that it does not have is an `Absent` object.
    """

    def __init__(self, head: dict[str, Any], folder: Path) -> None:
        """Create the run as it is before its first session.

        Args:
            head: the first record of the first session of a recording: arguments, rank and world size.
            folder: the folder of the recording.
        """
        self._folder = folder
        self._use_settings(head)
        self.state = TrainerState(**{name: head["state"][name] for name in _BEFORE_SESSIONS if name in head["state"]})
        self.control = TrainerControl(head["rank"])
        self.bus = ReplayBus(self, self.control)
        self.services, self.session = ReplayServices(), ReplaySession()
        self.evaluates_all = False  # a recording does not say whether an evaluation has all datasets
        self.evaluation_decides = True
        self.activity = Activity()
        self.mode, self.run_id = "train", head["run"]
        self.logs: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        self.requested_by: frozenset[str] = frozenset()
        self.loss: Any = None
        self.grad_norm: Any = None
        self.learning_rate: float | None = None
        self.dataset_name, self.saved_step = "", 0
        self.prediction, self.eval_dataloader, self.processing_class, self.tokenizer = None, None, None, None
        self.exception: BaseException | None = None
        self.checkpoint: Any = None
        self.run = self
        self._measured, self._now, self._before = -1, 0.0, 0.0
        self._epoch = 1

    def _use_settings(self, head: dict[str, Any]) -> None:
        """Set arguments and ranks, which may differ between the sessions of a recording."""
        self.args = _arguments({**head["args"], "output_dir": str((self._folder / "replay").resolve())})
        self.ranks = VirtualRanks(head["rank"], head["ranks"], 0)

    def clock(self) -> float:
        """Return the recorded seconds since the start of the first session, without the time between sessions."""
        return self._before + self._now

    def seconds(self) -> float:
        """Return the training time in seconds: the result of the method `clock`."""
        return self.clock()

    def announce(self, event: str, **values: Any) -> None:
        """Do nothing: the recording already has the events that the run announced."""

    def begin_session(self, head: dict[str, Any]) -> None:
        """Begin a session of the recording. The times in the records of a session count from its start.

        Args:
            head: the first record of the session.
        """
        step = head["step"]
        self._before, self._now = self._before + self._now, 0.0
        self._use_settings(head)
        before, self.state = self.state, TrainerState.from_dict(head["state"])
        # The first record of a session leaves these values out. Earlier records have them.
        self.state.log_history = [log for log in before.log_history if log["step"] <= step]
        self.state.best_model_checkpoint = before.best_model_checkpoint
        self.control.speaking.step = step
        self.session = ReplaySession(resume_requested=head.get("resumes", step > 0), first_step=step)

    def metrics_at(self, step: int) -> dict[str, Any]:
        """Return the metrics of the last evaluation, if it was at this step; otherwise {}."""
        return dict(self.metrics) if step == self._measured else {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Absent(name)

    def count(self, clock: Clock, calls: int) -> int:
        """Return the current step or epoch of the replay, as `clock` selects. For `Clock.CALLS`, return `calls`."""
        step = self.state.global_step
        return {Clock.STEP: step + 1, Clock.STEPS_DONE: step, Clock.EPOCH: self._epoch}.get(clock, calls)

    def follow(self, record: Record) -> None:
        """Set the values of the run to the values of the next record of the recording."""
        state = self.state
        self._now = record.get("t", self._now)
        for name, value in record.get("state", {}).items():
            if name == "best_model_checkpoint" and value is not None:
                value = str(self._folder / value)
            setattr(state, name, number(value))
        if record.get("e") == "on_epoch_begin":
            self._epoch = int(state.epoch) + 1  # at the end of the epoch, `state.epoch` is this number
        if record.get("e") == "on_step_end":
            state.global_step = self.control.speaking.step = record["s"]
            self.learning_rate = record.get("lr")
        elif record.get("e") == "on_evaluate_begin":
            self.metrics, self.dataset_name = {}, ""
        if "norm" in record:
            self.grad_norm = _scalar(record["norm"])
        if "loss" in record:
            self.loss = _scalar(record["loss"])
        if "logs" in record:
            self.logs = {name: number(value) for name, value in record["logs"].items()}
            state.log_history.append({**self.logs, "step": state.global_step})
        if "metrics" in record:
            self.metrics = {name: number(value) for name, value in record["metrics"].items()}
            self._measured = state.global_step
        self.dataset_name = record.get("dataset", self.dataset_name)
        self.requested_by = frozenset(record.get("asked", ()))
        if "checkpoint" in record:
            step = record["checkpoint"]
            self.checkpoint = CheckpointRecord(self._folder / folder_name(step), step, dict(self.metrics))
        self.saved_step = record.get("saved", self.saved_step)
        if "error" in record:
            self.exception = RuntimeError(record["error"])


_BEFORE_SESSIONS = ("is_local_process_zero", "is_world_process_zero", "train_batch_size")
"""The fields of the state that a trainer sets before its first session."""


def _scalar(value: Any) -> Any:
    value = number(value)
    return torch.tensor(value) if isinstance(value, (int, float)) else value


def _arguments(values: dict[str, Any]) -> TrainingArguments:
    """Build arguments from recorded values, without checks.

    The values may name a device that this machine does not have.
    """
    args = object.__new__(TrainingArguments)
    for each in fields(TrainingArguments):
        default = each.default if each.default is not MISSING else None
        vars(args)[each.name] = values.get(each.name, default)
    return args
