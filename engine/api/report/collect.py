"""Collect the data of the last run in a folder as plain data. The module writes no file and does not import torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....events.errors import ArgumentError, TrainbusError
from ....events.recording.files import NAME as RECORDING
from ....events.recording.files import number
from ....events.stages import Stage
from ....events.state import flattened
from ...checkpoint.format.files import ARGUMENTS, STATE, step_of
from ...checkpoint.read.listing import newest_first, survey
from ...checkpoint.read.saved import SavedCheckpoint
from ...commands.checkpoints import pins_of
from ...commands.status import NAME as STATUS
from ...commands.status import ended, read_status
from ...evaluation.metric_names import SPEED
from ..costs.goodput import NAME as GOODPUT
from ..costs.goodput import read_goodput
from .curves import Curve, clock_of, curves_of
from .last_run import LastRun
from .recorded import Recorded, read_recorded

ROWS = "metrics.jsonl"
"""The name of the file that the tracker `JsonLines` writes."""
_FLAGS = {"evaluate": "evaluate", "save": "save", "training_stop": "stop"}
"""Flag -> the name of the decision in a report."""
_NOT_SHOWN = (*SPEED, "total_flos")


@dataclass
class RunData:
    """The data of a run for the report."""

    name: str
    """The argument `run_name`; the name of the output folder if the argument is not set."""
    folder: str
    """The output folder."""
    status: str = "unknown"
    """`running`, `done`, `stopped`, `preempted`, `failed`, `killed`, or `unknown` without a status file."""
    reason: str = ""
    """Why the run ended; empty if this is not known."""
    step: int = 0
    """The last known step."""
    max_steps: int | None = None
    """The planned number of steps; None if it is not known."""
    epoch: float | None = None
    """The last known epoch; None if no epoch is known."""
    best: dict[str, Any] | None = None
    """`step`, `metric` and `value` of the best evaluation, from the trainer state; None if the state has none."""
    seconds: float | None = None
    """Seconds of training, all sessions together; None if the time is not known."""
    samples_per_step: float | None = None
    """Samples of a step, over all ranks; None if the number is not known."""
    curves: dict[str, Curve] = field(default_factory=dict)
    """The logged values and metrics, by name."""
    steps: dict[str, Curve] = field(default_factory=dict)
    """The loss, gradient norm and learning rate of every step, by name. Empty without a recording."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    """`step` and `metrics` of each evaluation."""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    """`step`, `bytes`, `time`, `metrics`, `pins` and `problems` of each existing checkpoint of the run."""
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """`step`, `what`, `by` and `reason` of each evaluation, save, deletion, load of the best model, and stop."""
    costs: dict[str, Any] | None = None
    """The costs of the last session, as `trainer.costs().to_dict()` returns them; None if they are not known."""
    goodput: dict[str, Any] | None = None
    """The goodput over all sessions, as `Goodput.to_dict` returns it; None if it is not known."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Host, device, torch version, world size, process id and number of sessions, as far as they are known."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """The training arguments."""
    callbacks: dict[str, dict[str, str]] = field(default_factory=dict)
    """Event -> callback -> stage, in the order of calls."""
    sources: list[str] = field(default_factory=list)
    """The files that were read."""
    notes: list[str] = field(default_factory=list)
    """One sentence for each kind of data that is missing or could not be read."""


def collect(folder: str | Path, live: Mapping[str, Any] | None = None) -> RunData:
    """Read the data of a run from its output folder.

    Args:
        folder: the output folder of a run, or one checkpoint. The run may be a run of transformers.
        live: newer values of a running training, which replace the values of the files. The keys are `run_id`, `state`
            (the trainer state), `arguments`, `environment` and `callbacks` (as in `RunData`).

    Raises:
        ArgumentError: if the folder does not exist, or if it has no data of a run.
    """
    path, live = Path(folder), dict(live or {})
    if not path.is_dir():
        raise ArgumentError(f"There is no folder {path}. Name the output folder of a run.")
    run = RunData(path.resolve().name, str(path))
    status = _status(path, run)
    found = [SavedCheckpoint.open(path)] if step_of(path) is not None else survey(path)
    recorded = _recorded(path, run)
    last = LastRun.of(status, recorded.heads, found, str(live.pop("run_id", "")))
    status = _status_of(last, status, run)
    checkpoints = [checkpoint for checkpoint in found if last.saved(checkpoint)]
    state = live.pop("state", None) or _state(path, checkpoints, run, last)
    recorded = _recorded_of(last, recorded, run)
    rows = _rows(path, run, last)
    _note_others(run, [checkpoint for checkpoint in found if checkpoint not in checkpoints])
    if not (run.sources or live):
        raise ArgumentError(
            f"There is nothing of a run in {path}. A report reads {STATUS}, {RECORDING}, {ROWS} and checkpoints."
        )
    _fill_arguments(run, checkpoints, recorded, live)
    run.arguments = live.get("arguments") or run.arguments
    run.callbacks = stage_names(live.get("callbacks") or run.callbacks)
    run.environment |= live.get("environment") or {}
    _fill_progress(run, status, state, recorded)
    _fill_curves(run, state, recorded, rows, checkpoints)
    _fill_checkpoints(run, checkpoints, last.run_id or "")
    _fill_decisions(run, state, recorded)
    run.costs = _costs(status.get("costs"))
    if goodput := read_goodput(path, last.began):
        run.goodput = goodput.to_dict()
        run.sources.append(GOODPUT)
    run.name = str(run.arguments.get("run_name") or run.name)
    return run


def _status(folder: Path, run: RunData) -> dict[str, Any]:
    try:
        status = read_status(folder)
        run.status, run.reason = ended(status) or "running", str(status.get("reason") or "")
    except ArgumentError as error:
        run.notes += [str(error)] if (folder / STATUS).exists() else []
        return {}
    run.sources.append(STATUS)
    run.environment |= {name: status[name] for name in ("host", "world_size", "pid") if name in status}
    return status


def _status_of(last: LastRun, status: dict[str, Any], run: RunData) -> dict[str, Any]:
    """Return the status, or {} if it is not of the last run."""
    if not status or last.has_status or last.run_id is None:
        return status
    run.status, run.reason = "unknown", ""
    _leave_out(run, STATUS)
    for name in ("host", "world_size", "pid"):
        run.environment.pop(name, None)
    return {}


def _recorded_of(last: LastRun, recorded: Recorded, run: RunData) -> Recorded:
    """Return the recording, or an empty one if it is not of the last run."""
    if not recorded.heads or last.owns(str(recorded.heads[-1].get("run") or "")):
        return recorded
    _leave_out(run, RECORDING)
    return Recorded()


def _leave_out(run: RunData, name: str) -> None:
    run.sources.remove(name)
    run.notes.append(f"{name} is of an earlier run, so the report leaves it out.")


def _note_others(run: RunData, others: Sequence[SavedCheckpoint]) -> None:
    if others:
        names = ", ".join(checkpoint.path.name for checkpoint in others)
        run.notes.append(f"The report leaves out checkpoints of earlier runs or sessions: {names}.")


def _state(folder: Path, checkpoints: Sequence[SavedCheckpoint], run: RunData, last: LastRun) -> dict[str, Any]:
    """Read the trainer state of the newest readable checkpoint, and the trainer state in the output folder.

    Return the state with more steps; {} if there is no state. Add the names of the read files, and problems, to `run`.
    """
    found: dict[str, Any] = {}
    for checkpoint in newest_first(checkpoints):
        try:
            found = checkpoint.state
        except TrainbusError as error:
            run.notes.append(str(error))
            continue
        run.sources.append(f"{checkpoint.path.name}/{STATE}")
        break
    with suppress(OSError, ValueError):
        own = json.loads((folder / STATE).read_text(encoding="utf-8"))
        newer = last.wrote(folder / STATE)
        if newer and isinstance(own, dict) and (own.get("global_step") or 0) >= (found.get("global_step") or 0):
            found = flattened(own)
            run.sources.append(STATE)
    return found


def _recorded(folder: Path, run: RunData) -> Recorded:
    try:
        recorded = read_recorded(folder / RECORDING)
    except FileNotFoundError:
        return Recorded()
    except (OSError, KeyError, TypeError, AttributeError) as error:
        run.notes.append(f"{RECORDING} cannot be read: {error!r}.")
        return Recorded()
    run.sources.append(RECORDING)
    return recorded


def _rows(folder: Path, run: RunData, last: LastRun) -> list[dict[str, Any]]:
    """Read the rows of `metrics.jsonl` that have a step; [] if the file is missing, damaged or of an earlier run.

    The function renames the metrics as in the log history: `train/loss` to `loss`, and `eval/loss` to `eval_loss`.
    """
    try:
        lines = (folder / ROWS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    run.sources.append(ROWS)
    if not last.wrote(folder / ROWS):
        _leave_out(run, ROWS)
        return []
    rows = []
    for line in lines:
        with suppress(ValueError, AttributeError, TypeError):  # the last line may be incomplete
            row = {_plain(name): number(value) for name, value in json.loads(line).items()}
            step = row.pop("global_step", row.pop("train/global_step", None))
            if step is not None:
                rows.append({**row, "step": int(step)})
    return rows


def _plain(name: str) -> str:
    kind, slash, rest = name.partition("/")
    return {"train": rest, "eval": f"eval_{rest}"}.get(kind, name) if slash else name


def _fill_arguments(
    run: RunData, checkpoints: Sequence[SavedCheckpoint], recorded: Recorded, live: Mapping[str, Any]
) -> None:
    for checkpoint in newest_first(checkpoints):
        with suppress(OSError, ValueError):
            found = json.loads((checkpoint.path / ARGUMENTS).read_text(encoding="utf-8"))
            if isinstance(found, dict):
                run.arguments = found
                break
    if recorded.heads:
        head = recorded.heads[-1]
        run.arguments = head.get("args") or run.arguments
        run.callbacks = head.get("handlers") or {}
        names = {"host": "host", "device": "device", "torch": "torch", "ranks": "world_size", "pid": "pid"}
        run.environment |= {kept: head[name] for name, kept in names.items() if name in head}
        run.environment["sessions"] = len(recorded.heads)
    if not (run.arguments or live):
        run.notes.append("The arguments are not known: no checkpoint and no recording holds them.")


def _fill_progress(data: RunData, status: Mapping[str, Any], state: Mapping[str, Any], recorded: Recorded) -> None:
    steps = [status.get("step"), state.get("global_step"), *(curve.steps[-1] for curve in recorded.steps.values())]
    data.step = max((int(step) for step in steps if step), default=0)
    data.max_steps = status.get("max_steps") or state.get("max_steps")
    data.epoch = status.get("epoch", state.get("epoch"))
    if recorded.error and not data.reason:
        data.status, data.reason = "failed", recorded.error
    if state.get("best_metric") is not None:
        data.best = {
            "step": state.get("best_global_step"),
            "metric": data.arguments.get("metric_for_best_model"),
            "value": state["best_metric"],
        }
    done, seen = state.get("global_step"), state.get("samples_seen")
    if done and seen:
        data.samples_per_step = seen / done
    elif batch := data.arguments.get("per_device_train_batch_size", state.get("train_batch_size")):
        ranks = data.environment.get("world_size") or 1
        data.samples_per_step = batch * (data.arguments.get("gradient_accumulation_steps") or 1) * ranks


def _fill_curves(
    data: RunData,
    state: Mapping[str, Any],
    recorded: Recorded,
    rows: list[dict[str, Any]],
    checkpoints: Sequence[SavedCheckpoint],
) -> None:
    times = [(checkpoint.step, checkpoint.seconds) for checkpoint in checkpoints if checkpoint.seconds]
    if state.get("seconds"):
        times.append((state.get("global_step") or 0, state["seconds"]))
    if recorded.steps:
        curve = next(iter(recorded.steps.values()))
        times = [(step, float(seconds or 0.0)) for step, seconds in zip(curve.steps, curve.seconds)]
    elif times:
        times.append((0, 0.0))
        data.notes.append("The times of values are interpolated between checkpoints. A recorded run has exact ones.")
    else:
        data.notes.append("The times of values are not known: no checkpoint and no recording holds them.")
    history = [row for row in state.get("log_history") or () if isinstance(row, dict) and "step" in row]
    # A run writes the recording and the rows at once, but the state only with a checkpoint. So take the newest of them.
    best = max((recorded.logs, rows, history), key=lambda each: max((row["step"] for row in each), default=-1))
    data.curves, data.steps = curves_of(best, clock_of(times)), recorded.steps
    if not best:
        data.notes.append(
            "No logged values are there. Set `logging_steps`, and `record=True` for a run that may crash."
        )
    evaluated: dict[int, dict[str, Any]] = {}
    for row in best:
        metrics = {name: value for name, value in row.items() if name.startswith("eval_")}
        if metrics:
            evaluated.setdefault(row["step"], {}).update(metrics)
    data.evaluations = [{"step": step, "metrics": metrics} for step, metrics in sorted(evaluated.items())]
    data.step = max([data.step, *(row["step"] for row in best)])
    data.seconds = max((seconds for _, seconds in times), default=None)


def _fill_checkpoints(run: RunData, checkpoints: Sequence[SavedCheckpoint], last: str) -> None:
    problems = {checkpoint.path: checkpoint.problems(full=False) for checkpoint in checkpoints}
    pins = pins_of([checkpoint for checkpoint in checkpoints if not problems[checkpoint.path]], last)
    for checkpoint in checkpoints:
        size = 0
        for path in checkpoint.path.rglob("*"):
            with suppress(OSError):  # retention deletes it at this moment
                size += path.stat().st_size if path.is_file() else 0
        run.checkpoints.append(
            {
                "step": checkpoint.step,
                "bytes": size,
                "time": checkpoint.time or None,
                "metrics": {name: value for name, value in checkpoint.metrics.items() if not name.endswith(_NOT_SHOWN)},
                "pins": pins.get(checkpoint.step, []),
                "problems": problems[checkpoint.path],
            }
        )


def _fill_decisions(run: RunData, state: Mapping[str, Any], recorded: Recorded) -> None:
    if recorded.decisions:
        run.decisions = [dict(row) for row in recorded.decisions]
        return
    for entry in state.get("ledger") or ():
        if isinstance(entry, dict) and entry.get("action") == "take" and entry.get("flag") in _FLAGS:
            by, _, reason = str(entry.get("reason") or "").partition(": ")
            decision = {"step": entry.get("step", 0), "what": _FLAGS[entry["flag"]], "by": by, "reason": reason}
            run.decisions.append(decision)


def stage_names(plan: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return a handler order with names of stages in place of numbers.

    Args:
        plan: event -> callback -> number of the stage, such as 30 for `Stage.DECIDE`.
    """
    return {
        str(event): {str(owner): _stage_name(stage) for owner, stage in handlers.items()}
        for event, handlers in plan.items()
        if isinstance(handlers, dict)
    }


def _stage_name(number: Any) -> str:
    try:
        return Stage(number).name
    except ValueError:
        return str(number)


def _costs(values: Any) -> dict[str, Any] | None:
    """Return the recorded costs of a session without malformed entries; None if no entry is left.

    Each entry of `parts` and `callbacks` must have a name and its seconds.
    """
    if not isinstance(values, dict):
        return None
    parts = [each for each in _listed(values.get("parts")) if _has(each, {"part": str, **_SECONDS})]
    callbacks = [each for each in _listed(values.get("callbacks")) if _has(each, {"callback": str, **_SECONDS})]
    return {**values, "parts": parts, "callbacks": callbacks} if parts or callbacks else None


_SECONDS = {"seconds": (int, float)}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _has(value: Any, kinds: Mapping[str, Any]) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in kinds.items())


def differing(runs: Sequence[RunData]) -> list[str]:
    """Return the names of the arguments that differ between runs. `output_dir` and `run_name` are left out."""
    known = [run.arguments for run in runs if run.arguments]
    names = dict.fromkeys(name for arguments in known for name in arguments)
    written = {name: {json.dumps(each.get(name), sort_keys=True, default=str) for each in known} for name in names}
    return [name for name, values in written.items() if len(values) > 1 and name not in ("output_dir", "run_name")]
